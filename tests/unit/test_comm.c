/* test_comm.c -- transfers over `local` on one rank: results, when they may be read, and refused
 * transfers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "comm/local/local.h"

enum { A = 3, B = 5, N_A = 24, N_B = 17 }; /* two arenas of doubles */

typedef struct {
    Arena arena;
    Comm *comm;
    double a[N_A], b[N_B];
} Bench;

static Bench bench;
static const int32_t zero = 0;
static const RankList self = {1, &zero};

static void bench_open(const CommSettings *set)
{
    assert_int_equal(arena_open(&bench.arena, "test", (size_t)1 << 24), OK);
    assert_int_equal(local_open(&bench.arena, set, &bench.comm), OK);
    assert_int_equal(comm_register(bench.comm, A, bench.a, sizeof bench.a), OK);
    assert_int_equal(comm_register(bench.comm, B, bench.b, sizeof bench.b), OK);
    for (int i = 0; i < N_A; i++) bench.a[i] = 1 + i;
    for (int i = 0; i < N_B; i++) bench.b[i] = -1 - i;
}

static void bench_close(void)
{
    comm_close(bench.comm);
    arena_close(&bench.arena);
}

static CommSettings plain(void)
{
    return (CommSettings){.ranks = 1, .in_flight = 7, .records = 64};
}

static CommSettings hostile(uint64_t seed)
{
    CommSettings set = plain();
    set.hostile = true;
    set.seed = seed;
    return set;
}

static Ref ref(int arena, int64_t at, int64_t count)
{
    return (Ref){0, arena, (size_t)at * sizeof(double), count, F64};
}

static Transfer transfer(CommKind kind, Ref from, Ref to)
{
    return (Transfer){.kind = kind, .group = self, .from = from, .to = to, .instr = 17};
}

static Ticket begin(Transfer t)
{
    Ticket ticket;
    if (comm_begin(bench.comm, &t, &ticket) != OK) fail_msg("%s", err_text());
    return ticket;
}

static void wait_for(Ticket t)
{
    if (comm_wait(bench.comm, t) != OK) fail_msg("%s", err_text());
}

static Ticket begin_send(int64_t at, int64_t count)
{
    return begin(transfer(COMM_SEND, ref(A, at, count), (Ref){.rank = 0}));
}

static Ticket begin_recv(int64_t at, int64_t count)
{
    return begin(transfer(COMM_RECV, (Ref){.rank = 0}, ref(B, at, count)));
}

static void refused(Err err, const char *words)
{
    assert_int_equal(err, ERR_CHECK);
    if (!strstr(err_text(), words)) fail_msg("'%s' is not in '%s'", words, err_text());
}

/* Every collective over oneself is a copy, with the right bytes and no others. */
static void collectives_copy(void **state)
{
    (void)state;
    const int64_t five = 5, none = 0;
    for (int kind = COMM_ALL_REDUCE; kind < N_COMM_KINDS; kind++)
        for (int counts = 0; counts < 2; counts++)
            for (uint64_t seed = 0; seed < 9; seed++) {
                const CommSettings set = seed ? hostile(seed) : plain();
                bench_open(&set);
                Transfer t = transfer((CommKind)kind, ref(A, 3, 5), ref(B, 2, 5));
                Transfer empty = transfer((CommKind)kind, ref(A, N_A, 0), ref(B, N_B, 0));
                if (counts && (kind == COMM_REDUCE_SCATTER || kind == COMM_ALL_TO_ALL))
                    t.from_counts = &five, empty.from_counts = &none;
                if (counts && (kind == COMM_ALL_GATHER || kind == COMM_ALL_TO_ALL))
                    t.to_counts = &five, empty.to_counts = &none;
                const Ticket first = begin(t), second = begin(empty);
                wait_for(second); /* in any order */
                wait_for(first);
                for (int i = 0; i < N_A; i++) assert_true(bench.a[i] == 1 + i);
                for (int i = 0; i < N_B; i++)
                    assert_true(bench.b[i] == (i >= 2 && i < 7 ? 4 + i - 2 : -1 - i));
                bench_close();
            }
}

