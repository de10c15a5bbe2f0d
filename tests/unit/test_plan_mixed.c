/* test_plan_mixed.c -- plans whose layers differ: against brute force, and their bounds. */
#include "mixed_spaces.h"

#include "model/config.h"
#include "plan/search/mixed_parts.h"

static void is_within_its_gap(void **state)
{
    static const int space[] = {0, 1, 3};
    int faster = 0;
    (void)state;
    for (int i = 0; i < 3; i++) {
        const int n = space[i];
        PlanFixed fixed = plan_fixed_none();
        fixed.micro = fixed.tp = fixed.cp = 1;
        fixed.pp = n == 1 ? 2 : 1;
        fixed.schedule = "1f1b";
        fixed.sequence = fixed.by_cost = 0;
        if (n == 1)
            fixed.zero = 0;
        else
            fixed.recompute = RECOMPUTE_NONE;
        faster += check_mixed(n, &fixed);
    }
    assert_true(faster > 0);
}

/* GEMMs in FP8, of all layers but the ends: plans keep them, and weights of 8 bits take less. Space
 * 26 has a limit between the bytes of a plan with them and those of the same without. */
static void keeps_the_gemms_in_fp8(void **state)
{
    PlanFixed fixed = plan_fixed_none();
    (void)state;
    fixed.micro = fixed.tp = fixed.cp = 1;
    fixed.pp = 2;
    fixed.schedule = "gpipe";
    fixed.sequence = fixed.by_cost = fixed.zero = 0;
    assert_true(check_mixed(26, &fixed) > 0);
}

static void random_units(uint64_t *seed, const MixedCosts *c, UnitOptions *o)
{
    for (int u = 0; u < c->base.n_units; u++) {
        const int class = c->class_of[u];
        const uint64_t k = next_random(seed) % (uint64_t)c->n[class];
        o[u] = choice_options(c, &c->choice[class][k], u);
    }
}

/* The bytes of a stage's units under their choices. */
static double stage_bytes(const MixedCosts *c, const MixedStage *s, const UnitOptions *o)
{
    double bytes = 0;
    for (int g = 0; g < s->n; g++)
        for (int u = s->group[g].first; u < s->group[g].first + s->group[g].n; u++)
            for (int k = 0; k < c->n[s->group[g].class]; k++) {
                const UnitChoice *choice = &c->choice[s->group[g].class][k];
                const UnitOptions own = choice_options(c, choice, u);
                if (job_same_options(&own, &o[u])) bytes += choice_bytes(&s->group[g], choice);
            }
    return bytes;
}

/* The bound of all plans of a family, from its compiled units. */
static void check_any_bound(SmallSpace *t, const PlanPoint *family, double step_s)
{
    const LayoutUnits *units;
    PlanPoint p = *family;
    PlanBound any;
    p.recompute = RECOMPUTE_NONE; /* others take longer */
    DO(cache_units(&t->s, &p, &units));
    DO(search_any_bound(&t->s, &p, &units->bound, &any));
    if (any.step_s > step_s * (1 + 1e-12))
        fail_msg("bound of any levels %.9g s above %.9g s", any.step_s, step_s);
}

/* A family's bound at the memory of a random plan is not above the plan's time, nor are the bytes
 * of its stages above those of linked programs. */
static bool check_plan(SmallSpace *t, const PlanPoint *family, uint64_t *seed)
{
    const size_t mark = arena_mark(&t->temp);
    PlanPoint p = *family;
    MixedCosts *c;
    UnitOptions o[16];
    CoarseTime time, played;
    double bytes, bound, solved;
    DO(ARENA_NEW(&t->temp, 1, &c));
    Err err = mixed_open(&t->s, family, (ChoiceRange){3, true}, c);
    if (err == OK) {
        random_units(seed, c, o);
        p.unit = o;
        p.n_units = c->base.n_units;
        p.zero = p.recompute = 0;
        err = plan_time(&t->s, &p, &time);
    }
    if (err == OK) err = plan_link(&t->s, &p, &bytes);
    if (err != OK && err != ERR_CONFIG) fail_msg("%s", err_text());
    if (err == OK) {
        DO(mixed_bound(c, bytes, &t->temp, &bound));
        if (bound > time.step_s * (1 + 1e-12))
            fail_msg("bound %.9g s above %.9g s", bound, time.step_s);
        assert_true(bound > 0.1 * time.step_s);
        check_any_bound(t, family, time.step_s);
        for (int i = 0; i < c->stages; i++)
            if (stage_bytes(c, &c->stage[i], o) > stage_limit(c, i, bytes))
                fail_msg("stage %d: %.0f bytes, linked %.0f", i, stage_bytes(c, &c->stage[i], o),
                         bytes);
        solved = bound;
        PlanPoint best;
        double counted;
        DO(mixed_solve(c, bytes, &solved, &best, &played, &counted));
        assert_true(solved >= bound);
        if (solved > time.step_s * (1 + 1e-12))
            fail_msg("exact bound %.9g s above %.9g s", solved, time.step_s);
    }
    arena_rewind(&t->temp, mark);
    return err == OK;
}

