/* test_step_plan.c -- the planned time of a step, from a cluster and from measured kernels. */
#include <math.h>

#include "support/expect.h"
#include "support/jobs.h"
#include "ir/pairs.h"
#include "train/step_plan.h"

/* Gives the events of steps 2 to 4 seconds by what they are, and returns the work of a step. */
static double set_seconds(RankTrace *trace)
{
    double sum = 0;
    for (int64_t i = 0; i < trace->n; i++) {
        TraceEvent *e = &trace->at[i];
        const bool end = e->action == A_NORM || e->action == A_UPDATE;
        if (e->instr == TRACE_ACTION ? !end : e->instr < 0) continue;
        if (e->instr >= 0 && op_info((OpId)e->op)->class == CLASS_VIEW) continue;
        const double seconds = 1e-6 * (e->instr >= 0 ? 2 + e->op : 100 + 3 * e->action);
        e->begin_s = 0; /* a clock that has run for days has fewer digits than the bound below */
        e->end_s = seconds;
        sum += seconds;
    }
    return sum / MEASURED_STEPS;
}

static Cluster some_cluster(void)
{
    Cluster c = {.name = "some", .rates = *cost_default_rates()};
    c.memory_bytes = 1e9;
    return c;
}

/* After MEASURED_STEP the plan is the sum of what the rank's kernels took, whatever was planned
 * before. Kernels of one price have one op; updates have one price per size. */
static void kernels_make_the_plan(void **state)
{
    (void)state;
    for (int known = 0; known < 2; known++) {
        static TestJob t;
        static StepPlan plan;
        const JobSettings set = test_job_settings("llama", JOB_STEP);
        const Cluster cluster = some_cluster();
        StepResult result;
        double before_s = -1, worked = 0;
        bool changed = false;
        DO(test_job_open(&t, &set, 1));
        DO(step_plan_open(&plan, &t.job, known ? &cluster : NULL, true));
        assert_true(known ? plan.predicted_s > 0 : plan.predicted_s == 0);
        const double first_s = plan.predicted_s;
        t.rank.settings.trace = &plan.trace;
        for (int step = 1; step <= MEASURED_STEP + 1; step++) {
            assert_false(changed);
            DO(rank_step(&t.rank, &(StepSettings){.step = step, .lr = 1e-3}, &result));
            assert_int_equal(plan.trace.missed, 0);
            if (step == MEASURED_STEP) worked = set_seconds(&plan.trace);
            DO(step_plan_update(&plan, &t.job, NULL, &changed, &before_s));
            assert_true(changed == (step == MEASURED_STEP));
            if (changed) assert_true(before_s == first_s);
            changed = false;
            if (step == MEASURED_STEP) t.rank.settings.trace = NULL;
        }
        if (worked <= 0 || fabs(plan.predicted_s / worked - 1) > 1e-9)
            fail_msg("planned %.9g s, the kernels took %.9g s", plan.predicted_s, worked);
        step_plan_close(&plan);
        test_job_close(&t);
    }
}

/* A device whose kernels are not recorded keeps the plan of its cluster, or has none. */
static void devices_keep_the_plan(void **state)
{
    static TestJob t;
    static StepPlan plan;
    const JobSettings set = test_job_settings("llama", JOB_STEP);
    const Cluster cluster = some_cluster();
    double before_s;
    bool changed;
    (void)state;
    DO(test_job_open(&t, &set, 1));
    for (int known = 0; known < 2; known++) {
        DO(step_plan_open(&plan, &t.job, known ? &cluster : NULL, false));
        for (int step = 1; step <= MEASURED_STEP; step++)
            DO(step_plan_update(&plan, &t.job, NULL, &changed, &before_s));
        assert_false(changed);
        assert_true(plan.trace.cap == 0 && (plan.predicted_s > 0) == known);
        step_plan_close(&plan);
    }
    test_job_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernels_make_the_plan),
                                       cmocka_unit_test(devices_keep_the_plan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