/* Neighbours in one arena do not overlap, on either side. */
static void neighbours_do_not_overlap(void **state)
{
    (void)state;
    const CommSettings set = plain();
    bench_open(&set);
    wait_for(begin(transfer(COMM_ALL_TO_ALL, ref(A, 4, 3), ref(A, 1, 3))));
    wait_for(begin(transfer(COMM_ALL_REDUCE, ref(A, 4, 3), ref(A, 7, 3))));
    for (int i = 1; i < 10; i++) assert_true(bench.a[i] == 5 + (i - 1) % 3);
    assert_true(bench.a[0] == 1 && bench.a[10] == 11);
    bench_close();
}

static void in_place_keeps_the_value(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 9; seed++) {
        const CommSettings set = seed ? hostile(seed) : plain();
        bench_open(&set);
        for (int kind = COMM_ALL_REDUCE; kind < N_COMM_KINDS; kind++) {
            if (kind == COMM_ALL_TO_ALL) continue; /* has no in-place form */
            const Transfer t = transfer((CommKind)kind, ref(A, 2, 7), ref(A, 2, 7));
            const Ticket one = begin(t);
            const Ticket two = begin(transfer(t.kind, ref(B, 0, 4), ref(B, 0, 4)));
            wait_for(two);
            const Ticket three = begin(transfer(t.kind, ref(B, 6, 7), ref(B, 6, 7)));
            wait_for(one);
            wait_for(three);
        }
        for (int i = 0; i < N_A; i++) assert_true(bench.a[i] == 1 + i);
        for (int i = 0; i < N_B; i++) assert_true(bench.b[i] == -1 - i);
        bench_close();
    }
}

/* The n-th send matches the n-th receive, whichever half begins first and is waited for first; per
 * group. */
static void sends_match_receives_in_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 33; seed++) {
        const CommSettings set = seed ? hostile(seed) : plain();
        bench_open(&set);
        Transfer other = transfer(COMM_SEND, ref(A, 20, 1), (Ref){.rank = 0});
        other.purpose = 1;
        const Ticket s0 = begin_send(0, 3), so = begin(other), s1 = begin_send(10, 3);
        const Ticket r0 = begin_recv(4, 3), r1 = begin_recv(8, 3), r2 = begin_recv(14, 2);
        wait_for(s0);
        bench.a[0] = 99; /* its send is done: the receiver must not see this */
        wait_for(r1);
        wait_for(s1);
        wait_for(r0);
        const Ticket s2 = begin_send(5, 2);
        wait_for(r2);
        wait_for(s2);
        other = transfer(COMM_RECV, (Ref){.rank = 0}, ref(B, 0, 1));
        other.purpose = 1;
        wait_for(begin(other));
        wait_for(so);
        const double want[N_B] = {21, -2, -3,  -4,  1,   2, 3, -8, 11,
                                  12, 13, -12, -13, -14, 6, 7, -17};
        for (int i = 0; i < N_B; i++) assert_true(bench.b[i] == want[i]);
        assert_int_equal(comm_idle(bench.comm), OK);
        bench_close();
    }
}

/* Code that reads before the wait sees NaN under some seed, code that writes the source before it
 * is seen by the receiver; and both seeds of the coin occur. */
static void hostile_catches_early_reads(void **state)
{
    (void)state;
    int early = 0, late = 0;
    for (uint64_t seed = 0; seed < 32; seed++) {
        const CommSettings set = hostile(seed);
        bench_open(&set);
        const Ticket t = begin(transfer(COMM_ALL_GATHER, ref(A, 0, 2), ref(B, 0, 2)));
        const bool came = bench.b[0] == 1;
        assert_true(came || isnan(bench.b[0]));
        bench.a[1] = 50;
        wait_for(t);
        assert_true(bench.b[0] == 1 && bench.b[1] == (came ? 2 : 50));
        came ? early++ : late++;

        const Ticket r = begin_recv(4, 2);
        assert_true(isnan(bench.b[4]) && isnan(bench.b[5]));
        const Ticket s = begin_send(4, 2);
        wait_for(r);
        wait_for(s);
        assert_true(bench.b[4] == 5 && bench.b[6] == -7);
        bench_close();
    }
    assert_true(early > 4 && late > 4);
}

