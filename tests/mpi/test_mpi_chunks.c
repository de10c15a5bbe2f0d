/* Tests for processes only: arrays of many chunks, several reductions that share the scratch memory
 * in turn, worlds that are joined repeatedly, settings that are refused. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "comm_test.h"

/* Long enough for six chunks of a segment each on four ranks; all different, none a round
 * number. */
enum { ARRAYS = 4, LONGEST = 1600003, CHUNK = 256 * 1024 };
static const int64_t length[ARRAYS] = {1600003, 700001, 65537, 1200011};

static int64_t value(int rank, int array, int64_t i)
{
    return (int64_t)test_mix((uint64_t)(array * 64 + rank) << 40 ^ (uint64_t)i);
}

static int64_t *array_at(int64_t *all, int array) { return all + (int64_t)array * LONGEST; }

static Transfer whole(const TestRank *r, CommKind kind, int array)
{
    const Ref at = {r->rank, 1, sizeof(int64_t) * (size_t)array * LONGEST, length[array], I64};
    return (Transfer){.kind = kind,
                      .group = test_world(r->ranks),
                      .purpose = array,
                      .from = at,
                      .to = at,
                      .tag = array};
}

/* All in flight at once, in place, begun in the same order on every rank but on groups of their
 * own, and waited for in another order on each. */
static Err sums_take_turns(TestRank *r)
{
    int64_t *all = calloc((size_t)ARRAYS * LONGEST, sizeof *all);
    Ticket ticket[ARRAYS];
    TRY(comm_register(r->comm, 1, all, sizeof *all * ARRAYS * LONGEST));
    for (int a = 0; a < ARRAYS; a++)
        for (int64_t i = 0; i < length[a]; i++) array_at(all, a)[i] = value(r->rank, a, i);
    for (int a = 0; a < ARRAYS; a++) {
        const int turned = (a + r->rank) % ARRAYS;
        const Transfer t = whole(r, COMM_ALL_REDUCE, turned);
        TRY(comm_begin(r->comm, &t, &ticket[turned]));
    }
    for (int a = 0; a < ARRAYS; a++) TRY(comm_wait(r->comm, ticket[(3 * a + r->rank) % ARRAYS]));
    for (int a = 0; a < ARRAYS; a++)
        for (int64_t i = 0; i < length[a]; i++) {
            uint64_t sum = 0;
            for (int k = 0; k < r->ranks; k++) sum += (uint64_t)value(k, a, i);
            EXPECT(r, (uint64_t)array_at(all, a)[i] == sum);
        }
    free(all);
    return comm_idle(r->comm);
}

/* Uneven parts: many chunks of the first rank, none of the last; and sends of that length in both
 * directions. */
static Err long_parts(TestRank *r)
{
    const int n = r->ranks, next = (r->rank + 1) % n, last = (r->rank + n - 1) % n;
    int64_t *all = calloc((size_t)ARRAYS * LONGEST, sizeof *all), parts[4], start = 0;
    TRY(comm_register(r->comm, 1, all, sizeof *all * ARRAYS * LONGEST));
    for (int i = 0; i < n; i++) parts[i] = i == n - 1 ? 0 : length[0] / (1 << i) / 2;
    Transfer t = whole(r, COMM_ALL_GATHER, 0);
    t.to.count = 0;
    for (int i = 0; i < n; i++) t.to.count += parts[i];
    for (int i = 0; i < r->rank; i++) start += parts[i];
    t.from = (Ref){r->rank, 1, sizeof *all * (size_t)start, parts[r->rank], I64};
    t.to_counts = parts;
    for (int64_t i = 0; i < parts[r->rank]; i++) all[start + i] = value(r->rank, 0, i);
    for (int64_t i = 0; i < length[1]; i++) array_at(all, 1)[i] = value(r->rank, 1, i);
    Transfer send = whole(r, COMM_SEND, 1), recv = whole(r, COMM_RECV, 2);
    send.purpose = recv.purpose = send.tag = recv.tag = 9;
    recv.to.count = send.from.count;
    send.to.rank = next;
    recv.from.rank = last;
    Ticket a, b, c;
    TRY(comm_begin(r->comm, &send, &a));
    TRY(comm_begin(r->comm, &t, &b));
    TRY(comm_begin(r->comm, &recv, &c));
    TRY(comm_wait(r->comm, c));
    TRY(comm_wait(r->comm, b));
    TRY(comm_wait(r->comm, a));
    const int64_t *at = all;
    for (int k = 0; k < n; at += parts[k++])
        for (int64_t i = 0; i < parts[k]; i++) EXPECT(r, at[i] == value(k, 0, i));
    for (int64_t i = 0; i < length[1]; i++) EXPECT(r, array_at(all, 2)[i] == value(last, 1, i));
    free(all);
    return OK;
}

