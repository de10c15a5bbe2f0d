/* test_verify_experts.c -- verify of a mixture of experts in bf16: ties of routers are counted, and
 * compared given the same choices; a choice that rounding does not explain deviates, on a layout
 * and on one rank. */
#define _POSIX_C_SOURCE 200809L

#include "experts_cover.h"
#include "support/verified.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "device/cpu/cpu.h"

static const Device *honest;

static VerifySettings in_bf16(const ModelConfig *config, const Device *device)
{
    VerifySettings s = settings_for(config);
    s.device = device;
    s.dtype = BF16;
    s.is_plain = false;
    return s;
}

/* The last line: grade bf16. */
static VerifyLine last_line(const VerifySettings *s, const char *words)
{
    VerifyLine line[MAX_VERIFY_LINES];
    ParallelSettings layout;
    Arena arena;
    int n;
    DO(layout_parse(words, strlen(words), &layout));
    DO(arena_open(&arena, "verify", ARENA_PLENTY));
    if (verify_layout(s, &layout, &arena, line, &n) != OK) fail_msg("%s: %s", words, err_text());
    for (int i = 0; i < n - 1; i++) assert_true(line[i].ok);
    arena_close(&arena);
    assert_int_equal(line[n - 1].grade, GRADE_BF16);
    return line[n - 1];
}

static void expect_ok(const VerifySettings *s, const char *words, const VerifyLine *l)
{
    if (!l->ok)
        fail_msg("seed %d, %s: gradients %.2f, weights %.2f; %d ties, %d of one rank, %.1e of "
                 "%.1e in %s; ranks agree %d",
                 (int)s->seed, words, l->gradient, l->weight, (int)l->ties, (int)l->one_ties,
                 l->tie, l->tie_bound, l->tie_at, l->same_choices);
}

/* Without biases, which start at 0: after a step the 8 numbers of one would be most of the error of
 * all weights. Slices can have nothing that counts over a whole micro-batch. */
static ModelConfig config_for(ModelConfig c, const char *words)
{
    c.qkv_bias = false;
    if (!strstr(words, "slices")) return c;
    c.experts.aux_loss = c.experts.capacity = 0;
    c.experts.bias = c.experts.balance_global = false;
    return c;
}

/* Routers of every kind, with rows in every part of a micro-batch: ties are found, also such that a
 * layout has and one rank has not, and nothing deviates. */
static void ties_do_not_deviate(void **state)
{
    static const char *const words[] = {"tp=2",
                                        "cp=2 tokens=zigzag",
                                        "dp=2 ep=2 zero=1",
                                        "dp=2 tp=2 ep=2 etp=2 sequence",
                                        "pp=2 dp=2 ep=2 schedule=zbh1",
                                        "cp=2 schedule=gpipe slices=2"};
    const ModelConfig model[] = {model_with(10, 0), model_with(0, 0.9), model_with(10, 1.1),
                                 deepseek_router()};
    int64_t ties = 0, others = 0;
    (void)state;
    DO(device_cpu_open(NULL, &honest));
    for (size_t m = 0; m < sizeof model / sizeof *model; m++)
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            const ModelConfig c = config_for(model[m], words[i]);
            VerifySettings s = in_bf16(&c, honest);
            s.seed = 20 + i;
            const VerifyLine l = last_line(&s, words[i]);
            expect_ok(&s, words[i], &l);
            assert_true(l.tie <= l.tie_bound && l.tie_bound < 0.1);
            ties += l.ties;
            others += l.ties != l.one_ties;
        }
    assert_true(ties > 0);
    assert_true(others > 0);
}

static int64_t faulty_tokens; /* of a call: the fault has only these */
static bool sound;

/* The first token gets the expert that it likes least in place of its last choice. */
static Err wrong_route(const Call *c)
{
    TRY(honest->kernel[KERNEL_route](c));
    const Tensor *s = &c->in[0], *expert = &c->out[1], *load = &c->out[2];
    if (sound || s->n[0] != faulty_tokens) return OK;
    int32_t *last = (int32_t *)expert->data + (expert->n[1] - 1) * expert->stride[1];
    int32_t least = 0;
    for (int32_t e = 0; e < s->n[1]; e++)
        if (((float *)s->data)[e * s->stride[1]] < ((float *)s->data)[least * s->stride[1]])
            least = e;
    ((float *)load->data)[*last * load->stride[0]]--;
    ((float *)load->data)[least * load->stride[0]]++;
    *last = least;
    return OK;
}

