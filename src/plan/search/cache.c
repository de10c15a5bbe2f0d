/* cache.c -- what the search compiles, kept by layout.
 *
 *     scaled      tp cp ep etp sequence context                       on the ideal machine
 *     units       tp cp ep etp sequence context recompute micro       for all pp, dp and ZeRO
 *     choices     tp cp ep etp sequence context dp pp                 layouts of weights along tp
 *     summaries   the same, dp, ZeRO, whether pp > 1 and the ends are on two stages
 *     chunks      chunks, and for a split by cost recompute and micro
 *     moves       the same, schedule, stages, micro-batches */
#include "plan/search/parts.h"

#include <string.h>
#include "job/tp_choice.h"
#include "plan/search/ideal.h"
#include "plan/search/operators.h"
#include "schedule/chunks.h"
#include "schedule/gen/generate.h"
#include "schedule/moves.h"
#include "schedule/passes.h"

enum { KEY_WORDS = 15 };
static const size_t PLACES_BYTES = (size_t)1 << 28; /* of addresses */

typedef struct {
    int64_t word[KEY_WORDS];
} CacheKey;

typedef struct {
    CacheKey key;
    void *value; /* NULL: refused */
} CacheEntry;

typedef struct {
    CacheEntry *entry; /* open addressing */
    bool *used;
    int n, size;
} CacheTable;

struct PlanCache {
    Arena *arena;
    CacheTable scaled, units, choices, summaries, chunks, moves;
    Cluster *machine; /* the ideal one */
    LayoutBound *ideal[RECOMPUTE_FULL + 1];
    const int16_t *class_of;
    WeightSplits *splits; /* [kinds] */
    int16_t *kind_of;     /* [units] */
    PlaceMemo *places;    /* of all layouts */
};

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

/* ---- tables ---- */

static uint64_t hash_key(const CacheKey *k)
{
    uint64_t h = 1469598103934665603u;
    for (int i = 0; i < KEY_WORDS; i++) h = (h ^ (uint64_t)k->word[i]) * 1099511628211u;
    return h ^ h >> 31;
}

static int slot_of(const CacheTable *t, const CacheKey *key)
{
    int at = (int)(hash_key(key) % (uint64_t)t->size);
    while (t->used[at] && memcmp(&t->entry[at].key, key, sizeof *key) != 0) at = (at + 1) % t->size;
    return at;
}

static Err grow(CacheTable *t, Arena *arena)
{
    CacheTable more = {.size = t->size ? 2 * t->size : 256, .n = t->n};
    TRY(ARENA_NEW(arena, more.size, &more.entry));
    TRY(ARENA_NEW(arena, more.size, &more.used));
    for (int i = 0; i < t->size; i++) {
        if (!t->used[i]) continue;
        const int at = slot_of(&more, &t->entry[i].key);
        more.entry[at] = t->entry[i];
        more.used[at] = true;
    }
    *t = more;
    return OK;
}

/* Finds the entry of a key; *is_new: it was added, and its value is to be filled in. */
static Err lookup(CacheTable *t, const CacheKey *key, Arena *arena, CacheEntry **out, bool *is_new)
{
    if (2 * (t->n + 1) > t->size) TRY(grow(t, arena));
    const int at = slot_of(t, key);
    *is_new = !t->used[at];
    *out = &t->entry[at];
    if (!*is_new) return OK;
    t->used[at] = true;
    t->n++;
    **out = (CacheEntry){.key = *key};
    return OK;
}

static int64_t hash_text(const char *text)
{
    uint64_t h = 0;
    for (int i = 0; text && text[i]; i++) h = h * 131 + (unsigned char)text[i];
    return (int64_t)h;
}

static CacheKey unit_key(const PlanPoint *p)
{
    const int64_t experts = (int64_t)p->mesh.ep << 32 | p->mesh.etp;
    CacheKey key = {
        {p->mesh.tp, p->mesh.cp, p->sequence, p->context, p->recompute, p->micro, experts}};
    key.word[KEY_WORDS - 1] = p->offload;
    key.word[KEY_WORDS - 2] = hash_text(p->tp_weights);
    return key;
}

/* ---- layouts of weights along tp ---- */

/* The bytes of state on a rank of a stage; data ranks share moments and master weights. */
static double state_bytes(const PlanSearch *s, const PlanPoint *p, double elements)
{
    const JobSettings *job = s->space.base;
    const double narrow = (double)dtype_bytes(job->dtype),
                 wide = (double)dtype_bytes(dtype_wide(job->dtype));
    const double moments = job->optim.kind == OPTIM_ADAMW ? 2 : 0;
    const double shared = (moments + (narrow == wide ? 0 : 1)) * wide;
    const int shards = p->mesh.dp_shard * p->mesh.cp;
    return elements / p->mesh.pp * (narrow + wide + shared / shards);
}

