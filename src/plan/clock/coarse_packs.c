/* coarse_packs.c -- gathers and reductions of the coarse clock.
 *
 * Packs that are kept are gathered one RUN before their first use. The others share `live` places:
 * a window over the uses in order of RUNs, as in schedule/gather.c. Reductions of the step's sums
 * are waited for at the norm, those of one micro-batch before the next ones of another unit. */
#include "plan/clock/coarse_parts.h"

#include <string.h>

static void begin_gather(CoarseClock *c, CoarseStage *g, int unit, GatherWhen when)
{
    CoarsePack *p = coarse_pack(c, unit, when);
    p->waited = false;
    g->host += c->in->cluster->host_launch_s;
    p->gather =
        coarse_begin(c, TRANSFER_DP, g->now, &g->gather_free, c->unit[unit]->gather_s[when]);
}

void coarse_gather_ahead(CoarseClock *c, int stage)
{
    CoarseStage *g = &c->stage[stage];
    for (; g->kept_at < g->n_kept && g->kept[g->kept_at].first <= g->run; g->kept_at++)
        begin_gather(c, g, g->kept[g->kept_at].unit, GATHER_STEP);
}

void coarse_wait_packs(CoarseClock *c, int stage, int unit, Phase phase)
{
    CoarseStage *g = &c->stage[stage];
    for (int when = GATHER_STEP; when <= GATHER_USE; when++) {
        CoarsePack *p = coarse_pack(c, unit, (GatherWhen)when);
        if (!coarse_reads(c->unit[unit], (GatherWhen)when, phase) || p->waited) continue;
        p->waited = true;
        g->spent.dp_s += coarse_wait(c, g, TRANSFER_DP, &p->gather);
    }
}

/* Extends the window while it names packs of at most `live` units. */
static void widen(CoarseClock *c, CoarseStage *g)
{
    for (; g->high < g->n_uses; g->high++) {
        CoarsePack *p = coarse_pack(c, g->use[g->high], GATHER_USE);
        if (p->inside == 0 && g->n_inside == c->in->layout->live) return;
        if (!p->open) begin_gather(c, g, g->use[g->high], GATHER_USE);
        p->open = true;
        g->n_inside += p->inside++ == 0;
    }
}

void coarse_first_gathers(CoarseClock *c, int stage)
{
    coarse_gather_ahead(c, stage);
    widen(c, &c->stage[stage]);
}

void coarse_end_use(CoarseClock *c, int stage, int unit, Phase phase)
{
    CoarseStage *g = &c->stage[stage];
    CoarsePack *p = coarse_pack(c, unit, GATHER_USE);
    g->run++;
    if (g->low == g->n_uses || g->use[g->low] != unit ||
        !coarse_reads(c->unit[unit], GATHER_USE, phase))
        return;
    g->low++;
    g->n_inside -= --p->inside == 0;
    widen(c, g);
    if (p->inside == 0) p->open = false;
}

/* The oldest reduction ends, and its remaining steps run. */
static void end_oldest(CoarseClock *c, CoarseStage *g)
{
    const CoarseFlight f = g->flight[0];
    memmove(g->flight, g->flight + 1, (size_t)--g->n_flights * sizeof f);
    g->spent.dp_s += coarse_wait(c, g, TRANSFER_DP, &f);
}

void coarse_end_reduces(CoarseClock *c, int stage)
{
    while (c->stage[stage].n_flights > 0) end_oldest(c, &c->stage[stage]);
}

/* True if the RUN adds to the unit's gradients: F does in the head. */
static bool is_write(const CoarseClock *c, const Action *a, int unit)
{
    if (unit == c->n_units - 1) return a->phase == PHASE_F;
    return a->phase == PHASE_W || a->phase == PHASE_B;
}

/* Ends the reductions of one micro-batch of an earlier unit, with those before them. */
static void end_each(CoarseClock *c, CoarseStage *g)
{
    int n = 0;
    for (int i = 0; i < g->n_flights; i++)
        if (g->flight[i].each) n = i + 1;
    for (; n > 0; n--) end_oldest(c, g);
}

static void begin_reduce(CoarseClock *c, CoarseStage *g, const ReduceSummary *r, bool each)
{
    if (g->n_flights == MAX_IN_FLIGHT) end_oldest(c, g);
    g->now += r->before_s;
    g->spent.dp_s += r->before_s;
    if (r->begun_s + r->after_s == 0) return;
    g->host += c->in->cluster->host_launch_s;
    CoarseFlight *f = &g->flight[g->n_flights++];
    *f = coarse_begin(c, TRANSFER_DP, g->now, &g->reduce_free, r->begun_s);
    f->after_s = r->after_s;
    f->each = each;
}

void coarse_reduce(CoarseClock *c, int stage, const Action *a, int unit)
{
    const Schedule *s = c->in->moves;
    const UnitSummary *u = c->unit[unit];
    CoarseStage *g = &c->stage[stage];
    if (!is_write(c, a, unit)) return;
    const int done = c->chunk[a->unit].writes[a->phase != PHASE_F] + 1;
    const bool last = coarse_reduces(u, REDUCE_AFTER_LAST) && done == s->micros * s->slices,
               each = coarse_reduces(u, REDUCE_AFTER_EACH) && done % s->slices == 0;
    if (each) end_each(c, g);
    if (last) begin_reduce(c, g, &u->reduce[REDUCE_AFTER_LAST], false);
    if (each) begin_reduce(c, g, &u->reduce[REDUCE_AFTER_EACH], true);
}

bool coarse_is_plain(const CoarseClock *c, int stage, const Action *a)
{
    const Schedule *s = c->in->moves;
    const CoarseStage *g = &c->stage[stage];
    const CoarseChunk *k = &c->chunk[a->unit];
    if (g->n_uses > 0) return false;
    if (g->kept_at < g->n_kept && g->kept[g->kept_at].first < g->run + k->end - k->first)
        return false;
    for (int u = k->first; g->n_kept > 0 && u < k->end; u++)
        if (!coarse_pack(c, u, GATHER_STEP)->waited) return false;
    if (k->prepacks && a->phase == PHASE_F && a->micro == 0 && a->slice == 0) return false;
    if (k->reduces_each && a->phase != PHASE_I) return false;
    return !k->reduces || a->phase == PHASE_I ||
           k->writes[a->phase != PHASE_F] + 1 < s->micros * s->slices;
}

void coarse_count(CoarseClock *c, int stage, const Action *a)
{
    CoarseStage *g = &c->stage[stage];
    CoarseChunk *k = &c->chunk[a->unit];
    if (a->phase != PHASE_I) k->writes[a->phase != PHASE_F]++;
    if (a->phase == PHASE_F) g->live_bytes += k->frame_bytes[PHASE_F];
    const double most = g->live_bytes + k->scratch_bytes[a->phase];
    if (most > (double)g->peak_bytes) g->peak_bytes = (size_t)most;
    if (a->phase != PHASE_F) g->live_bytes += k->frame_bytes[a->phase];
    coarse_least_run(&k->least, (Phase)a->phase, g);
}
