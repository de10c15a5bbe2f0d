/* test_comm_pairs.c -- sends and receives between ranks, many transfers in flight, groups that
 * end and start again, more ranks than cores, agreement, and the recorded bytes. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "comm_test.h"

static Transfer send_to(const TestRank *r, int to, int64_t at, int64_t count)
{
    return (Transfer){.kind = COMM_SEND,
                      .group = test_world(r->ranks),
                      .from = {r->rank, 0, (size_t)at * 8, count, F64},
                      .to = {.rank = to}};
}

static Transfer recv_from(const TestRank *r, int from, int64_t at, int64_t count)
{
    return (Transfer){.kind = COMM_RECV,
                      .group = test_world(r->ranks),
                      .from = {.rank = from},
                      .to = {r->rank, 0, (size_t)at * 8, count, F64}};
}

/* Every rank sends to every rank, itself included, three messages of different lengths, one of them
 * empty; all are in flight at once, and each rank waits in another order. */
static Err all_pairs(TestRank *r)
{
    enum { EACH = 3, LENGTH = 700 };
    const int n = r->ranks;
    double *x = (double *)(void *)r->memory;
    Ticket ticket[2 * 4 * EACH];
    int begun = 0;
    for (int64_t i = 0; i < (int64_t)n * EACH * LENGTH; i++) x[i] = r->rank + 1e-5 * (double)i;
    const int64_t here = (int64_t)n * EACH * LENGTH;
    for (int k = 0; k < EACH; k++)
        for (int p = 0; p < n; p++) {
            const int64_t length = k == 1 ? 0 : LENGTH - k * 100;
            const Transfer send = send_to(r, p, (p * EACH + k) * LENGTH, length);
            const Transfer recv = recv_from(r, p, here + (p * EACH + k) * LENGTH, length);
            TRY(comm_begin(r->comm, &send, &ticket[begun++]));
            TRY(comm_begin(r->comm, &recv, &ticket[begun++]));
        }
    for (int i = 0; i < begun; i++)
        TRY(comm_wait(r->comm, ticket[(i * 7 + 5 * r->rank) % begun])); /* 7: prime to `begun` */
    for (int p = 0; p < n; p++)
        for (int k = 0; k < EACH; k += 2)
            for (int64_t i = 0; i < LENGTH - k * 100; i++)
                EXPECT(r, x[here + (p * EACH + k) * LENGTH + i] ==
                              p + 1e-5 * (double)((r->rank * EACH + k) * LENGTH + i));
    return comm_idle(r->comm);
}

static void pairs_match_in_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++)
        ranks_run(&(TestWorld){.ranks = 1 + (int)(seed % 4),
                               .body = all_pairs,
                               .hostile = seed >= 4,
                               .seed = seed,
                               .timeout_s = 60});
}

/* More in flight on one group than its ring holds; the last is waited for first. */
static Err long_queue(TestRank *r)
{
    enum { QUEUE = 30, N = 65 };
    Ticket ticket[QUEUE];
    float *x = (float *)(void *)r->memory;
    for (int i = 0; i < QUEUE; i++) {
        const Ref at = {r->rank, 0, (size_t)(i * N) * 4, N, F32};
        const Transfer t = {
            .kind = COMM_ALL_REDUCE, .group = test_world(r->ranks), .from = at, .to = at, .tag = i};
        for (int k = 0; k < N; k++) x[i * N + k] = (float)(i + k + r->rank);
        TRY(comm_begin(r->comm, &t, &ticket[i]));
        if (i % 7 == r->rank) TRY(comm_poll(r->comm));
    }
    for (int i = QUEUE - 1; i >= 0; i--) TRY(comm_wait(r->comm, ticket[i]));
    for (int i = 0; i < QUEUE; i++)
        for (int k = 0; k < N; k++) EXPECT(r, x[i * N + k] == (float)(3 * (i + k) + 3));
    return OK;
}

static void many_transfers_in_flight(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++)
        ranks_run(&(TestWorld){
            .ranks = 3, .body = long_queue, .hostile = seed > 0, .seed = seed, .timeout_s = 60});
}

/* A group of one step ends and begins again while slower members are still in the last one. */
static Err step_groups(TestRank *r)
{
    double *x = (double *)(void *)r->memory;
    const RankList all = test_world(r->ranks);
    for (int step = 0; step < 100; step++) {
        const Ref one = {r->rank, 0, 0, 1, F64};
        const Transfer t = {.kind = COMM_ALL_REDUCE, .group = all, .from = one, .to = one};
        x[0] = step * (r->rank + 1);
        x[1] = 1000 * r->rank + step;
        TRY(comm_do(r->comm, &t));
        EXPECT(r, x[0] == step * r->ranks * (r->ranks + 1) / 2);
        const int next = (r->rank + 1) % r->ranks, last = (r->rank + r->ranks - 1) % r->ranks;
        const Transfer send = send_to(r, next, 1, 1), recv = recv_from(r, last, 2, 1);
        Ticket a, b;
        TRY(comm_begin(r->comm, &send, &a));
        TRY(comm_begin(r->comm, &recv, &b));
        TRY(comm_wait(r->comm, a));
        TRY(comm_wait(r->comm, b));
        EXPECT(r, x[2] == 1000 * last + step);
        TRY(comm_group_end(r->comm, all, 0));
    }
    return OK;
}

static void groups_may_be_recreated(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 5; ranks++)
        ranks_run(&(TestWorld){.ranks = ranks, .body = step_groups, .timeout_s = 60});
}

