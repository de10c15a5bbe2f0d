/* test_ranks_full_mask.c -- a model with a full attention mask under every way to spread attention
 * over ranks, against one rank, in f64 within 1e-10. rsa keeps the scores and is defined for such
 * masks alone. */
#include "support/expect.h"
#include "support/models.h"
#include "support/verified.h"

#include "device/ref/ref.h"

static ModelConfig config_of(int64_t heads, int64_t key_heads)
{
    ModelConfig c = *test_model("llama");
    c.full_mask = true;
    c.n_heads = heads;
    c.n_kv_heads = key_heads;
    return c;
}

static VerifySettings settings(const ModelConfig *c, Recompute recompute, bool documents)
{
    VerifySettings s = verified_f64(c, 2, 13);
    s.compile.recompute = recompute;
    s.documents = documents;
    return s;
}

static void every_way_computes_the_same_model(void **state)
{
    static const char *const layout[] = {
        "cp=2 context=gather",
        "cp=3 context=gather tokens=zigzag dp=2 zero=3",
        "cp=2 context=ulysses",
        "cp=3 context=ring tokens=contiguous",
        "cp=4 context=ring tokens=striped tp=2",
        "cp=4 context=double-ring cp_inner=2 pp=2",
        "cp=3 context=token-ring tokens=contiguous",
        "cp=4 context=token-ring tokens=zigzag",
        "cp=4 cp_heads=2 context=ring",
    };
    const ModelConfig c = config_of(8, 2);
    (void)state;
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++) {
        const VerifySettings s = settings(&c, (Recompute)(i % 3), i % 2);
        expect_verified_words(&s, layout[i]);
    }
}

/* Scores are kept, or made again; key heads are not shared. */
static void scores_are_kept(void **state)
{
    static const char *const layout[] = {
        "cp=2 context=rsa",
        "cp=4 context=rsa",
        "cp=2 tp=2 sequence context=rsa",
        "cp=2 dp=2 zero=3 context=rsa",
        "cp=4 pp=2 schedule=zbv context=rsa",
        "cp=3 context=rsa tokens=contiguous",
        "cp=4 cp_heads=2 context=rsa",
        "cp=16 context=rsa", /* ranks without tokens */
    };
    const ModelConfig c = config_of(8, 8);
    (void)state;
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++)
        for (int recompute = 0; recompute < 3; recompute++) {
            const VerifySettings s =
                settings(&c, (Recompute)recompute, (i + (size_t)recompute) % 2);
            expect_verified_words(&s, layout[i]);
        }
}

/* Numbers of heads, and the checkpoint that keeps the outputs of attention but not the scores. */
static void heads_and_checkpoints(void **state)
{
    static const int64_t heads[] = {4, 7};
    static const char *const layout[] = {"cp=2 context=rsa", "cp=4 context=rsa"};
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            for (int but = 0; but < 2; but++) {
                const ModelConfig c = config_of(heads[i], heads[i]);
                VerifySettings s = settings(&c, but ? RECOMPUTE_NAMED : RECOMPUTE_NONE, k);
                s.compile.recompute_names = "full,-attn.out,-attn.lse";
                expect_verified_words(&s, layout[k]);
            }
}

/* Loss of one rank with and without the mask: the mask changes what is computed. */
static void later_keys_are_seen(void **state)
{
    double loss[2];
    (void)state;
    for (int full = 0; full < 2; full++) {
        ModelConfig c = config_of(4, 4);
        c.full_mask = full;
        const TrialSettings t = {.job = {.kind = JOB_STEP,
                                         .config = &c,
                                         .dtype = F64,
                                         .batch = {1, 13},
                                         .schedule = "1f1b",
                                         .optim = {.kind = OPTIM_SGD, .block = 16}},
                                 .device = &device_ref,
                                 .global = 1,
                                 .steps = 1,
                                 .seed = 3};
        Trial out;
        Arena arena;
        DO(arena_open(&arena, "trial", ARENA_PLENTY));
        DO(trial_run(&t, &arena, &out));
        loss[full] = out.loss[0];
        arena_close(&arena);
    }
    assert_true(loss[0] != loss[1]);
}

/* On the cpu, in f32, and in bf16 with at most 1.5 times the error of one rank. */
static void bf16_keeps_its_error(void **state)
{
    static const char *const layout[] = {"cp=2 context=rsa", "cp=4 context=rsa", "cp=8 context=rsa",
                                         "cp=8 context=ring", "cp=5 context=token-ring"};
    const ModelConfig c = config_of(8, 8);
    (void)state;
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++)
        for (int type = F32; type <= BF16; type += BF16 - F32) {
            VerifySettings s = verified_cpu(&c, (DType)type, 2, 13);
            s.documents = i % 2;
            expect_verified_words(&s, layout[i]);
        }
}

static void refuses(const ModelConfig *c, const char *words, const char *message)
{
    const VerifySettings s = settings(c, RECOMPUTE_NONE, false);
    ParallelSettings layout;
    VerifyLine line[MAX_VERIFY_LINES];
    Arena arena;
    int n;
    DO(arena_open(&arena, "verify", ARENA_PLENTY));
    DO(layout_parse(words, strlen(words), &layout));
    expect_error(words, verify_layout(&s, &layout, &arena, line, &n), ERR_CONFIG, message);
    arena_close(&arena);
}

static void others_are_refused(void **state)
{
    const ModelConfig full = config_of(8, 8), shared = config_of(8, 2);
    ModelConfig causal = full;
    causal.full_mask = false;
    (void)state;
    refuses(&full, "cp=2 context=lightseq", "lightseq needs a causal mask");
    refuses(&causal, "cp=2 context=rsa", "rsa is not defined for a causal mask");
    refuses(&shared, "cp=2 context=rsa", "2 key heads that 8 query heads share");
    refuses(&full, "cp=2 context=rsa tokens=zigzag", "tokens that work: contiguous");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_computes_the_same_model),
        cmocka_unit_test(scores_are_kept),
        cmocka_unit_test(heads_and_checkpoints),
        cmocka_unit_test(later_keys_are_seen),
        cmocka_unit_test(bf16_keeps_its_error),
        cmocka_unit_test(others_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