/* A router that errs on the 7 tokens of a rank along cp; the same on the 14 of one rank. */
static void wrong_experts_deviate(void **state)
{
    static const int64_t tokens[] = {SEQ, 2 * SEQ};
    static Device faulty;
    const ModelConfig model = config_for(model_with(10, 0), "");
    (void)state;
    DO(device_cpu_open(NULL, &honest));
    faulty = *honest;
    faulty.kernel[KERNEL_route] = wrong_route;
    VerifySettings s = in_bf16(&model, &faulty);
    sound = true;
    const VerifyLine right = last_line(&s, "cp=2");
    expect_ok(&s, "cp=2", &right);
    sound = false;
    for (int i = 0; i < 2; i++) {
        faulty_tokens = tokens[i];
        const VerifyLine l = last_line(&s, "cp=2");
        assert_false(l.ok);
        assert_true(l.tie > 4 * l.tie_bound);
        assert_true(l.ties + l.one_ties > right.ties + right.one_ties);
        assert_string_equal(l.tie_at, "layer.1");
        assert_true(l.same_choices);
    }
}

static enum { NO_CALL, FIRST_CALL, ALL_CALLS } wrong; /* calls that err */
static int calls;

/* Drops the first choice of the first token. Later calls wait for the first one to be recorded. */
static Err wrong_limit(const Call *c)
{
    const struct timespec pause = {0, 30000000};
    const bool first = __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) == 0;
    TRY(honest->kernel[KERNEL_limit_choices](c));
    if (wrong == ALL_CALLS || (wrong == FIRST_CALL && first)) *(int32_t *)c->out[0].data = -1;
    if (wrong == FIRST_CALL && !first) nanosleep(&pause, NULL);
    return OK;
}

/* Every rank along tp decides which choices of a micro-batch are dropped: they must agree, and an
 * expert that has room has its rows. */
static void wrong_drops_deviate(void **state)
{
    static Device faulty;
    const ModelConfig model = config_for(model_with(10, 1.1), "");
    (void)state;
    DO(device_cpu_open(NULL, &honest));
    faulty = *honest;
    faulty.kernel[KERNEL_limit_choices] = wrong_limit;
    VerifySettings s = in_bf16(&model, &faulty);
    wrong = NO_CALL;
    const VerifyLine right = last_line(&s, "tp=2");
    expect_ok(&s, "tp=2", &right);
    wrong = ALL_CALLS;
    const VerifyLine alike = last_line(&s, "tp=2");
    assert_true(alike.same_choices && isinf(alike.tie));
    assert_false(alike.ok);
    wrong = FIRST_CALL;
    calls = 0;
    const VerifyLine differs = last_line(&s, "tp=2");
    assert_false(differs.same_choices || differs.ok);
}

/* Gradients of every rank have a number that is none. */
static Err nan_slope(const Call *c)
{
    TRY(honest->kernel[KERNEL_route_dx](c));
    ((float *)c->out[0].data)[0] = NAN;
    return OK;
}

static void gradients_without_numbers_deviate(void **state)
{
    static Device faulty;
    const ModelConfig model = config_for(model_with(10, 0), "");
    (void)state;
    DO(device_cpu_open(NULL, &honest));
    faulty = *honest;
    faulty.kernel[KERNEL_route_dx] = nan_slope;
    const VerifySettings s = in_bf16(&model, &faulty);
    const VerifyLine l = last_line(&s, "tp=2");
    assert_false(l.ok);
    assert_true(isinf(l.gradient));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ties_do_not_deviate), cmocka_unit_test(wrong_experts_deviate),
        cmocka_unit_test(wrong_drops_deviate), cmocka_unit_test(gradients_without_numbers_deviate)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
