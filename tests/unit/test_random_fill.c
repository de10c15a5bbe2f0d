/* test_random_fill.c -- operands of autotuning: the device's work arena holds normal numbers
 * everywhere, none of them 0. Passes of autotuning: promised attention, each GEMM alone, then in
 * place while one has several candidate algorithms. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/rank_parts.h"
#include "support/expect.h"
#include "support/jobs.h"
#include "support/shadow.h"

static double number_at(const char *bytes, DType dtype, size_t i)
{
    uint32_t bits = 0;
    float x;
    if (dtype == BF16)
        memcpy((char *)&bits + 2, bytes + 2 * i, 2);
    else
        memcpy(&bits, bytes + 4 * i, 4);
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

/* The squares of a million normal numbers sum to their count within 1%; those of zeros to 0.
 * Truncation to bf16 makes numbers up to 2^-7 smaller, their squares 2^-6. */
static void expect_normal(const char *bytes, size_t n, DType dtype)
{
    double squares = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = number_at(bytes, dtype, i);
        assert_true(isfinite(x) && x != 0);
        squares += x * x;
    }
    assert_true(fabs(squares / (double)n - 1) < 0.01 + (dtype == BF16 ? 0x1p-6 : 0));
}

static void fill(DType dtype)
{
    TestJob t;
    Rank rank;
    JobSettings job = test_job_settings("llama", JOB_STEP);
    job.dtype = dtype;
    job.batch = (BatchShape){400, TEST_T}; /* more than RANDOM_COUNT: the rest is copied */
    DO(test_job_open(&t, &job, 1));
    RankSettings set = t.rank.settings;
    set.device = &device_shadow;
    set.comm = NULL;
    shadow_set(5, SHADOW_COIN);
    DO(rank_open(&rank, &set));
    const size_t bytes = set.program->bytes[ARENA_WORK];
    const size_t n = bytes / dtype_bytes(dtype), drawn = (size_t)1 << 20;
    char *read = malloc(bytes);
    assert_non_null(read);
    assert_true(n > drawn);
    DO(random_fill_make(&rank));
    DO(rank_read(&rank, rank.base[ARENA_WORK], bytes, read));
    expect_normal(read, n, dtype);
    assert_true(number_at(read, dtype, drawn) == number_at(read, dtype, 0));
    DO(rank_autotune(&rank));
    free(read);
    rank_close(&rank);
    test_job_close(&t);
}

static void numbers_everywhere(void **state)
{
    (void)state;
    fill(F32);
    fill(BF16);
}

/* The number of operations of autotuning, with `open` GEMMs that have candidates left. Checks that
 * the state is unchanged and the work arena finite. */
static int64_t count_ops(const RankSettings *set, int open)
{
    Rank rank;
    const size_t bytes[] = {set->program->bytes[ARENA_STATE], set->program->bytes[ARENA_WORK]};
    char *before = malloc(bytes[0]), *after = malloc(bytes[0]), *work = malloc(bytes[1]);
    assert_true(before && after && work);
    DO(rank_open(&rank, set));
    DO(rank_init_weights(&rank, 3));
    DO(rank_read(&rank, rank.base[ARENA_STATE], bytes[0], before));
    shadow_set_candidates(open);
    const int64_t ran = shadow_count().ran;
    DO(rank_autotune(&rank));
    shadow_set_candidates(0);
    DO(rank_read(&rank, rank.base[ARENA_WORK], bytes[1], work));
    const int64_t ops = shadow_count().ran - ran;
    DO(rank_read(&rank, rank.base[ARENA_STATE], bytes[0], after));
    assert_memory_equal(before, after, bytes[0]);
    for (size_t i = 0; i < bytes[1] / 4; i++) assert_true(isfinite(number_at(work, F32, i)));
    free(before);
    free(after);
    free(work);
    rank_close(&rank);
    return ops;
}

static void tuned_in_place(void **state)
{
    (void)state;
    TestJob t;
    JobSettings job = test_job_settings("gpt2", JOB_STEP);
    job.dtype = F32;
    job.batch = (BatchShape){2, TEST_T};
    DO(test_job_open(&t, &job, 1));
    RankSettings set = t.rank.settings;
    set.device = &device_shadow;
    set.comm = NULL;
    shadow_set(7, SHADOW_COIN);
    const int64_t alone = count_ops(&set, 0), in_place = count_ops(&set, 1);
    assert_true(alone > 0);
    assert_true(in_place > 20 * alone); /* 48 passes; each GEMM runs twice alone */
    test_job_close(&t);
}

/* The operations of autotuning a step whose mask is promised to be causal, or not. */
static int64_t ops_of(bool causal)
{
    TestJob t;
    JobSettings job = test_job_settings("gpt2", JOB_STEP);
    job.dtype = F32;
    job.causal = causal;
    job.batch = (BatchShape){2, TEST_T};
    DO(test_job_open(&t, &job, 1));
    RankSettings set = t.rank.settings;
    set.device = &device_shadow;
    set.comm = NULL;
    shadow_set(7, SHADOW_COIN);
    const int64_t ops = count_ops(&set, 0);
    test_job_close(&t);
    return ops;
}

/* Attention with a promised mask runs once, forward and backward, and its results are overwritten
 * by normal numbers. */
static void promised_attention_runs(void **state)
{
    (void)state;
    const int64_t more = ops_of(true) - ops_of(false);
    assert_true(more > 0 && more % 2 == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_everywhere),
                                       cmocka_unit_test(tuned_in_place),
                                       cmocka_unit_test(promised_attention_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
