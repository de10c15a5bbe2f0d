/* test_calibrate.c -- factors of clusters from measured steps; clusters whose rates are scaled. */
#include "clock_cases.h"

#include <math.h>
#include "plan/calibrate.h"

static MeasuredStep step_of(double work, double transfers, double a, double b)
{
    return (MeasuredStep){
        {.step_s = work + transfers, .work_s = 0.8 * work, .pp_s = 0.2 * work, .dp_s = transfers},
        a * work + b * transfers};
}

/* Steps that follow two factors give them back, but for the prior at 1. */
static void factors_are_found(void **state)
{
    static const double factor[][2] = {{1, 1}, {1.3, 0.7}, {2.5, 1.2}, {0.5, 3}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        const double a = factor[i][0], b = factor[i][1];
        const MeasuredStep step[] = {step_of(1, 0.01, a, b), step_of(0.2, 0.9, a, b),
                                     step_of(0.5, 0.6, a, b), step_of(0.01, 1, a, b)};
        const ClusterFactors f = calibrate_factors(step, 4);
        assert_true(fabs(f.work / a - 1) < 0.02 && fabs(f.transfers / b - 1) < 0.02);
    }
    /* No step has transfers: nothing is learned about them. */
    const MeasuredStep work[] = {step_of(1, 0, 2, 9)};
    const ClusterFactors f = calibrate_factors(work, 1);
    assert_true(fabs(f.work - 2) < 0.05 && fabs(f.transfers - 1) < 1e-12);
}

/* A step on a cluster whose seconds are all doubled takes twice as long. */
static void scaled_clusters_scale_steps(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i += 4) {
        Fixture f;
        StepTime before, work, both;
        Cluster slow = slow_cluster(true), scaled;
        open_case(&f, &cases[i]);
        ClockInput in = {.cluster = &slow, .job = &f.set, .mesh = &f.mesh};
        DO(clock_step(&in, &f.arena, &f.temp, &before));
        in.cluster = &scaled;
        DO(cluster_scale(&slow, (ClusterFactors){2, 1}, &f.arena, &scaled));
        DO(clock_step(&in, &f.arena, &f.temp, &work));
        DO(cluster_scale(&slow, (ClusterFactors){2, 2}, &f.arena, &scaled));
        DO(clock_step(&in, &f.arena, &f.temp, &both));
        assert_true(work.step_s > before.step_s && work.step_s < 2 * before.step_s * (1 + 1e-12));
        assert_true(fabs(both.step_s / before.step_s - 2) < 1e-9);
        close_case(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(factors_are_found),
                                       cmocka_unit_test(scaled_clusters_scale_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
