/* coarse_open.c -- the tables of the coarse clock: sums of chunks, uses of packs, sends. */
#include "plan/clock/coarse_parts.h"

/* Adds up the RUNs of a chunk's units. */
static Err sum_runs(const CoarseClock *c, Arena *temp, CoarseChunk *k)
{
    const int n = c->in->moves->slices * N_PHASES;
    RunSummary *sum;
    double *last;
    TRY(ARENA_NEW(temp, n, &sum));
    TRY(ARENA_NEW(temp, n, &last));
    for (int u = k->first; u < k->end; u++)
        for (int i = 0; i < n; i++) {
            const RunSummary *run = &c->unit[u]->run[i];
            sum[i].seconds += run->seconds;
            sum[i].tp_s += run->tp_s;
            sum[i].cp_s += run->cp_s;
            sum[i].host_s += run->host_s;
            if (i % N_PHASES == PHASE_F || u == k->first) last[i] = run->seconds;
        }
    k->sum = sum;
    k->last_s = last;
    return OK;
}

static double larger(double a, double b) { return a > b ? a : b; }

/* Live bytes: frames from F to the last backward phase, y as long; carried tensors from I to W. */
static void sum_bytes(const CoarseClock *c, CoarseChunk *k)
{
    for (int u = k->first; u < k->end; u++) {
        const UnitSummary *s = c->unit[u];
        const double frame_i = (double)s->region_bytes[REGION_FRAME_I],
                     frame_w = (double)s->region_bytes[REGION_FRAME_W] + (double)s->y_bytes,
                     carry = (double)s->region_bytes[REGION_CARRY];
        k->frame_bytes[PHASE_F] += frame_i + frame_w;
        k->frame_bytes[PHASE_I] += carry - frame_i;
        k->frame_bytes[PHASE_W] -= carry + frame_w;
        k->frame_bytes[PHASE_B] -= frame_i + frame_w;
        for (int p = 0; p < N_PHASES; p++)
            k->scratch_bytes[p] =
                larger(k->scratch_bytes[p],
                       (double)s->scratch_bytes[p] + (p == PHASE_F ? 0 : 2 * (double)s->dx_bytes));
    }
}

/* Seconds of the chunk's value in a direction, from its stage to that of its reader. */
static double send_seconds(const CoarseClock *c, int chunk, int direction)
{
    const Schedule *s = c->in->moves;
    const CostRates *r = &c->in->cluster->rates;
    const CoarseChunk *k = &c->chunk[chunk];
    const bool forward = direction == DIRECTION_FORWARD;
    const int reader = chunk + (forward ? 1 : -1), ranks = c->in->layout->stage_ranks;
    if (reader < 0 || reader == s->chunks) return 0;
    const int32_t pair[] = {s->stage_of[chunk] * ranks, s->stage_of[reader] * ranks};
    const size_t bytes = forward ? c->unit[k->end - 1]->y_bytes : c->unit[k->first]->dx_bytes;
    return cost_transfer_seconds(r, COMM_SEND, cost_group(r, (RankList){2, pair}), (double)bytes);
}

static Err open_chunks(CoarseClock *c, Arena *temp)
{
    const Schedule *s = c->in->moves;
    const int16_t *first = c->in->first_unit ? c->in->first_unit : s->first_unit;
    if (first[s->chunks] != c->n_units || s->slices != c->in->layout->slices)
        return err_fail(ERR_CONFIG,
                        "coarse clock: the schedule has %d units in its chunks and %d slices; the "
                        "layout has %d and %d",
                        first[s->chunks], s->slices, c->n_units, c->in->layout->slices);
    TRY(ARENA_NEW(temp, s->chunks, &c->chunk));
    for (int i = 0; i < s->chunks; i++) {
        CoarseChunk *k = &c->chunk[i];
        k->first = first[i];
        k->end = first[i + 1];
        TRY(sum_runs(c, temp, k));
        sum_bytes(c, k);
        coarse_least_chunk(c, k);
        for (int u = k->first; u < k->end; u++) {
            const UnitSummary *unit = c->unit[u];
            k->prepacks = k->prepacks || unit->prepack_s > 0;
            k->reduces = k->reduces || coarse_reduces(unit, REDUCE_AFTER_LAST);
            k->reduces_each = k->reduces_each || coarse_reduces(unit, REDUCE_AFTER_EACH);
        }
    }
    for (int i = 0; i < s->chunks; i++)
        for (int d = 0; d < N_DIRECTIONS; d++) c->chunk[i].send_s[d] = send_seconds(c, i, d);
    return OK;
}