/* Random plans of a space; returns how many the compiler takes. */
static int check_plans(SmallSpace *t, int plans, uint64_t *seed)
{
    int checked = 0;
    for (int i = 0; i < plans; i++) {
        PlanPoint p = t->s.node[next_random(seed) % (uint64_t)t->s.n].point;
        p.by_cost = false;
        checked += check_plan(t, &p, seed);
    }
    return checked;
}

static void bounds_hold(void **state)
{
    const PlanFixed none = plan_fixed_none();
    uint64_t seed = 3;
    int checked = 0;
    (void)state;
    for (int n = 0; n < 10; n++) {
        SmallSpace t;
        open_small(&t, n, &none);
        checked += check_plans(&t, 9, &seed);
        close_small(&t);
    }
    assert_true(checked >= 60);
}

enum { MAX_TABLES = 64 };

/* Tables of measured transfers whose time grows faster than their bytes, as that of sums that
 * leave the caches does for a while: two halves take less than the whole. */
static void add_steep_tables(CostRates *r, CostTable table[MAX_TABLES])
{
    static const CommKind kinds[] = {COMM_ALL_REDUCE, COMM_REDUCE_SCATTER};
    r->table = table;
    for (int members = 2; members <= 8; members++)
        for (int stride = 1; stride <= 4; stride *= 2)
            for (int k = 0; k < 2; k++) {
                const CostGroup g = cost_group_strided(r, members, stride);
                assert_true(r->n_tables < MAX_TABLES);
                table[r->n_tables++] =
                    (CostTable){kinds[k], members, g.level, g.inside, {2, {1e3, 1e6}, {1e-5, 0.3}}};
            }
}

static void bounds_hold_if_parts_take_less(void **state)
{
    PlanFixed fixed = plan_fixed_none();
    uint64_t seed = 5;
    int checked = 0;
    (void)state;
    fixed.tp = fixed.cp = 1;
    for (int n = 0; n < 10; n++) {
        CostTable table[MAX_TABLES];
        SmallSpace t;
        open_small(&t, n, &fixed);
        assert_true(t.s.n > 0);
        add_steep_tables(&t.cluster.rates, table);
        checked += check_plans(&t, 9, &seed);
        close_small(&t);
    }
    assert_true(checked >= 30);
}

/* GPT-2 of 48 layers of width 2,048 on 8 ranks, data parallel, on slow links without overlap. */
static void open_gpt(SmallSpace *t, PlanFixed fixed)
{
    static const ModelField set[] = {{"n_embd", "2048", "test", 4}, {"n_head", "16", "test", 4}};
    *t = (SmallSpace){0};
    DO(arena_open(&t->arena, "plans", ARENA_PLENTY));
    DO(arena_open(&t->temp, "compiler", ARENA_PLENTY));
    DO(model_config_load("gpt2-xl", set, 2, &t->arena, &t->config));
    t->job = test_job_settings("gpt2", JOB_STEP);
    t->job.config = &t->config;
    t->job.dtype = BF16;
    t->job.batch.seq_len = 128;
    t->job.optim.block = 1024;
    t->job.compile.chunk_elements = 32000000;
    t->cluster = slow_cluster(false);
    t->cluster.rates.flops_per_s[WORK_GEMM][BF16] = 75e12;
    t->cluster.rates.flops_per_s[WORK_ATTENTION][BF16] = 40e12;
    t->cluster.rates.flops_per_s[WORK_POINTWISE][BF16] = 7e12;
    t->cluster.rates.memory_Bps = 720e9;
    t->cluster.rates.level[0] = (CostLink){.ranks = 8, .latency_s = 9e-6, .Bps = 10e9};
    fixed.tp = fixed.pp = fixed.cp = 1;
    t->s = (PlanSearch){.space = {.base = &t->job,
                                  .cluster = &t->cluster,
                                  .global = 64,
                                  .ranks = 8,
                                  .fixed = fixed},
                        .max_played = 1000,
                        .max_linked = 1000,
                        .arena = &t->arena,
                        .temp = &t->temp};
}