/* Of the point's mesh without stages, with state that is not sharded: all ZeRO levels and
 * schedules have the same. Memory has the least of a few prices at which the state takes no more
 * than three quarters of a device, so that there is room for activations. */
static Err search_tp(PlanSearch *s, const PlanPoint *p, const char **rules)
{
    static const double price[] = {0,     2e-12, 5e-12, 1e-11,
                                   2e-11, 5e-11, 1e-10, 1e-9}; /* s / byte */
    PlanPoint q = *p;
    q.mesh.pp = 1;
    q.zero = q.chunks = 0;
    q.by_cost = q.tp_search = false;
    q.schedule = "1f1b";
    q.recompute = RECOMPUTE_NONE;
    q.zero_weights = q.tp_weights = NULL;
    q.unit = NULL;
    JobSettings job = search_job(s, &q);
    job.parallel.cluster = s->space.cluster;
    TpChoice c;
    *rules = NULL;
    for (size_t i = 0; i < sizeof price / sizeof *price; i++) {
        const Err err = job_choose_tp(&job, price[i], s->cache->arena, s->temp, &c);
        if (err != OK) return err == ERR_CONFIG ? OK : err; /* refused: it differs in nothing */
        *rules = c.rules;
        if (!c.rules || state_bytes(s, p, c.elements) <= 0.75 * s->space.cluster->memory_bytes)
            return OK;
    }
    return OK;
}

Err plan_settle(PlanSearch *s, PlanPoint *p, bool *differs)
{
    PlanPoint q = *p;
    CacheEntry *e;
    bool is_new;
    *differs = true;
    if (!p->tp_search || p->tp_weights) return OK;
    q.recompute = RECOMPUTE_NONE;
    q.offload = false;
    q.micro = 0; /* any */
    CacheKey key = unit_key(&q);
    key.word[7] = p->mesh.dp_replicate;
    key.word[8] = p->mesh.dp_shard;
    key.word[9] = p->mesh.pp;
    TRY(lookup(&s->cache->choices, &key, s->cache->arena, &e, &is_new));
    if (is_new) {
        const char *rules;
        TRY(search_tp(s, p, &rules));
        TRY(lookup(&s->cache->choices, &key, s->cache->arena, &e, &is_new));
        e->value = (void *)(uintptr_t)rules;
    }
    p->tp_weights = e->value;
    *differs = p->tp_weights != NULL;
    return OK;
}

/* ---- compilation ---- */

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

/* The point on one stage, without ZeRO, and with as much dp as experts need: the same RUNs. */
static PlanPoint without_data(const PlanPoint *p)
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
    CacheKey key = unit_key(p);
    const PlanPoint q = without_data(p);
    const int micros = some_micros(s, p);
    CacheEntry *e;
    bool is_new;
    key.word[7] = micros;
    TRY(lookup(&s->cache->units, &key, s->cache->arena, &e, &is_new));
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
    PlanPoint one = without_data(p);
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
    const CacheKey key = unit_key(&plain);
    CacheEntry *e;
    bool is_new;
    TRY(one_rank(s, p->recompute, &flops, &pack));
    TRY(lookup(&s->cache->scaled, &key, s->cache->arena, &e, &is_new));
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
    CacheKey key = unit_key(p);
    const JobSettings job = plan_job(&s->space, p);
    CacheEntry *e;
    bool is_new, ends_meet;
    TRY(clock_ends_meet(&job, s->temp, &ends_meet));
    key.word[7] = p->mesh.dp_replicate;
    key.word[8] = p->mesh.dp_shard;
    key.word[9] = p->zero;
    key.word[12] = hash_text(p->zero_weights);
    key.word[10] = p->mesh.pp > 1 && !(ends_meet && s->space.base->config->tied);
    key.word[11] = some_micros(s, p);
    TRY(lookup(&s->cache->summaries, &key, s->cache->arena, &e, &is_new));
    if (is_new) {
        LayoutSummary *sum;
        TRY(summarize(s, p, some_micros(s, p), &sum));
        e->value = sum;
    }
    *out = e->value;
    return OK;
}

/* ---- weights ---- */

