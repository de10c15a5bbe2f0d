/* interleaved.c -- interleaved 1F1B: 1F1B over several chunks per stage, by groups of
 * micro-batches.
 *
 *   stage 0 | F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 b2 b3 B2 B3
 *   stage 1 | F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3
 *
 * The same over time, where B takes twice the time of F:
 *
 *   stage 0 | F0 F1 f0 f1 F2 .  b0 -- F3 b1 -- f2 B0 -- f3 B1 -- .  b2 -- .  b3 -- B2 -- B3 --
 *   stage 1 | .  F0 F1 f0 b0 -- f1 b1 -- F2 B0 -- F3 B1 -- f2 b2 -- f3 b3 -- B2 -- B3 -- .  .
 *
 * Micro-batches run in groups: a group through the first chunk, then through the second (lower
 * case), and backward from the last chunk. The bubble is that of 1F1B with stages v times shorter,
 * (P-1)(F+B), if m >= P. Stage r holds min(2(P-r-1) + (v-1)g + 1, mv) chunks, where g is the size
 * of the first group. Groups are as equal as possible, so that none is smaller than P: in groups of
 * P, a short last group would cost about as much as the interleaving saves. */
#include "schedule/gen/groups.h"

int gen_interleaved(const Pipeline *p, int stage, Action *out)
{
    const int all = p->micros * p->chunks, after = p->stages - 1 - stage;
    const int warm = (p->chunks - 1) * group_size(p, 0) + 2 * after;
    GroupWalk f = {0}, b = {0};
    int n = 0;
    while (f.n < all && f.n < warm) out[n++] = group_next(&f, p, stage, PHASE_F);
    while (f.n < all) {
        out[n++] = group_next(&f, p, stage, PHASE_F);
        out[n++] = group_next(&b, p, stage, PHASE_B);
    }
    while (b.n < all) out[n++] = group_next(&b, p, stage, PHASE_B);
    return n;
}
