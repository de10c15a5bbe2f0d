/* test_skip.c -- a skipped step changes no bit of weights or moments and does not advance Adam's
 * time. */
#include <math.h>
#include "support/expect.h"
#include "support/jobs.h"

static TestJob a, b; /* a skips a step that b does not have */

static void open_both(const char *model, OptimKind kind, double clip)
{
    JobSettings set = test_job_settings(model, JOB_STEP);
    set.optim.kind = kind;
    set.optim.clip = clip;
    DO(test_job_open(&a, &set, 1));
    DO(test_job_open(&b, &set, 1));
}

static void close_both(void)
{
    test_job_close(&a);
    test_job_close(&b);
}

static void assert_same_state(void)
{
    static const ParamPart part[] = {PART_WEIGHT, PART_MASTER, PART_MOMENT1, PART_MOMENT2};
    int param;
    for (int i = 0; i < (a.job.linked.n_moments ? 4 : 2); i++)
        if (!ranks_equal(&a.rank, &b.rank, part[i], &param))
            fail_msg("part %d of %s differs", (int)part[i], a.job.model.param[param].name);
}

static StepResult step(TestJob *t, int64_t number, int64_t update)
{
    StepResult r;
    DO(rank_step(&t->rank, &(StepSettings){.step = number, .lr = 1e-2, .update = update}, &r));
    return r;
}

/* Sets the loss weight of a token; NaN makes loss and gradient not finite. */
static double swap_weight(TestJob *t, double x)
{
    const Tensor w = rank_input(&t->rank, 1, INPUT_WEIGHTS);
    const double old = real_get(&w, 2);
    real_set(&w, 2, x);
    return old;
}

static void not_finite_changes_nothing(void **state)
{
    static const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    (void)state;
    for (int k = 0; k < 6; k++) {
        open_both(k % 2 ? "gpt2" : "llama", k % 2 ? OPTIM_SGD : OPTIM_ADAMW, k < 3 ? 0 : 1);
        assert_false(step(&a, 1, 1).skipped);
        assert_false(step(&b, 1, 1).skipped);
        const double good = swap_weight(&a, bad[k % 3]);
        const StepResult r = step(&a, 2, 2);
        assert_true(r.skipped);
        assert_false(isfinite(r.grad_norm) && isfinite(r.loss));
        assert_same_state();
        swap_weight(&a, good);
        assert_false(step(&a, 3, 2).skipped); /* the second update, in the third step */
        assert_false(step(&b, 2, 0).skipped); /* which is b's second step */
        assert_same_state();
        close_both();
    }
}

/* optim.skip is compared with the norm of the mean gradient, before the clip. */
static void larger_than_skip_changes_nothing(void **state)
{
    (void)state;
    open_both("qwen2", OPTIM_ADAMW, 0.5);
    const StepResult r = step(&b, 1, 1);
    assert_false(r.skipped);
    assert_true(r.grad_norm > 0.5);
    a.rank.settings.optim.skip = 0.999 * r.grad_norm;
    assert_true(step(&a, 1, 1).skipped);
    a.rank.settings.optim.skip = 1.001 * r.grad_norm;
    assert_false(step(&a, 2, 1).skipped);
    assert_same_state();
    close_both();
}

/* A third update with the time of the fourth gives other weights, so the tests above detect it. */
static void adam_time_matters(void **state)
{
    int param;
    (void)state;
    open_both("llama", OPTIM_ADAMW, 1);
    (void)step(&a, 3, 3);
    (void)step(&b, 4, 4);
    assert_false(ranks_equal(&a.rank, &b.rank, PART_MASTER, &param));
    close_both();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(not_finite_changes_nothing),
                                       cmocka_unit_test(larger_than_skip_changes_nothing),
                                       cmocka_unit_test(adam_time_matters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
