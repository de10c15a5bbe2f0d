/* zbh2.c -- ZB-H2: ZB-H1 with twice the forwards in flight, so that no stage waits in between.
 *
 *   stage 0 | F0 F1 F2 F3 F4 F5 F6 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6
 *   stage 1 | F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 I3 W1 I4 W2 I5 W3 I6 W4 W5 W6
 *   stage 2 | F0 F1 F2 I0 F3 I1 F4 I2 F5 I3 F6 I4 W0 I5 W1 I6 W2 W3 W4 W5 W6
 *   stage 3 | F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 W1 W2 W3 W4 W5 W6
 *
 * The same over time, where F, I and W take the same time:
 *
 *   stage 0 | F0 F1 F2 F3 F4 F5 F6 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 .  .  .
 *   stage 1 | .  F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 I3 W1 I4 W2 I5 W3 I6 W4 W5 W6 .  .
 *   stage 2 | .  .  F0 F1 F2 I0 F3 I1 F4 I2 F5 I3 F6 I4 W0 I5 W1 I6 W2 W3 W4 W5 W6 .
 *   stage 3 | .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 W1 W2 W3 W4 W5 W6
 *
 * With m >= 2P-1 and F = I = W no stage waits between its first RUN and its last. The remaining
 * bubble, (P-1)F, comes from stages that start and end at different times; the norm over all stages
 * makes them wait for each other again. Every stage holds 2P-1 micro-batches. With other times or
 * fewer micro-batches the list is still valid, but stages do wait. */
#include "schedule/gen/generate.h"

int gen_zbh2(const Pipeline *p, int stage, Action *out)
{
    const int micros = p->micros, warm = 2 * (p->stages - stage) - 1;
    int n = 0, f = 0, i = 0, w = 0;
    while (f < micros && f < warm) out[n++] = action_run(PHASE_F, stage, f++, 0);
    while (i < micros) {
        out[n++] = action_run(PHASE_I, stage, i++, 0);
        if (i > 2 * stage) out[n++] = action_run(PHASE_W, stage, w++, 0);
        if (f < micros) out[n++] = action_run(PHASE_F, stage, f++, 0);
    }
    while (w < micros) out[n++] = action_run(PHASE_W, stage, w++, 0);
    return n;
}
