/* settle.c -- the layouts of weights along tp of points that search them. */
#include "job/tp_choice.h"
#include "plan/search/cache.h"

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
    CacheKey key = cache_key(&q);
    key.word[7] = p->mesh.dp_replicate;
    key.word[8] = p->mesh.dp_shard;
    key.word[9] = p->mesh.pp;
    TRY(cache_lookup(&s->cache->choices, &key, s->cache->arena, &e, &is_new));
    if (is_new) {
        const char *rules;
        TRY(search_tp(s, p, &rules));
        TRY(cache_lookup(&s->cache->choices, &key, s->cache->arena, &e, &is_new));
        e->value = (void *)(uintptr_t)rules;
    }
    p->tp_weights = e->value;
    *differs = p->tp_weights != NULL;
    return OK;
}
