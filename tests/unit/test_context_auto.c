/* test_context_auto.c -- parallel.context=auto: the seconds of each way, and the choice. */
#include "support/graph_test.h"

#include <math.h>
#include <string.h>

#include "job/context_clock.h"
#include "plan/clock/clock.h"
#include "support/jobs.h"
#include "support/models.h"

/* A machine whose attention has 1 Gflop/s and whose links have these rates. No latencies, so that
 * seconds are flops and bytes. */
static Cluster machine(double inside_Bps, double between_Bps, int host)
{
    Cluster c = {.name = "test", .rates = *cost_default_rates()};
    CostRates *r = &c.rates;
    for (int i = 0; i < N_WORK_CLASSES; i++)
        for (int t = 0; t < N_DTYPES; t++) r->flops_per_s[i][t] = 1e9;
    r->memory_Bps = 1e15;
    r->launch_s = 0;
    r->level[0] = (CostLink){.ranks = host, .Bps = inside_Bps};
    r->level[1] = (CostLink){.Bps = between_Bps};
    return c;
}

typedef struct {
    Arena arena;
    ModelConfig config;
    JobSettings set;
    Job job;
} Auto;

static void open_auto(Auto *a, int cp, int64_t heads, int64_t key_heads, int64_t seq_len)
{
    *a = (Auto){.set = test_job_settings("llama", JOB_STEP)};
    a->config = *a->set.config;
    a->config.n_heads = heads;
    a->config.n_kv_heads = key_heads;
    a->config.head_size = 64;
    a->config.max_positions = seq_len;
    a->set.config = &a->config;
    a->set.batch = (BatchShape){1, seq_len};
    a->set.parallel.mesh = (MeshSizes){.cp = cp};
    DO(arena_open(&a->arena, "auto", (size_t)1 << 32));
}

static const ContextCandidate *candidate(const ContextSearch *s, ContextKind kind, int heads)
{
    for (int i = 0; i < s->n; i++)
        if (s->list[i].kind == kind && s->list[i].heads == heads) return &s->list[i];
    fail_msg("no candidate %s over %d heads", context_name(kind), heads);
    return NULL;
}

static const ContextCandidate *choice(Auto *a, ContextSearch *s)
{
    DO(job_choose_context(&a->set, &a->arena, s));
    assert_true(s->n > 0);
    return &s->list[s->best];
}

/* All blocks together have the pairs of the mask, each once. */
static void pairs_are_those_of_the_mask(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks++)
        for (int tokens = TOKENS_CONTIGUOUS; tokens < N_TOKEN_MAPS; tokens++)
            for (int window = 0; window <= 31; window += 31) {
                const double n = 16 * ranks, w = window && window < n ? window : n;
                const ContextShape shape = {ranks, ranks, (TokenMap)tokens, true};
                const ContextLoad load = {.sequences = 3, .seq_len = n, .window = window};
                double pairs = 0;
                for (int q = 0; q < ranks; q++)
                    for (int k = 0; k < ranks; k++)
                        pairs += context_pairs(&shape, &load, block_whole(q), block_whole(k));
                assert_true(fabs(pairs - 3 * (w * (w + 1) / 2 + (n - w) * w)) < 1e-6 * pairs);
            }
}

/* A ring of zigzag tokens hides its hops if a block takes as long as a hop: tokens per rank at
 * least (F/B) (k/h), here with F in flops and B in elements per second: a pair has 4 flops and a
 * key 2 elements, and half of the pairs are masked. */
static void hops_hide_from_the_condition_on(void **state)
{
    (void)state;
    for (int k_heads = 2; k_heads <= 8; k_heads += 6) {
        const double flops = 1e9, Bps = 1e6, type = 4;
        const double tokens = flops / Bps * type * k_heads / 8;
        for (int more = 0; more < 2; more++) {
            Arena arena;
            const Cluster c = machine(Bps, Bps, 1);
            const ContextShape shape = {4, 4, TOKENS_ZIGZAG, true};
            const ContextLoad load = {&c.rates, F32, 1,       1, 4 * tokens * (more ? 1.02 : 0.5),
                                      0,        8,   k_heads, 64};
            ContextPlan plan;
            const ContextRow *row;
            ContextTime t;
            DO(arena_open(&arena, "clock", (size_t)1 << 24));
            DO(context_row("ring", &arena, &row));
            DO(context_plan(row, &shape, &arena, &plan));
            DO(context_clock(&plan, &load, &arena, &t));
            const double hidden = 1 - t.wait_s / t.moving_s;
            if (more ? hidden < 0.999 : hidden > 0.55 || hidden < 0.45)
                fail_msg("%d key heads, %s: %.3f hidden", k_heads, more ? "above" : "half", hidden);
            arena_close(&arena);
        }
    }
}

