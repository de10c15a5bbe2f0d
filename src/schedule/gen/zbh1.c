/* zbh1.c -- ZB-H1: 1F1B whose parameter gradients (W) are delayed to fill idle time.
 *
 *   stage 0 | F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5
 *   stage 1 | F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5
 *   stage 2 | F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5
 *   stage 3 | F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5
 *
 * The same over time, where F, I and W take the same time:
 *
 *   stage 0 | F0 F1 F2 F3 .  .  .  I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5
 *   stage 1 | .  F0 F1 F2 .  .  I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5
 *   stage 2 | .  .  F0 F1 .  I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5
 *   stage 3 | .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5
 *
 * A backward is I, for which the stage before waits, and W, for which no stage waits. Stage r
 * delays the first r of its Ws and thereby fills the end, where 1F1B is idle. The bubble is
 * (P-1)(F+I-W) if m >= P, and (P-m)W more if m < P. Every stage holds min(P, m) micro-batches, the
 * maximum that 1F1B holds on any stage. */
#include "schedule/gen/generate.h"

int gen_zbh1(const Pipeline *p, int stage, Action *out)
{
    const int micros = p->micros, warm = p->stages - 1 - stage;
    int n = 0, f = 0, i = 0, w = 0;
    while (f < micros && f < warm) out[n++] = action_run(PHASE_F, stage, f++, 0);
    while (i < micros) {
        if (f < micros) out[n++] = action_run(PHASE_F, stage, f++, 0);
        out[n++] = action_run(PHASE_I, stage, i++, 0);
        if (i > stage) out[n++] = action_run(PHASE_W, stage, w++, 0);
    }
    while (w < micros) out[n++] = action_run(PHASE_W, stage, w++, 0);
    return n;
}
