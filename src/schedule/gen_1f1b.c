/* gen_1f1b.c -- 1F1B: a warm-up forward for each stage after mine, then alternate, then drain.
 */
#include "schedule/generate.h"

int gen_1f1b(const Schedule *shape, int rank, Action *out)
{
    const int after = shape->ranks - 1 - rank, micros = shape->micros;
    const int warm = after < micros ? after : micros;
    int n = 0, f = 0, b = 0;
    while (f < warm) out[n++] = action_run(PHASE_F, rank, f++, 0);
    while (f < micros) {
        out[n++] = action_run(PHASE_F, rank, f++, 0);
        out[n++] = action_run(PHASE_B, rank, b++, 0);
    }
    while (b < micros) out[n++] = action_run(PHASE_B, rank, b++, 0);
    return n;
}
