/* cache_chunks.c -- splits of weights, chunks of units, and schedules over them, kept by point. */
#include "plan/search/cache.h"
#include "plan/search/operators.h"
#include "schedule/chunks.h"
#include "schedule/gen/generate.h"
#include "schedule/moves.h"
#include "schedule/passes.h"

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
    const PlanPoint q = cache_without_data(p);
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
                     cache_hash(p->split)}};
    CacheEntry *e;
    bool is_new;
    TRY(cache_lookup(&s->cache->chunks, &key, s->cache->arena, &e, &is_new));
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
    key.word[6] = cache_hash(p->schedule);
    key.word[7] = cache_hash(p->split);
    TRY(cache_lookup(&s->cache->moves, &key, s->cache->arena, &e, &is_new));
    if (is_new) {
        Schedule *moves;
        TRY(ARENA_NEW(s->cache->arena, 1, &moves));
        const Err err = make_moves(s, p, moves);
        if (err != OK && err != ERR_CONFIG) return err;
        TRY(cache_lookup(&s->cache->moves, &key, s->cache->arena, &e,
                         &is_new)); /* e may have moved */
        e->value = err == OK ? moves : NULL;
    }
    *out = e->value;
    return OK;
}
