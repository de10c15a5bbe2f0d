/* test_plan_stages.c -- nodes and units of stages on uneven devices: the search against brute force
 * over all orders of the nodes and all splits. */
#include <math.h>
#include <string.h>

#include "plan/search/stages.h"
#include "plan_spaces.h"

enum { MAX_TEST_NODES = 4, MAX_TEST_CHUNKS = 4 };

typedef struct {
    MeshSizes mesh;
    int ranks_of_a_node, chunks; /* chunks: of a stage; 0: the schedule's default */
    const char *schedule;
    int zero, micro;
    double speed[MAX_TEST_NODES];
} StageCase;

static const StageCase stage_cases[] = {
    {{.pp = 4}, 1, 0, "1f1b", 0, 1, {1, 1, 0.5, 0.5}},
    {{.pp = 4}, 1, 0, "1f1b", 0, 1, {0.5, 1, 1, 0.25}},
    {{.pp = 4}, 1, 0, "gpipe", 0, 2, {0.7, 1, 0.7, 1}},
    {{.pp = 4}, 1, 0, "zbh1", 0, 1, {1, 0.6, 1, 0.6}},
    {{.pp = 2, .dp_shard = 2}, 1, 0, "1f1b", 1, 1, {0.5, 1, 0.5, 1}},
    {{.pp = 2, .dp_shard = 2}, 1, 0, "1f1b", 3, 1, {0.3, 1, 1, 1}},
    {{.pp = 2, .tp = 2}, 2, 0, "1f1b", 0, 1, {0.4, 1}},
    {{.pp = 2, .dp_shard = 4}, 2, 0, "1f1b", 1, 1, {1, 0.5, 0.5, 1}},
    {{.pp = 2, .dp_shard = 2}, 2, 2, "interleaved", 1, 1, {0.5, 1}},
    {{.pp = 4, .dp_shard = 2}, 4, 0, "1f1b", 1, 1, {0.5, 1}}, /* two stages on a node */
    {{.dp_shard = 4}, 1, 0, "1f1b", 1, 1, {0.5, 1, 1, 0.8}},
};
enum { N_STAGE_CASES = sizeof stage_cases / sizeof *stage_cases };

typedef struct {
    SmallSpace t;
    PlanPoint point;
    CostNodes nodes;
    CostDevice device[MAX_TEST_NODES];
    Mesh mesh;
    Cluster uneven;
    int n, chunks, units;
} StageFixture;

static void open_stage_case(StageFixture *f, const StageCase *c)
{
    const MeshSizes *m = &c->mesh;
    SmallSpace *t = &f->t;
    *f = (StageFixture){0};
    DO(arena_open(&t->arena, "plans", ARENA_PLENTY));
    DO(arena_open(&t->temp, "compiler", ARENA_PLENTY));
    t->job = test_job_settings("llama", JOB_STEP);
    t->config = *t->job.config;
    t->config.n_layers = 6;
    t->job.config = &t->config;
    t->job.dtype = F64;
    t->job.batch.seq_len = 8;
    t->cluster = slow_cluster(true);
    t->cluster.rates.level[0].ranks = c->ranks_of_a_node;
    DO(mesh_sized(m, &f->mesh));
    t->s = (PlanSearch){.space = {.base = &t->job,
                                  .cluster = &t->cluster,
                                  .global = 12,
                                  .ranks = f->mesh.world,
                                  .min_tokens = 2,
                                  .fixed = plan_fixed_none()},
                        .arena = &t->arena,
                        .temp = &t->temp};
    DO(plan_cache_open(&t->arena, &t->s.cache));
    f->point = (PlanPoint){.mesh = {.dp_replicate = 1,
                                    .dp_shard = m->dp_shard ? m->dp_shard : 1,
                                    .tp = m->tp ? m->tp : 1,
                                    .pp = m->pp ? m->pp : 1,
                                    .cp = 1,
                                    .ep = 1,
                                    .etp = 1},
                           .micro = c->micro,
                           .zero = c->zero,
                           .schedule = c->schedule,
                           .chunks = c->chunks};
    f->n = f->mesh.world / c->ranks_of_a_node;
    f->chunks = f->point.mesh.pp * (c->chunks ? c->chunks : 1);
    f->units = 8;
    for (int i = 0; i < MAX_TEST_NODES; i++) f->device[i].speed = i < f->n ? c->speed[i] : 1;
    f->nodes = (CostNodes){.n_devices = MAX_TEST_NODES, .device = f->device};
    f->uneven = t->cluster;
    f->uneven.rates.nodes = &f->nodes;
}

static StagePlan stage_plan(StageFixture *f, double limit_bytes, bool keeps_split)
{
    StagePlan plan;
    const StageRequest r = {.search = &f->t.s,
                            .cluster = &f->uneven,
                            .limit_bytes = limit_bytes,
                            .best_s = (double)INFINITY,
                            .max_plays = 400,
                            .max_splits = 400,
                            .keeps_split = keeps_split};
    DO(plan_stages(&r, &f->point, &plan));
    return plan;
}

