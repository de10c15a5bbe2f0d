/* izb.c -- interleaved zero-bubble: the order of interleaved 1F1B with the delayed Ws of ZB-H1.
 *
 *   stage 0 | F0 F1 F2 f0 f1 f2 i0 w0 i1 w1 i2 w2 I0 W0 I1 W1 I2 W2
 *   stage 1 | F0 F1 F2 f0 f1 i0 f2 i1 w0 i2 w1 I0 w2 I1 W0 I2 W1 W2
 *   stage 2 | F0 F1 F2 f0 i0 f1 i1 f2 i2 w0 I0 w1 I1 w2 I2 W0 W1 W2
 *
 * The same over time, where F, I and W take the same time:
 *
 *   stage 0 | F0 F1 F2 f0 f1 f2 .  .  i0 w0 i1 w1 i2 w2 I0 W0 I1 W1 I2 W2
 *   stage 1 | .  F0 F1 F2 f0 f1 .  i0 f2 i1 w0 i2 w1 I0 w2 I1 W0 I2 W1 W2
 *   stage 2 | .  .  F0 F1 F2 f0 i0 f1 i1 f2 i2 w0 I0 w1 I1 w2 I2 W0 W1 W2
 *
 * The second chunk is in lower case. Stage r delays r of its Ws. The bubble is that of ZB-H1 with
 * stages v times shorter, (P-1)(F+I-W), if m >= P. Every stage holds at most (v-1)g + P chunks,
 * where g is the size of the first group. */
#include "schedule/gen/groups.h"

int gen_izb(const Pipeline *p, int stage, Action *out)
{
    const int all = p->micros * p->chunks, after = p->stages - 1 - stage;
    const int warm = (p->chunks - 1) * group_size(p, 0) + after;
    GroupWalk f = {0}, i = {0}, w = {0};
    int n = 0;
    while (f.n < all && f.n < warm) out[n++] = group_next(&f, p, stage, PHASE_F);
    while (i.n < all) {
        if (f.n < all) out[n++] = group_next(&f, p, stage, PHASE_F);
        out[n++] = group_next(&i, p, stage, PHASE_I);
        if (i.n > stage) out[n++] = group_next(&w, p, stage, PHASE_W);
    }
    while (w.n < all) out[n++] = group_next(&w, p, stage, PHASE_W);
    return n;
}