/* The best plan within a limit; returns the best time of plans whose layers are alike. */
static const PlanNode *plan_gpt(SmallSpace *t, double limit, MixedPlan *out)
{
    PlanRanking r;
    DO(plan_cache_open(&t->arena, &t->s.cache));
    DO(plan_search_open(&t->s));
    DO(plan_search(&t->s, limit, 1, false, &r));
    const PlanNode *alike = r.n ? &t->s.node[r.node[0]] : NULL;
    const MixedRequest request = {limit, alike ? alike->key_s : HUGE_VAL, 1000, 1000, NULL};
    DO(plan_mixed(&t->s, &request, out));
    assert_true(out->found && out->memory_bytes <= limit && out->bound_s <= out->time.step_s);
    return alike;
}

/* The state of a single unit is not sharded: the norm is exchanged as without it. */
static void norm_has_the_ranks_of_all_units(void **state)
{
    SmallSpace t;
    UnitOptions unit[50];
    PlanPoint *points;
    CoarseTime coarse;
    StepTime exact;
    Mesh mesh;
    int n, at = 0;
    (void)state;
    open_gpt(&t, plan_fixed_none());
    t.cluster.rates.level[0].latency_s = 1e-3;
    DO(plan_cache_open(&t.arena, &t.s.cache));
    DO(plan_points(&t.s.space, &t.arena, &points, &n));
    while (points[at].zero != 1 || points[at].recompute != RECOMPUTE_NONE) at++;
    PlanPoint p = points[at];
    const JobSettings alike = plan_job(&t.s.space, &p);
    for (int u = 0; u < 50; u++) unit[u] = job_unit_options(&alike, u);
    unit[49].zero = 0;
    p.unit = unit;
    p.n_units = 50;
    const JobSettings job = search_job(&t.s, &p);
    DO(mesh_sized(&job.parallel.mesh, &mesh));
    const ClockInput in = {.cluster = &t.cluster, .job = &job, .mesh = &mesh};
    DO(plan_time(&t.s, &p, &coarse));
    DO(clock_step(&in, &t.arena, &t.temp, &exact));
    if (fabs(coarse.step_s - exact.step_s) > 1e-3)
        fail_msg("%.9g s; by the clock of all ranks %.9g s", coarse.step_s, exact.step_s);
    close_small(&t);
}

/* OSDP's case: 8 GB. Layers are sharded only as far as the memory demands. */
static void shards_what_it_must(void **state)
{
    const double limit = 8 * 0x1p30;
    SmallSpace t;
    MixedPlan m;
    (void)state;
    open_gpt(&t, plan_fixed_none());
    const PlanNode *alike = plan_gpt(&t, limit, &m);
    assert_non_null(alike);
    assert_int_equal(alike->point.zero, 3);
    assert_true(m.memory_bytes > 0.95 * limit);
    assert_true(m.time.step_s < 0.95 * alike->key_s && m.bound_s > 0.85 * m.time.step_s);
    int sharded = 0;
    for (int u = 1; u <= 48; u++) sharded += m.point.unit[u].zero == 3;
    assert_true(sharded > 5 && sharded < 43);
    close_small(&t);
}

/* With a fast link to the host, frames are moved there; with a slow one, none. */
static void offloads_what_pays(void **state)
{
    PlanFixed fixed = plan_fixed_none();
    (void)state;
    fixed.zero = 3;
    fixed.recompute = RECOMPUTE_NONE;
    fixed.micro = 4;
    for (int fast = 0; fast < 2; fast++) {
        SmallSpace t;
        PlanRanking r;
        MixedPlan m;
        open_gpt(&t, fixed);
        t.cluster.rates.host_Bps = fast ? 1e13 : 1e8;
        DO(plan_cache_open(&t.arena, &t.s.cache));
        DO(plan_search_open(&t.s));
        DO(plan_search(&t.s, 1e12, 1, false, &r));
        const double limit = 0.97 * t.s.node[r.node[0]].memory_bytes;
        const MixedRequest request = {limit, HUGE_VAL, 1000, 1000, NULL};
        DO(plan_mixed(&t.s, &request, &m));
        assert_int_equal(m.found, fast);
        int offloaded = 0;
        for (int u = 1; u <= 48 && m.found; u++) offloaded += m.point.unit[u].offload_names != NULL;
        if (fast) assert_true(offloaded > 0 && offloaded < 48 && m.memory_bytes <= limit);
        close_small(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_within_its_gap),
                                       cmocka_unit_test(keeps_the_gemms_in_fp8),
                                       cmocka_unit_test(bounds_hold),
                                       cmocka_unit_test(bounds_hold_if_parts_take_less),
                                       cmocka_unit_test(norm_has_the_ranks_of_all_units),
                                       cmocka_unit_test(shards_what_it_must),
                                       cmocka_unit_test(offloads_what_pays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
