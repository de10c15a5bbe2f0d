/* gpipe.c -- GPipe: all forwards, then all backwards.
 *
 *   stage 0 | F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5
 *   stage 1 | F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5
 *   stage 2 | F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5
 *   stage 3 | F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5
 *
 * The same over time, where B takes twice the time of F:
 *
 *   stage 0 | F0 F1 F2 F3 F4 F5 .  .  .  .  .  .  .  .  .  B0 -- B1 -- B2 -- B3 -- B4 -- B5 --
 *   stage 1 | .  F0 F1 F2 F3 F4 F5 .  .  .  .  .  .  B0 -- B1 -- B2 -- B3 -- B4 -- B5 -- .  .
 *   stage 2 | .  .  F0 F1 F2 F3 F4 F5 .  .  .  B0 -- B1 -- B2 -- B3 -- B4 -- B5 -- .  .  .  .
 *   stage 3 | .  .  .  F0 F1 F2 F3 F4 F5 B0 -- B1 -- B2 -- B3 -- B4 -- B5 -- .  .  .  .  .  .
 *
 * With F and B the forward and backward time of a stage, the bubble is (P-1)(F+B), and every stage
 * holds the activations of all micro-batches. */
#include "schedule/gen/generate.h"

int gen_gpipe(const Pipeline *p, int stage, Action *out)
{
    int n = 0;
    for (int micro = 0; micro < p->micros; micro++)
        for (int slice = 0; slice < p->slices; slice++)
            out[n++] = action_run(PHASE_F, stage, micro, slice);
    /* Oldest first, though any order would do: gradients are summed in the order of a single
     * rank. */
    for (int micro = 0; micro < p->micros; micro++)
        for (int slice = p->slices - 1; slice >= 0; slice--)
            out[n++] = action_run(PHASE_B, stage, micro, slice);
    return n;
}
