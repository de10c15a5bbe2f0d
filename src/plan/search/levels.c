/* levels.c -- raises a node: from flops to compiled units, to the coarse clock, to linked
 * programs. */
#include "plan/search/parts.h"

#include <math.h>
#include <string.h>
#include "plan/fit.h"
#include "schedule/gen/generate.h"

static Err bound_of(PlanSearch *s, BoundInput in, PlanBound *out)
{
    const PlanPoint *p = in.point;
    const GeneratorRow *row;
    TRY(schedule_generator(p->schedule, s->temp, &row));
    in.is_v = row->order == CHUNKS_V;
    in.chunks = p->mesh.pp * (p->chunks ? p->chunks : row->chunks);
    TRY(cache_chunks(s, p, in.chunks, &in.first_unit, &in.class_of));
    if (!in.first_unit) return err_fail(ERR_CONFIG, "%d chunks: too many", in.chunks);
    return plan_bound(&in, s->temp, out);
}

Err search_bound(PlanSearch *s, const PlanPoint *p, const LayoutBound *layout, PlanBound *out)
{
    return bound_of(s, (BoundInput){.space = &s->space, .point = p, .layout = layout}, out);
}

Err search_any_bound(PlanSearch *s, const PlanPoint *p, const LayoutBound *layout, PlanBound *out)
{
    const BoundInput in = {.space = &s->space, .point = p, .layout = layout, .any_zero = true};
    return bound_of(s, in, out);
}

static Err refused(void) { return err_fail(ERR_CONFIG, "the compiler refuses this layout"); }

Err plan_point_bound(PlanSearch *s, const PlanPoint *p, PlanBound *out)
{
    const LayoutUnits *units;
    TRY(cache_units(s, p, &units));
    return units ? search_bound(s, p, &units->bound, out) : refused();
}

static Err with_packs(const PlanSearch *s, const PlanPoint *p, const LayoutUnits *units,
                      UnitSummary *class, LayoutSummary *out)
{
    const JobSettings job = plan_job(&s->space, p);
    bool ends_meet;
    TRY(clock_ends_meet(&job, s->temp, &ends_meet));
    *out = *units->summary;
    out->class = class;
    out->stage_ranks = plan_dp(p) * p->mesh.cp * p->mesh.tp;
    for (int k = 0; k < out->n_classes; k++) {
        const PackBound b = pack_bound(&s->space, p, &units->bound.class[k]);
        UnitSummary *u = &class[k];
        *u = units->summary->class[k];
        clock_take_first(u);
        for (int when = 0; when < 2; when++) {
            u->gather_s[when] = b.gather_s[when];
            u->reduce[when] = (ReduceSummary){.begun_s = b.reduce_s[when]};
        }
        u->norm_s = b.norm_s;
        u->update_s = b.update_s;
        u->quantize_s = b.quantize_s;
        u->norm_cells = 0;
        u->state_bytes = (size_t)b.state_bytes;
        u->grad_bytes = (size_t)b.grad_bytes;
        u->pack_bytes = (size_t)b.pack_bytes;
        u->work_grad_bytes = (size_t)b.work_grad_bytes;
    }
    /* Tied weights on two stages are reduced once, after all RUNs, beside other reductions. */
    const int ends[] = {out->class_of[0], out->class_of[out->n_units - 1]};
    for (int i = 0; i < 2 && !ends_meet; i++) {
        UnitSummary *end = &class[ends[i]];
        end->reduce[REDUCE_AFTER_LAST].begun_s += end->reduce[REDUCE_AFTER_EACH].begun_s;
        end->reduce[REDUCE_AFTER_EACH].begun_s = 0;
        end->late = s->space.base->config->tied;
    }
    return OK;
}

Err search_play(PlanSearch *s, const PlanPoint *p, const LayoutSummary *sum,
                const UnitSummary *const *unit, CoarseTime *out)
{
    const Schedule *moves;
    TRY(cache_moves(s, p, &moves));
    if (!moves) return refused();
    const CoarseInput in = {
        .cluster = s->space.cluster, .layout = sum, .unit = unit, .moves = moves};
    return clock_coarse_step(&in, s->temp, out);
}

Err search_pack_bounds(PlanSearch *s, const PlanPoint *p, UnitSummary *class, LayoutSummary *out)
{
    const LayoutUnits *units;
    TRY(cache_units(s, p, &units));
    if (!units) return refused();
    return with_packs(s, p, units, class, out);
}

Err plan_play(PlanSearch *s, const PlanPoint *p, CoarseTime *out)
{
    UnitSummary class[MAX_BOUND_CLASSES];
    LayoutSummary sum;
    TRY(search_pack_bounds(s, p, class, &sum));
    return search_play(s, p, &sum, NULL, out);
}

