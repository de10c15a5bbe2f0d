/* Faults below NCCL on one rank: all ranks end soon, with a message that names the collective and
 * its group; communicators are aborted, and nothing is left open. Also checks that the stand-in
 * detects misuse.
 *
 * On a GPU, with ranks that share it: rank 1 begins a transfer, so that the kernels of the others
 * wait on the GPU, and launches none itself. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "nccl/nccl_test.h"

enum { RANKS = 3, LENGTH = 777, STEPS = 6, AT = 3 };

/* The fault of rank 1. */
static StandinFault fault;
static bool fails_itself, stops; /* stops: on a GPU, for longer than the others wait */

static Transfer sum_of(const Side *s)
{
    return (Transfer){.kind = COMM_ALL_REDUCE,
                      .group = test_world(s->r->ranks),
                      .purpose = 2,
                      .from = side_ref(s, 0, LENGTH, F32),
                      .to = side_ref(s, 8192, LENGTH, F32),
                      .instr = 41};
}

/* Rank 1 has begun a transfer; the others launch it meanwhile. */
static Err begin_and_sleep(TestRank *r, const Transfer *t, long ms)
{
    Ticket ticket;
    TRY(comm_begin(r->comm, t, &ticket));
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
    return fails_itself ? err_fail(ERR_IO, "the disk is full") : comm_wait(r->comm, ticket);
}

static Err sums(Side *s)
{
    TestRank *r = s->r;
    const Transfer t = sum_of(s);
    if (setup.on_shadow) setup.fault(r->rank == 1 ? fault : (StandinFault){FAULT_NONE, 0});
    TRY(s->m->set(s->queue, s->device, 0, TEST_BYTES));
    TRY(comm_prepare(r->comm, &t, 1));
    for (int i = 0; i < STEPS; i++) {
        if (!setup.on_shadow && (fails_itself || stops) && r->rank == 1 && i == AT)
            return begin_and_sleep(r, &t, stops ? 3000 : 300);
        if (!setup.on_shadow && (fails_itself || stops) && i == AT)
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* rank 1 is the first */
        TRY(comm_do(r->comm, &t));
        if (fails_itself && r->rank == 1 && i == AT) {
            nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL); /* the others wait by then */
            return err_fail(ERR_IO, "the disk is full");
        }
        TRY(side_sync(s));
    }
    return OK;
}

/* A graph with the sum, launched twice by all ranks but rank 1, which fails before its second
 * launch: the graphs of the others are closed before their communicators are. */
typedef struct {
    const Side *s;
    DeviceGraph *graph;
} GraphOf;

static GraphOf graph_of[MAX_TEST_RANKS]; /* outlive the body of their rank */

static void drop_graph(void *arg)
{
    GraphOf *g = arg;
    g->s->m->graphs->graph_close(g->graph);
    g->graph = NULL;
}

static Err capture_sum(Side *s, GraphOf *g)
{
    TestRank *r = s->r;
    const Transfer t = sum_of(s);
    const CommTotals none = comm_totals(r->comm);
    *g = (GraphOf){.s = s};
    TRY(s->m->graphs->capture_begin(s->queue));
    comm_capture(r->comm, true);
    const Err err = comm_do(r->comm, &t);
    comm_capture(r->comm, false);
    TRY(s->m->graphs->capture_end(s->queue, &g->graph));
    comm_graphs(r->comm, drop_graph, g);
    const CommTotals one = comm_totals(r->comm);
    comm_repeat(r->comm, &none, &one);
    const CommTotals two = comm_totals(r->comm);
    EXPECT(r, one.of_kind[COMM_ALL_REDUCE].transfers == 2);
    EXPECT(r, two.of_kind[COMM_ALL_REDUCE].transfers == 3);
    return err;
}

