/* test_comm_delay.c -- a comm with delays: results equal those without; a transfer is done no
 * earlier than its delay, which overlaps with other work; a waiting rank sleeps, and still
 * learns of failures. Lower bounds of time are exact. Upper bounds must hold in one of several
 * tries, since the machine may be busy. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "comm_test.h"

enum { COUNT = 1000, BYTES = COUNT * 4, TRIES = 8, IN_FLIGHT = 3 };

static int32_t *ints_at(TestRank *r, int at)
{
    return (int32_t *)(void *)(r->memory + (size_t)at * 64 * BYTES);
}

/* An in-place all-reduce of COUNT integers. */
static Transfer sum_of(TestRank *r, int at)
{
    const Ref ref = {r->rank, 0, (size_t)at * 64 * BYTES, COUNT, I32};
    for (int i = 0; i < COUNT; i++) ints_at(r, at)[i] = (r->rank + 2) * (i + at);
    return (Transfer){
        .kind = COMM_ALL_REDUCE, .group = test_world(r->ranks), .from = ref, .to = ref};
}

static bool is_summed(TestRank *r, int at)
{
    const int factor = r->ranks * (r->ranks - 1) / 2 + 2 * r->ranks;
    for (int i = 0; i < COUNT; i++)
        if (ints_at(r, at)[i] != factor * (i + at)) return false;
    return true;
}

static void work(double s)
{
    const struct timespec t = {0, (long)(s * 1e9)};
    nanosleep(&t, NULL);
}

/* Several in flight, waited for in reverse: the results are right, and none is early. */
static Err several_body(TestRank *r)
{
    Ticket ticket[IN_FLIGHT];
    double begun_s[IN_FLIGHT];
    for (int i = 0; i < IN_FLIGHT; i++) {
        const Transfer t = sum_of(r, i);
        begun_s[i] = now_s();
        TRY(comm_begin(r->comm, &t, &ticket[i]));
    }
    for (int i = IN_FLIGHT - 1; i >= 0; i--) {
        TRY(comm_poll(r->comm));
        TRY(comm_wait(r->comm, ticket[i]));
        EXPECT(r, is_summed(r, i));
        EXPECT(r, now_s() - begun_s[i] >= (i + 1) * r->of->delay_s); /* one after another */
        const Record *record = recorder_at(comm_recorder(r->comm), ticket[i].number);
        EXPECT(r, record->done_s - record->posted_s >= r->of->delay_s - 1e-9); /* rounding error */
    }
    return OK;
}

static void results_are_equal(void **state)
{
    (void)state;
    for (int hostile = 0; hostile < 2; hostile++)
        for (int late = 0; late < 2; late++)
            ranks_run(&(TestWorld){
                .ranks = 3, .body = several_body, .hostile = hostile, .delay_s = late * 20e-3});
}

static double thread_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A wait right after begin lasts for the delay, asleep; a wait after work of that length does not.
 * All ranks try equally often. */
static Err overlap_body(TestRank *r)
{
    const double delay_s = r->of->delay_s;
    double shortest_s = 1e9, least_cpu_s = 1e9;
    for (int i = 0; i < TRIES; i++) {
        const Transfer t = sum_of(r, 0);
        Ticket ticket;
        const double begun_s = now_s(), cpu_s = thread_s();
        TRY(comm_begin(r->comm, &t, &ticket));
        TRY(comm_wait(r->comm, ticket));
        EXPECT(r, now_s() - begun_s >= delay_s);
        if (thread_s() - cpu_s < least_cpu_s) least_cpu_s = thread_s() - cpu_s;

        const Transfer overlapped = sum_of(r, 0);
        TRY(comm_begin(r->comm, &overlapped, &ticket));
        work(delay_s * 1.2);
        const double wait_s = now_s();
        TRY(comm_wait(r->comm, ticket));
        if (now_s() - wait_s < shortest_s) shortest_s = now_s() - wait_s;
        EXPECT(r, is_summed(r, 0));
    }
    EXPECT(r, shortest_s < delay_s / 2);
    EXPECT(r, least_cpu_s < delay_s / 4);
    return OK;
}

static void work_overlaps_the_delay(void **state)
{
    (void)state;
    ranks_run(&(TestWorld){.ranks = 2, .body = overlap_body, .delay_s = 30e-3});
}

/* Delay by bytes: those that leave the rank, or those that arrive if none leave. Transfers within a
 * rank are not delayed. */
static Err bytes_body(TestRank *r)
{
    const double each_s = BYTES / r->of->delay_Bps;
    const Ref mine = {r->rank, 0, 0, COUNT, I32}, peer = {1 - r->rank, 0, 0, COUNT, I32};
    Transfer t = sum_of(r, 0);
    double begun_s = now_s();
    TRY(comm_do(r->comm, &t)); /* on 2 ranks each byte leaves once */
    EXPECT(r, now_s() - begun_s >= each_s);
    t = (Transfer){.kind = r->rank ? COMM_RECV : COMM_SEND, .group = t.group};
    t.from = r->rank ? peer : mine;
    t.to = r->rank ? mine : peer;
    begun_s = now_s();
    TRY(comm_do(r->comm, &t));
    EXPECT(r, now_s() - begun_s >= each_s);
    begun_s = now_s();
    const int32_t alone = r->rank;
    for (int i = 0; i < 1000; i++)
        TRY(comm_do(
            r->comm,
            &(Transfer){.kind = COMM_ALL_REDUCE, .group = {1, &alone}, .from = mine, .to = mine}));
    EXPECT(r, now_s() - begun_s < 500 * each_s); /* delayed ones would take 1000 of them */
    return OK;
}

static void delay_is_by_bytes(void **state)
{
    (void)state;
    ranks_run(&(TestWorld){.ranks = 2, .body = bytes_body, .delay_Bps = BYTES / 20e-3});
}

/* Rank 1 fails while rank 0 sleeps for a minute. */
static Err failing_body(TestRank *r)
{
    const Transfer t = sum_of(r, 0);
    Ticket ticket;
    TRY(comm_begin(r->comm, &t, &ticket));
    if (r->rank == 1) {
        for (int i = 0; i < 20;
             i++) { /* the bytes have moved, and rank 0 only waits for the due time */
            TRY(comm_poll(r->comm));
            work(1e-3);
        }
        return err_fail(ERR_IO, "rank 1 has had enough");
    }
    return comm_wait(r->comm, ticket);
}

static void failures_end_the_wait(void **state)
{
    (void)state;
    const double begun_s = now_s();
    ranks_run(&(TestWorld){.ranks = 2, .body = failing_body, .may_fail = true, .delay_s = 60});
    assert_int_equal(test_ranks[0].err, ERR_PEER);
    assert_non_null(strstr(test_ranks[0].text, "rank 1 has had enough"));
    assert_true(now_s() - begun_s < 30);
}

static void bad_delays_are_refused(void **state)
{
    Arena a;
    Comm *c;
    (void)state;
    assert_int_equal(arena_open(&a, "delays", 1 << 20), OK);
    CommSettings set = {.ranks = 1, .in_flight = 4, .records = 4, .delay_s = -1};
    assert_int_equal(local_open(&a, &set, &c), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "a delay of -1 s"));
    set.delay_s = 0;
    set.delay_Bps = -5;
    assert_int_equal(local_open(&a, &set, &c), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "-5 bytes/s"));
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_equal),      cmocka_unit_test(work_overlaps_the_delay),
        cmocka_unit_test(delay_is_by_bytes),      cmocka_unit_test(failures_end_the_wait),
        cmocka_unit_test(bad_delays_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
