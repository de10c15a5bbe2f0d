/* Every kind of transfer of device memory by NCCL, against a computation on the host: all types,
 * sums and maxima, equal and unequal parts, in place and not, several groups in flight that ranks
 * begin in different orders. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include "nccl/nccl_test.h"

enum { FROM = 64, TO = TEST_BYTES / 2, EACH = 1003 };

typedef struct {
    CommKind kind;
    Reduce reduce;
    DType dtype;
    bool uneven, in_place;
} Case;

/* Elements of member i's part: all different, one empty; or all equal. */
static int64_t part_of(const Case *k, int n, int i)
{
    return !k->uneven ? EACH : i == n - 1 && n > 1 ? 0 : 37 + 211 * (int64_t)i;
}

/* Elements that member `i` sends to member `j` in an all-to-all; to itself at least one. */
static int64_t given(const Case *k, int i, int j)
{
    return !k->uneven ? 29 : i == j ? 3 : (7 * i + 5 * j) % 4 * 11;
}

typedef struct {
    int64_t from[MOST_RANKS], to[MOST_RANKS], from_n, to_n;
} Counts;

static Counts counts_of(const Case *k, const TestRank *r)
{
    const int n = r->ranks;
    Counts c = {.from_n = EACH, .to_n = EACH};
    int64_t all = 0;
    for (int i = 0; i < n; i++) all += part_of(k, n, i);
    if (k->kind == COMM_ALL_GATHER) c.from_n = part_of(k, n, r->rank), c.to_n = all;
    if (k->kind == COMM_REDUCE_SCATTER) c.from_n = all, c.to_n = part_of(k, n, r->rank);
    if (k->kind == COMM_ALL_TO_ALL) c.from_n = c.to_n = 0;
    for (int i = 0; i < n; i++) {
        const bool exchange = k->kind == COMM_ALL_TO_ALL;
        c.from[i] = exchange ? given(k, r->rank, i) : part_of(k, n, i);
        c.to[i] = exchange ? given(k, i, r->rank) : part_of(k, n, i);
        if (exchange) c.from_n += c.from[i], c.to_n += c.to[i];
    }
    return c;
}

static int64_t sum_before(const int64_t *counts, int i)
{
    int64_t sum = 0;
    for (int k = 0; k < i; k++) sum += counts[k];
    return sum;
}

static Transfer transfer_of(const Case *k, const Side *s, const Counts *c)
{
    const int rank = s->r->rank;
    const size_t each = dtype_bytes(k->dtype);
    const bool cut_from = k->kind == COMM_REDUCE_SCATTER || k->kind == COMM_ALL_TO_ALL;
    const bool cut_to = k->kind == COMM_ALL_GATHER || k->kind == COMM_ALL_TO_ALL;
    Transfer t = {.kind = k->kind,
                  .reduce = k->reduce,
                  .group = test_world(s->r->ranks),
                  .purpose = 3,
                  .from = side_ref(s, FROM, c->from_n, k->dtype),
                  .to = side_ref(s, TO, c->to_n, k->dtype),
                  .from_counts = k->uneven && cut_from ? c->from : NULL,
                  .to_counts = k->uneven && cut_to ? c->to : NULL,
                  .instr = 17};
    if (k->kind == COMM_BROADCAST) t.from.rank = s->r->ranks - 1;
    if (k->in_place && k->kind == COMM_ALL_GATHER)
        t.from.offset = TO + (size_t)sum_before(c->to, rank) * each;
    else if (k->in_place && k->kind == COMM_REDUCE_SCATTER)
        t.to.offset = FROM + (size_t)sum_before(c->from, rank) * each;
    else if (k->in_place)
        t.to.offset = FROM;
    return t;
}

static double folded(const Case *k, int n, int64_t i, int salt)
{
    double x = element(0, i, salt);
    for (int r = 1; r < n; r++)
        x = k->reduce == REDUCE_SUM ? x + element(r, i, salt) : fmax(x, element(r, i, salt));
    return x;
}

