/* test_step.c -- the end of a step against plain C, on gradients that another rank computed: the
 * norm of the mean gradient, the clip, AdamW with bias correction and decoupled decay (of matrices
 * only), SGD. Learning rate and clip are scalars of the step: one linked program serves all. */
#include <math.h>
#include <stdlib.h>

#include "support/expect.h"
#include "support/jobs.h"

enum { MAX_COUNT = 1 << 14, STEPS = 4 };

typedef struct {
    double w[MAX_COUNT], m[MAX_COUNT], v[MAX_COUNT], g[MAX_COUNT];
    double norm;
} Oracle;

static Oracle oracle;

static const struct {
    double lr, clip;
} numbers[STEPS] = {{3e-2, 0.0}, {1e-2, 0.05}, {2e-2, 1e3}, {5e-3, 0.2}};

/* Fills micro-batches that differ from those of other steps. Returns the live tokens. */
static int64_t fill_step(TestJob *t, int step)
{
    const JobSettings *set = &t->job.settings;
    int64_t live = 0;
    for (int m = 0; m < set->micros; m++) {
        TestBatch b = test_job_batch(set, m);
        b.seed = (uint64_t)(10 * step + m);
        rank_fill_batch(&t->rank, m, &b);
        const Tensor weights = rank_input(&t->rank, m, INPUT_WEIGHTS);
        for (int64_t i = 0; i < b.rows; i++) live += real_get(&weights, i) != 0;
    }
    return live;
}

/* Copies all weights from the oracle to the rank, or back; parameters are back to back. */
static void copy_weights(const Rank *r, bool to_rank)
{
    const Model *m = r->settings.program->model;
    int64_t at = 0;
    for (int p = 0; p < m->n_params; p++) {
        const Tensor w = rank_param(r, p, PART_WEIGHT);
        assert_true(at + m->param[p].count <= MAX_COUNT);
        for (int64_t i = 0; i < m->param[p].count; i++, at++) {
            if (to_rank)
                real_set(&w, i, oracle.w[at]);
            else
                oracle.w[at] = real_get(&w, i);
        }
    }
}

/* Computes the mean gradient at the oracle's weights, by a list that ends after backward. */
static void oracle_gradient(TestJob *grad, int step)
{
    StepResult result;
    const double live = (double)fill_step(grad, step);
    double squares = 0;
    int64_t at = 0;
    copy_weights(&grad->rank, true);
    DO(rank_step(&grad->rank, &(StepSettings){.step = step, .lr = 0}, &result));
    assert_true(result.grad_norm == 0); /* no NORM in that list */
    for (int p = 0; p < grad->job.model.n_params; p++) {
        const Tensor dw = rank_param(&grad->rank, p, PART_GRAD);
        for (int64_t i = 0; i < tensor_count(&dw); i++, at++) {
            oracle.g[at] = real_get(&dw, i) / live;
            squares += oracle.g[at] * oracle.g[at];
        }
    }
    oracle.norm = sqrt(squares);
}

static void oracle_update(const Model *m, const OptimSettings *o, int step, double lr, double clip)
{
    const double factor = clip > 0 && oracle.norm > clip ? clip / oracle.norm : 1.0;
    int64_t at = 0;
    for (int p = 0; p < m->n_params; p++) {
        const double decay = m->param[p].info.ndim == 2 ? o->weight_decay : 0.0;
        for (int64_t i = 0; i < m->param[p].count; i++, at++) {
            const double g = factor * oracle.g[at], w = oracle.w[at];
            oracle.m[at] = o->beta1 * oracle.m[at] + (1 - o->beta1) * g;
            oracle.v[at] = o->beta2 * oracle.v[at] + (1 - o->beta2) * g * g;
            const double mean = oracle.m[at] / (1 - pow(o->beta1, step));
            const double power = oracle.v[at] / (1 - pow(o->beta2, step));
            const double go = o->kind == OPTIM_SGD ? g : mean / (sqrt(power) + o->eps);
            oracle.w[at] = w - lr * (go + decay * w);
        }
    }
}

