/* test_ranks_pairs.c -- every layout computes the same model: f64 on ref, within 1e-10 of one
 * rank over 5 steps of AdamW with clipping and at least two micro-batches, and over one step of
 * SGD, which shows any wrong scale. The layouts cover every pair of options on up to 8 ranks;
 * model families rotate, three to a layout. Further cases are often refused elsewhere and must
 * work here. */
#include "support/expect.h"
#include "support/models.h"
#include "support/verified.h"

enum { MAX_RANKS = 8, MAX_STAGES = 3, STEPS = 5, SEQ = 7 };

/* The last micro-batch has one sequence. */
static VerifySettings settings_for(const ModelConfig *config)
{
    VerifySettings s = verified_f64(config, 2, SEQ);
    s.steps = STEPS;
    return s;
}

static void expect_same(const VerifySettings *s, const ParallelSettings *layout, Arena *arena)
{
    VerifyLine line[MAX_VERIFY_LINES];
    expect_verified(s, layout, arena, line);
}

static void every_pair_of_options(void **state)
{
    ParallelSettings *layout;
    Arena arena;
    int n, families = 0;
    (void)state;
    while (test_models[families].name) families++;
    DO(arena_open(&arena, "pairs", ARENA_PLENTY));
    DO(layouts_covering(&(LayoutLimits){MAX_RANKS, MAX_STAGES, 2, 1, 2, 0, 4, 0}, &arena, &layout,
                        &n));
    assert_in_range(n, 40, 130);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 3; k++) { /* tied, grouped heads, and one of the others */
            const int turn[] = {i % 2 ? 0 : 3, 2, i % families};
            const TestModel *m = &test_models[turn[k]];
            const VerifySettings s = settings_for(&m->config);
            const size_t mark = arena_mark(&arena);
            if (k == 2 && (turn[2] == turn[0] || turn[2] == turn[1])) continue;
            expect_same(&s, &layout[i], &arena);
            arena_rewind(&arena, mark);
        }
    arena_close(&arena);
}

/* Checks the covering set by brute force, over all pairs that a layout of its size can have. */
static void set_covers_all_pairs(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= MAX_RANKS; ranks++) {
        ParallelSettings *layout;
        Arena arena;
        int n;
        DO(arena_open(&arena, "cover", ARENA_PLENTY));
        DO(layouts_covering(&(LayoutLimits){ranks, MAX_STAGES, 2, 1, 2, 0, 4, 0}, &arena, &layout,
                            &n));
        for (int tp = 1; tp <= ranks; tp++)
            for (int dp = 1; dp * tp <= ranks; dp++)
                for (int zero = 0; zero < (dp > 1 ? 4 : 1); zero++) {
                    bool dp_tp = false, tp_zero = false, dp_zero = false;
                    for (int i = 0; i < n; i++) {
                        const ParallelSettings *p = &layout[i];
                        const bool d = p->mesh.dp_shard == dp, t = p->mesh.tp == tp;
                        dp_tp = dp_tp || (d && t);
                        tp_zero = tp_zero || (t && p->zero == zero);
                        dp_zero = dp_zero || (d && p->zero == zero);
                    }
                    if (dp * tp == 1) continue;
                    if (!dp_tp || !tp_zero || !dp_zero)
                        fail_msg("%d ranks: dp=%d tp=%d zero=%d: %d %d %d", ranks, dp, tp, zero,
                                 dp_tp, tp_zero, dp_zero);
                }
        arena_close(&arena);
    }
}

/* The set has cp by heads and tokens, with gather and ring, and with every size of cp_heads. */
static void set_has_hybrids(void **state)
{
    ParallelSettings *layout;
    Arena arena;
    int n, found[N_CONTEXTS][4] = {0};
    (void)state;
    DO(arena_open(&arena, "cover", ARENA_PLENTY));
    DO(layouts_covering(&(LayoutLimits){6, 2, 4, 2, 2, 0, 4, 0}, &arena, &layout, &n));
    for (int i = 0; i < n; i++) {
        const MeshSizes *m = &layout[i].mesh;
        if (!m->cp_heads) continue;
        assert_true(m->cp_heads > 1 && m->cp_heads < m->cp && m->cp % m->cp_heads == 0);
        found[layout[i].context][m->cp_heads]++;
    }
    assert_true(found[CONTEXT_GATHER][2] && found[CONTEXT_RING][2]);
    assert_true(found[CONTEXT_GATHER][3] && found[CONTEXT_RING][3]);
    assert_false(found[CONTEXT_ULYSSES][2] || found[CONTEXT_ULYSSES][3]);
    arena_close(&arena);
}

static ModelConfig with_heads(int64_t heads, int64_t key_heads)
{
    ModelConfig c = *test_model("llama");
    c.n_heads = heads;
    c.n_kv_heads = key_heads;
    return c;
}

static void expect_layouts(const ModelConfig *c, const char *const *words, int n, bool blank)
{
    VerifySettings s = settings_for(c);
    Arena arena;
    s.steps = 2;
    s.blank = blank;
    DO(arena_open(&arena, "musts", ARENA_PLENTY));
    for (int i = 0; i < n; i++) {
        ParallelSettings layout;
        DO(layout_parse(words[i], strlen(words[i]), &layout));
        expect_same(&s, &layout, &arena);
    }
    arena_close(&arena);
}

#define LAYOUTS(...)                                                                               \
    (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

static void heads_that_do_not_divide(void **state)
{
    const ModelConfig grouped = with_heads(8, 2), few = with_heads(3, 3);
    (void)state;
    expect_layouts(&grouped, LAYOUTS("tp=3", "tp=8", "tp=3 sequence", "dp=2 tp=3 zero=3"), false);
    expect_layouts(&few, LAYOUTS("tp=4", "tp=2 sequence"), false); /* a rank without heads */
}

static void a_large_odd_vocabulary(void **state)
{
    ModelConfig c = *test_model("gpt2");
    (void)state;
    c.vocab = 50257;
    expect_layouts(&c, LAYOUTS("tp=2", "tp=3 sequence", "tp=4"), false);
}

static void ranks_without_live_tokens(void **state)
{
    const ModelConfig c = *test_model("llama-tied");
    (void)state;
    expect_layouts(&c, LAYOUTS("dp=4 zero=1", "dp=5 zero=3", "dp=3 tp=2 sequence"), true);
}

/* More ranks than tokens, and than elements of some parameters. */
static void more_ranks_than_elements(void **state)
{
    const ModelConfig c = *test_model("qwen3");
    (void)state;
    expect_layouts(&c, LAYOUTS("tp=8 sequence", "dp=8 zero=3"), false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_covers_all_pairs),      cmocka_unit_test(set_has_hybrids),
        cmocka_unit_test(heads_that_do_not_divide),  cmocka_unit_test(a_large_odd_vocabulary),
        cmocka_unit_test(ranks_without_live_tokens), cmocka_unit_test(more_ranks_than_elements),
        cmocka_unit_test(every_pair_of_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