/* Many ranks on few cores yield their cores: this takes milliseconds, not minutes. */
static Err crowd(TestRank *r)
{
    int64_t *x = (int64_t *)(void *)r->memory;
    const RankList all = test_world(r->ranks);
    for (int step = 0; step < 50; step++) {
        const int64_t count = step % 2 ? 1 : 5000;
        const Ref at = {r->rank, 0, 0, count, I64};
        const Transfer t = {.kind = COMM_ALL_REDUCE, .group = all, .from = at, .to = at};
        x[0] = x[count - 1] = r->rank + step;
        TRY(comm_do(r->comm, &t));
        EXPECT(r, x[count - 1] == 64 * 63 / 2 + 64 * step);
    }
    return OK;
}

static void many_ranks_finish(void **state)
{
    (void)state;
    const double start_s = now_s();
    ranks_run(&(TestWorld){.ranks = 64, .body = crowd, .timeout_s = 60});
    assert_true(now_s() - start_s < 20);
}

/* All ranks get the error of the lowest rank that has one, whatever the order of the group. */
static Err agree_on(TestRank *r)
{
    static const int32_t back[4] = {3, 2, 1, 0};
    const RankList group = {4, back};
    const unsigned bad = *(const unsigned *)r->of->arg;
    int first = 0;
    while (bad && !(bad >> first & 1)) first++;
    for (int turn = 0; turn < 2; turn++) {
        Err mine = OK;
        if (bad >> r->rank & 1) mine = err_fail(ERR_NOMEM, "no memory on %d", r->rank);
        const Err all = comm_agree(r->comm, group, mine);
        EXPECT(r, all == (bad ? ERR_NOMEM : OK));
        if (!bad) continue;
        char want[64];
        snprintf(want, sizeof want,
                 r->rank == first ? "no memory on %d" : "rank %d: no memory on %d", first, first);
        EXPECT(r, strcmp(err_text(), want) == 0);
    }
    EXPECT(r, comm_recorder(r->comm)->scalars.transfers == (bad ? 4 : 2));
    EXPECT(r, comm_recorder(r->comm)->of_kind[COMM_ALL_GATHER].transfers == 0);
    return OK;
}

static void ranks_agree(void **state)
{
    (void)state;
    for (unsigned bad = 0; bad < 16; bad++)
        ranks_run(&(TestWorld){.ranks = 4, .body = agree_on, .arg = &bad, .timeout_s = 60});
}

/* Bytes that leave each rank: exact per rank, and summed over the group as the formulas of
 * comm.h. */
static Err volumes(TestRank *r)
{
    static const int64_t counts[4] = {7, 0, 3, 1};
    const int64_t sent[N_COMM_KINDS] = {[COMM_ALL_REDUCE] = 11 + 2 * (r->rank < 3 ? 3 : 2),
                                        [COMM_ALL_GATHER] = 3 * counts[r->rank],
                                        [COMM_REDUCE_SCATTER] = 11 - counts[r->rank],
                                        [COMM_ALL_TO_ALL] = 6,
                                        [COMM_BROADCAST] = r->rank == 2 ? 33 : 0};
    const int64_t sums[N_COMM_KINDS] = {[COMM_ALL_REDUCE] = 66,
                                        [COMM_ALL_GATHER] = 33,
                                        [COMM_REDUCE_SCATTER] = 33,
                                        [COMM_ALL_TO_ALL] = 24,
                                        [COMM_BROADCAST] = 33};
    for (int kind = COMM_ALL_REDUCE; kind < N_COMM_KINDS; kind++) {
        Transfer t = {.kind = (CommKind)kind,
                      .group = test_world(4),
                      .from = {r->rank, 0, 0, 11, F64},
                      .to = {r->rank, 0, 4096, 11, F64}};
        if (kind == COMM_ALL_GATHER) t.from.count = counts[r->rank], t.to_counts = counts;
        if (kind == COMM_REDUCE_SCATTER) t.to.count = counts[r->rank], t.from_counts = counts;
        if (kind == COMM_ALL_TO_ALL) t.from.count = t.to.count = 8;
        if (kind == COMM_BROADCAST) t.from.rank = 2;
        TRY(comm_do(r->comm, &t));
        const size_t bytes = comm_recorder(r->comm)->of_kind[kind].sent_bytes;
        EXPECT(r, bytes == 8 * (size_t)sent[kind]);
        int64_t *x = (int64_t *)(void *)r->memory;
        x[0] = (int64_t)bytes;
        t = (Transfer){.kind = COMM_ALL_REDUCE,
                       .group = test_world(4),
                       .from = {r->rank, 0, 0, 1, I64},
                       .to = {r->rank, 0, 0, 1, I64},
                       .scalar = true};
        TRY(comm_do(r->comm, &t));
        EXPECT(r, x[0] == 8 * sums[kind]);
    }
    Transfer t = r->rank < 2 ? send_to(r, r->rank + 2, 0, 5) : recv_from(r, r->rank - 2, 0, 5);
    TRY(comm_do(r->comm, &t));
    EXPECT(r, comm_recorder(r->comm)->of_kind[t.kind].sent_bytes == (r->rank < 2 ? 40 : 0));
    return OK;
}

static void sent_bytes_are_counted(void **state)
{
    (void)state;
    ranks_run(&(TestWorld){.ranks = 4, .body = volumes, .timeout_s = 60});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_match_in_order),
        cmocka_unit_test(many_transfers_in_flight),
        cmocka_unit_test(groups_may_be_recreated),
        cmocka_unit_test(many_ranks_finish),
        cmocka_unit_test(ranks_agree),
        cmocka_unit_test(sent_bytes_are_counted),
    };
    return cmocka_run_group_tests(tests, ranks_open, ranks_close);
}
