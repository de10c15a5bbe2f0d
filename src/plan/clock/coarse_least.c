/* coarse_least.c -- bytes that the first rank of a stage needs at least.
 *
 *     unit     0      1      2         F of a chunk     frames 0 .. u, pack and scratch of u
 *     frames   |      |      |         B                the same, and the gradients of u
 *                                      I, then W        what units carry takes the frames' place
 *
 * Summaries have the most of all ranks; here the numbers are those of one rank, so that they add
 * up. What may be gone is left out: values that were sent, packs and gradients of other units. */
#include "plan/clock/coarse_parts.h"

static const UnitSummary *of_first(const UnitSummary *u) { return u->first ? u->first : u; }

static double larger(double a, double b) { return a > b ? a : b; }

static void raise_bytes(size_t *most, double bytes)
{
    if (bytes > (double)*most) *most = (size_t)bytes;
}

static bool reads(unsigned phases, Phase p) { return phases >> p & 1; }

/* Bytes of a unit from F to I, and from F to W. Its y is counted if a backward phase reads it; the
 * last one's is not: it is sent. */
typedef struct {
    double to_i, to_w;
} Frame;

static Frame frame_of(const CoarseClock *c, const CoarseChunk *k, int unit)
{
    const UnitSummary *u = of_first(c->unit[unit]);
    Frame f = {(double)u->region_bytes[REGION_FRAME_I], (double)u->region_bytes[REGION_FRAME_W]};
    if (unit == k->end - 1) return f;
    const unsigned by = u->y_read | of_first(c->unit[unit + 1])->x_read;
    if (reads(by, PHASE_W))
        f.to_w += (double)u->y_bytes;
    else if (reads(by, PHASE_I))
        f.to_i += (double)u->y_bytes;
    return f;
}

static void add_changes(const UnitSummary *u, Frame f, CoarseLeast *l)
{
    const double carry = (double)u->region_bytes[REGION_CARRY];
    l->change[PHASE_F] += f.to_i + f.to_w;
    l->change[PHASE_I] += carry - f.to_i;
    l->change[PHASE_W] -= carry + f.to_w;
    l->change[PHASE_B] -= f.to_i + f.to_w;
}

void coarse_least_chunk(const CoarseClock *c, CoarseChunk *k)
{
    const UnitSummary *first = of_first(c->unit[k->first]), *last = of_first(c->unit[k->end - 1]);
    CoarseLeast *l = &k->least;
    double after = 0; /* frames of the units after it */
    for (int i = k->end - 1; i >= k->first; i--) {
        const UnitSummary *u = of_first(c->unit[i]);
        const Frame f = frame_of(c, k, i);
        const double pack = (double)u->pack_bytes, grads = (double)u->work_grad_bytes;
        const size_t *scratch = u->scratch_bytes;
        if (i < k->end - 1) after += (double)u->y_bytes; /* as much as it was counted, or more */
        l->beside[PHASE_F] = larger(l->beside[PHASE_F], (double)scratch[PHASE_F] + pack - after);
        l->beside[PHASE_I] = larger(l->beside[PHASE_I], (double)scratch[PHASE_I] + pack - after);
        l->beside[PHASE_B] =
            larger(l->beside[PHASE_B], (double)scratch[PHASE_B] + pack + grads - after);
        after += (double)u->region_bytes[REGION_FRAME_I] + (double)u->region_bytes[REGION_FRAME_W];
        add_changes(u, f, l);
    }
    l->beside[PHASE_W] = (double)last->scratch_bytes[PHASE_W] + (double)last->work_grad_bytes;
    l->after_i = (double)first->scratch_bytes[PHASE_I] + (double)first->pack_bytes +
                 (double)first->region_bytes[REGION_FRAME_I];
}

void coarse_least_unit(const UnitSummary *unit, CoarseStage *g)
{
    const UnitSummary *u = of_first(unit);
    g->least_live_bytes += (double)u->state_bytes + (double)u->grad_bytes;
    g->least_bytes = (size_t)g->least_live_bytes;
}

void coarse_least_run(const CoarseLeast *l, Phase phase, CoarseStage *g)
{
    if (phase == PHASE_F) g->least_live_bytes += l->change[PHASE_F];
    raise_bytes(&g->least_bytes, g->least_live_bytes + l->beside[phase]);
    if (phase != PHASE_F) g->least_live_bytes += l->change[phase];
    if (phase == PHASE_I) raise_bytes(&g->least_bytes, g->least_live_bytes + l->after_i);
}