/* The splits of each kind of unit, from the graphs of the model. */
static Err open_splits(PlanSearch *s)
{
    const JobSettings *job = s->space.base;
    PlanCache *c = s->cache;
    const size_t mark = arena_mark(s->temp);
    Model model;
    TRY(model_build(job->config, job->dtype, job->batch, s->temp, &model));
    TRY(ARENA_NEW(c->arena, model.n_kinds, &c->splits));
    TRY(ARENA_NEW(c->arena, model.n_units, &c->kind_of));
    for (int u = 0; u < model.n_units; u++) c->kind_of[u] = (int16_t)model.unit[u].kind;
    for (int k = 0; k < model.n_kinds; k++)
        TRY(weight_splits(&model.kind[k], c->arena, &c->splits[k]));
    arena_rewind(s->temp, mark);
    return OK;
}

Err cache_splits(PlanSearch *s, int unit, const WeightSplits **out)
{
    if (!s->cache->splits) TRY(open_splits(s));
    *out = &s->cache->splits[s->cache->kind_of[unit]];
    return OK;
}

/* ---- chunks ---- */

static Err unit_costs(PlanSearch *s, const PlanPoint *p, double *cost)
{
    const PlanPoint q = without_data(p);
    const JobSettings set = plan_job(&s->space, &q);
    Job *job;
    TRY(ARENA_NEW(s->temp, 1, &job));
    TRY(job_share(&set, s->temp, job));
    return job_unit_costs(job, s->temp, cost);
}

static Err split_units(PlanSearch *s, const PlanPoint *p, int chunks, const int16_t **out)
{
    const int units = (int)s->space.base->config->n_layers + 2;
    const size_t mark = arena_mark(s->temp);
    double *cost;
    TRY(ARENA_NEW(s->temp, units, &cost));
    if (p->by_cost && !p->split) TRY(unit_costs(s, p, cost));
    const char *split = p->split ? p->split : p->by_cost ? "cost" : "even";
    const ChunkRequest r = {split, units, chunks, cost};
    const Err err = schedule_chunks(&r, s->cache->arena, out);
    arena_rewind(s->temp, mark);
    return err;
}

Err cache_chunks(PlanSearch *s, const PlanPoint *p, int chunks, const int16_t **first_unit,
                 const int16_t **class_of)
{
    CacheKey key = {{chunks, p->by_cost, p->by_cost ? p->recompute : 0, p->by_cost ? p->micro : 0,
                     hash_text(p->split)}};
    CacheEntry *e;
    bool is_new;
    TRY(lookup(&s->cache->chunks, &key, s->cache->arena, &e, &is_new));
    if (is_new) {
        const int16_t *first = NULL;
        const Err err = split_units(s, p, chunks, &first);
        if (err != OK && err != ERR_CONFIG) return err;
        e->value = err == OK ? (void *)(uintptr_t)first : NULL;
    }
    *first_unit = e->value;
    *class_of = s->cache->class_of;
    return OK;
}

/* The list of all stages, as job_share makes it for the point; linking checks it again. */
static Err make_moves(PlanSearch *s, const PlanPoint *p, Schedule *out)
{
    Arena *arena = s->cache->arena;
    const JobSettings job = plan_job(&s->space, p);
    const Pipeline pipe = {.stages = p->mesh.pp, .micros = job.micros, .chunks = p->chunks};
    const int16_t *class_of;
    Schedule chunks;
    TRY(schedule_generate(p->schedule, &pipe, arena, &chunks));
    TRY(cache_chunks(s, p, chunks.chunks, &chunks.first_unit, &class_of));
    if (!chunks.first_unit) return err_fail(ERR_CONFIG, "%d chunks: too many", chunks.chunks);
    if (job.split) TRY(schedule_split(&chunks, arena, &chunks));
    return schedule_moves(&chunks, arena, out);
}

Err cache_moves(PlanSearch *s, const PlanPoint *p, const Schedule **out)
{
    const int micros = plan_job(&s->space, p).micros;
    CacheKey key = {{p->chunks, p->by_cost, p->by_cost ? p->recompute : 0,
                     p->by_cost ? p->micro : 0, p->mesh.pp, micros}};
    CacheEntry *e;
    bool is_new;
    key.word[6] = hash_text(p->schedule);
    key.word[7] = hash_text(p->split);
    TRY(lookup(&s->cache->moves, &key, s->cache->arena, &e, &is_new));
    if (is_new) {
        Schedule *moves;
        TRY(ARENA_NEW(s->cache->arena, 1, &moves));
        const Err err = make_moves(s, p, moves);
        if (err != OK && err != ERR_CONFIG) return err;
        TRY(lookup(&s->cache->moves, &key, s->cache->arena, &e, &is_new)); /* e may have moved */
        e->value = err == OK ? moves : NULL;
    }
    *out = e->value;
    return OK;
}