static void a_slow_network_gets_a_plan_that_hides(void **state)
{
    (void)state;
    Auto a;
    ContextSearch s;
    open_auto(&a, 4, 8, 2, 8192);
    const Cluster slow = machine(8e6, 8e6, 8);
    a.set.parallel.cluster = &slow;
    const ContextCandidate *c = choice(&a, &s);
    /* All hops but one of nine: backward starts with the block that travels longest. */
    assert_int_equal(c->kind, CONTEXT_RING);
    assert_true(fabs(c->hidden - 8.0 / 9) < 1e-9);
    assert_true(candidate(&s, CONTEXT_GATHER, 1)->hidden == 0);
    assert_true(candidate(&s, CONTEXT_RING, 1)->seconds <
                candidate(&s, CONTEXT_GATHER, 1)->seconds);
    arena_close(&a.arena);
}

/* Where nothing hides, the fewest bytes win: 4(H+K)/P of Ulysses against 6 K. */
static void a_network_that_nothing_hides_gets_few_bytes(void **state)
{
    (void)state;
    Auto a;
    ContextSearch s;
    open_auto(&a, 8, 8, 8, 64);
    const Cluster slow = machine(1e4, 1e4, 8);
    a.set.parallel.cluster = &slow;
    assert_int_equal(choice(&a, &s)->kind, CONTEXT_ULYSSES);
    arena_close(&a.arena);
}

/* A ring of 8 over 2 hosts sends each block between the hosts over one link; a double ring uses
 * all, and half of the hops. */
static void hosts_far_apart_get_two_rings(void **state)
{
    (void)state;
    Auto a;
    ContextSearch s;
    open_auto(&a, 8, 7, 7, 8192);
    const Cluster far = machine(1e9, 5e6, 4);
    a.set.parallel.mesh.cp_heads = 1;
    a.set.parallel.cluster = &far;
    const ContextCandidate *c = choice(&a, &s);
    if (c->kind != CONTEXT_DOUBLE_RING) fail_msg("%s is chosen", context_name(c->kind));
    assert_int_equal(c->inner, 4);
    assert_true(c->seconds < candidate(&s, CONTEXT_RING, 1)->seconds);
    arena_close(&a.arena);
}

static void few_heads_exclude_ulysses(void **state)
{
    (void)state;
    Auto a;
    ContextSearch s;
    open_auto(&a, 8, 4, 2, 4096);
    (void)choice(&a, &s);
    assert_string_equal(candidate(&s, CONTEXT_ULYSSES, 8)->why_not, "4 heads are left to 8 ranks");
    assert_string_equal(candidate(&s, CONTEXT_DOUBLE_RING, 1)->why_not,
                        "one host has all its ranks");
    assert_null(candidate(&s, CONTEXT_GATHER, 4)->why_not);
    a.set.parallel.mesh.tp = 4;
    (void)choice(&a, &s);
    assert_string_equal(candidate(&s, CONTEXT_ULYSSES, 8)->why_not, "1 heads are left to 8 ranks");
    a.config.n_heads = 32;
    (void)choice(&a, &s);
    assert_string_equal(candidate(&s, CONTEXT_ULYSSES, 8)->why_not,
                        "mesh.tp=4 does not divide the 2 key heads");
    a.set.parallel.mesh.tp = 0;
    a.set.parallel.tokens = TOKENS_STRIPED;
    (void)choice(&a, &s);
    assert_non_null(
        strstr(candidate(&s, CONTEXT_LIGHTSEQ, 1)->why_not, "tokens that work: contiguous"));
    assert_non_null(strstr(candidate(&s, CONTEXT_TOKEN_RING, 1)->why_not, "contiguous, zigzag"));
    assert_int_equal(candidate(&s, CONTEXT_RING, 1)->tokens, TOKENS_STRIPED);
    arena_close(&a.arena);
}

static void memory_is_considered(void **state)
{
    (void)state;
    Auto a;
    ContextSearch s;
    open_auto(&a, 4, 8, 8, 8192);
    Cluster c = machine(1e15, 1e15, 8); /* transfers take nothing, so the first way is chosen */
    a.set.parallel.cluster = &c;
    assert_int_equal(choice(&a, &s)->kind, CONTEXT_GATHER);
    const double held = s.list[s.best].held_bytes;
    /* Keys and values of 3 of 4 ranks, and their gradients. */
    assert_true(held == 4.0 * 8192 * 3 / 4 * 512 * (double)dtype_bytes(a.set.dtype));
    const double own =
        4.0 * 8192 / 4 * 512 * (double)a.config.n_layers * (double)dtype_bytes(a.set.dtype);
    c.memory_bytes = own + held - 1;
    assert_int_not_equal(choice(&a, &s)->kind, CONTEXT_GATHER);
    assert_non_null(strstr(candidate(&s, CONTEXT_GATHER, 1)->why_not, "the device has"));
    c.memory_bytes = own;
    expect_error("memory", job_choose_context(&a.set, &a.arena, &s), ERR_CONFIG,
                 "parallel.context=auto: none of ");
    arena_close(&a.arena);
}

