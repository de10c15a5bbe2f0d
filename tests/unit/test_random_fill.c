/* test_random_fill.c -- what products are tried on before the first step: every byte of the device's work
 * arena is of a number, as large as the numbers of a model are, and none is 0. And how: alone, and in
 * place as long as there are several algorithms of one. */
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

/* Squares of normal numbers add up to their count, within 1% for a million; of zeros to nothing. Cut off
 * to bf16 they are up to 2^-7 smaller, their squares 2^-6. */
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
    job.batch = (BatchShape){400, TEST_T}; /* more than is drawn: the rest is copied */
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

/* Operations that trying takes, where some products are open. Neither state changes, nor is anything
 * infinite. */
static int64_t count_tried(const RankSettings *set, int open)
{
    Rank rank;
    const size_t bytes[] = {set->program->bytes[ARENA_STATE], set->program->bytes[ARENA_WORK]};
    char *before = malloc(bytes[0]), *after = malloc(bytes[0]), *work = malloc(bytes[1]);
    assert_true(before && after && work);
    DO(rank_open(&rank, set));
    DO(rank_init_weights(&rank, 3));
    DO(rank_read(&rank, rank.base[ARENA_STATE], bytes[0], before));
    shadow_opens(open);
    const int64_t ran = shadow_count().ran;
    DO(rank_autotune(&rank));
    shadow_opens(0);
    DO(rank_read(&rank, rank.base[ARENA_WORK], bytes[1], work));
    const int64_t tried = shadow_count().ran - ran;
    DO(rank_read(&rank, rank.base[ARENA_STATE], bytes[0], after));
    assert_memory_equal(before, after, bytes[0]);
    for (size_t i = 0; i < bytes[1] / 4; i++) assert_true(isfinite(number_at(work, F32, i)));
    free(before);
    free(after);
    free(work);
    rank_close(&rank);
    return tried;
}

static void tried_in_place(void **state)
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
    const int64_t alone = count_tried(&set, 0), in_place = count_tried(&set, 1);
    assert_true(alone > 0);
    assert_true(in_place > 20 * alone); /* some dozen times, and each product was twice alone */
    test_job_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_everywhere),
                                       cmocka_unit_test(tried_in_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
