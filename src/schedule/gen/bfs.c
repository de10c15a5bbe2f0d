/* bfs.c -- breadth first: all micro-batches run through a chunk before the next chunk.
 *
 *   stage 0 | F0 F1 F2 f0 f1 f2 b0 b1 b2 B0 B1 B2
 *   stage 1 | F0 F1 F2 f0 f1 f2 b0 b1 b2 B0 B1 B2
 *   stage 2 | F0 F1 F2 f0 f1 f2 b0 b1 b2 B0 B1 B2
 *
 * The same over time, where B takes twice the time of F:
 *
 *   stage 0 | F0 F1 F2 f0 f1 f2 .  .  .  .  .  .  b0 -- b1 -- b2 -- B0 -- B1 -- B2 --
 *   stage 1 | .  F0 F1 F2 f0 f1 f2 .  .  .  b0 -- b1 -- b2 -- B0 -- B1 -- B2 -- .  .
 *   stage 2 | .  .  F0 F1 F2 f0 f1 f2 b0 -- b1 -- b2 -- B0 -- B1 -- B2 -- .  .  .  .
 *
 * The bubble is that of interleaved 1F1B, (P-1)(F+B) if m >= P, and (v-1)(P-m)(F+B) more if m < P.
 * Every stage holds all mv activations. The gain: a chunk's parameters are needed in two runs of
 * consecutive RUNs only, and its gradients are complete long before the step ends, so gathers and
 * reductions overlap with computation. */
#include "schedule/gen/generate.h"

int gen_bfs(const Pipeline *p, int stage, Action *out)
{
    int n = 0;
    for (int turn = 0; turn < p->chunks; turn++)
        for (int micro = 0; micro < p->micros; micro++)
            out[n++] = action_run(PHASE_F, turn * p->stages + stage, micro, 0);
    /* Oldest first here too: gradients are summed in the order of a single rank. */
    for (int turn = p->chunks - 1; turn >= 0; turn--)
        for (int micro = 0; micro < p->micros; micro++)
            out[n++] = action_run(PHASE_B, turn * p->stages + stage, micro, 0);
    return n;
}