static void long_arrays_arrive(void **state)
{
    (void)state;
    ranks_run(&(TestWorld){.ranks = ranks_or(0), .body = sums_take_turns, .timeout_s = 60});
    ranks_run(&(TestWorld){.ranks = ranks_or(0), .body = long_parts, .timeout_s = 60});
}

/* Static: MPI may still read sent memory if a receiver learns of the failure late. */
static char *sent_in_vain[3];

/* A rank fails in the middle of long transfers: the others end, and no memory is written
 * afterwards. */
static Err fail_midway(TestRank *r)
{
    const size_t bytes = sizeof(int64_t) * LONGEST;
    char *all = malloc(bytes), **held = sent_in_vain;
    while (*held) held++;
    *held = all;
    Transfer t = whole(r, COMM_ALL_REDUCE, 0);
    Err err = OK;
    memset(all, 0, bytes);
    TRY(comm_register(r->comm, 1, all, bytes));
    for (int i = 0; err == OK && i < 1000; i++) {
        Ticket ticket;
        err = comm_begin(r->comm, &t, &ticket);
        for (int k = 0; err == OK && r->rank == 1 && k < 40; k++) err = comm_poll(r->comm);
        if (r->rank == 1 && i == 2) err = err_fail(ERR_IO, "the disk is full");
        if (err == OK) err = comm_wait(r->comm, ticket);
    }
    if (err != OK) comm_abort(r->comm, err, err_text());
    memset(all, 0x77, bytes);
    (void)comm_poll(r->comm);
    for (size_t i = 0; i < bytes; i++) EXPECT(r, all[i] == 0x77);
    return err_fail(err, "%s", err_text());
}

static void failing_midway_ends_all(void **state)
{
    (void)state;
    for (int turn = 0; turn < (int)(sizeof sent_in_vain / sizeof *sent_in_vain); turn++) {
        const double start_s = now_s();
        ranks_run(&(TestWorld){.ranks = ranks_or(0), .body = fail_midway, .may_fail = true});
        for (int i = 0; i < ranks_or(0); i++) {
            assert_int_equal(test_ranks[i].err, i == 1 ? ERR_IO : ERR_PEER);
            assert_non_null(strstr(test_ranks[i].text, "the disk is full"));
            assert_true(test_ranks[i].ended_s - start_s < 5);
        }
    }
}

static void bad_settings_are_refused(void **state)
{
    (void)state;
    Arena a;
    Comm *c = NULL;
    const int rank = test_mpi->rank, ranks = test_mpi->ranks;
    CommSettings set = {.rank = rank, .ranks = ranks, .in_flight = 4, .records = 4};
    assert_int_equal(arena_open(&a, "test", 1 << 20), OK);
    set.hostile = true;
    assert_int_equal(comm_join(test_mpi, &a, &set, &c), ERR_CONFIG);
    set.hostile = false;
    set.ranks++;
    assert_int_equal(comm_join(test_mpi, &a, &set, &c), ERR_CONFIG);
    set.ranks--;
    set.in_flight = rank ? 4 : 5;
    assert_int_equal(comm_join(test_mpi, &a, &set, &c), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "with 4 to 5 transfers in flight"));
    set.in_flight = 4;
    set.rank = rank == 1 ? 0 : rank; /* one rank cannot join: none does */
    assert_int_equal(comm_join(test_mpi, &a, &set, &c), rank == 1 ? ERR_CONFIG : ERR_PEER);
    assert_null(c);
    set.rank = rank;
    set.records = rank == 1 ? 0 : 4; /* detected after the others joined: they get ERR_PEER */
    const Err err = comm_join(test_mpi, &a, &set, &c);
    if (rank == 1) {
        assert_int_equal(err, ERR_CONFIG);
    } else {
        assert_int_equal(err, OK);
        assert_int_equal(comm_agree(c, test_world(ranks), OK), ERR_PEER);
        assert_non_null(strstr(err_text(), "rank 1: comm: room for 4 transfers and 0 records"));
        comm_close(c);
    }
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_arrays_arrive),
        cmocka_unit_test(failing_midway_ends_all),
        cmocka_unit_test(bad_settings_are_refused),
    };
    const int failed = cmocka_run_group_tests(tests, ranks_open, ranks_close);
    for (int i = 0; i < 3; i++) free(sent_in_vain[i]);
    return failed;
}