/* Element i of `to` on this rank. */
static double wanted(const Case *k, const TestRank *r, const Counts *c, int64_t i, int salt)
{
    int from = 0;
    if (k->kind == COMM_ALL_REDUCE) return folded(k, r->ranks, i, salt);
    if (k->kind == COMM_REDUCE_SCATTER)
        return folded(k, r->ranks, sum_before(c->from, r->rank) + i, salt);
    if (k->kind == COMM_BROADCAST) return element(r->ranks - 1, i, salt);
    while (i >= c->to[from]) i -= c->to[from++];
    if (k->kind == COMM_ALL_GATHER) return element(from, i, salt);
    for (int j = 0; j < r->rank; j++) i += given(k, from, j);
    return element(from, i, salt);
}

static Err run_case(Side *s, const Case *k, int salt)
{
    TestRank *r = s->r;
    const Counts c = counts_of(k, r);
    const Transfer t = transfer_of(k, s, &c);
    memset(s->host, 0xFF, TEST_BYTES);
    for (int64_t i = 0; i < t.from.count; i++)
        element_set(s->host + t.from.offset, k->dtype, i, element(r->rank, i, salt));
    TRY(side_put(s));
    TRY(comm_do(r->comm, &t));
    TRY(side_get(s));
    for (int64_t i = 0; i < t.to.count; i++)
        EXPECT(r, element_get(s->host + t.to.offset, k->dtype, i) == wanted(k, r, &c, i, salt));
    const unsigned char *after = /* memory behind `to` is unchanged */
        (const unsigned char *)s->host + t.to.offset + (size_t)t.to.count * dtype_bytes(k->dtype);
    if (!k->in_place) EXPECT(r, after[0] == 0xFF && after[7] == 0xFF);
    return OK;
}

static Err run_kind(Side *s, CommKind kind, int *salt)
{
    const bool folds = kind == COMM_ALL_REDUCE || kind == COMM_REDUCE_SCATTER;
    const bool parts = kind == COMM_ALL_GATHER || kind == COMM_REDUCE_SCATTER;
    for (int dtype = 0; dtype < N_DTYPES; dtype++)
        for (int reduce = 0; reduce < (folds ? 2 : 1); reduce++)
            for (int uneven = 0; uneven < (parts || kind == COMM_ALL_TO_ALL ? 2 : 1); uneven++)
                for (int in_place = 0; in_place < (kind == COMM_ALL_TO_ALL ? 1 : 2); in_place++) {
                    const Case k = {kind, (Reduce)reduce, (DType)dtype, uneven, in_place};
                    if (folds && dtype_is_fp8(k.dtype)) continue; /* refused */
                    TRY(run_case(s, &k, (*salt)++));
                }
    return OK;
}

static Err all_kinds(Side *s)
{
    const Transfer world = {
        .kind = COMM_ALL_REDUCE, .group = test_world(s->r->ranks), .purpose = 3};
    int salt = 0;
    TRY(comm_prepare(s->r->comm, &world, 1));
    for (int kind = COMM_ALL_REDUCE; kind < N_COMM_KINDS; kind++)
        TRY(run_kind(s, (CommKind)kind, &salt));
    const CommDeviceUse use = comm_device_use(s->r->comm);
    EXPECT(s->r, use.channels == 1 && (use.bytes == -1) == setup.on_shadow);
    return comm_idle(s->r->comm);
}

/* The maximum over any NaN is NaN. */
static Err nan_stays(Side *s)
{
    TestRank *r = s->r;
    const Case k = {COMM_ALL_REDUCE, REDUCE_MAX, F32, false, false};
    const Counts c = counts_of(&k, r);
    const Transfer t = transfer_of(&k, s, &c);
    TRY(comm_prepare(r->comm, &t, 1));
    for (int64_t i = 0; i < EACH; i++)
        element_set(s->host + FROM, F32, i, i % r->ranks == r->rank && i % 3 ? (double)NAN : 1.0);
    TRY(side_put(s));
    TRY(comm_do(r->comm, &t));
    TRY(side_get(s));
    for (int64_t i = 0; i < EACH; i++)
        EXPECT(r, isnan(element_get(s->host + TO, F32, i)) == (i % 3 != 0));
    return OK;
}

/* Sends around the ring of ranks and, at the same time, sums of two purposes, several of each in
 * flight; begun in different orders on different ranks, and waited for in others. */
enum { ROUNDS = 12, LANES = 4, LENGTH = 501 };

static size_t lane_at(int lane, int round, bool to)
{
    return (size_t)(((lane * 3 + round % 3) * 2 + to) * 8192);
}

