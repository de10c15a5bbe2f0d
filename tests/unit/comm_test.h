/* comm_test.h -- ranks for tests: a function is called on every rank of a world.
 *
 *     static Err body(TestRank *r) { ... TRY(comm_do(r->comm, &t)); EXPECT(r, x == y); return OK; }
 *     ranks_run(&(TestWorld){.ranks = 4, .body = body});
 *
 * cmocka's asserts belong to the main thread: a rank records its first fault, and ranks_run fails
 * for it. A body that returns an error aborts the comm, as world_run does.
 *
 * Ranks are threads; with SHEAF_TEST_MPI they are processes, so that the same tests hold for both
 * (mpi/ranks.h). There a world of another size than mpirun's, or a hostile one, is skipped. */
#ifndef TESTS_COMM_TEST_H
#define TESTS_COMM_TEST_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/local/local.h"

enum { MAX_TEST_RANKS = 64, TEST_BYTES = 1 << 20 };

typedef struct TestRank TestRank;

typedef struct {
    int ranks;
    Err (*body)(TestRank *r);
    const void *arg;
    bool hostile, may_fail; /* may_fail: the test checks the errors itself */
    uint64_t seed;
    double timeout_s, delay_s, delay_Bps;
    int in_flight; /* 0: 32 */
} TestWorld;

struct TestRank {
    const TestWorld *of;
    CommWorld *world;
    int rank, ranks;
    Arena arena;
    Comm *comm;
    char *memory; /* arena 0 of the comm, TEST_BYTES */
    Err err;
    double ended_s;
    char text[2048], fault[256];
};

#define EXPECT(r, condition)                                                                       \
    do {                                                                                           \
        if (!(condition) && !(r)->fault[0])                                                        \
            snprintf((r)->fault, sizeof(r)->fault, "rank %d, line %d: %s", (r)->rank, __LINE__,    \
                     #condition);                                                                  \
    } while (0)

static inline CommSettings test_settings(const TestRank *r)
{
    return (CommSettings){.rank = r->rank,
                          .ranks = r->ranks,
                          .in_flight = r->of->in_flight ? r->of->in_flight : 32,
                          .records = 64,
                          .hostile = r->of->hostile,
                          .seed = r->of->seed,
                          .timeout_s = r->of->timeout_s,
                          .delay_s = r->of->delay_s,
                          .delay_Bps = r->of->delay_Bps};
}

static TestRank test_ranks[MAX_TEST_RANKS]; /* the ranks after a run, for the test */

static inline void ranks_check(const TestWorld *of)
{
    for (int i = 0; i < of->ranks; i++) {
        if (test_ranks[i].fault[0]) fail_msg("%s", test_ranks[i].fault);
        if (test_ranks[i].err != OK && !of->may_fail)
            fail_msg("rank %d: %s", i, test_ranks[i].text);
    }
}

static inline uint64_t test_mix(uint64_t x) /* splitmix64 */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline RankList test_world(int ranks)
{
    static const int32_t all[MAX_TEST_RANKS] = {
        0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
        22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
        44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    return (RankList){ranks, all};
}

#ifdef SHEAF_TEST_MPI
#include "mpi/ranks.h"
#else

static inline int ranks_open(void **state) { return *state = NULL, 0; }
static inline int ranks_close(void **state) { return *state = NULL, 0; }
/* Skips the test unless it can run on that many ranks, or on threads. */
static inline void needs_ranks(int ranks) { (void)ranks; }
static inline void needs_threads(void) {}
/* The number of ranks that the test prefers, or that mpirun started. */
static inline int ranks_or(int liked) { return liked; }

static inline Err test_rank_run(TestRank *r)
{
    const TestWorld *of = r->of;
    const CommSettings set = test_settings(r);
    TRY(comm_join(r->world, &r->arena, &set, &r->comm));
    TRY(comm_register(r->comm, 0, r->memory, TEST_BYTES));
    const Err err = of->body(r);
    if (err != OK) comm_abort(r->comm, err, err_text());
    return err;
}

static inline void *test_rank_main(void *rank)
{
    TestRank *r = rank;
    r->err = test_rank_run(r);
    snprintf(r->text, sizeof r->text, "%s", r->err == OK ? "" : err_text());
    r->ended_s = now_s();
    comm_close(r->comm);
    free(r->memory); /* no other rank may access it any more */
    return NULL;
}

static inline void ranks_run(const TestWorld *of)
{
    CommWorld *world;
    pthread_t thread[MAX_TEST_RANKS];
    if (local_start(of->ranks, &world) != OK) fail_msg("%s", err_text());
    for (int i = 0; i < of->ranks; i++) {
        test_ranks[i] = (TestRank){.of = of, .world = world, .rank = i, .ranks = of->ranks};
        assert_int_equal(arena_open(&test_ranks[i].arena, "test", 1 << 22), OK);
        test_ranks[i].memory = aligned_alloc(64, TEST_BYTES);
        assert_int_equal(pthread_create(&thread[i], NULL, test_rank_main, &test_ranks[i]), 0);
    }
    for (int i = 0; i < of->ranks; i++) pthread_join(thread[i], NULL);
    comm_world_stop(world);
    for (int i = 0; i < of->ranks; i++) arena_close(&test_ranks[i].arena);
    ranks_check(of);
}
#endif

#endif