/* ---- brute force ---- */

typedef struct {
    StageFixture *f;
    double limit_bytes, best_s, even_s; /* even_s: of the plan's own split, in its best order */
    StepClock *clock;
    double *bytes; /* [stages] */
    int at[MAX_TEST_NODES], tried;
    bool even;
} StageBrute;

static bool fits_here(const StageBrute *b, const Cluster *c)
{
    const int each = b->f->mesh.world / b->f->point.mesh.pp;
    for (int rank = 0; rank < b->f->mesh.world; rank++)
        if (b->bytes[rank / each] > fmin(b->limit_bytes, cluster_memory_bytes(c, rank)))
            return false;
    return true;
}

static void try_orders(StageBrute *b, int i)
{
    StageFixture *f = b->f;
    if (i < f->n && i < MAX_TEST_NODES) {
        for (int node = 0; node < f->n; node++) {
            bool used = false;
            for (int k = 0; k < i; k++) used = used || b->at[k] == node;
            b->at[i] = node;
            if (!used) try_orders(b, i + 1);
        }
        return;
    }
    Cluster c;
    StepTime t;
    DO(cluster_ordered(&f->uneven, b->at, f->n, &f->t.temp, &c));
    if (!fits_here(b, &c)) return;
    DO(clock_play(b->clock, &c, &t));
    b->tried++;
    b->best_s = fmin(b->best_s, t.step_s);
    if (b->even) b->even_s = fmin(b->even_s, t.step_s);
}

static void try_split(StageBrute *b, const PlanPoint *p)
{
    StageFixture *f = b->f;
    Arena clocks;
    Cluster in_order;
    static const int at[MAX_TEST_NODES] = {0, 1, 2, 3};
    const JobSettings job = plan_job(&f->t.s.space, p);
    DO(plan_link_stages(&f->t.s, p, b->bytes));
    DO(arena_open(&clocks, "clocks", ARENA_PLENTY));
    DO(cluster_ordered(&f->uneven, at, f->n, &clocks, &in_order));
    const ClockInput in = {.cluster = &in_order, .job = &job, .mesh = &f->mesh};
    DO(clock_open(&in, &clocks, &f->t.temp, &b->clock));
    try_orders(b, 0);
    arena_close(&clocks);
}

static void try_splits(StageBrute *b, int chunk, int left, char *text)
{
    StageFixture *f = b->f;
    const size_t length = strlen(text);
    if (chunk == f->chunks) {
        PlanPoint p = f->point;
        p.by_cost = true;
        p.split = text;
        text[length - 1] = '\0'; /* the last comma */
        if (left == 0) try_split(b, &p);
        text[length - 1] = ',';
        return;
    }
    for (int n = 1; n <= left; n++) {
        sprintf(text + length, "%d,", n);
        try_splits(b, chunk + 1, left - n, text);
        text[length] = '\0';
    }
}

static StageBrute brute(StageFixture *f, double limit_bytes)
{
    StageBrute b = {.f = f, .limit_bytes = limit_bytes};
    char text[64] = "";
    b.best_s = b.even_s = (double)INFINITY;
    DO(ARENA_NEW(&f->t.arena, f->point.mesh.pp, &b.bytes));
    b.even = true;
    try_split(&b, &f->point);
    b.even = false;
    if (f->chunks > 1) try_splits(&b, 0, f->units, text);
    return b;
}

/* The step of a plan that was found, by every rank. */
static double played_again(StageFixture *f, const StagePlan *plan)
{
    Cluster c;
    StepTime t;
    const JobSettings job = plan_job(&f->t.s.space, &plan->point);
    DO(cluster_ordered(&f->uneven, plan->map.at, plan->map.n, &f->t.temp, &c));
    const ClockInput in = {.cluster = &c, .job = &job, .mesh = &f->mesh, .every_rank = true};
    DO(clock_step(&in, &f->t.arena, &f->t.temp, &t));
    return t.step_s;
}

/* ---- tests ---- */

/* The answer is at most 2% above the optimum, and mostly the optimum. No plan is faster than the
 * least work over the sum of the speeds, nor than the same plan on devices that are alike. */
