/* dualpipev.c -- DualPipe-V: on a V, forwards of one chunk paired with backwards of the other.
 *
 *   stage 0 | F0 F1 F2 f0 i0 w0 f1 F3 b1 f2 B0 b2 f3 B1 b3 I2 W2 I3 W3
 *   stage 1 | F0 f0 F1 f1 F2 b0 f2 B0 F3 b1 f3 B1 b2 B2 i3 I3 w3 W3
 *
 * The same over time, where F, I and W take the same time and B twice that:
 *
 *   stage 0 | F0 F1 F2 f0 i0 w0 f1 F3 b1 -- f2 B0 -- b2 -- f3 .  B1 -- b3 -- I2 W2 I3 W3
 *   stage 1 | .  F0 f0 F1 f1 F2 b0 -- f2 B0 -- F3 b1 -- f3 B1 -- b2 -- B2 -- i3 I3 w3 W3
 *
 * The second chunk, in lower case, is on the way back up the V. F3 b1, f2 B0 and so on are pairs of
 * two independent micro-batches, so that the transfers of one can overlap with the other; here they
 * are two RUNs in a row. With m >= 2P and F = I = W the bubble is (P-1)F, and every stage holds
 * 2P+1 chunks. For fewer micro-batches the list is written for 2P, and the RUNs of missing
 * micro-batches are deleted. */
#include "schedule/gen/v.h"

/* A forward of one leg and a backward of the other, which may overlap. */
static void pair(VStage *l, int forward)
{
    v_run(l, PHASE_F, forward);
    v_run(l, PHASE_B, 1 - forward);
}

/* W of the oldest I that has none; those before *from have one. */
static void weight(VStage *l, int *from)
{
    while (l->out[*from].phase != PHASE_I) ++*from;
    v_run(l, PHASE_W, l->out[(*from)++].unit == l->chunk[V_UP]);
}

int gen_dualpipev(const Pipeline *p, int stage, Action *out)
{
    const int after = p->stages - 1 - stage, before = stage + 1;
    VStage l = v_stage(p, stage, out);
    int oldest = 0;
    for (int i = 0; i < 2 * after; i++) v_run(&l, PHASE_F, V_DOWN);
    for (int i = 0; i < before; i++) {
        v_run(&l, PHASE_F, V_DOWN);
        v_run(&l, PHASE_F, V_UP);
    }
    for (int i = 0; i < after; i++) {
        v_run(&l, PHASE_I, V_UP);
        weight(&l, &oldest);
        v_run(&l, PHASE_F, V_UP);
    }
    for (int i = 0; i < p->micros - 2 * p->stages + before; i++) {
        pair(&l, V_DOWN);
        pair(&l, V_UP);
    }
    for (int i = 0; i < after; i++) {
        v_run(&l, PHASE_B, V_UP);
        pair(&l, V_UP);
    }
    for (int i = 0; i < 2 * before; i++) /* the second half delays its W */
        v_run(&l, i < before ? PHASE_B : PHASE_I, i % 2 ? V_DOWN : V_UP);
    for (int i = 0; i < after; i++) {
        weight(&l, &oldest);
        v_run(&l, PHASE_I, V_DOWN);
    }
    for (int i = 0; i < before; i++) weight(&l, &oldest);
    return l.n;
}