/* Lists one use of a unit's packs: a place in the window, and the gather of those that are kept
 * for the step. */
static void add_use(const CoarseClock *c, CoarseStage *g, int unit, const Action *a, int run,
                    bool *held)
{
    const UnitSummary *u = c->unit[unit];
    if (coarse_reads(u, GATHER_USE, (Phase)a->phase)) g->use[g->n_uses++] = (int16_t)unit;
    if (held[unit] || !coarse_reads(u, GATHER_STEP, (Phase)a->phase)) return;
    held[unit] = true;
    g->kept[g->n_kept++] = (CoarseKept){run > 0 ? run - 1 : 0, unit};
}

/* Walks the RUNs of the stage's units, in order. */
static Err find_uses(CoarseClock *c, int stage, Arena *temp)
{
    const Schedule *s = c->in->moves;
    CoarseStage *g = &c->stage[stage];
    bool *held;
    int runs = 0, n = 0;
    for (int i = 0; i < s->n[stage]; i++) {
        const Action *a = &s->list[stage][i];
        if (a->kind == A_RUN) runs += c->chunk[a->unit].end - c->chunk[a->unit].first;
    }
    TRY(ARENA_NEW(temp, c->n_units, &held));
    TRY(ARENA_NEW(temp, runs, &g->use));
    TRY(ARENA_NEW(temp, runs, &g->kept));
    for (int i = 0; i < s->n[stage]; i++) {
        const Action *a = &s->list[stage][i];
        if (a->kind != A_RUN) continue;
        const CoarseChunk *k = &c->chunk[a->unit];
        for (int u = 0; u < k->end - k->first; u++)
            add_use(c, g, a->phase == PHASE_F ? k->first + u : k->end - 1 - u, a, n++, held);
    }
    return OK;
}

/* The bytes of a stage that live all step, or are counted as if they did: packs and gradients in
 * the work arena. */
static void open_bytes(const CoarseClock *c, int stage, CoarseStage *g)
{
    const Schedule *s = c->in->moves;
    double pack = 0, grads = 0;
    for (int k = 0; k < s->chunks; k++)
        for (int u = c->chunk[k].first; s->stage_of[k] == stage && u < c->chunk[k].end; u++) {
            const UnitSummary *unit = c->unit[u];
            g->live_bytes += (double)unit->state_bytes + (double)unit->grad_bytes;
            coarse_least_unit(unit, g);
            pack = larger(pack, (double)unit->pack_bytes);
            grads = larger(grads, (double)unit->work_grad_bytes);
            g->norm_s += unit->norm_s;
            g->update_s += unit->update_s;
            g->quantize_s += unit->quantize_s;
            for (int v = 0; v < MAX_SCALES; v++) {
                g->scale_cells[v] += unit->scale_cells[v];
                g->live_bytes += 2 * sizeof(float) * unit->scale_cells[v];
            }
        }
    g->live_bytes += c->in->layout->live * pack + 2 * grads; /* of two units at once */
    g->peak_bytes = (size_t)g->live_bytes;
}

/* QUANTIZE: codes of all units of the stage, and the exchange of their scales. */
static void make_codes(const CoarseClock *c, CoarseStage *g)
{
    const CostRates *r = &c->in->cluster->rates;
    for (int v = 0; v < MAX_SCALES; v++) {
        const RankList group = c->in->layout->scales[v];
        if (g->scale_cells[v] > 0 && group.n > 1)
            g->spent.dp_s += cost_transfer_seconds(r, COMM_ALL_REDUCE, cost_group(r, group),
                                                   sizeof(float) * g->scale_cells[v]);
    }
    g->spent.update_s += g->quantize_s;
    g->now = g->spent.dp_s + g->quantize_s;
    g->host = g->now;
}