static Err sums_in_graphs(Side *s)
{
    TestRank *r = s->r;
    const Transfer t = sum_of(s);
    GraphOf *g = &graph_of[r->rank];
    setup.fault((StandinFault){FAULT_NONE, 0});
    TRY(s->m->set(s->queue, s->device, 0, TEST_BYTES));
    TRY(comm_prepare(r->comm, &t, 1));
    TRY(comm_do(r->comm, &t));
    TRY(side_sync(s));
    TRY(comm_times_open(r->comm, 4));
    TRY(comm_times_begin(r->comm));
    TRY(capture_sum(s, g));
    TRY(comm_times_end(r->comm)); /* of none: a graph has no times */
    for (int i = 0; i < 2; i++) {
        if (i == 1 && r->rank == 1) return err_fail(ERR_IO, "the disk is full");
        comm_launched(r->comm);
        TRY(s->m->graphs->graph_run(s->queue, g->graph));
        TRY(side_sync(s));
    }
    return OK;
}

/* Leaves as the training loop does: the message of the error must survive that. */
static bool leaves;
static Err sums_and_leave(Side *s)
{
    const Err err = sums(s);
    if (err == OK || !leaves) return err;
    comm_abort(s->r->comm, err, err_text());
    comm_release_device(s->r->comm);
    return err;
}

static void nothing_left(bool aborted)
{
    if (!setup.on_shadow) return;
    const StandinCount count = setup.count();
    const ShadowCount left = shadow_count();
    if (count.misuses > 0) fail_msg("%lld misuses: %s", (long long)count.misuses, count.misuse);
    assert_int_equal(count.open, 0);
    if (aborted) assert_true(count.aborted > 0);
    assert_true(left.contexts == 0 && left.bytes == 0);
}

static void expect_of(SideBody *body, const char *what, const char *where, double timeout_s)
{
    const double start_s = now_s();
    ranks_run(&(TestWorld){.ranks = ranks_or(RANKS),
                           .body = with_side,
                           .arg = &body,
                           .may_fail = true,
                           .timeout_s = timeout_s});
    for (int i = 0; i < ranks_or(RANKS); i++) {
        const TestRank *r = &test_ranks[i];
        if (r->err == OK || !strstr(r->text, what) || (where && !strstr(r->text, where)))
            fail_msg("rank %d: wanted '%s' and '%s', got: %s", i, what, where ? where : "",
                     r->err == OK ? "OK" : r->text);
        assert_true(r->ended_s - start_s < 20);
    }
    nothing_left(fault.what != FAULT_OPEN); /* a rank may learn of it before it opens its own */
}

static void expect(const char *what, const char *where, double timeout_s)
{
    expect_of(sums_and_leave, what, where, timeout_s);
}

static const char sum_name[] = "all-reduce #3 over {0 1 2}, instruction 41, launched";

static void an_error_of_its_own(void **state)
{
    (void)state;
    fault = (StandinFault){FAULT_ASYNC, AT};
    expect("network error: a cable was pulled", sum_name, 20);
}

static void a_call_that_is_refused(void **state)
{
    (void)state;
    fault = (StandinFault){FAULT_CALL, AT};
    expect("planted by the test", sum_name, 20);
}

/* The transfer that failed is still in flight when the rank leaves; that is not the error. */
static void an_error_outlives_the_leave(void **state)
{
    (void)state;
    leaves = true;
    fault = (StandinFault){FAULT_CALL, AT};
    expect("planted by the test", sum_name, 20);
    fault = (StandinFault){FAULT_ASYNC, AT};
    expect("network error: a cable was pulled", sum_name, 20);
    leaves = false;
}

static void a_gpu_that_stops(void **state)
{
    (void)state;
    fault = (StandinFault){FAULT_NEVER, AT};
    stops = true;
    expect("(run.timeout_s=0.4) for the device: all-reduce #3 over {0 1 2}", "s ago, after all",
           0.4);
    stops = false;
}

static void a_communicator_that_does_not_open(void **state)
{
    (void)state;
    fault = (StandinFault){FAULT_OPEN, 0};
    expect("rank 1: nccl: cannot meet the members of a group: remote process exited", NULL, 20);
}