static Transfer lane_transfer(const Side *s, int lane, int round)
{
    const TestRank *r = s->r;
    const int next = (r->rank + 1) % r->ranks, last = (r->rank + r->ranks - 1) % r->ranks;
    static const CommKind kind[LANES] = {COMM_SEND, COMM_RECV, COMM_ALL_REDUCE, COMM_ALL_REDUCE};
    const int64_t n = LENGTH + 13 * round;
    Transfer t = {.kind = kind[lane],
                  .group = test_world(r->ranks),
                  .purpose = lane < 2 ? 5 : 6 + lane,
                  .from = side_ref(s, lane_at(lane, round, false), n, F32),
                  .to = side_ref(s, lane_at(lane, round, true), n, F32),
                  .tag = round};
    if (lane == 0) t.to.rank = next;
    if (lane == 1) t.from.rank = last;
    return t;
}

static double lane_wanted(const TestRank *r, int lane, int round, int64_t i)
{
    const int last = (r->rank + r->ranks - 1) % r->ranks;
    const Case sum = {.reduce = REDUCE_SUM};
    return lane == 1 ? element(last, i, round * 8) : folded(&sum, r->ranks, i, round * 8 + lane);
}

static void lane_check(const Side *s, int round)
{
    TestRank *r = s->r;
    for (int lane = 1; lane < LANES; lane++)
        for (int64_t i = 0; i < LENGTH + 13 * round; i++)
            EXPECT(r, element_get(s->host + lane_at(lane, round, true), F32, i) ==
                          lane_wanted(r, lane, round, i));
}

static Err crossing(Side *s)
{
    TestRank *r = s->r;
    Transfer t[LANES];
    Ticket ticket[3][LANES];
    for (int lane = 0; lane < LANES; lane++) t[lane] = lane_transfer(s, lane, 0);
    TRY(comm_prepare(r->comm, t, LANES));
    for (int first = 0; first < ROUNDS; first += 3) {
        memset(s->host, 0xFF, TEST_BYTES);
        for (int k = first; k < first + 3; k++)
            for (int lane = 0; lane < LANES; lane++)
                for (int64_t i = 0; i < LENGTH + 13 * k; i++)
                    element_set(s->host + lane_at(lane, k, false), F32, i,
                                element(r->rank, i, k * 8 + lane));
        TRY(side_put(s));
        for (int i = 0; i < 3 * LANES; i++) {
            const int lane = (i % LANES + r->rank) % LANES, round = first + i / LANES;
            const Transfer x = lane_transfer(s, lane, round);
            TRY(comm_begin(r->comm, &x, &ticket[round % 3][lane]));
        }
        for (int i = 0; i < 3 * LANES; i++) {
            const int lane = (3 * (i % LANES) + r->rank) % LANES;
            TRY(comm_wait(r->comm, ticket[2 - i / LANES][lane]));
        }
        TRY(side_get(s));
        for (int k = first; k < first + 3; k++) lane_check(s, k);
    }
    return comm_idle(r->comm);
}

/* A send to oneself, a ring of one, is refused with a message. */
static Err refused(Side *s)
{
    TestRank *r = s->r;
    Ticket ticket;
    Transfer t = lane_transfer(s, 0, 0);
    t.to.rank = r->rank;
    EXPECT(r, comm_begin(r->comm, &t, &ticket) == ERR_CHECK);
    EXPECT(r, strstr(err_text(), "to itself") != NULL);
    if (r->ranks == 1) return OK;
    t = lane_transfer(s, 2, 0);
    EXPECT(r, comm_begin(r->comm, &t, &ticket) == ERR_CHECK);
    EXPECT(r, strstr(err_text(), "comm_prepare") != NULL);
    return OK;
}

static void run(int ranks, SideBody *body)
{
    ranks_run(
        &(TestWorld){.ranks = ranks_or(ranks), .body = with_side, .arg = &body, .timeout_s = 60});
    if (!setup.on_shadow) return;
    const StandinCount count = setup.count();
    if (count.misuses > 0) fail_msg("%lld misuses: %s", (long long)count.misuses, count.misuse);
    assert_true(body == refused || (count.launches > 0 && count.in_progress > 0));
    assert_int_equal(count.open, 0);
    assert_int_equal(count.aborted, 0);
    const ShadowCount left = shadow_count();
    assert_true(left.contexts == 0 && left.bytes == 0);
}