static void answers_are_near_the_best_of_all(void **state)
{
    int equal = 0, gains = 0;
    (void)state;
    for (int i = 0; i < N_STAGE_CASES; i++) {
        StageFixture f;
        double work_s;
        open_stage_case(&f, &stage_cases[i]);
        const StageBrute all = brute(&f, 1e12);
        const StagePlan plan = stage_plan(&f, 1e12, false), kept = stage_plan(&f, 1e12, true);
        const double ratio = plan.map.step_s / all.best_s;
        if (!(ratio < 1.02 && ratio > 1 - 1e-9))
            fail_msg("case %d: %.9g s, the best of %d takes %.9g s", i, plan.map.step_s, all.tried,
                     all.best_s);
        assert_true(fabs(played_again(&f, &plan) / plan.map.step_s - 1) < 1e-9);
        /* Homes of dp ranks differ in size, so orders within a stage differ a little. */
        if (!(fabs(kept.map.step_s / all.even_s - 1) < 1e-3) || kept.point.split)
            fail_msg("case %d, kept split: %.9g s, in the best order %.9g s", i, kept.map.step_s,
                     all.even_s);
        assert_true(plan.map.alike_s <= kept.map.step_s && kept.map.step_s <= kept.map.in_order_s);
        DO(plan_least_work(&f.t.s, &work_s));
        assert_true(work_s > 0 && work_s / cost_speeds(&f.uneven.rates, f.mesh.world) < all.best_s);
        equal += ratio < 1 + 1e-3;
        gains += plan.map.step_s < 0.95 * kept.map.step_s;
        close_small(&f.t);
    }
    assert_true(equal >= N_STAGE_CASES - 1 && gains > N_STAGE_CASES / 2);
}

/* The slow node has little memory: plans that need more there are not taken. Limits fall until no
 * plan fits; the search agrees with brute force on whether one does. */
static void stages_fit_their_devices(void **state)
{
    int avoided = 0, none = 0;
    (void)state;
    for (int i = 0; i < N_STAGE_CASES; i++) {
        StageFixture f;
        open_stage_case(&f, &stage_cases[i]);
        const StagePlan free = stage_plan(&f, 1e12, false);
        double least = free.memory_bytes, stage_bytes[MAX_TEST_CHUNKS];
        DO(plan_link_stages(&f.t.s, &free.point, stage_bytes));
        for (int k = 0; k < f.point.mesh.pp; k++) least = fmin(least, stage_bytes[k]);
        for (int k = 0; k < 8; k++) {
            for (int node = 0; node < f.n; node++)
                if (f.device[node].speed < 1)
                    f.device[node].memory_bytes = (1.05 - 0.07 * k) * least;
            const StageBrute all = brute(&f, free.memory_bytes);
            const StagePlan plan = stage_plan(&f, free.memory_bytes, false);
            if (isinf(plan.map.step_s) != isinf(all.best_s))
                fail_msg("case %d, limit %d: %g s, the best of %d takes %g s", i, k,
                         plan.map.step_s, all.tried, all.best_s);
            none += isinf(all.best_s);
            if (isinf(all.best_s)) break;
            StageBrute own = {.f = &f, .limit_bytes = free.memory_bytes};
            double bytes[MAX_TEST_CHUNKS];
            Cluster c;
            own.bytes = bytes;
            DO(plan_link_stages(&f.t.s, &plan.point, bytes));
            DO(cluster_ordered(&f.uneven, plan.map.at, f.n, &f.t.temp, &c));
            assert_true(fits_here(&own, &c));
            if (!(plan.map.step_s <= 1.02 * all.best_s))
                fail_msg("case %d, limit %d: %.9g s, the best of %d takes %.9g s", i, k,
                         plan.map.step_s, all.tried, all.best_s);
            avoided += plan.map.step_s > free.map.step_s * (1 + 1e-9);
        }
        close_small(&f.t);
    }
    if (!(avoided > 5 && none > 2)) fail_msg("%d avoided, %d none", avoided, none);
}

/* Slow links between nodes decide among nodes that are alike. */
static void links_count_too(void **state)
{
    static const CostLink slow = {.latency_s = 2e-3, .Bps = 2e5};
    static const StageCase c = {{.pp = 2, .dp_shard = 2}, 1, 0, "1f1b", 1, 1, {1, 0.5, 0.5, 1}};
    uint8_t between[16] = {0};
    StageFixture f;
    (void)state;
    open_stage_case(&f, &c);
    between[0 * 4 + 1] = between[1 * 4 + 0] =
        1; /* stages are 0 3 | 1 2, or 0 2 behind each other */
    f.nodes.n = 4;
    f.nodes.n_links = 1;
    f.nodes.link = &slow;
    f.nodes.between = between;
    const StageBrute all = brute(&f, 1e12);
    const StagePlan plan = stage_plan(&f, 1e12, false);
    assert_true(plan.map.step_s <= 1.02 * all.best_s && plan.map.step_s >= all.best_s * (1 - 1e-9));
    for (int i = 0; i < 2; i++) /* dp coordinate i of both stages exchanges activations */
        assert_false(plan.map.at[i] + plan.map.at[i + 2] == 1);
    close_small(&f.t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers_are_near_the_best_of_all),
                                       cmocka_unit_test(stages_fit_their_devices),
                                       cmocka_unit_test(links_count_too)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