static void incomplete_transfers_are_named(void **state)
{
    (void)state;
    const CommSettings set = plain();
    bench_open(&set);
    const Ticket send = begin_send(0, 3);
    refused(comm_wait(bench.comm, send),
            "send #0 to rank 0 over {0}, instruction 17 has no recv to meet");
    refused(comm_idle(bench.comm), "send #0 to rank 0 over {0}");
    refused(comm_group_end(bench.comm, self, 0), "with 1 transfers in flight");
    const Ticket recv = begin_recv(0, 3);
    wait_for(recv);
    wait_for(send);
    refused(comm_wait(bench.comm, send), "not in flight");
    refused(comm_wait(bench.comm, (Ticket){-1, 0}), "not in flight");
    const Ticket lone = begin_recv(0, 1);
    refused(comm_wait(bench.comm, lone),
            "recv #1 from rank 0 over {0}, instruction 17 has no send to meet");
    for (int i = 0; i < 6; i++) begin_send(0, 1);
    Ticket none;
    const Transfer wrong = transfer(COMM_BROADCAST, ref(A, 0, 1), ref(B, 0, 1));
    refused(comm_begin(bench.comm, &wrong, &none), "7 transfers are in flight");
    bench_close();
}

/* Halves that do not agree are detected when they match, and fail the comm. */
static void send_and_receive_must_match(void **state)
{
    (void)state;
    const CommSettings set = plain();
    for (int overlap = 0; overlap < 2; overlap++) {
        bench_open(&set);
        const Ticket send = begin_send(0, 3);
        const Ref to = overlap ? ref(A, 2, 3) : ref(B, 0, 4);
        const Transfer recv = transfer(COMM_RECV, (Ref){.rank = 0}, to);
        begin(recv);
        refused(comm_wait(bench.comm, send), overlap ? "memory, which overlaps"
                                                     : "number of elements: rank 0 began send of 3 "
                                                       "f64, tag 0, instruction 17; rank 0 began "
                                                       "send of 4 f64");
        Ticket none;
        assert_int_equal(comm_begin(bench.comm, &recv, &none), ERR_PEER);
        assert_int_equal(comm_wait(bench.comm, send), ERR_PEER);
        bench_close();
    }
}

