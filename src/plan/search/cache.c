/* cache.c -- compiles layouts, each once; cache.h has the tables. */
#include "plan/search/cache.h"

static const size_t PLACES_BYTES = (size_t)1 << 28; /* of addresses */

Err plan_cache_open(Arena *arena, PlanCache **out)
{
    TRY(ARENA_NEW(arena, 1, out));
    (*out)->arena = arena;
    return place_memo_open(arena, PLACES_BYTES, &(*out)->places);
}

JobSettings search_job(const PlanSearch *s, const PlanPoint *p)
{
    JobSettings job = plan_job(&s->space, p);
    job.compile.places = s->cache->places;
    return job;
}

static Err refused(void) { return err_fail(ERR_CONFIG, "the compiler refuses this layout"); }

/* Micro-batches of a step: one, or several, which add to the gradients of the first. */
static int some_micros(const PlanSearch *s, const PlanPoint *p)
{
    return plan_job(&s->space, p).micros > 1 ? 2 : 1;
}

/* Compiles the units of a point; a refusal leaves *out NULL. */
static Err summarize(PlanSearch *s, const PlanPoint *p, int micros, LayoutSummary **out)
{
    JobSettings job = search_job(s, p);
    Mesh mesh;
    job.micros = micros;
    LayoutSummary *to;
    TRY(mesh_sized(&job.parallel.mesh, &mesh));
    const ClockInput in = {.cluster = s->space.cluster, .job = &job, .mesh = &mesh};
    TRY(ARENA_NEW(s->cache->arena, 1, &to));
    const size_t mark = arena_mark(s->temp);
    const Err err = clock_summarize(&in, s->cache->arena, s->temp, to);
    arena_rewind(s->temp, mark);
    s->counts.compiled++;
    if (err != OK && err != ERR_CONFIG) return err;
    *out = err == OK ? to : NULL;
    return OK;
}

PlanPoint cache_without_data(const PlanPoint *p)
{
    PlanPoint q = *p;
    const int inner = p->mesh.cp * p->mesh.tp, experts = p->mesh.ep * p->mesh.etp;
    q.mesh.dp_replicate = q.mesh.dp_shard = q.mesh.pp = 1;
    while (q.mesh.dp_shard * inner % experts != 0) q.mesh.dp_shard++;
    q.zero = q.chunks = 0;
    q.by_cost = false;
    q.schedule = "1f1b";
    return q;
}

static Err units_of(PlanSearch *s, const LayoutSummary *sum, LayoutUnits **out)
{
    const JobSettings *job = s->space.base;
    TRY(ARENA_NEW(s->cache->arena, 1, out));
    TRY(layout_bound(sum, job->dtype, job->optim.kind == OPTIM_ADAMW ? 2 : 0, &(*out)->bound));
    (*out)->summary = sum;
    if (!s->cache->class_of) s->cache->class_of = sum->class_of;
    return OK;
}

Err cache_units(PlanSearch *s, const PlanPoint *point, const LayoutUnits **out)
{
    PlanPoint settled = *point, *p = &settled;
    bool differs;
    *out = NULL;
    TRY(plan_settle(s, p, &differs));
    if (!differs) return OK;
    CacheKey key = cache_key(p);
    const PlanPoint q = cache_without_data(p);
    const int micros = some_micros(s, p);
    CacheEntry *e;
    bool is_new;
    key.word[7] = micros;
    TRY(cache_lookup(&s->cache->units, &key, s->cache->arena, &e, &is_new));
    if (is_new) {
        LayoutSummary *sum;
        LayoutUnits *units = NULL;
        TRY(summarize(s, &q, micros, &sum));
        if (sum) TRY(units_of(s, sum, &units));
        e->value = units;
    }
    *out = e->value;
    return OK;
}

static double smaller(double a, double b) { return a < b ? a : b; }

/* Elements of the experts of a class of units, at least; without biases. */
static double expert_elements(const PlanSearch *s, int class)
{
    const ModelConfig *c = s->space.base->config;
    int unit = 0;
    while (s->cache->class_of[unit] != class) unit++;
    const bool layer = unit > 0 && unit <= c->n_layers;
    if (!layer || !layer_has_experts(c, unit - 1)) return 0;
    return (double)c->experts.n * 3 * (double)c->width * (double)c->experts.width;
}

/* Packs are at most divided by tp, experts by ep x etp; frames are not known. */
static LayoutBound scaled(const PlanSearch *s, const LayoutBound *one, const LayoutBound *pack,
                          const PlanPoint *p, double ranks)
{
    LayoutBound out = *one;
    for (int k = 0; k < out.n; k++) {
        UnitBound *u = &out.class[k];
        for (int phase = 0; phase < N_PHASES; phase++) u->run_s[phase] *= (double)p->micro / ranks;
        u->pack = pack->class[k].pack / p->mesh.tp;
        u->coded = pack->class[k].coded / p->mesh.tp;
        if (p->mesh.ep > 1) {
            const double all = expert_elements(s, k);
            u->coded_experts = smaller(all, pack->class[k].coded);
            u->experts = smaller(all - u->coded_experts, pack->class[k].pack);
            u->coded = (pack->class[k].coded - u->coded_experts) / p->mesh.tp;
            u->pack = (pack->class[k].pack - u->experts) / p->mesh.tp;
            u->coded_experts /= p->mesh.ep * p->mesh.etp;
            u->experts /= p->mesh.ep * p->mesh.etp;
        }
        u->frame_bytes = u->y_bytes = 0;
    }
    return out;
}

