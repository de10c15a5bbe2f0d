/* zbv.c -- ZB-V: two chunks per stage, on a V, and no wait between a stage's first and last RUN.
 *
 *   stage 0 | F0 F1 F2 f0 i0 w0 f1 i1 w1 F3 I0 W0 f2 i2 w2 I1 W1 f3 i3 w3 I2 W2 I3 W3
 *   stage 1 | F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 F3 I1 W1 f3 i2 w2 I2 i3 I3 W2 w3 W3
 *
 * The same over time, where F, I and W take the same time:
 *
 *   stage 0 | F0 F1 F2 f0 i0 w0 f1 i1 w1 F3 I0 W0 f2 i2 w2 I1 W1 f3 i3 w3 I2 W2 I3 W3 .
 *   stage 1 | .  F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 F3 I1 W1 f3 i2 w2 I2 i3 I3 W2 w3 W3
 *
 * The second chunk, in lower case, is on the way back up the V: stage 0 has the first chunk and the
 * last, and on the last stage the value stays in memory. With m >= 2P-1 and F = I = W no stage
 * waits between its first RUN and its last, the bubble is (P-1)F, and every stage holds 2P chunks.
 * For fewer micro-batches the list is written for 2P-1, and the RUNs of missing micro-batches are
 * deleted. */
#include "schedule/gen/v.h"

int gen_zbv(const Pipeline *p, int stage, Action *out)
{
    const int after = p->stages - stage, micros = p->micros;
    VStage l = v_stage(p, stage, out);
    const int *down = &l.next[PHASE_F][V_DOWN], *up = &l.next[PHASE_F][V_UP];
    for (int i = 0; i < 2 * after - 1; i++) v_run(&l, PHASE_F, V_DOWN);
    for (int i = 0; i < stage; i++) {
        v_run(&l, PHASE_F, V_UP);
        v_run(&l, PHASE_F, V_DOWN);
    }
    for (int i = 0; i < after; i++) {
        v_run(&l, PHASE_F, V_UP);
        v_run_backward(&l, V_UP);
    }
    while (*up < *down || *down < micros) {
        if (*down < micros) v_run(&l, PHASE_F, V_DOWN);
        v_run_backward(&l, V_DOWN);
        v_run(&l, PHASE_F, V_UP);
        v_run_backward(&l, V_UP);
    }
    for (int i = 0; i < stage; i++) {
        v_run(&l, PHASE_I, V_DOWN);
        v_run(&l, PHASE_I, V_UP);
    }
    for (int i = 0; i < after; i++) v_run_backward(&l, V_DOWN);
    while (l.next[PHASE_W][V_UP] < micros) v_run(&l, PHASE_W, V_UP);
    while (l.next[PHASE_W][V_DOWN] < micros) v_run(&l, PHASE_W, V_DOWN);
    return l.n;
}