static void bad_transfers_are_refused(void **state)
{
    (void)state;
    const CommSettings set = plain();
    const int64_t two = 2, less = -1;
    static const int32_t twice[2] = {0, 0}, beyond[2] = {0, 1};
    struct {
        Transfer t;
        const char *words;
    } bad[] = {
        {transfer(COMM_ALL_REDUCE, ref(A, 20, 5), ref(B, 0, 5)),
         "all-reduce #0 over {0}, instruction 17: `from` is 5 f64 at offset 160 of arena 3, whose "
         "limit is 192 bytes"},
        {transfer(COMM_ALL_REDUCE, ref(A, 0, 5), ref(B, 18, 0)), "`to` is 0 f64 at offset 144"},
        {transfer(COMM_ALL_REDUCE, ref(A, 0, INT64_MAX), ref(B, 0, 1)), "whose limit is 192"},
        {transfer(COMM_ALL_REDUCE, ref(4, 0, 1), ref(B, 0, 1)), "arena 4, whose limit is 0"},
        {transfer(COMM_ALL_REDUCE, ref(-1, 0, 1), ref(B, 0, 1)), "arena -1; ids are 0 to 35"},
        {transfer(COMM_ALL_REDUCE, ref(A, 0, -1), ref(B, 0, 1)), "-1 elements"},
        {transfer(COMM_ALL_REDUCE, ref(A, 0, 4), ref(B, 0, 5)), "4 elements `from`, 5 `to`"},
        {transfer(COMM_ALL_REDUCE, (Ref){0, A, 4, 1, F64}, ref(B, 0, 1)), "not a multiple of 8"},
        {transfer(COMM_ALL_REDUCE, (Ref){0, A, 0, 1, F32}, ref(B, 0, 1)), "`from` is f32"},
        {transfer(COMM_ALL_REDUCE, (Ref){1, A, 0, 1, F64}, ref(B, 0, 1)),
         "`from` is memory of rank 1"},
        {transfer(COMM_ALL_REDUCE, ref(A, 0, 4), ref(A, 2, 4)),
         "overlap in arena 3 (offsets 0 and"},
        {transfer(COMM_ALL_TO_ALL, ref(A, 0, 4), ref(A, 0, 4)), "overlap"},
        {transfer(COMM_ALL_GATHER, ref(A, 0, 4), ref(B, 0, 5)), "member 0 is 4 elements, not 5"},
        {transfer(COMM_REDUCE_SCATTER, ref(A, 0, 4), ref(B, 0, 5)), "is 5 elements, not 4"},
        {transfer(COMM_ALL_TO_ALL, ref(A, 0, 4), ref(B, 0, 5)), "has two counts"},
        {transfer(COMM_SEND, ref(A, 0, 4), (Ref){.rank = 2}), "rank 2 is not in the group"},
        {transfer(COMM_RECV, (Ref){.rank = 2}, ref(A, 0, 4)), "rank 2 is not in the group"},
        {transfer(COMM_BROADCAST, (Ref){.rank = 2}, ref(A, 0, 4)), "rank 2 is not in the group"},
        {transfer(COMM_ALL_GATHER, ref(A, 0, 4), ref(B, 0, 4)), "sum to 2, not to 4"},
        {transfer(COMM_ALL_GATHER, ref(A, 0, 4), ref(B, 0, 4)), "member 0 has -1"},
        {transfer(COMM_ALL_GATHER, ref(A, 0, 4), ref(B, 0, 4)), "no counts on that side"},
        {transfer(COMM_ALL_TO_ALL, ref(A, 0, 2), ref(B, 0, 2)), "of both sides, or of none"},
        {transfer(COMM_ALL_REDUCE, ref(A, 0, 2), ref(B, 0, 2)), "names rank 0 twice"},
        {transfer(COMM_ALL_REDUCE, ref(A, 0, 2), ref(B, 0, 2)), "names rank 1; ranks are 0 to 0"},
        {transfer(COMM_ALL_REDUCE, ref(A, 0, 2), ref(B, 0, 2)), "0 ranks that it is not in"},
        {transfer(COMM_ALL_REDUCE, (Ref){0, A, 0, 4, E4M3}, (Ref){0, B, 0, 4, E4M3}),
         "type e4m3 have scales of their own; widen before a sum"},
    };
    bad[18].t.to_counts = &two;
    bad[19].t.to_counts = &less;
    bad[20].t.from_counts = &two;
    bad[21].t.from_counts = &two;
    bad[22].t.group = (RankList){2, twice};
    bad[23].t.group = (RankList){2, beyond};
    bad[24].t.group = (RankList){0, NULL};
    bench_open(&set);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Ticket t;
        refused(comm_begin(bench.comm, &bad[i].t, &t), bad[i].words);
    }
    for (int i = 0; i < N_B; i++) assert_true(bench.b[i] == -1 - i);
    assert_int_equal(comm_recorder(bench.comm)->total, 0); /* none of them began */
    refused(comm_register(bench.comm, MAX_COMM_ARENAS, bench.a, 8), "arena 36");
    bench_close();
}