/* A maximum needs scratch memory on the device; none is allocated once it is prepared. */
static Err maximum_allocates_nothing(Side *s)
{
    TestRank *r = s->r;
    const RankList all = test_world(r->ranks);
    const Transfer t = {.kind = COMM_ALL_REDUCE,
                        .reduce = REDUCE_MAX,
                        .group = all,
                        .purpose = 5,
                        .from = side_ref(s, 0, 301, F32),
                        .to = side_ref(s, 8192, 301, F32)};
    TRY(s->m->set(s->queue, s->device, 0, TEST_BYTES));
    TRY(comm_prepare(r->comm, &t, 1));
    TRY(comm_agree(r->comm, all, side_sync(s)));
    const int64_t before = (int64_t)shadow_count().bytes;
    TRY(comm_do(r->comm, &t));
    TRY(side_sync(s));
    const int64_t after = (int64_t)shadow_count().bytes;
    return comm_agree(r->comm, all,
                      after == before ? OK
                                      : err_fail(ERR_CHECK, "%lld bytes were allocated in a step",
                                                 (long long)(after - before)));
}

/* Sums of device memory and of host memory in one group with one purpose: NCCL moves the former,
 * the backend the latter, and their sequence numbers interleave. */
static Err host_sums_between(Side *s)
{
    TestRank *r = s->r;
    const Case k = {COMM_ALL_REDUCE, REDUCE_SUM, F32, false, false};
    const Counts c = counts_of(&k, r);
    const Transfer on_device = transfer_of(&k, s, &c);
    Transfer on_host = on_device;
    Ticket ticket[2];
    on_host.from = on_host.to = (Ref){r->rank, 0, 0, 1, F64};
    on_host.scalar = true;
    TRY(comm_prepare(r->comm, &on_device, 1));
    for (int round = 0; round < 5; round++) {
        for (int64_t i = 0; i < EACH; i++)
            element_set(s->host + FROM, F32, i, element(r->rank, i, round));
        TRY(side_put(s));
        *(double *)(void *)r->memory = 1;
        const bool host_first = round % 2;
        TRY(comm_begin(r->comm, host_first ? &on_host : &on_device, &ticket[0]));
        TRY(comm_begin(r->comm, host_first ? &on_device : &on_host, &ticket[1]));
        for (int i = 0; i < 2; i++) TRY(comm_wait(r->comm, ticket[i]));
        TRY(side_get(s));
        EXPECT(r, *(double *)(void *)r->memory == r->ranks);
        for (int64_t i = 0; i < EACH; i++)
            EXPECT(r, element_get(s->host + TO, F32, i) == folded(&k, r->ranks, i, round));
    }
    return comm_idle(r->comm);
}

/* The record of a transfer has the time that it took on the device. */
static Err timed(Side *s)
{
    TestRank *r = s->r;
    const Case k = {COMM_ALL_REDUCE, REDUCE_SUM, F32, false, false};
    const Counts c = counts_of(&k, r);
    const Transfer t = transfer_of(&k, s, &c);
    TRY(comm_prepare(r->comm, &t, 1));
    TRY(comm_times_open(r->comm, 4));
    TRY(side_put(s));
    for (int i = 0; i < 3; i++) {
        TRY(comm_times_begin(r->comm));
        TRY(comm_do(r->comm, &t));
        TRY(comm_do(r->comm, &t));
        TRY(side_sync(s));
        TRY(comm_times_end(r->comm));
        const Recorder *of = comm_recorder(r->comm);
        const Record *x = recorder_at(of, of->total - 2), *y = recorder_at(of, of->total - 1);
        EXPECT(r, x->timed && y->timed && x->matched_s > x->posted_s - 1e-3);
        EXPECT(r, x->matched_s < x->done_s && x->done_s <= y->matched_s + 1e-6);
        EXPECT(r, y->matched_s < y->done_s);
    }
    return comm_idle(r->comm);
}

/* The n-th number of a rank, not exact in sums. */
static float odd_number(int rank, int64_t i)
{
    return (float)(test_mix((uint64_t)rank << 40 ^ (uint64_t)i) % 1000003) / 7.0f - 50000.0f;
}