static void compare_part(const Rank *r, ParamPart part, const double *want, int step)
{
    const Model *m = r->settings.program->model;
    int64_t at = 0;
    for (int p = 0; p < m->n_params; p++) {
        const Tensor x = rank_param(r, p, part);
        double most = 0;
        for (int64_t i = 0; i < m->param[p].count; i++) most = fmax(most, fabs(want[at + i]));
        for (int64_t i = 0; i < m->param[p].count; i++, at++) /* k's bias in GPT-2 is 0 */
            if (!(fabs(real_get(&x, i) - want[at]) <= 1e-12 * most + 1e-18))
                fail_msg("step %d: part %d of %s[%lld] is %.17g, not %.17g", step, part,
                         m->param[p].name, (long long)i, real_get(&x, i), want[at]);
    }
}

static void compare_steps(const char *model, OptimKind kind)
{
    static TestJob t, grad;
    JobSettings set = test_job_settings(model, JOB_STEP);
    int clipped = 0;
    set.optim.kind = kind;
    set.schedule = "gpipe";
    set.micros = 3;
    DO(test_job_open(&t, &set, 1));
    set.kind = JOB_GRADIENTS;
    DO(test_job_open(&grad, &set, 1));
    oracle = (Oracle){0};
    copy_weights(&t.rank, false);
    for (int s = 1; s <= STEPS; s++) {
        const double lr = numbers[s - 1].lr, clip = numbers[s - 1].clip;
        StepResult result;
        oracle_gradient(&grad, s);
        oracle_update(&t.job.model, &set.optim, s, lr, clip);
        clipped += clip > 0 && oracle.norm > clip;
        const int64_t live = fill_step(&t, s);
        t.rank.settings.optim.clip = clip;
        DO(rank_step(&t.rank, &(StepSettings){.step = s, .lr = lr}, &result));
        assert_int_equal(result.live_tokens, live);
        assert_true(result.loss == result.loss_sum / (double)live);
        assert_true(fabs(result.grad_norm - oracle.norm) <= 1e-12 * oracle.norm);
        compare_part(&t.rank, PART_WEIGHT, oracle.w, s);
        copy_weights(&t.rank, false); /* AdamW amplifies rounding differences */
        if (kind == OPTIM_SGD) continue;
        compare_part(&t.rank, PART_MOMENT1, oracle.m, s);
        compare_part(&t.rank, PART_MOMENT2, oracle.v, s);
    }
    assert_int_equal(clipped, 2); /* of the three that have a clip */
    test_job_close(&t);
    test_job_close(&grad);
}

static void adamw(void **state)
{
    (void)state;
    compare_steps("gpt2", OPTIM_ADAMW);
    compare_steps("qwen2", OPTIM_ADAMW);
}

static void sgd(void **state)
{
    (void)state;
    compare_steps("gpt2-untied", OPTIM_SGD);
    compare_steps("llama", OPTIM_SGD);
}

/* Writes the weight change of a first SGD step without decay to oracle.w; returns the norm. */
static double step_with_clip(double clip)
{
    static TestJob t;
    JobSettings set = test_job_settings("qwen2", JOB_STEP);
    StepResult result;
    set.optim = (OptimSettings){.kind = OPTIM_SGD, .clip = clip, .block = 16};
    DO(test_job_open(&t, &set, 1));
    copy_weights(&t.rank, false);
    memcpy(oracle.g, oracle.w, sizeof oracle.w);
    DO(rank_step(&t.rank, &(StepSettings){.step = 1, .lr = 0.5}, &result));
    assert_true(result.live_tokens > 4);
    copy_weights(&t.rank, false);
    for (int i = 0; i < MAX_COUNT; i++) oracle.w[i] -= oracle.g[i];
    test_job_close(&t);
    return result.grad_norm;
}

/* The clip is compared with the norm of the mean gradient, not with that of the sum, which is as
 * many times larger as there are live tokens. */
