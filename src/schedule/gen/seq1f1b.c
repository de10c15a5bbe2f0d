/* seq1f1b.c -- Seq1F1B: 1F1B over slices of micro-batches, backwards from the last slice.
 *
 *   stage 0 | F0.0 F0.1 F1.0 B0.1 F1.1 B0.0 B1.1 B1.0
 *   stage 1 | F0.0 F0.1 B0.1 F1.0 B0.0 F1.1 B1.1 B1.0
 *
 * The same over time, where B takes twice the time of F:
 *
 *   stage 0 | F0.0 F0.1 F1.0 .    .    B0.1 --   F1.1 B0.0 --   .    B1.1 --   B1.0 --
 *   stage 1 | .    F0.0 F0.1 B0.1 --   F1.0 B0.0 --   F1.1 B1.1 --   B1.0 --   .    .
 *
 * A slice reads the keys and values of the slices before it, so backwards start at the last slice.
 * Slices should take equal time (slices.h), because causal attention makes later tokens more
 * expensive. With k equal slices the bubble is that of 1F1B with micro-batches k times shorter,
 * (P-1)(F+B); stage r holds min(P-r-1+k, mk) slices. */
#include "schedule/gen/generate.h"

int gen_seq1f1b(const Pipeline *p, int stage, Action *out)
{
    const int k = p->slices, all = p->micros * k;
    const int warm = p->stages - 2 - stage + k; /* so that the first backward has its last slice */
    int n = 0, f = 0, b = 0;
    for (; f < all && f < warm; f++) out[n++] = action_run(PHASE_F, stage, f / k, f % k);
    for (; f < all; f++, b++) {
        out[n++] = action_run(PHASE_F, stage, f / k, f % k);
        out[n++] = action_run(PHASE_B, stage, b / k, k - 1 - b % k);
    }
    for (; b < all; b++) out[n++] = action_run(PHASE_B, stage, b / k, k - 1 - b % k);
    return n;
}