/* The choice depends on the settings alone: each rank's job has it, with its mesh and tokens. */
static void all_ranks_choose_alike(void **state)
{
    (void)state;
    static const struct {
        int cp, heads, keys, tp;
        double between_Bps;
    } row[] = {{4, 8, 2, 1, 1e6}, {6, 4, 4, 2, 3e7}, {8, 8, 8, 1, 1e9}, {3, 8, 1, 1, 1e5}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ContextKind kind = CONTEXT_AUTO;
        int heads = 0;
        for (int rank = 0; rank < row[i].cp; rank++) {
            Auto a;
            Mesh mesh;
            open_auto(&a, row[i].cp, row[i].heads, row[i].keys, 512);
            const Cluster c = machine(1e9, row[i].between_Bps, 2);
            a.set.parallel.mesh.tp = row[i].tp;
            a.set.parallel.cluster = &c;
            a.set.parallel.rank = rank;
            DO(job_compile(&a.set, &a.arena, &a.job));
            if (rank == 0) kind = a.job.context, heads = a.job.settings.parallel.mesh.cp_heads;
            assert_int_equal(a.job.context, kind);
            assert_int_equal(a.job.settings.parallel.mesh.cp_heads, heads);
            assert_int_equal(a.job.tokens, a.job.search.list[a.job.search.best].tokens);
            DO(job_mesh(&a.set, &mesh));
            assert_memory_equal(&mesh, &a.job.mesh, sizeof mesh);
            arena_close(&a.arena);
        }
    }
}

/* The clock plays whole steps of the compiled programs. Auto's choice is near its best. */
static void the_clock_agrees(void **state)
{
    static const struct {
        int cp, heads, keys;
        double Bps;
    } row[] = {{4, 8, 8, 3e6}, {4, 8, 2, 8e6}, {4, 2, 2, 3e7}, {3, 8, 8, 1e7}, {4, 4, 1, 1e5}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        Auto a;
        Arena temp;
        ContextSearch s;
        open_auto(&a, row[i].cp, row[i].heads, row[i].keys, 1024);
        Cluster c = machine(row[i].Bps, row[i].Bps, 8);
        c.overlaps = true;
        a.set.parallel.cluster = &c;
        DO(arena_open(&temp, "clock", (size_t)1 << 32));
        const ContextCandidate *best = choice(&a, &s);
        double least = HUGE_VAL, chosen = 0;
        for (int k = 0; k < s.n; k++) {
            if (s.list[k].why_not) continue;
            StepTime t;
            Mesh mesh;
            JobSettings set = a.set;
            set.parallel.context = s.list[k].kind;
            const bool hybrid = s.list[k].heads > 1 && s.list[k].heads < row[i].cp;
            set.parallel.mesh.cp_heads = hybrid ? s.list[k].heads : 0;
            DO(job_mesh(&set, &mesh));
            const ClockInput in = {.cluster = &c, .job = &set, .mesh = &mesh};
            DO(clock_step(&in, &a.arena, &temp, &t));
            if (t.step_s < least) least = t.step_s;
            if (&s.list[k] == best) chosen = t.step_s;
        }
        if (chosen > 1.05 * least)
            fail_msg("row %d: %s, %d heads: %g s, the best has %g s", (int)i,
                     context_name(best->kind), best->heads, chosen, least);
        arena_close(&temp);
        arena_close(&a.arena);
    }
}

/* A layer with a rule has the mesh and the tokens of the others. */
static void rules_of_layers_limit_the_choice(void **state)
{
    (void)state;
    Auto a;
    ContextSearch s;
    UnitOptions units[64] = {0};
    open_auto(&a, 4, 8, 8, 2048);
    units[1].context = CONTEXT_RING;
    a.set.parallel.units = units;
    (void)choice(&a, &s);
    for (int i = 0; i < s.n; i++) assert_true(s.list[i].heads == 1 || s.list[i].heads == 4);
    assert_string_equal(candidate(&s, CONTEXT_LIGHTSEQ, 1)->why_not,
                        "layers with a rule have other tokens");
    arena_close(&a.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_those_of_the_mask),
        cmocka_unit_test(hops_hide_from_the_condition_on),
        cmocka_unit_test(a_slow_network_gets_a_plan_that_hides),
        cmocka_unit_test(a_network_that_nothing_hides_gets_few_bytes),
        cmocka_unit_test(hosts_far_apart_get_two_rings),
        cmocka_unit_test(few_heads_exclude_ulysses),
        cmocka_unit_test(memory_is_considered),
        cmocka_unit_test(all_ranks_choose_alike),
        cmocka_unit_test(the_clock_agrees),
        cmocka_unit_test(rules_of_layers_limit_the_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