static void clip_is_of_the_mean(void **state)
{
    static double free_step[MAX_COUNT];
    double most = 0;
    (void)state;
    memset(oracle.w, 0, sizeof oracle.w);
    const double norm = step_with_clip(0);
    memcpy(free_step, oracle.w, sizeof free_step);
    for (int i = 0; i < MAX_COUNT; i++) most = fmax(most, fabs(free_step[i]));
    assert_true(most > 0);
    static const double above[] = {1.001, 1.5, 4};
    for (int k = 0; k < 3; k++) { /* larger than the norm, smaller than that of the sum */
        assert_true(step_with_clip(above[k] * norm) == norm);
        assert_memory_equal(oracle.w, free_step, sizeof free_step);
    }
    static const double below[] = {0.999, 0.6};
    for (int k = 0; k < 2; k++) {
        assert_true(step_with_clip(below[k] * norm) == norm);
        for (int i = 0; i < MAX_COUNT; i++)
            assert_true(fabs(oracle.w[i] - below[k] * free_step[i]) <= 1e-12 * most);
    }
}

/* Blocks decide how sums are folded, not what is summed: every element once. */
static void norm_of_any_block(void **state)
{
    (void)state;
    static const int64_t block[] = {1, 16, 37, 65536};
    static TestJob t;
    for (size_t k = 0; k < sizeof block / sizeof *block; k++) {
        JobSettings set = test_job_settings("llama-tied", JOB_STEP);
        StepResult result;
        double squares = 0;
        set.optim.block = block[k];
        DO(test_job_open(&t, &set, 1));
        DO(rank_step(&t.rank, &(StepSettings){.step = 1, .lr = 0}, &result));
        for (int p = 0; p < t.job.model.n_params; p++) {
            const Tensor dw = rank_param(&t.rank, p, PART_GRAD);
            for (int64_t i = 0; i < tensor_count(&dw); i++)
                squares += real_get(&dw, i) * real_get(&dw, i);
        }
        const double norm = sqrt(squares) / (double)result.live_tokens;
        assert_true(norm > 0 && fabs(result.grad_norm - norm) <= 1e-13 * norm);
        test_job_close(&t);
    }
}

static void zero_weights(TestJob *t, int micro)
{
    const Tensor w = rank_input(&t->rank, micro, INPUT_WEIGHTS);
    for (int64_t i = 0; i < TEST_T; i++) real_set(&w, i, 0.0);
}

/* A micro-batch whose tokens all have weight 0 has no effect. */
static void zero_weight_tokens_have_no_effect(void **state)
{
    (void)state;
    static TestJob one, two;
    for (int empty = 0; empty < 2; empty++) {
        JobSettings set = test_job_settings("mistral", JOB_STEP);
        StepResult a, b;
        DO(test_job_open(&two, &set, 1));
        set.micros = 1;
        DO(test_job_open(&one, &set, 1));
        const TestBatch batch = test_job_batch(&set, 0);
        rank_fill_batch(&two.rank, 1 - empty, &batch);
        zero_weights(&two, empty);
        DO(rank_step(&one.rank, &(StepSettings){.step = 1, .lr = 1e-2}, &a));
        DO(rank_step(&two.rank, &(StepSettings){.step = 1, .lr = 1e-2}, &b));
        assert_true(isfinite(a.loss) && a.loss == b.loss && a.grad_norm == b.grad_norm);
        assert_int_equal(a.live_tokens, b.live_tokens);
        assert_true(ranks_differ(&one.rank, &two.rank, PART_GRAD) == 0);
        assert_true(ranks_differ(&one.rank, &two.rank, PART_WEIGHT) == 0);
        for (int m = 0; m < 2; m++) zero_weights(&two, m);
        DO(rank_step(&two.rank, &(StepSettings){.step = 2, .lr = 1e-2}, &b));
        assert_true(b.loss == 0 && b.grad_norm == 0 && b.live_tokens == 0);
        assert_true(ranks_differ(&two.rank, &two.rank, PART_WEIGHT) == 0); /* nothing is NaN */
        test_job_close(&one);
        test_job_close(&two);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw),
        cmocka_unit_test(sgd),
        cmocka_unit_test(clip_is_of_the_mean),
        cmocka_unit_test(norm_of_any_block),
        cmocka_unit_test(zero_weight_tokens_have_no_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