/* Ranks that wait for their device learn of the failure of another. */
static void a_rank_that_fails_itself(void **state)
{
    (void)state;
    fault = (StandinFault){FAULT_NEVER, AT};
    fails_itself = true;
    expect("the disk is full", NULL, 20);
    fails_itself = false;
}

static void a_rank_that_fails_beside_graphs(void **state)
{
    (void)state;
    expect_of(sums_in_graphs, "the disk is full", NULL, 20);
}

/* Without faults the same library works again. */
static void none(void **state)
{
    (void)state;
    SideBody *body = sums;
    fault = (StandinFault){FAULT_NONE, 0};
    ranks_run(
        &(TestWorld){.ranks = ranks_or(RANKS), .body = with_side, .arg = &body, .timeout_s = 20});
    nothing_left(false);
}

/* ---- the stand-in itself: illegal calls of NCCL ---- */

static struct {
    NcclResult (*id)(NcclId *);
    NcclResult (*init)(NcclComm **, int, NcclId, int, NcclConfig *);
    NcclResult (*get_async_error)(NcclComm *, NcclResult *);
    NcclResult (*abort)(NcclComm *);
    NcclResult (*end)(void);
    NcclResult (*reduce)(const void *, void *, size_t, NcclType, NcclOp, NcclComm *, void *);
    NcclResult (*gather)(const void *, void *, size_t, NcclType, NcclComm *, void *);
    const char *(*last)(NcclComm *);
} nccl;

static void find(const char *name, void *out)
{
    void *object = dlopen(STANDIN_OBJECT, RTLD_NOW | RTLD_NOLOAD);
    *(void **)out = dlsym(object, name);
    assert_non_null(*(void **)out);
}

typedef struct {
    NcclComm *comm[2];
    DeviceContext *context[2];
    DeviceQueue *queue[2];
    char *memory[2];
} Two;

static NcclResult async_error(NcclComm *c)
{
    NcclResult state = NCCL_IN_PROGRESS;
    for (int i = 0; i < 20000 && state == NCCL_IN_PROGRESS; i++) {
        assert_int_equal(nccl.get_async_error(c, &state), NCCL_OK);
        nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
    }
    return state;
}

/* Both ranks of a communicator in this thread, since nothing blocks. */
static Two two_open(void)
{
    const DeviceRuntime *m = device_shadow.runtime;
    NcclConfig config = {
        .size = NCCL_CONFIG_BYTES, .magic = NCCL_CONFIG_MAGIC, .version = NCCL_CONFIG_VERSION};
    NcclId id;
    Two t;
    assert_int_equal(nccl.id(&id), NCCL_OK);
    for (int i = 0; i < 2; i++) {
        void *memory;
        assert_int_equal(nccl.init(&t.comm[i], 2, id, i, &config), NCCL_IN_PROGRESS);
        assert_int_equal(m->open(i, &t.context[i]), OK);
        t.queue[i] = m->queue(t.context[i], QUEUE_COMM);
        assert_int_equal(m->alloc(t.context[i], 4096, &memory), OK);
        t.memory[i] = memory;
    }
    for (int i = 0; i < 2; i++) assert_int_equal(async_error(t.comm[i]), NCCL_OK);
    return t;
}

static void two_close(Two *t)
{
    for (int i = 0; i < 2; i++) {
        assert_int_equal(nccl.abort(t->comm[i]), NCCL_OK);
        device_shadow.runtime->free(t->context[i], t->memory[i]);
        device_shadow.runtime->close(t->context[i]);
    }
}

static bool good(NcclResult r) { return r == NCCL_OK || r == NCCL_IN_PROGRESS; }