/* One sequence of a layout on the ideal machine. */
static Err ideal_of(PlanSearch *s, const PlanPoint *p, LayoutBound **out)
{
    PlanCache *c = s->cache;
    PlanPoint one = cache_without_data(p);
    one.micro = 1;
    JobSettings job = search_job(s, &one);
    job.micros = 1;
    if (!c->machine) {
        TRY(ARENA_NEW(c->arena, 1, &c->machine));
        TRY(ideal_cluster(s->space.cluster, c->arena, c->machine));
    }
    TRY(ARENA_NEW(c->arena, 1, out));
    s->counts.compiled++;
    return ideal_layout(&job, c->machine, s->temp, *out);
}

/* One rank: flops alone, and the sizes of packs. */
static Err one_rank(PlanSearch *s, Recompute recompute, const LayoutBound **flops,
                    const LayoutBound **pack)
{
    PlanCache *c = s->cache;
    const PlanPoint one = {
        .mesh = {.dp_replicate = 1, .dp_shard = 1, .tp = 1, .pp = 1, .cp = 1, .ep = 1, .etp = 1},
        .micro = 1,
        .recompute = recompute,
        .schedule = "1f1b"};
    if (!c->ideal[recompute]) TRY(ideal_of(s, &one, &c->ideal[recompute]));
    *flops = c->ideal[recompute];
    const LayoutUnits *units;
    TRY(cache_units(s, &one, &units));
    if (!units) return ERR_CONFIG; /* the run itself is refused: the message is set */
    *pack = &units->bound;
    return OK;
}

Err cache_ideal(PlanSearch *s, const PlanPoint *p, LayoutBound *out)
{
    const LayoutBound *flops, *pack;
    TRY(one_rank(s, p->recompute, &flops, &pack));
    *out = scaled(s, flops, pack, p, (double)p->mesh.tp * p->mesh.cp);
    return OK;
}

Err cache_scaled(PlanSearch *s, const PlanPoint *point, LayoutBound *out)
{
    const LayoutBound *flops, *pack;
    PlanPoint settled = *point, *p = &settled;
    bool differs;
    TRY(plan_settle(s, p, &differs));
    if (!differs) return refused();
    PlanPoint plain = *p;
    /* Parts of one sequence may be larger than an equal share of those of several. */
    if (p->tp_weights && s->space.base->batch.seq_len % (p->mesh.tp * p->mesh.cp) != 0)
        return cache_ideal(s, p, out);
    plain.recompute = RECOMPUTE_NONE;
    plain.micro = 0; /* any */
    const CacheKey key = cache_key(&plain);
    CacheEntry *e;
    bool is_new;
    TRY(one_rank(s, p->recompute, &flops, &pack));
    TRY(cache_lookup(&s->cache->scaled, &key, s->cache->arena, &e, &is_new));
    if (is_new) {
        LayoutBound *bound = NULL;
        const Err err = ideal_of(s, &plain, &bound);
        if (err != OK && err != ERR_CONFIG) return err;
        e->value = err == OK ? bound : NULL;
    }
    if (!e->value) return refused();
    *out = scaled(s, e->value, pack, p, 1);
    return OK;
}

Err cache_summary(PlanSearch *s, const PlanPoint *point, const LayoutSummary **out)
{
    PlanPoint settled = *point, *p = &settled;
    bool differs;
    *out = NULL;
    TRY(plan_settle(s, p, &differs));
    if (!differs) return OK;
    CacheKey key = cache_key(p);
    const JobSettings job = plan_job(&s->space, p);
    CacheEntry *e;
    bool is_new, ends_meet;
    TRY(clock_ends_meet(&job, s->temp, &ends_meet));
    key.word[7] = p->mesh.dp_replicate;
    key.word[8] = p->mesh.dp_shard;
    key.word[9] = p->zero;
    key.word[12] = cache_hash(p->zero_weights);
    key.word[10] = p->mesh.pp > 1 && !(ends_meet && s->space.base->config->tied);
    key.word[11] = some_micros(s, p);
    TRY(cache_lookup(&s->cache->summaries, &key, s->cache->arena, &e, &is_new));
    if (is_new) {
        LayoutSummary *sum;
        TRY(summarize(s, p, some_micros(s, p), &sum));
        e->value = sum;
    }
    *out = e->value;
    return OK;
}