/* Each unit has the summary of the point whose units all have its choice. The norm is exchanged
 * among as many ranks as the unit needs that is sharded over most. */
static Err time_mixed(PlanSearch *s, const PlanPoint *p, CoarseTime *out)
{
    const int n = (int)s->space.base->config->n_layers + 2;
    const size_t mark = arena_mark(s->temp);
    const LayoutSummary *sum = NULL, *most = NULL;
    const UnitSummary **unit;
    TRY(ARENA_NEW(s->temp, n, &unit));
    for (int u = 0; u < n; u++) {
        const PlanPoint q = plan_uniform(p, &p->unit[u]);
        TRY(cache_summary(s, &q, &sum));
        if (!sum) return refused();
        unit[u] = &sum->class[sum->class_of[u]];
        if (!most || sum->blocks.n > most->blocks.n) most = sum;
    }
    TRY(search_play(s, p, most, unit, out));
    arena_rewind(s->temp, mark);
    return OK;
}

Err plan_time(PlanSearch *s, const PlanPoint *p, CoarseTime *out)
{
    const LayoutSummary *sum;
    if (p->unit) return time_mixed(s, p, out);
    TRY(cache_summary(s, p, &sum));
    return sum ? search_play(s, p, sum, NULL, out) : refused();
}

static Err link_rank(const PlanSearch *s, const Job *shared, const Job *valid, int rank,
                     double *bytes)
{
    const size_t mark = arena_mark(s->temp);
    Job *job;
    TRY(ARENA_NEW(s->temp, 2, &job));
    Err err = job_compile_rank(shared, rank, s->temp, &job[0]);
    if (err == OK && valid) err = job_compile_rank(valid, rank, s->temp, &job[1]);
    int64_t saves = 0;
    if (err == OK) err = saver_bytes(&job[0].linked, rank, s->save, s->temp, &saves);
    if (err == OK) {
        const bool on_device = !s->space.cluster->host_memory;
        const int64_t arenas = fit_bytes(&job[0], valid ? &job[1] : NULL, on_device);
        const double here = (double)(arenas + saves);
        if (here > *bytes) *bytes = here;
    }
    arena_rewind(s->temp, mark);
    return err;
}

/* Consecutive ranks of a stage with one dp coordinate that have equal memory. */
static int ranks_alike(const PlanSpace *s, const PlanPoint *p)
{
    const ModelConfig *c = s->base->config;
    const int tp = p->mesh.tp;
    const bool even = c->n_heads % tp == 0 && c->n_kv_heads % tp == 0 && c->ff_width % tp == 0 &&
                      c->vocab % tp == 0 &&
                      p->micro * s->base->batch.seq_len % (tp * p->mesh.cp) == 0 &&
                      (!p->tp_weights || (c->width % tp == 0 && c->max_positions % tp == 0));
    return even ? tp : 1;
}

/* Links ranks until one needs more than most_bytes: *bytes are those of the rank that needs most,
 * stage_bytes [pp], if it is not NULL, of that of each stage. Along dp the first rank has the
 * largest home; along tp and cp shapes may differ. */
static Err link_up_to(PlanSearch *s, const PlanPoint *point, double most_bytes, double *bytes,
                      double *stage_bytes)
{
    PlanPoint settled = *point, *p = &settled;
    bool differs;
    TRY(plan_settle(s, p, &differs));
    if (!differs) return refused();
    JobSettings set = search_job(s, p);
    const size_t mark = arena_mark(s->temp);
    const int inner = p->mesh.cp * p->mesh.tp, stage = plan_dp(p) * inner;
    const int alike = ranks_alike(&s->space, p);
    Job *job;
    *bytes = 0;
    TRY(ARENA_NEW(s->temp, 2, &job));
    Err err = job_share(&set, s->temp, &job[0]);
    set.kind = JOB_LOSS;
    if (err == OK && s->validates) err = job_share(&set, s->temp, &job[1]);
    for (int i = 0; i < p->mesh.pp; i++) {
        double here = 0;
        for (int k = 0; k < inner && err == OK && here <= most_bytes; k += alike)
            err = link_rank(s, &job[0], s->validates ? &job[1] : NULL, i * stage + k, &here);
        if (here > *bytes) *bytes = here;
        if (stage_bytes) stage_bytes[i] = here;
        if (*bytes > most_bytes) break;
    }
    arena_rewind(s->temp, mark);
    return err;
}

Err plan_link(PlanSearch *s, const PlanPoint *p, double *bytes)
{
    return link_up_to(s, p, (double)INFINITY, bytes, NULL);
}

