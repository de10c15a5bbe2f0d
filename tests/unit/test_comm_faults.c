/* test_comm_faults.c -- faults between ranks are reported on every rank, soon and by name; no
 * fault hangs. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <unistd.h>

#include "comm_test.h"

static Transfer sum(const TestRank *r, int64_t count, int tag)
{
    return (Transfer){.kind = COMM_ALL_REDUCE,
                      .group = test_world(r->ranks),
                      .from = {r->rank, 0, 0, count, F32},
                      .to = {r->rank, 0, 0, count, F32},
                      .instr = 100 + tag,
                      .tag = tag};
}

static void expect_error(int rank, Err err, const char *words)
{
    const TestRank *r = &test_ranks[rank];
    if (r->err != err) fail_msg("rank %d: error %d, not %d: %s", rank, r->err, err, r->text);
    if (!strstr(r->text, words)) fail_msg("rank %d: '%s' is not in '%s'", rank, words, r->text);
}

/* Rank 2 of 4 skips the 17th of 20. */
static Err skip_one(TestRank *r)
{
    const int64_t tagged = *(const int *)r->of->arg;
    memset(r->memory, 0, TEST_BYTES);
    for (int i = 0; i < 20; i++) {
        const Transfer t = sum(r, 5, tagged ? i : 0);
        if (i == 17 && r->rank == 2) continue;
        TRY(comm_do(r->comm, &t));
    }
    return OK;
}

static void a_skipped_collective_is_named(void **state)
{
    (void)state;
    needs_ranks(4);
    int tagged = 1;
    ranks_run(&(TestWorld){
        .ranks = 4, .body = skip_one, .arg = &tagged, .may_fail = true, .timeout_s = 30});
    int named = 0;
    for (int i = 0; i < 4; i++) {
        if (test_ranks[i].err == ERR_CHECK) named++;
        expect_error(i, test_ranks[i].err, "all-reduce #17 over {0 1 2 3}");
        expect_error(i, test_ranks[i].err, "ranks 0 and 2 were compiled for different plans");
        expect_error(i, test_ranks[i].err, "differ in their tag: rank 0 began");
        expect_error(i, test_ranks[i].err, "this is a bug of sheaf");
        expect_error(i, test_ranks[i].err,
                     "tag 17, instruction 117; rank 2 began all-reduce of 5 f32, tag 18");
    }
    assert_true(named >= 1);

    /* Without tags it shows only at the end: rank 2 is done, and the others wait for it. */
    tagged = 0;
    const double start_s = now_s();
    ranks_run(&(TestWorld){
        .ranks = 4, .body = skip_one, .arg = &tagged, .may_fail = true, .timeout_s = 30});
    assert_int_equal(test_ranks[2].err, OK);
    expect_error(0, ERR_PEER,
                 "all-reduce #19 over {0 1 2 3}, instruction 100: rank"); /* 2, or 1 and 2 */
    expect_error(0, ERR_PEER, "rank 2 has closed its comm");
    expect_error(3, ERR_PEER, "rank 2 has closed its comm");
    assert_true(now_s() - start_s < 5); /* detected at once, without the timeout */
}

/* Rank 0 waits for rank 1, rank 1 for rank 2, which computes. */
static Err chain(TestRank *r)
{
    Transfer t = sum(r, 5, 7);
    TRY(comm_do(r->comm, &t));
    if (r->rank == 2) {
        usleep(1200 * 1000);
        return OK;
    }
    if (r->rank == 0) return comm_do(r->comm, &t);
    t = (Transfer){.kind = COMM_RECV,
                   .group = test_world(3),
                   .from = {.rank = 2},
                   .to = {1, 0, 0, 3, F64},
                   .instr = 9};
    usleep(100 * 1000); /* rank 0 reaches its timeout first */
    return comm_do(r->comm, &t);
}

