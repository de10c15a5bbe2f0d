/* Tests for processes only: ranks get other numbers than the launcher's, and all transfers follow
 * the new ones. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "comm_test.h"

static int started; /* this process's rank by the launcher */

/* Rank r is the process that was started as rank n - 1 - r. */
static Err ranks_are_reversed(TestRank *r)
{
    int32_t *from = calloc((size_t)r->ranks, sizeof *from);
    const Transfer t = {.kind = COMM_ALL_GATHER,
                        .group = test_world(r->ranks),
                        .from = {r->rank, 1, sizeof *from * (size_t)r->rank, 1, I32},
                        .to = {r->rank, 1, 0, r->ranks, I32}};
    from[r->rank] = started;
    TRY(comm_register(r->comm, 1, from, sizeof *from * (size_t)r->ranks));
    TRY(comm_do(r->comm, &t));
    for (int i = 0; i < r->ranks; i++) EXPECT(r, from[i] == r->ranks - 1 - i);
    free(from);
    return comm_idle(r->comm);
}

static void transfers_follow_the_new_ranks(void **state)
{
    const int n = test_mpi->ranks;
    (void)state;
    started = test_mpi->rank;
    assert_int_equal(comm_world_renumber(test_mpi, n - 1 - started), OK);
    assert_int_equal(test_mpi->rank, n - 1 - started);
    for (int again = 0; again < 2; again++)
        ranks_run(&(TestWorld){.ranks = n, .timeout_s = 60, .body = ranks_are_reversed});
    assert_int_equal(comm_world_renumber(test_mpi, started), OK);
    assert_int_equal(test_mpi->rank, started);
}

/* A process whose setup failed keeps all others at their ranks. */
static void one_that_has_failed_keeps_all(void **state)
{
    const int n = test_mpi->ranks, before = test_mpi->rank;
    (void)state;
    assert_int_equal(comm_world_renumber(test_mpi, before == n - 1 ? -1 : (before + 1) % n), OK);
    assert_int_equal(test_mpi->rank, before);
}

static void equal_ranks_are_refused(void **state)
{
    const int before = test_mpi->rank;
    (void)state;
    assert_int_equal(comm_world_renumber(test_mpi, before / 2), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "two processes have the same rank"));
    assert_int_equal(test_mpi->rank, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(transfers_follow_the_new_ranks),
                                       cmocka_unit_test(one_that_has_failed_keeps_all),
                                       cmocka_unit_test(equal_ranks_are_refused)};
    return cmocka_run_group_tests(tests, ranks_open, ranks_close);
}
