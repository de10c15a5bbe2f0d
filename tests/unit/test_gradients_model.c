/* Gradients of whole models of two layers against f64 finite differences, below 1e-6 of the
 * tensor's largest entry: every family, grouped heads, three ropes, windows, tied and untied;
 * packed documents; two micro-batches of different sizes in flight. */
#include "support/expect.h"
#include "support/jobs.h"
#include "support/slopes.h"

enum { EACH = 5, MAX_SLOPES = 512 };

static void open_job(TestJob *t, const char *model, JobKind kind, int way)
{
    JobSettings set = test_job_settings(model, kind);
    set.schedule = way % 2 ? "1f1b" : "gpipe";
    set.split = way / 2 % 2;
    set.compile.recompute = (Recompute)(way % 3);
    if (way == 0) set.compile.chunk_elements = 0;
    DO(test_job_open(t, &set, 1));
    t->rank.settings.poison = true;
    for (int m = 0; m < set.micros; m++) {
        TestBatch b = test_job_batch(&set, m);
        b.rows -= 2 * m;
        b.documents = 3 - m;
        rank_fill_batch(&t->rank, m, &b);
    }
}

static void check_model(const char *model)
{
    static Slope slope[MAX_SLOPES];
    static TestJob loss, grad;
    Err err;
    open_job(&loss, model, JOB_LOSS, 0);
    const int n = slopes_measure(&loss.rank, EACH, MAX_SLOPES, slope, &err);
    DO(err);
    assert_true(n == EACH * loss.job.model.n_params);
    test_job_close(&loss);
    for (int way = 0; way < 4; way++) {
        StepResult result;
        int worst = 0;
        open_job(&grad, model, JOB_GRADIENTS, way);
        DO(rank_step(&grad.rank, &(StepSettings){.step = 1, .lr = 0}, &result));
        const double off = slopes_compare(&grad.rank, slope, n, &worst);
        const Slope *at = &slope[worst];
        const Tensor dw = rank_param(&grad.rank, at->param, PART_GRAD);
        if (!(off < 1e-6))
            fail_msg("%s, way %d: d.%s[%lld] is %.15g, the slope %.15g: off by %g", model, way,
                     grad.job.model.param[at->param].name, (long long)at->at, real_get(&dw, at->at),
                     at->slope, off);
        test_job_close(&grad);
    }
}

static void gpt2(void **state)
{
    (void)state;
    check_model("gpt2");
    check_model("gpt2-untied");
}

static void llama(void **state)
{
    (void)state;
    check_model("llama");
    check_model("llama-tied");
}

static void relatives(void **state)
{
    (void)state;
    check_model("mistral");
    check_model("qwen2");
    check_model("qwen3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2),
        cmocka_unit_test(llama),
        cmocka_unit_test(relatives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