static void a_hang_report_names_all_waits(void **state)
{
    (void)state;
    needs_ranks(3);
    const double start_s = now_s();
    ranks_run(&(TestWorld){.ranks = 3, .body = chain, .may_fail = true, .timeout_s = 0.5});
    expect_error(0, ERR_PEER, "rank 0: waited 0.");
    expect_error(0, ERR_PEER,
                 "(run.timeout_s=0.5) for all-reduce #1 over {0 1 2}, instruction 107: rank 1, "
                 "rank 2 have not posted it");
    expect_error(0, ERR_PEER, "rank 1 waits for recv #0 from rank 2 over {0 1 2}, instruction 9");
    expect_error(0, ERR_PEER, "; rank 2 computes");
    expect_error(0, ERR_PEER, " was all-reduce #0 over {0 1 2}, instruction 107");
    assert_string_equal(test_ranks[0].text, test_ranks[1].text);
    assert_true(test_ranks[0].ended_s - start_s > 0.5 && test_ranks[1].ended_s - start_s < 1.1);
}

/* One rank fails while the others wait, some asleep, on different groups; with a transfer of a
 * megabyte about to move in memory that is then freed. */
static Err fail_one(TestRank *r)
{
    const int bad = *(const int *)r->of->arg;
    const Transfer t = sum(r, TEST_BYTES / 4 - 64, 0);
    Transfer pair = sum(r, 9, 1);
    int32_t two[2] = {r->rank & ~1, r->rank | 1};
    memset(r->memory, 0, TEST_BYTES);
    Ticket ticket;
    TRY(comm_begin(r->comm, &t, &ticket));
    if (r->rank == bad) {
        usleep((useconds_t)(bad & 1 ? 30 * 1000 : 50));
        return err_fail(ERR_IO, "disk %d is full", bad);
    }
    if (r->rank % 3) TRY(comm_wait(r->comm, ticket));
    pair.group = (RankList){2, two};
    pair.from.offset = pair.to.offset = TEST_BYTES - 64; /* next to the large one */
    for (int i = 0; i < 1000000; i++) TRY(comm_do(r->comm, &pair));
    return OK;
}

static void an_error_reaches_all(void **state)
{
    (void)state;
    const int ranks = ranks_or(6);
    if (ranks % 2) skip(); /* ranks form pairs */
    for (int bad = 0; bad < ranks; bad++) {
        char words[64];
        const double start_s = now_s();
        ranks_run(&(TestWorld){.ranks = ranks, .body = fail_one, .arg = &bad, .may_fail = true});
        snprintf(words, sizeof words, "rank %d: disk %d is full", bad, bad);
        for (int i = 0; i < ranks; i++) {
            if (i == bad) continue;
            expect_error(i, ERR_PEER, words);
            assert_true(test_ranks[i].ended_s - start_s < 2);
        }
        expect_error(bad, ERR_IO, "disk");
    }
}

static Err differ(TestRank *r)
{
    const int how = *(const int *)r->of->arg;
    const int64_t counts[3] = {2, 3, 1}, wrong[3] = {3, 2, 1};
    Transfer t = sum(r, 6, 0);
    memset(r->memory, 0, TEST_BYTES);
    if (how == 5) t.kind = COMM_BROADCAST, t.from.rank = 0;
    if (how == 6) {
        t.kind = COMM_REDUCE_SCATTER;
        t.to.count = r->rank == 1 ? 2 : counts[r->rank];
        t.from_counts = r->rank == 1 ? wrong : counts;
        t.to.offset = 64;
    }
    if (how == 7) {
        t.kind = COMM_ALL_TO_ALL;
        t.from_counts = counts;
        t.to_counts = wrong; /* not the counts that the sender has */
        t.to.offset = 64;
    }
    if (r->rank == 1) {
        if (how == 0) t.kind = COMM_ALL_TO_ALL, t.to.offset = 64;
        if (how == 1) t.from.count = t.to.count = 5;
        if (how == 2) t.from.dtype = t.to.dtype = I32;
        if (how == 3) t.reduce = REDUCE_MAX;
        if (how == 4) t.tag = 3;
        if (how == 5) t.from.rank = 1;
        if (how == 7) t.to_counts = counts;
    }
    if (how == 7 && r->rank != 1) t.from_counts = wrong;
    return comm_do(r->comm, &t);
}

