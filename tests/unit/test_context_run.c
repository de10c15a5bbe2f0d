/* test_context_run.c -- attention plans run by real kernels in f64, and equal attention by its
 * definition within 1e-10: o, lse, dq, dk and dv.
 *
 * Every plan, on 2 to 8 ranks, with several head groups, and masks that no model has: all keys, and
 * random ranges. Messages and ranks take random times. */
#include "support/expect.h"

#include <math.h>
#include <string.h>
#include "compile/context/check.h"
#include "support/context_cases.h"

typedef struct {
    Arena arena;
    int runs;
} RunBench;

static const int ranks_of[] = {2, 3, 4, 5, 6, 8};
static const int heads_of[][2] = {{4, 4}, {8, 2}, {8, 1}, {7, 7}};
enum { N_RANKS = 6, N_HEADS = 4 };

static int open_bench(void **state)
{
    static RunBench b;
    *state = &b;
    return arena_open(&b.arena, "test", ARENA_PLENTY);
}

static int close_bench(void **state)
{
    arena_close(&((RunBench *)*state)->arena);
    return 0;
}

static void make_plans(const ContextRow *row, const ContextShape *s, Arena *a, ContextPlan plan[2])
{
    DO(context_plan(row, s, a, &plan[0]));
    DO(context_check(&plan[0], a, NULL));
    DO(context_backward(&plan[0], a, &plan[1]));
    DO(context_check(&plan[1], a, NULL));
}

/* Runs the plan of the shape, and compares. */
static void run_and_compare(RunBench *b, const ContextRow *row, const ContextShape *s,
                            const AttentionCase *c)
{
    ContextPlan plan[2];
    AttentionResult want, got;
    const char *where = "";
    const RandomDelays delays = {(uint64_t)++b->runs, b->runs % 4 ? 7 : 0};
    make_plans(row, s, &b->arena, plan);
    DO(attention_result_new(&b->arena, c, &want));
    DO(attention_result_new(&b->arena, c, &got));
    attention_dense(c, &want);
    DO(context_run(&device_ref, plan, c, delays, &b->arena, &got));
    const double d = attention_difference(c, &got, &want, &where);
    if (d > 1e-10)
        fail_msg("%s on %d ranks (inner %d), %s tokens, causal %d, heads %d/%d, run %d: %s is off "
                 "by %g",
                 row->name, s->ranks, s->inner, token_map_name(s->tokens), s->causal, c->heads,
                 c->key_heads, b->runs, where, d);
}

/* One plan with all heads and masks that it is defined for. */
static void run_masks(RunBench *b, const ContextRow *row, const ContextShape *s)
{
    for (int mask = 0; mask < N_CASE_MASKS; mask++)
        for (int h = 0; h < N_HEADS; h++) {
            const size_t mark = arena_mark(&b->arena);
            const CaseSizes sizes = {
                (uint64_t)(977 * b->runs + 1), 41, heads_of[h][0], heads_of[h][1], 5, mask};
            AttentionCase c;
            if (s->causal && !mask_is_causal(mask)) continue;
            if (row->passes && heads_of[h][0] != heads_of[h][1]) continue;
            DO(attention_case_random(&sizes, &b->arena, &c));
            attention_case_place(&c, s, sizes.seed);
            run_and_compare(b, row, s, &c);
            arena_rewind(&b->arena, mark);
        }
}

static void every_plan_is_exact(void **state)
{
    int n;
    const ContextRow *row = context_rows(&n);
    for (int i = 0; i < n; i++)
        for (int r = 0; r < N_RANKS; r++)
            for (int inner = 1; inner <= (row[i].inner ? ranks_of[r] : 1); inner++)
                for (int tokens = 0; tokens < N_TOKEN_MAPS; tokens++)
                    for (int causal = row[i].causal; causal < 2 - row[i].passes; causal++) {
                        const ContextShape s = {ranks_of[r], inner, tokens, causal};
                        if (ranks_of[r] % inner || !(row[i].tokens >> tokens & 1)) continue;
                        run_masks(*state, &row[i], &s);
                    }
    assert_true(((RunBench *)*state)->runs > 1000);
}

