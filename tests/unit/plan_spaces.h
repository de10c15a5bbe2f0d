/* plan_spaces.h -- small spaces of plans: a model of a few layers on up to 8 ranks of a slow
 * cluster, so that every plan can be timed and linked. */
#ifndef UNIT_PLAN_SPACES_H
#define UNIT_PLAN_SPACES_H

#include "clock_cases.h"
#include "plan/search.h"

typedef struct {
    Arena arena, temp;
    ModelConfig config;
    JobSettings job;
    Cluster cluster;
    PlanSearch s;
} SmallSpace;

/* Space number n: ranks, layers, batch, links and overlap vary. The space is open. */
static inline void open_small(SmallSpace *t, int n, const PlanFixed *fixed)
{
    static const int ranks[] = {4, 2, 8, 6, 3};
    *t = (SmallSpace){0};
    DO(arena_open(&t->arena, "plans", ARENA_PLENTY));
    DO(arena_open(&t->temp, "compiler", ARENA_PLENTY));
    const bool experts = n % 7 == 6;
    t->job = test_job_settings(experts ? "mixtral" : n % 4 == 3 ? "gpt2" : "llama", JOB_STEP);
    t->config = *t->job.config;
    if (experts) t->config.experts.n = 4;
    t->config.n_layers = 3 + n % 3;
    t->job.config = &t->config;
    t->job.dtype = n % 2 ? F64 : BF16;
    t->job.batch.seq_len = 8;
    t->cluster = slow_cluster(n % 3 != 1);
    t->cluster.rates.level[1].Bps *= 1 + n % 5;
    t->cluster.rates.level[0].ranks = n % 5 == 3 ? 3 : 4;
    t->cluster.host_memory = n % 4 == 1;
    t->s = (PlanSearch){.space = {.base = &t->job,
                                  .cluster = &t->cluster,
                                  .global = 5 + n % 7,
                                  .ranks = ranks[n % 5],
                                  .max_micro = 4,
                                  .min_tokens = 2,
                                  .fixed = *fixed},
                        .save = t->cluster.host_memory ? SAVE_MEMORY_SNAPSHOT : SAVE_MEMORY_NONE,
                        .max_played = 100000,
                        .max_linked = 100000,
                        .arena = &t->arena,
                        .temp = &t->temp};
    DO(plan_cache_open(&t->arena, &t->s.cache));
    DO(plan_search_open(&t->s));
}

static inline void close_small(SmallSpace *t)
{
    arena_close(&t->temp);
    arena_close(&t->arena);
}

static inline uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

typedef struct {
    double step_s, bytes;
} KnownPlan;

/* Times and links every plan of the space, without its bounds. */
static inline int know_all(SmallSpace *t, KnownPlan *out)
{
    int n = 0;
    for (int i = 0; i < t->s.n; i++) {
        const PlanPoint *p = &t->s.node[i].point;
        CoarseTime time;
        Err err = plan_time(&t->s, p, &time);
        if (err == OK) err = plan_link(&t->s, p, &out[n].bytes);
        if (err != OK && err != ERR_CONFIG) fail_msg("%s", err_text());
        if (err != OK) continue;
        out[n++].step_s = time.step_s;
    }
    return n;
}

/* The fastest that fits; 0: none does. */
static inline double best_known(const KnownPlan *plan, int n, double limit_bytes)
{
    double best = 0;
    for (int i = 0; i < n; i++)
        if (plan[i].bytes <= limit_bytes && (best == 0 || plan[i].step_s < best))
            best = plan[i].step_s;
    return best;
}

/* The search finds the optimum of brute force, at four limits of memory. */
static inline void check_space(int n, const PlanFixed *fixed)
{
    static const double share[] = {1e9, 0.8, 0.6, 0.3};
    SmallSpace known, t;
    KnownPlan *plan;
    double most = 0;
    open_small(&known, n, fixed);
    DO(ARENA_NEW(&known.arena, known.s.n, &plan));
    const int plans = know_all(&known, plan);
    assert_true(plans > 20);
    open_small(&t, n, fixed);
    for (int i = 0; i < 4; i++) {
        const double limit = i == 0 ? 1e12 : most * share[i];
        const double best = best_known(plan, plans, limit);
        PlanRanking r;
        DO(plan_search(&t.s, limit, 1, false, &r));
        assert_int_equal(r.n, best > 0);
        if (r.n == 0) continue;
        const PlanNode *node = &t.s.node[r.node[0]];
        assert_true(r.complete);
        if (node->key_s != best || r.bound_s != best)
            fail_msg("space %d, limit %g: the search finds %.9g s, all %d plans %.9g s", n, limit,
                     node->key_s, plans, best);
        assert_true(node->memory_bytes <= limit);
        if (i == 0) most = node->memory_bytes;
    }
    close_small(&t);
    close_small(&known);
}

#endif