Err plan_link_stages(PlanSearch *s, const PlanPoint *p, double *bytes)
{
    double most;
    return link_up_to(s, p, (double)INFINITY, &most, bytes);
}

Err plan_least_work(PlanSearch *s, double *seconds)
{
    const PlanPoint one = {
        .mesh = {.dp_replicate = 1, .dp_shard = 1, .tp = 1, .pp = 1, .cp = 1, .ep = 1, .etp = 1},
        .micro = 1,
        .schedule = "1f1b"};
    const int units = (int)s->space.base->config->n_layers + 2;
    const int16_t *first, *class_of;
    LayoutBound flops;
    TRY(cache_ideal(s, &one, &flops));
    TRY(cache_chunks(s, &one, 1, &first, &class_of));
    *seconds = 0;
    for (int u = 0; u < units; u++) {
        const double *run_s = flops.class[class_of[u]].run_s;
        const double halves = run_s[PHASE_I] + run_s[PHASE_W];
        *seconds += run_s[PHASE_F] + (run_s[PHASE_B] < halves ? run_s[PHASE_B] : halves);
    }
    *seconds *= (double)s->space.global;
    return OK;
}

static Err add_time(PlanSearch *s, const CoarseTime *time, int *out)
{
    if (s->n_times == s->cap_times) {
        CoarseTime *more;
        s->cap_times = s->cap_times ? 2 * s->cap_times : 256;
        TRY(ARENA_NEW(s->arena, s->cap_times, &more));
        if (s->n_times) memcpy(more, s->times, (size_t)s->n_times * sizeof *more);
        s->times = more;
    }
    *out = s->n_times;
    s->times[s->n_times++] = *time;
    return OK;
}

static double larger(double a, double b) { return a > b ? a : b; }

/* Records a bound that is above the time that it should bound: the certificate then counts with
 * the ratio. Equal numbers may differ by their rounding. */
static void note_excess(PlanSearch *s, double bound_s, double time_s)
{
    if (bound_s > time_s * (1 + 1e-9) && bound_s / time_s > s->excess) s->excess = bound_s / time_s;
}

/* Raises the node; ERR_CONFIG if the compiler refuses its plan. */
static Err raise_level(PlanSearch *s, PlanNode *node)
{
    LayoutBound layout;
    PlanBound bound;
    CoarseTime time;
    double bytes;
    bool differs;
    switch (node->level) {
    case LEVEL_IDEAL:
        TRY(plan_settle(s, &node->point, &differs));
        if (!differs) return node->level = LEVEL_REFUSED, OK;
        TRY(cache_scaled(s, &node->point, &layout));
        TRY(search_bound(s, &node->point, &layout, &bound));
        node->key_s = larger(node->key_s, bound.step_s);
        node->level = LEVEL_SCALED;
        return OK;
    case LEVEL_SCALED:
        TRY(plan_point_bound(s, &node->point, &bound));
        note_excess(s, node->key_s, bound.step_s);
        node->key_s = bound.step_s;
        node->memory_bytes = larger(node->memory_bytes, bound.memory_bytes);
        node->level = LEVEL_BOUND;
        return OK;
    case LEVEL_BOUND:
        s->counts.played++;
        TRY(plan_play(s, &node->point, &time));
        note_excess(s, node->key_s, time.step_s);
        node->key_s = time.step_s;
        node->memory_bytes = larger(node->memory_bytes, (double)time.least_bytes);
        node->level = LEVEL_PLAYED;
        return OK;
    case LEVEL_PLAYED:
        s->counts.timed++;
        TRY(plan_time(s, &node->point, &time));
        note_excess(s, node->key_s, time.step_s);
        node->key_s = time.step_s;
        node->memory_bytes = larger(node->memory_bytes, (double)time.least_bytes);
        node->level = LEVEL_TIMED;
        return add_time(s, &time, &node->time);
    case LEVEL_TIMED:
        s->counts.linked++;
        TRY(link_up_to(s, &node->point, s->limit_bytes, &bytes, NULL));
        node->memory_bytes = larger(node->memory_bytes, bytes);
        if (bytes > s->limit_bytes) return OK; /* of the ranks linked so far: still a bound */
        node->memory_bytes = bytes;
        node->level = LEVEL_LINKED;
        return OK;
    default:
        return OK;
    }
}

Err search_raise(PlanSearch *s, PlanNode *node)
{
    const Err err = raise_level(s, node);
    if (err != ERR_CONFIG) return err;
    node->level = LEVEL_REFUSED;
    s->counts.refused++;
    return OK;
}
