/* ranks.h -- the ranks of comm_test.h as processes; this process is one of them.
 *
 * After a test the ranks exchange their results over a second comm, so that each process sees what
 * the test would see of threads, and all fail together. */
#ifndef TESTS_MPI_RANKS_H
#define TESTS_MPI_RANKS_H

#include "comm/mpi.h"

static CommWorld *test_mpi;

static inline int ranks_open(void **state)
{
    char path[1024];
    (void)state;
    snprintf(path, sizeof path, "%s/sheaf-mpi.so", getenv("SHEAF_BINARY_DIR"));
    if (mpi_start(path, NULL, &test_mpi) == OK) return 0;
    fprintf(stderr, "%s\n", err_text());
    return -1;
}

static inline int ranks_close(void **state)
{
    (void)state;
    if (test_mpi) comm_world_stop(test_mpi);
    return 0;
}

static inline void needs_ranks(int ranks)
{
    if (ranks != test_mpi->ranks) skip();
}

static inline void needs_threads(void) { skip(); }

static inline int ranks_or(int liked)
{
    (void)liked;
    return test_mpi->ranks;
}

static inline Err test_rank_run(TestRank *r)
{
    const CommSettings set = test_settings(r);
    TRY(comm_join(test_mpi, &r->arena, &set, &r->comm));
    TRY(comm_register(r->comm, 0, r->memory, TEST_BYTES));
    const Err err = r->of->body(r);
    if (err != OK) comm_abort(r->comm, err, err_text());
    return err;
}

static inline Err test_ranks_show(TestRank *r)
{
    const TestWorld of = {.timeout_s = 60};
    const CommSettings set =
        test_settings(&(TestRank){.of = &of, .rank = r->rank, .ranks = r->ranks});
    const int64_t each = sizeof *r / 4;
    const Transfer t = {.kind = COMM_ALL_GATHER,
                        .group = test_world(r->ranks),
                        .from = {r->rank, 0, sizeof *r * (size_t)r->rank, each, I32},
                        .to = {r->rank, 0, 0, each * r->ranks, I32}};
    TRY(comm_join(test_mpi, &r->arena, &set, &r->comm));
    TRY(comm_register(r->comm, 0, test_ranks, sizeof test_ranks));
    TRY(comm_do(r->comm, &t));
    comm_close(r->comm);
    return OK;
}

static inline void ranks_run(const TestWorld *of)
{
    const int rank = test_mpi->rank;
    TestRank *r = &test_ranks[rank];
    if (of->ranks != test_mpi->ranks || of->hostile) return;
    *r = (TestRank){.of = of, .rank = rank, .ranks = of->ranks};
    assert_int_equal(arena_open(&r->arena, "test", 1 << 22), OK);
    r->memory = aligned_alloc(64, TEST_BYTES);
    r->err = test_rank_run(r);
    snprintf(r->text, sizeof r->text, "%s", r->err == OK ? "" : err_text());
    r->ended_s = now_s();
    if (r->comm) comm_close(r->comm);
    free(r->memory);
    if (test_ranks_show(r) != OK) fail_msg("%s", err_text());
    arena_close(&r->arena);
    ranks_check(of);
}

#endif
