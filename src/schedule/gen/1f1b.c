/* 1f1b.c -- 1F1B: one warm-up forward for each later stage, then alternate, then drain.
 *
 *   stage 0 | F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5
 *   stage 1 | F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5
 *   stage 2 | F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5
 *   stage 3 | F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5
 *
 * The same over time, where B takes twice the time of F:
 *
 *   stage 0 | F0 F1 F2 F3 .  .  .  .  .  .  B0 -- F4 B1 -- F5 B2 -- .  B3 -- .  B4 -- .  B5 --
 *   stage 1 | .  F0 F1 F2 .  .  .  .  B0 -- F3 B1 -- F4 B2 -- F5 B3 -- .  B4 -- .  B5 -- .  .
 *   stage 2 | .  .  F0 F1 .  .  B0 -- F2 B1 -- F3 B2 -- F4 B3 -- F5 B4 -- .  B5 -- .  .  .  .
 *   stage 3 | .  .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- F4 B4 -- F5 B5 -- .  .  .  .  .  .
 *
 * The bubble is that of GPipe, (P-1)(F+B), but stage r holds the activations of only min(P-r, m)
 * micro-batches, however large m is. */
#include "schedule/gen/generate.h"

int gen_1f1b(const Pipeline *p, int stage, Action *out)
{
    const int after = p->stages - 1 - stage, micros = p->micros;
    const int warm = after < micros ? after : micros;
    int n = 0, f = 0, b = 0;
    while (f < warm) out[n++] = action_run(PHASE_F, stage, f++, 0);
    while (f < micros) {
        out[n++] = action_run(PHASE_F, stage, f++, 0);
        out[n++] = action_run(PHASE_B, stage, b++, 0);
    }
    while (b < micros) out[n++] = action_run(PHASE_B, stage, b++, 0);
    return n;
}
