/* plan_spaces.h -- small spaces of plans: a model of a few layers on up to 8 ranks of a slow
 * cluster, so that every plan can be timed and linked. */
#ifndef UNIT_PLAN_SPACES_H
#define UNIT_PLAN_SPACES_H

#include <stdlib.h>

#include "clock_cases.h"
#include "plan/search/limits.h"
#include "plan/search/search.h"

typedef struct {
    Arena arena, temp;
    ModelConfig config;
    JobSettings job;
    Cluster cluster;
    PlanSearch s;
} SmallSpace;

/* Every second cluster has tables, as a profile has: caches that are faster than memory, kernels
 * that reach a part of its rate, attention by keys, epilogues. */
static inline void add_tables(CostRates *r, int n)
{
    static const CostCurve caches = {4, {1e3, 1e4, 1e5, 1e6}, {30e9, 20e9, 6e9, 3e9}};
    static const CostAttention keyed = {.n = 1,
                                        .width = {8},
                                        .forward = {{2, {2, 8}, {2e8, 6e8}}},
                                        .backward = {{2, {2, 8}, {1e8, 4e8}}}};
    if (n % 2) return;
    r->memory = &caches;
    r->keyed[BF16] = &keyed;
    r->epilogue = 0.5;
    for (int i = 0; i < N_REACHES; i++) r->reach[i] = 0.7 + 0.1 * i;
}

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
    if (n % 4 == 2) /* coded weights, which have packs of their own */
        t->job.compile.fp8 = (Fp8Options){.names = "*",
                                          .compute = E4M3,
                                          .gradient = E5M2,
                                          .scaling = SCALING_TENSOR,
                                          .experts = true,
                                          .spare_ends = n % 8 == 2,
                                          .code_weights = true};
    t->cluster = slow_cluster(n % 3 != 1);
    t->cluster.rates.level[1].Bps *= 1 + n % 5;
    t->cluster.rates.level[0].ranks = n % 5 == 3 ? 3 : 4;
    t->cluster.host_memory = n % 4 == 1;
    add_tables(&t->cluster.rates, n);
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

typedef struct {
    KnownPlan *plan;
    int n;
} KnownPlans;

/* The search finds the optimum of brute force within the limit; returns the bytes of its plan, or
 * 0 if none fits. */
static inline double check_limit(SmallSpace *t, const KnownPlans *known, double limit)
{
    const double best = best_known(known->plan, known->n, limit);
    PlanRanking r;
    DO(plan_search(&t->s, limit, 1, false, &r));
    assert_int_equal(r.n, best > 0);
    if (r.n == 0) return 0;
    const PlanNode *node = &t->s.node[r.node[0]];
    assert_true(r.complete);
    if (node->key_s != best || r.bound_s != best)
        fail_msg("limit %.0f: the search finds %.9g s, all %d plans %.9g s", limit, node->key_s,
                 known->n, best);
    assert_true(node->memory_bytes <= limit);
    return node->memory_bytes;
}

/* The best plans of falling limits. */
typedef struct {
    SmallSpace *t;
    KnownPlan plan[200];
    int n;
} WalkedPlans;

static inline Err search_walked(void *context, double limit, double *bytes, bool *found)
{
    WalkedPlans *w = context;
    PlanRanking r;
    TRY(plan_search(&w->t->s, limit, 1, false, &r));
    *found = r.n > 0;
    if (!*found) return OK;
    const PlanNode *node = &w->t->s.node[r.node[0]];
    *bytes = node->memory_bytes;
    w->plan[w->n++] = (KnownPlan){node->key_s, node->memory_bytes};
    return OK;
}

/* They answer for every limit: for the bytes of each plan, and a byte less. */
static inline void check_every_limit(SmallSpace *t, const KnownPlans *known)
{
    WalkedPlans w = {.t = t};
    const LimitWalk walk = {.from_bytes = 1e12,
                            .most = sizeof w.plan / sizeof *w.plan,
                            .search = search_walked,
                            .context = &w};
    bool cut;
    DO(plan_walk_limits(&walk, &cut));
    assert_true(!cut && w.n > 1);
    for (int i = 0; i < 2 * known->n; i++) {
        const double limit = known->plan[i / 2].bytes - i % 2,
                     best = best_known(known->plan, known->n, limit);
        int at = 0;
        while (at < w.n && w.plan[at].bytes > limit) at++;
        const double listed = at < w.n ? w.plan[at].step_s : 0;
        if (listed != best)
            fail_msg("limit %.0f: the list has %.9g s, all plans %.9g s", limit, listed, best);
    }
}

static inline int by_bytes(const void *a, const void *b)
{
    const double x = ((const KnownPlan *)a)->bytes, y = ((const KnownPlan *)b)->bytes;
    return (x > y) - (x < y);
}

/* At limits of memory that fall, then at some that rise and are those of plans, or a byte less:
 * plans that were linked in part are linked again. */
static inline void check_space(int n, const PlanFixed *fixed)
{
    static const double share[] = {0.8, 0.6, 0.3};
    enum { RISING = 12 };
    SmallSpace all, t;
    KnownPlans known;
    open_small(&all, n, fixed);
    DO(ARENA_NEW(&all.arena, all.s.n, &known.plan));
    known.n = know_all(&all, known.plan);
    assert_true(known.n > 20);
    open_small(&t, n, fixed);
    const double most = check_limit(&t, &known, 1e12);
    for (int i = 0; i < 3; i++) check_limit(&t, &known, most * share[i]);
    close_small(&t);
    open_small(&t, n, fixed);
    qsort(known.plan, (size_t)known.n, sizeof *known.plan, by_bytes);
    for (int i = 0; i < RISING; i++) {
        const double limit = known.plan[(int64_t)i * known.n / RISING].bytes;
        check_limit(&t, &known, limit - 1);
        check_limit(&t, &known, limit);
    }
    close_small(&t);
    open_small(&t, n, fixed);
    check_every_limit(&t, &known);
    close_small(&t);
    close_small(&all);
}

#endif
