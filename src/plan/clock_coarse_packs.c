/* clock_coarse_packs.c -- gathers and reductions of the coarse clock.
 *
 * Packs that are kept are gathered one RUN before their first use. The others share `live` places:
 * a window over the uses in order of RUNs, as in schedule/gather.c. Reductions of the step's sums
 * are waited for at the norm, those of one micro-batch before the next reduction. */
#include "plan/clock_coarse_parts.h"

#include <string.h>

static void begin_gather(CoarseClock *c, CoarseStage *g, int unit)
{
    CoarsePack *p = &c->pack[unit];
    p->waited = false;
    g->host += c->in->cluster->host_launch_s;
    p->gather = coarse_begin(c, TRANSFER_DP, g->now, &g->gather_free, c->unit[unit]->gather_s);
}

void coarse_gather_ahead(CoarseClock *c, int stage)
{
    CoarseStage *g = &c->stage[stage];
    for (; g->kept_at < g->n_kept && g->kept[g->kept_at].first <= g->run; g->kept_at++)
        begin_gather(c, g, g->kept[g->kept_at].unit);
}

void coarse_wait_pack(CoarseClock *c, int stage, int unit, Phase phase)
{
    CoarseStage *g = &c->stage[stage];
    CoarsePack *p = &c->pack[unit];
    if (!coarse_reads(c->unit[unit], phase) || p->waited) return;
    p->waited = true;
    g->spent.dp_s += coarse_wait(c, g, TRANSFER_DP, &p->gather);
}

/* Extends the window while it names at most `live` packs. */
static void widen(CoarseClock *c, CoarseStage *g)
{
    for (; g->high < g->n_uses; g->high++) {
        CoarsePack *p = &c->pack[g->use[g->high]];
        if (p->inside == 0 && g->n_inside == c->in->layout->live) return;
        if (!p->open) begin_gather(c, g, g->use[g->high]);
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
    g->run++;
    if (g->low == g->n_uses || g->use[g->low] != unit || !coarse_reads(c->unit[unit], phase))
        return;
    g->low++;
    g->n_inside -= --c->pack[unit].inside == 0;
    widen(c, g);
    if (c->pack[unit].inside == 0) c->pack[unit].open = false;
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

static bool has_reduce(const UnitSummary *u)
{
    return u->reduce_before_s + u->reduce_s + u->reduce_after_s > 0;
}

/* True if the RUN adds to the unit's gradients: F does in the head. */
static bool is_write(const CoarseClock *c, const Action *a, int unit)
{
    if (unit == c->n_units - 1) return a->phase == PHASE_F;
    return a->phase == PHASE_W || a->phase == PHASE_B;
}

void coarse_reduce(CoarseClock *c, int stage, const Action *a, int unit)
{
    const Schedule *s = c->in->moves;
    const UnitSummary *u = c->unit[unit];
    CoarseStage *g = &c->stage[stage];
    const bool each = u->switches.reduce == REDUCE_AFTER_EACH;
    if (u->late || !has_reduce(u) || !is_write(c, a, unit)) return;
    const int done = c->chunk[a->unit].writes[a->phase != PHASE_F] + 1;
    if (each ? done % s->slices != 0 : done != s->micros * s->slices) return;
    while (g->n_flights >= (each ? 1 : MAX_IN_FLIGHT)) end_oldest(c, g);
    g->now += u->reduce_before_s;
    g->spent.dp_s += u->reduce_before_s;
    if (u->reduce_s + u->reduce_after_s == 0) return;
    g->host += c->in->cluster->host_launch_s;
    CoarseFlight *f = &g->flight[g->n_flights++];
    *f = coarse_begin(c, TRANSFER_DP, g->now, &g->reduce_free, u->reduce_s);
    f->after_s = u->reduce_after_s;
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
        if (!c->pack[u].waited) return false;
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
}