static void all_transfers_are_recorded(void **state)
{
    (void)state;
    CommSettings set = plain();
    set.records = 4;
    bench_open(&set);
    const Recorder *r = comm_recorder(bench.comm);
    Transfer other = transfer(COMM_BROADCAST, ref(A, 0, 2), ref(B, 0, 2));
    other.purpose = 9;
    other.instr = 21;
    wait_for(begin(transfer(COMM_ALL_REDUCE, ref(A, 0, 3), ref(B, 0, 3))));
    wait_for(begin(other));
    const Ticket recv = begin_recv(0, 6);
    const Record *x = recorder_at(r, 2);
    assert_true(x->posted_s >= 0 && x->matched_s < 0 && x->done_s < 0);
    const Ticket send = begin_send(0, 6);
    wait_for(recv);
    wait_for(send);
    x = recorder_at(r, 2);
    assert_true(x->posted_s <= x->matched_s && x->matched_s <= x->done_s);
    assert_true(x->kind == COMM_RECV && x->bytes == 48 && x->dtype == F64);
    assert_true(x->sequence == 0 && x->instr == 17);
    assert_int_equal(recorder_at(r, 3)->sequence, 0); /* a separate stream */
    const Record *b = recorder_at(r, 1);
    assert_true(b->sequence == 0 && b->instr == 21 && b->bytes == 16 && b->kind == COMM_BROADCAST);
    assert_true(b->group != x->group);
    assert_int_equal(comm_group(bench.comm, b->group).n, 1);
    assert_null(recorder_at(r, 4));

    /* A transfer that outlives its record in the ring does not overwrite its successor's. */
    const Ticket slow = begin_recv(0, 1);
    assert_null(recorder_at(r, 0));
    for (int i = 0; i < 4; i++) wait_for(begin(other));
    const Record successor = *recorder_at(r, 8);
    wait_for(begin_send(0, 1));
    wait_for(slow);
    assert_int_equal(r->total, 10);
    assert_memory_equal(recorder_at(r, 8), &successor, sizeof successor);

    /* A group that ended starts again from 0, under a new number. */
    const int32_t group = recorder_at(r, 8)->group;
    assert_int_equal(comm_group_end(bench.comm, self, 9), OK);
    assert_int_equal(comm_group(bench.comm, group).n, 0);
    wait_for(begin(other));
    assert_int_equal(recorder_at(r, 10)->sequence, 0);
    assert_int_not_equal(recorder_at(r, 10)->group, group);
    bench_close();
}

/* Groups of one step come and go for longer than there are rows, in the same memory. */
static void groups_may_live_for_one_step(void **state)
{
    (void)state;
    const CommSettings set = plain();
    bench_open(&set);
    Transfer t = transfer(COMM_ALL_REDUCE, ref(A, 0, 3), ref(B, 0, 3));
    size_t used = 0;
    for (int step = 0; step < 1000; step++) {
        t.purpose = step;
        assert_int_equal(comm_do(bench.comm, &t), OK);
        assert_int_equal(comm_group_end(bench.comm, self, step), OK);
        if (step == 0) used = arena_mark(&bench.arena);
    }
    assert_int_equal(arena_mark(&bench.arena), used);
    Err err = OK;
    for (t.purpose = 0; err == OK && t.purpose < 1000; t.purpose++) err = comm_do(bench.comm, &t);
    refused(err, "256 groups are open");
    bench_close();
}

static void more_ranks_are_refused(void **state)
{
    (void)state;
    Arena a;
    Comm *c = NULL;
    assert_int_equal(arena_open(&a, "test", 1 << 20), OK);
    CommSettings set = plain();
    set.ranks = 4;
    assert_int_equal(local_open(&a, &set, &c), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "a world of its own"));
    set = plain();
    set.in_flight = 0;
    assert_int_equal(local_open(&a, &set, &c), ERR_CONFIG);
    assert_null(c);
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_copy),
        cmocka_unit_test(neighbours_do_not_overlap),
        cmocka_unit_test(in_place_keeps_the_value),
        cmocka_unit_test(sends_match_receives_in_order),
        cmocka_unit_test(hostile_catches_early_reads),
        cmocka_unit_test(incomplete_transfers_are_named),
        cmocka_unit_test(send_and_receive_must_match),
        cmocka_unit_test(bad_transfers_are_refused),
        cmocka_unit_test(all_transfers_are_recorded),
        cmocka_unit_test(groups_may_live_for_one_step),
        cmocka_unit_test(more_ranks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
