/* test_watch.c -- the status and the trace of a rank: after a kernel fails, the status still names
 * its instruction. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "support/jobs.h"
#include "support/shadow.h"

static int calls_left; /* GEMMs until the one that fails */

static Err failing(const Call *c)
{
    if (calls_left-- == 0) return err_fail(ERR_CHECK, "planted");
    return device_ref.kernel[KERNEL_gemm](c);
}

/* A job of two micro-batches, watched. */
static void open_watched(TestJob *t, DType dtype, RankWatch *watch, RankTrace *trace)
{
    JobSettings set = test_job_settings("llama", JOB_STEP);
    set.dtype = dtype;
    assert_int_equal(test_job_open(t, &set, 1), OK);
    t->rank.settings.watch = watch;
    t->rank.settings.trace = trace;
}

static void status_stays_at_the_failed_instruction(void **state)
{
    (void)state;
    TestJob t;
    RankWatch watch = {0};
    StepResult r;
    Device broken = device_ref;
    broken.kernel[KERNEL_gemm] = failing;
    open_watched(&t, F64, &watch, NULL);
    t.rank.settings.device = &broken;
    calls_left = 1; /* layer 0 has two plain GEMMs in its forward phase: the second fails */
    assert_int_equal(rank_step(&t.rank, &(StepSettings){.step = 7, .lr = 1e-3}, &r), ERR_CHECK);
    const Program *p = NULL;
    for (int i = 0; i < t.job.linked.n && !p; i++)
        if (t.job.linked.list[i].action.unit == 1) p = t.job.linked.list[i].program;
    assert_int_equal(watch.step, 7);
    assert_int_equal(watch.action, A_RUN);
    assert_int_equal(watch.phase, PHASE_F);
    assert_int_equal(watch.micro, 0);
    assert_string_equal((char *)watch.unit, "layer.0");
    assert_true(watch.instr > 0 && watch.instr < p->first[PHASE_F + 1]);
    assert_int_equal(watch.op, p->instr[watch.instr].op);
    assert_int_equal(op_info((OpId)watch.op)->kernel, KERNEL_gemm);
    test_job_close(&t);
}

static void every_instruction_is_an_event(void **state)
{
    (void)state;
    TestJob t;
    static TraceEvent events[4096];
    RankTrace trace = {events, 0, 4096, 0};
    RankWatch watch = {0};
    StepResult r;
    int64_t want = 0;
    open_watched(&t, F64, &watch, &trace);
    assert_int_equal(rank_step(&t.rank, &(StepSettings){.step = 1, .lr = 1e-3}, &r), OK);
    for (int i = 0; i < t.job.linked.n; i++) {
        const LinkedAction *l = &t.job.linked.list[i];
        const int phase = l->action.phase;
        want += l->program ? l->program->first[phase + 1] - l->program->first[phase] : 1;
    }
    assert_int_equal(trace.n, want);
    assert_int_equal(trace.missed, 0);
    assert_int_equal(watch.step, 0);
    for (int64_t i = 0; i < trace.n; i++) {
        assert_true(events[i].end_s >= events[i].begin_s);
        assert_true(i == 0 || events[i].begin_s >= events[i - 1].end_s);
    }
    trace.cap = want + 3; /* events that do not fit are counted */
    assert_int_equal(rank_step(&t.rank, &(StepSettings){.step = 2, .lr = 1e-3}, &r), OK);
    assert_int_equal(trace.n, want + 3);
    assert_int_equal(trace.missed, want - 3);
    test_job_close(&t);
}

/* The host issues the work of a step long before the device runs it. The trace has the times of the
 * device, whose queue has no gaps between events. */
static void device_events_have_device_times(void **state)
{
    (void)state;
    TestJob t;
    static TraceEvent events[4096];
    RankTrace trace = {events, 0, 4096, 0};
    StepResult r;
    Rank rank;
    open_watched(&t, F32, NULL, NULL);
    RankSettings set = t.rank.settings;
    set.device = &device_shadow;
    set.trace = &trace;
    set.comm = NULL;
    shadow_set(5, SHADOW_LATEST);
    if (rank_open(&rank, &set) != OK) fail_msg("%s", err_text());
    assert_int_equal(rank_init_weights(&rank, 3), OK);
    for (int step = 1; step <= 2; step++)
        assert_int_equal(rank_step(&rank, &(StepSettings){.step = step, .lr = 1e-3}, &r), OK);
    const int64_t half = trace.n / 2;
    assert_true(half > 100 && trace.missed == 0);
    for (int64_t i = 0; i < trace.n; i++) {
        assert_true(events[i].end_s > events[i].begin_s);
        if (i % half) assert_true(events[i].begin_s == events[i - 1].end_s);
    }
    assert_true(events[half].begin_s > events[half - 1].end_s);
    rank_close(&rank);
    test_job_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_stays_at_the_failed_instruction),
        cmocka_unit_test(every_instruction_is_an_event),
        cmocka_unit_test(device_events_have_device_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