/* Tokens anywhere: a plan for all pairs does not depend on their order. */
static void random_places_are_exact(void **state)
{
    RunBench *b = *state;
    int n, done[N_CASE_MASKS] = {0};
    const ContextRow *row = context_rows(&n);
    for (int i = 0; done[N_CASE_MASKS - 1] < 100; i++) {
        const ContextRow *of = &row[i % n];
        const int mask = i / n % N_CASE_MASKS, P = ranks_of[i % N_RANKS];
        const int h = of->passes ? 3 * (i / n % 2) : i / 3 % N_HEADS;
        const ContextShape s = {P, P % 2 ? 1 : 2, TOKENS_CONTIGUOUS, false};
        const CaseSizes sizes = {(uint64_t)(31 * i + 7), 29, heads_of[h][0],
                                 heads_of[h][1],         3,  mask};
        const size_t mark = arena_mark(&b->arena);
        AttentionCase c;
        if (of->causal) continue;
        DO(attention_case_random(&sizes, &b->arena, &c));
        attention_case_scatter(&c, P, sizes.seed);
        run_and_compare(b, of, &s, &c);
        arena_rewind(&b->arena, mark);
        done[mask]++;
    }
    for (int mask = 0; mask < N_CASE_MASKS; mask++) assert_true(done[mask] >= 100);
}

/* Makes the logit of every query with the keys of rank r about 800 or -800, by `sign` of r. */
static void make_extreme(AttentionCase *c, const int *sign)
{
    const double large = sqrt(800 * sqrt(c->size) / c->size);
    for (int64_t i = 0; i < query_values(c); i++) c->q[i] = large + 0.01 * c->q[i];
    for (int64_t i = 0; i < key_values(c); i++) {
        const int token = (int)(i / (c->key_heads * c->size));
        c->k[i] = sign[c->rank[token]] * large + 0.01 * c->k[i];
    }
}

static void large_logits_are_exact(void **state)
{
    RunBench *b = *state;
    static const int signs[][4] = {{-1, 1, 1, -1}, {1, -1, -1, 1}, {-1, -1, -1, 1}};
    int n;
    const ContextRow *row = context_rows(&n);
    for (int i = 0; i < 3 * n; i++)
        for (int causal = row[i % n].causal; causal < 2 - row[i % n].passes; causal++) {
            const size_t mark = arena_mark(&b->arena);
            const ContextShape s = {4, 2, TOKENS_CONTIGUOUS, causal};
            const int keys = row[i % n].passes ? 4 : 2;
            const CaseMask mask = causal ? MASK_CAUSAL : MASK_RANDOM;
            const CaseSizes sizes = {(uint64_t)i, 23, 4, keys, 7, mask};
            AttentionCase c;
            DO(attention_case_random(&sizes, &b->arena, &c));
            attention_case_place(&c, &s, sizes.seed);
            make_extreme(&c, signs[i / n]);
            run_and_compare(b, &row[i % n], &s, &c);
            arena_rewind(&b->arena, mark);
        }
}

/* All tokens of one rank are padding: they see nothing, and no query sees them. */
static void padding_is_exact(void **state)
{
    RunBench *b = *state;
    int n;
    const ContextRow *row = context_rows(&n);
    for (int i = 0; i < 5 * n; i++) {
        const size_t mark = arena_mark(&b->arena);
        const int P = 5, live = 37 * (P - 1) / P;
        const bool passes = row[i % n].passes;
        const ContextShape s = {P, 1, TOKENS_CONTIGUOUS, !passes};
        const CaseSizes sizes = {(uint64_t)i, 37, 6, passes ? 6 : 3, 5, MASK_PACKED};
        AttentionCase c;
        DO(attention_case_random(&sizes, &b->arena, &c));
        for (int t = 0; t < c.tokens; t++) {
            const int chunk = t * 2 * P / 37;
            c.rank[t] = (int16_t)(chunk / 2);
            c.half[t] = chunk % 2;
            if (t > live || c.rank[t] == P - 1) memset(&c.ranges[4 * t], 0, 4 * sizeof *c.ranges);
        }
        run_and_compare(b, &row[i % n], &s, &c);
        arena_rewind(&b->arena, mark);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plan_is_exact),
        cmocka_unit_test(random_places_are_exact),
        cmocka_unit_test(large_logits_are_exact),
        cmocka_unit_test(padding_is_exact),
    };
    return cmocka_run_group_tests(tests, open_bench, close_bench);
}