static void mismatches_are_named(void **state)
{
    (void)state;
    static const char *const words[] = {
        "kind: rank 0 began all-reduce of 6 f32, tag 0, instruction 100; rank 1 began all-to-all",
        "number of elements: rank 0 began all-reduce of 6 f32, tag 0, instruction 100; rank 1 "
        "began "
        "all-reduce of 5 f32",
        "type of elements",
        "reduction",
        "tag 0, instruction 100; rank 1 began all-reduce of 6 f32, tag 3",
        "root",
        "counts per member",
        "elements to rank"};
    needs_ranks(3);
    for (int how = 0; how < 8; how++) {
        ranks_run(&(TestWorld){.ranks = 3, .body = differ, .arg = &how, .may_fail = true});
        for (int i = 0; i < 3; i++)
            if (how < 7 || test_ranks[i].err != OK) expect_error(i, test_ranks[i].err, words[how]);
        assert_true(test_ranks[0].err == ERR_CHECK || test_ranks[1].err == ERR_CHECK ||
                    test_ranks[2].err == ERR_CHECK);
    }
}

/* A rank that leaves with transfers in flight has failed. Its memory is freed before the other rank
 * would move them: it must not be accessed, and nothing can be begun any more. */
static Err leave_early(TestRank *r)
{
    const Transfer t = sum(r, 5000, 0);
    Ticket ticket, none;
    memset(r->memory, 0, TEST_BYTES);
    TRY(comm_begin(r->comm, &t, &ticket));
    usleep(r->rank == 0 ? 20 * 1000
                        : 1500 * 1000); /* at different times, since the machine may be busy */
    if (r->rank == 0) return OK;
    const Err err = comm_wait(r->comm, ticket);
    EXPECT(r, comm_begin(r->comm, &t, &none) == ERR_PEER);
    EXPECT(r, comm_poll(r->comm) == ERR_PEER && comm_wait(r->comm, ticket) == ERR_PEER);
    return err;
}

static void leaving_early_is_a_failure(void **state)
{
    (void)state;
    needs_ranks(2);
    ranks_run(&(TestWorld){.ranks = 2, .body = leave_early, .may_fail = true});
    expect_error(1, ERR_PEER,
                 "rank 0: comm: all-reduce #0 over {0 1}, instruction 100 was begun and not "
                 "waited for");
}

static Err join_twice(TestRank *r)
{
    Comm *second = NULL;
    CommSettings set = {.rank = r->rank, .ranks = r->ranks, .in_flight = 1, .records = 1};
    EXPECT(r, comm_join(r->world, &r->arena, &set, &second) == ERR_CONFIG);
    set.ranks++;
    EXPECT(r, comm_join(r->world, &r->arena, &set, &second) == ERR_CONFIG && !second);
    return OK;
}

static void ranks_join_once(void **state)
{
    (void)state;
    needs_threads();
    CommWorld *none = NULL;
    ranks_run(&(TestWorld){.ranks = 2, .body = join_twice});
    assert_int_equal(local_start(0, &none), ERR_CONFIG);
    assert_null(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_skipped_collective_is_named),
        cmocka_unit_test(a_hang_report_names_all_waits),
        cmocka_unit_test(an_error_reaches_all),
        cmocka_unit_test(mismatches_are_named),
        cmocka_unit_test(leaving_early_is_a_failure),
        cmocka_unit_test(ranks_join_once),
    };
    return cmocka_run_group_tests(tests, ranks_open, ranks_close);
}