/* Rank 0 sums and then gathers, rank 1 gathers and then sums. */
static void another_order_is_detected(void **state)
{
    (void)state;
    Two t = two_open();
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < 2; i++) {
            char *at = t.memory[i];
            if (turn == 1 && async_error(t.comm[i]) != NCCL_OK)
                continue; /* it was detected already */
            assert_true(good(
                turn == i ? nccl.reduce(at, at + 512, 16, NCCL_F32, NCCL_SUM, t.comm[i], t.queue[i])
                          : nccl.gather(at, at + 512, 16, NCCL_F32, t.comm[i], t.queue[i])));
        }
    NcclResult seen = NCCL_OK;
    for (int i = 0; i < 1000 && good(seen); i++) seen = async_error(t.comm[0]), usleep(1000);
    assert_int_equal(seen, NCCL_INVALID_USAGE);
    assert_non_null(strstr(nccl.last(t.comm[1]), "another order?"));
    two_close(&t);
    nothing_left(true);
}

static void misused(const char *what)
{
    const StandinCount count = setup.count();
    if (count.misuses != 1 || !strstr(count.misuse, what))
        fail_msg("%lld misuses, '%s'; wanted '%s'", (long long)count.misuses, count.misuse, what);
}

static void misuse_is_detected(void **state)
{
    (void)state;
    Two t = two_open();
    char *a = t.memory[0], *b = t.memory[1], host[64];
    DeviceQueue *q = t.queue[0];
    (void)setup.count();
    assert_false(good(nccl.reduce(b, a, 16, NCCL_F32, NCCL_SUM, t.comm[0], q)));
    misused("reads memory that is not of its device");
    assert_false(good(nccl.reduce(a, host, 16, NCCL_F32, NCCL_SUM, t.comm[0], q)));
    misused("writes memory that is not of its device");
    assert_false(good(nccl.gather(a, a + 8192 - 8, 4, NCCL_F32, t.comm[0], q))); /* its end */
    misused("writes memory that is not of its device");
    assert_false(good(nccl.reduce(a, a, 16, NCCL_BF16, NCCL_MAX, t.comm[0], q)));
    misused("passes over NaNs");
    assert_false(good(nccl.end()));
    misused("was not begun");
    assert_true(good(nccl.reduce(a, a, 16, NCCL_F32, NCCL_SUM, t.comm[0], q)));
    assert_false(good(nccl.reduce(a, a, 16, NCCL_F32, NCCL_SUM, t.comm[0], q)));
    misused("in progress");
    two_close(&t);
    assert_false(good(nccl.reduce(a, a, 16, NCCL_F32, NCCL_SUM, t.comm[0], q)));
    misused("after the end");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(none),
                                       cmocka_unit_test(an_error_of_its_own),
                                       cmocka_unit_test(a_call_that_is_refused),
                                       cmocka_unit_test(an_error_outlives_the_leave),
                                       cmocka_unit_test(a_gpu_that_stops),
                                       cmocka_unit_test(a_communicator_that_does_not_open),
                                       cmocka_unit_test(a_rank_that_fails_itself),
                                       cmocka_unit_test(a_rank_that_fails_beside_graphs),
                                       cmocka_unit_test(another_order_is_detected),
                                       cmocka_unit_test(misuse_is_detected)};
    const struct CMUnitTest on_gpu[] = {
        cmocka_unit_test(none), cmocka_unit_test(a_rank_that_fails_itself), cmocka_unit_test(none),
        cmocka_unit_test(a_gpu_that_stops), cmocka_unit_test(none)};
    const int status = graph_test_open(argc, argv);
    if (status != 0) return status;
    if (!setup.on_shadow)
        return setup.many ? cmocka_run_group_tests(on_gpu, ranks_open, ranks_close) : 77;
    find("ncclGetUniqueId", &nccl.id);
    find("ncclCommInitRankConfig", &nccl.init);
    find("ncclCommGetAsyncError", &nccl.get_async_error);
    find("ncclCommAbort", &nccl.abort);
    find("ncclGroupEnd", &nccl.end);
    find("ncclAllReduce", &nccl.reduce);
    find("ncclAllGather", &nccl.gather);
    find("ncclGetLastError", &nccl.last);
    const int failed = cmocka_run_group_tests(tests, ranks_open, ranks_close);
    shadow_run_async(false);
    return failed;
}