static Err open_stages(CoarseClock *c, Arena *temp)
{
    const Schedule *s = c->in->moves;
    bool gathers = false;
    TRY(ARENA_NEW(temp, s->stages, &c->stage));
    for (int u = 0; u < c->n_units; u++)
        gathers =
            gathers || c->unit[u]->gather_s[GATHER_STEP] + c->unit[u]->gather_s[GATHER_USE] > 0;
    for (int stage = 0; stage < s->stages; stage++) {
        if (gathers) TRY(find_uses(c, stage, temp));
        open_bytes(c, stage, &c->stage[stage]);
        make_codes(c, &c->stage[stage]);
        if (gathers) coarse_first_gathers(c, stage);
    }
    return OK;
}

Err coarse_open(CoarseClock *c, Arena *temp)
{
    const Schedule *s = c->in->moves;
    const LayoutSummary *l = c->in->layout;
    const int64_t cells = (int64_t)s->chunks * s->micros * s->slices * N_DIRECTIONS;
    const UnitSummary **unit;
    c->n_units = l->n_units;
    c->unit = c->in->unit;
    if (!c->unit) {
        TRY(ARENA_NEW(temp, l->n_units, &unit));
        for (int u = 0; u < l->n_units; u++) unit[u] = &l->class[l->class_of[u]];
        c->unit = unit;
    }
    TRY(ARENA_NEW(temp, cells, &c->cell));
    for (int64_t i = 0; i < cells; i++)
        c->cell[i] = (CoarseCell){.sent = NEVER, .posted = NEVER, .arrived = NEVER};
    TRY(ARENA_NEW(temp, 2 * c->n_units, &c->pack));
    for (int i = 0; i < 2 * c->n_units; i++)
        c->pack[i].waited = c->unit[i / 2]->gather_s[i % 2] == 0;
    TRY(open_chunks(c, temp));
    return open_stages(c, temp);
}

/* A group of the first stage, and its images on the other stages. */
static CostGroup across_stages(const CoarseClock *c, RankList group)
{
    const CostRates *r = &c->in->cluster->rates;
    const int stages = c->in->moves->stages, ranks = c->in->layout->stage_ranks;
    const int32_t ends[] = {group.rank[0], group.rank[group.n - 1] + (stages - 1) * ranks};
    CostGroup g = cost_group(r, (RankList){2, ends});
    g.members = group.n * stages;
    g.inside = 1;
    if (g.level == 0) return g;
    const int block = r->level[g.level - 1].ranks;
    g.inside = 0;
    for (int s = 0; s < stages && s * ranks < block; s++)
        for (int i = 0; i < group.n && group.rank[i] + s * ranks < block; i++) g.inside++;
    return g;
}

/* Seconds to sum the statistics of routers. */
static double stat_seconds(const CoarseClock *c)
{
    const LayoutSummary *l = c->in->layout;
    if (l->stat_cells <= 0) return 0;
    return cost_transfer_seconds(&c->in->cluster->rates, COMM_ALL_REDUCE,
                                 across_stages(c, l->stats), 8.0 * l->stat_cells);
}

double coarse_norm_seconds(const CoarseClock *c)
{
    const CostRates *r = &c->in->cluster->rates;
    const LayoutSummary *l = c->in->layout;
    const CostGroup totals = across_stages(c, l->totals), blocks = across_stages(c, l->blocks);
    double cells = 0;
    for (int u = 0; u < c->n_units; u++) cells += c->unit[u]->norm_cells;
    return cost_transfer_seconds(r, COMM_ALL_GATHER, totals, 16.0 * totals.members) +
           cost_transfer_seconds(r, COMM_ALL_GATHER, blocks, 8.0 * cells) +
           cost_transfer_seconds(r, COMM_ALL_GATHER, cost_group(r, l->squares),
                                 8.0 * l->squares.n) +
           stat_seconds(c);
}
