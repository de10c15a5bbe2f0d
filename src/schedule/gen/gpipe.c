/* gpipe.c -- GPipe: all forwards, then all backwards.
 *
 *   rank 0 | F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5
 *   rank 1 | F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5
 *   rank 2 | F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5
 *   rank 3 | F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5
 *
 * The same by the clock, where B takes twice the time of F:
 *
 *   rank 0 | F0 F1 F2 F3 F4 F5 .  .  .  .  .  .  .  .  .  B0 -- B1 -- B2 -- B3 -- B4 -- B5 --
 *   rank 1 | .  F0 F1 F2 F3 F4 F5 .  .  .  .  .  .  B0 -- B1 -- B2 -- B3 -- B4 -- B5 -- .  .
 *   rank 2 | .  .  F0 F1 F2 F3 F4 F5 .  .  .  B0 -- B1 -- B2 -- B3 -- B4 -- B5 -- .  .  .  .
 *   rank 3 | .  .  .  F0 F1 F2 F3 F4 F5 B0 -- B1 -- B2 -- B3 -- B4 -- B5 -- .  .  .  .  .  .
 *
 * With F forward time and B backward time a stage, the bubble is (P-1)(F+B), and every rank holds
 * the activations of all micro-batches. */
#include "schedule/gen/generate.h"

int gen_gpipe(const Pipeline *p, int rank, Action *out)
{
    int n = 0;
    for (int micro = 0; micro < p->micros; micro++)
        for (int slice = 0; slice < p->slices; slice++)
            out[n++] = action_run(PHASE_F, rank, micro, slice);
    /* Oldest first, though any order would do: gradients add up as on one rank. */
    for (int micro = 0; micro < p->micros; micro++)
        for (int slice = p->slices - 1; slice >= 0; slice--)
            out[n++] = action_run(PHASE_B, rank, micro, slice);
    return n;
}