static Err compare_members(Side *s, Transfer t, int64_t n)
{
    TestRank *r = s->r;
    char *words = r->memory;
    uint64_t hash = 1469598103934665603u, *all = (uint64_t *)(void *)words;
    const Ref own = {r->rank, 0, sizeof hash * (size_t)r->rank, 1, I64};
    const Transfer gather = {.kind = COMM_ALL_GATHER,
                             .group = test_world(r->ranks),
                             .purpose = 9,
                             .from = own,
                             .to = {r->rank, 0, 0, r->ranks, I64},
                             .scalar = true};
    t.from.count = t.to.count = n;
    for (int64_t i = 0; i < n; i++)
        element_set(s->host + FROM, t.from.dtype, i, (double)odd_number(r->rank, i));
    TRY(side_put(s));
    TRY(comm_do(r->comm, &t));
    TRY(side_get(s));
    const unsigned char *at = (const unsigned char *)s->host + TO;
    for (size_t i = 0; i < (size_t)n * dtype_bytes(t.to.dtype); i++)
        hash = (hash ^ at[i]) * 1099511628211u;
    all[r->rank] = hash;
    TRY(comm_do(r->comm, &gather));
    for (int i = 0; i < r->ranks; i++) EXPECT(r, all[i] == all[0]);
    return OK;
}

/* Sums that round: every member has the same bits, as norms and replicas need it. */
static Err same_on_all(Side *s)
{
    static const int64_t length[] = {1, 37, 1003, 40000};
    Case k = {COMM_ALL_REDUCE, REDUCE_SUM, F32, false, false};
    const Counts c = counts_of(&k, s->r);
    TRY(comm_prepare(
        s->r->comm,
        &(Transfer){.kind = COMM_ALL_REDUCE, .group = test_world(s->r->ranks), .purpose = 3}, 1));
    for (int wide = 0; wide < 2; wide++)
        for (int i = 0; i < 4; i++) {
            k.dtype = wide ? F32 : BF16;
            TRY(compare_members(s, transfer_of(&k, s, &c), length[i]));
        }
    return OK;
}

/* Worlds of n ranks: 1 to 4, on a GPU that ranks share 8 too; as processes, those of mpirun. */
static bool runs(int n)
{
    return ranks_or(n) == n && (n <= setup.ranks || (setup.many && n == MOST_RANKS));
}

static void members_agree(void **state)
{
    (void)state;
    for (int n = 2; n <= MOST_RANKS; n++)
        if (runs(n)) run(n, same_on_all);
}

static void host_transfers_leave_no_gap(void **state)
{
    (void)state;
    for (int n = 2; n <= MOST_RANKS; n++)
        if (runs(n)) run(n, host_sums_between);
}

static void nothing_is_allocated_between_transfers(void **state)
{
    (void)state;
    if (setup.on_shadow) run(ranks_or(FIRST_RANKS), maximum_allocates_nothing);
}

static void equal_to_the_host(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST_RANKS; n++)
        if (runs(n)) run(n, all_kinds);
}

static void device_times(void **state)
{
    (void)state;
    if (runs(2)) run(2, timed);
}

static void maxima_keep_nan(void **state)
{
    (void)state;
    run(setup.ranks, nan_stays);
}

static void many_in_flight(void **state)
{
    (void)state;
    for (int n = 2; n <= MOST_RANKS; n++)
        if (runs(n) && (n <= FIRST_RANKS || ranks_or(1) == n)) /* 8 threads have too many queues */
            run(n, crossing);
}

static void bad_transfers_are_refused(void **state)
{
    (void)state;
    run(setup.ranks, refused);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(host_transfers_leave_no_gap),
                                       cmocka_unit_test(nothing_is_allocated_between_transfers),
                                       cmocka_unit_test(equal_to_the_host),
                                       cmocka_unit_test(maxima_keep_nan),
                                       cmocka_unit_test(members_agree),
                                       cmocka_unit_test(device_times),
                                       cmocka_unit_test(many_in_flight),
                                       cmocka_unit_test(bad_transfers_are_refused)};
    const int status = graph_test_open(argc, argv);
    if (status != 0) return status;
    const int failed = cmocka_run_group_tests(tests, ranks_open, ranks_close);
    if (setup.on_shadow) shadow_run_async(false);
    return failed;
}
