/* test_batch.c -- every sequence of a step is in exactly one micro-batch of one dp rank, by the
 * rule of job/batch.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "job/batch.h"

enum { MOST = 64 };

static BatchSplit split_of(int64_t global, int64_t each, int dp, int fold)
{
    return (BatchSplit){each, dp, 0, fold, (int)batch_micros(global, each, dp, fold)};
}

/* Micro-batch j of rank r is number j * dp + r. */
static void micro_batches_are_round_robin(void **state)
{
    (void)state;
    BatchSplit s = split_of(7, 2, 2, 1);
    assert_int_equal(s.micros, 2);
    const int64_t want[2][2][2] = {{{0, 2}, {4, 2}}, {{2, 2}, {6, 1}}};
    for (s.part = 0; s.part < 2; s.part++)
        for (int m = 0; m < 2; m++) {
            const BatchPart p = batch_part(&s, 7, m);
            assert_int_equal(p.first, want[s.part][m][0]);
            assert_int_equal(p.n, want[s.part][m][1]);
        }
}

/* The last micro-batch is short; ranks without one run an empty one. */
static void ranks_may_be_empty(void **state)
{
    (void)state;
    BatchSplit s = split_of(3, 2, 5, 1);
    assert_int_equal(s.micros, 1);
    const int64_t want[] = {2, 1, 0, 0, 0};
    for (s.part = 0; s.part < 5; s.part++) assert_int_equal(batch_part(&s, 3, 0).n, want[s.part]);
}

static void every_sequence_is_assigned_once(void **state)
{
    (void)state;
    for (int global = 1; global <= 23; global++)
        for (int each = 1; each <= 4; each++)
            for (int dp = 1; dp <= 5; dp++)
                for (int fold = 1; fold <= 3; fold++) {
                    int seen[MOST] = {0};
                    BatchSplit s = split_of(global, each, dp, fold);
                    assert_true(batch_room(&s) >= global);
                    assert_true(batch_room(&s) < global + each * dp * fold);
                    for (s.part = 0; s.part < dp; s.part++)
                        for (int m = 0; m < s.micros; m++) {
                            const BatchPart p = batch_part(&s, global, m);
                            assert_true(p.n >= 0 && p.n <= each);
                            for (int64_t i = 0; i < p.n; i++) seen[p.first + i]++;
                        }
                    for (int i = 0; i < MOST; i++) assert_int_equal(seen[i], i < global);
                }
}

/* With fold=N one rank runs the micro-batches of dp rank 0 first, then those of rank 1, in the same
 * order. */
static void fold_runs_ranks_in_order(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n++)
        for (int global = 1; global <= 17; global++) {
            const BatchSplit one = split_of(global, 2, 1, n);
            BatchSplit many = split_of(global, 2, n, 1);
            assert_int_equal(one.micros, many.micros * n);
            for (int m = 0; m < one.micros; m++) {
                many.part = m / many.micros;
                const BatchPart a = batch_part(&one, global, m);
                const BatchPart b = batch_part(&many, global, m % many.micros);
                assert_int_equal(a.first, b.first);
                assert_int_equal(a.n, b.n);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(micro_batches_are_round_robin),
        cmocka_unit_test(ranks_may_be_empty),
        cmocka_unit_test(every_sequence_is_assigned_once),
        cmocka_unit_test(fold_runs_ranks_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
