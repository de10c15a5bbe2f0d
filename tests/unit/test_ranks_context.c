/* test_ranks_context.c -- layouts with attention plans compute the model of one rank: in f64 within
 * 1e-10, in bf16 within 1.5 times the error of one rank, with the bytes that were predicted. */
#include "support/expect.h"
#include "support/models.h"
#include "support/verified.h"

static VerifySettings settings(const char *model, DType dtype, int64_t micro, Recompute recompute)
{
    VerifySettings s = verified_cpu(test_model(model), dtype, micro, 9);
    s.compile.recompute = recompute;
    return s;
}

/* Each layout on two models. 9 tokens divide by none of 2, 4, 5 and 10. */
static void plans_compute_the_same_model(void **state)
{
    static const char *const model[] = {"gpt2", "llama", "mistral", "qwen3"};
    static const char *const layout[] = {"cp=2 context=ring",
                                         "cp=3 context=ring tokens=contiguous",
                                         "cp=4 context=ring tokens=striped",
                                         "cp=5 context=ring tokens=zigzag",
                                         "cp=4 context=double-ring cp_inner=2",
                                         "cp=6 context=double-ring cp_inner=3 tokens=striped",
                                         "cp=2 context=lightseq",
                                         "cp=3 context=lightseq",
                                         "cp=4 context=lightseq",
                                         "cp=5 context=lightseq",
                                         "cp=2 context=token-ring tokens=contiguous",
                                         "cp=3 context=token-ring",
                                         "cp=4 context=token-ring",
                                         "cp=5 context=token-ring"};
    (void)state;
    for (size_t i = 0; i < sizeof model / sizeof *model; i++)
        for (size_t k = i % 2; k < sizeof layout / sizeof *layout; k += 2) {
            const VerifySettings s =
                settings(model[i], F32, 1 + (int64_t)((i + k) % 2), RECOMPUTE_NONE);
            expect_verified_words(&s, layout[k]);
        }
}

static void plans_combine_with_other_axes(void **state)
{
    static const char *const layout[] = {
        "cp=2 dp=2 zero=3 context=ring",
        "cp=3 dp=2 zero=1 context=ring",
        "cp=2 tp=2 context=ring",
        "cp=2 tp=2 sequence context=ring",
        "cp=3 pp=2 context=ring",
        "cp=2 pp=2 schedule=zbv context=ring",
        "cp=2 pp=2 schedule=interleaved context=ring",
        "cp=3 context=ring regather=false",
        "cp=4 cp_heads=2 context=ring",
        "cp=2 pp=2 split=cost context=ring",
        "cp=6 cp_heads=2 context=ring tokens=striped",
        "cp=3 dp=2 zero=3 context=lightseq",
        "cp=5 tp=2 sequence context=lightseq",
        "cp=4 pp=2 schedule=zbv context=lightseq",
        "cp=6 cp_heads=2 context=lightseq",
        "cp=3 dp=2 zero=3 context=token-ring",
        "cp=4 tp=2 context=token-ring",
        "cp=3 pp=2 schedule=interleaved context=token-ring",
        "cp=8 cp_heads=2 context=token-ring",
        "cp=4 pp=2 context=double-ring cp_inner=2 zero=1",
        "cp=8 cp_heads=2 cp_inner=2 context=double-ring",
    };
    static const Recompute recompute[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    (void)state;
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++) {
        const VerifySettings s = settings("llama", F32, 2, recompute[i % 3]);
        expect_verified_words(&s, layout[i]);
    }
}

/* Partial results are f32: their number does not add to the error. */
static void bf16_keeps_its_error(void **state)
{
    static const char *const layout[] = {
        "cp=2 context=ring",       "cp=3 context=ring",
        "cp=4 context=ring",       "cp=5 context=ring",
        "cp=6 context=ring",       "cp=7 context=ring",
        "cp=8 context=ring",       "cp=8 context=double-ring cp_inner=4",
        "cp=2 context=lightseq",   "cp=5 context=lightseq",
        "cp=8 context=lightseq",   "cp=2 context=token-ring",
        "cp=5 context=token-ring", "cp=8 context=token-ring"};
    (void)state;
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++) {
        const VerifySettings s = settings("llama", BF16, 2, RECOMPUTE_NONE);
        expect_verified_words(&s, layout[i]);
    }
}

/* 9 tokens on 10 to 12 ranks: some ranks have none, and send and receive nothing. */
static void ranks_without_tokens(void **state)
{
    static const char *const layout[] = {"cp=10 context=ring tokens=contiguous",
                                         "cp=10 context=double-ring cp_inner=5",
                                         "cp=11 context=lightseq", "cp=12 context=token-ring"};
    (void)state;
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++) {
        const VerifySettings s = settings("llama", F32, 1, RECOMPUTE_NONE);
        expect_verified_words(&s, layout[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_compute_the_same_model),
        cmocka_unit_test(plans_combine_with_other_axes),
        cmocka_unit_test(ranks_without_tokens),
        cmocka_unit_test(bf16_keeps_its_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
