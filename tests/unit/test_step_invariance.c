/* test_step_invariance.c -- settings that must not change a step. Gradients do not depend on the
 * distribution of sequences over micro-batches (1e-12 in f64). Equal to the bit over many steps
 * are: micro-batches one at a time or all in flight; recompute none, selective, full or by name;
 * offload; poisoned memory; one thread or three; merged or split backward. */
#include <math.h>

#include "base/philox.h"
#include "support/expect.h"
#include "support/jobs.h"

enum { SEQUENCES = 4, T = 5, STEPS = 20 };

/* Writes sequence q to a micro-batch from row `at` on; its contents depend on q alone. */
static void put_sequence(TestJob *t, int micro, int q, int64_t at)
{
    const Random random = random_named((uint64_t)q, "sequence");
    const uint64_t vocab = (uint64_t)t->job.settings.config->vocab;
    Tensor in[N_INPUTS];
    for (int i = 0; i < N_INPUTS; i++) in[i] = rank_input(&t->rank, micro, (Input)i);
    for (int64_t i = 0; i < T; i++) {
        const int32_t range[4] = {(int32_t)at, (int32_t)(at + i + 1), 0, 0};
        ((int32_t *)in[INPUT_TOKENS].data)[at + i] =
            (int32_t)(random_bits(&random, (uint64_t)i) % vocab);
        ((int32_t *)in[INPUT_TARGETS].data)[at + i] =
            (int32_t)(random_bits(&random, (uint64_t)(T + i)) % vocab);
        ((int32_t *)in[INPUT_POSITIONS].data)[at + i] = (int32_t)i;
        memcpy((int32_t *)in[INPUT_RANGES].data + 4 * (at + i), range, sizeof range);
        real_set(&in[INPUT_WEIGHTS], at + i, i == q ? 0.0 : 1.0);
    }
}

static void compare_distributions(const char *model, const char *schedule)
{
    static TestJob t[3];
    double norm[3];
    for (int k = 0; k < 3; k++) {
        const int micros = 1 << k, each = SEQUENCES / micros;
        JobSettings set = test_job_settings(model, JOB_STEP);
        StepResult result;
        set.micros = micros;
        set.batch = (BatchShape){each, T};
        set.schedule = schedule;
        DO(test_job_open(&t[k], &set, 1));
        for (int q = 0; q < SEQUENCES; q++)
            put_sequence(&t[k], q / each, q, (int64_t)(q % each) * T);
        for (int m = 0; m < micros; m++) rank_set_rows(&t[k].rank, m, each * T);
        DO(rank_step(&t[k].rank, &(StepSettings){.step = 1, .lr = 1e-3}, &result));
        assert_int_equal(result.live_tokens, SEQUENCES * (T - 1));
        norm[k] = result.grad_norm;
    }
    for (int k = 1; k < 3; k++) {
        const double off = ranks_differ(&t[0].rank, &t[k].rank, PART_GRAD);
        if (!(off <= 1e-12)) fail_msg("%s in %d micro-batches: off by %g", model, 1 << k, off);
        assert_true(fabs(norm[k] - norm[0]) <= 1e-12 * norm[0]);
    }
    for (int k = 0; k < 3; k++) test_job_close(&t[k]);
}

static void any_number_of_micro_batches(void **state)
{
    (void)state;
    compare_distributions("gpt2", "1f1b");
    compare_distributions("llama", "gpipe");
    compare_distributions("qwen3", "gpipe");
}

/* One variant of the same step. */
typedef struct {
    const char *name;
    const char *schedule, *recompute_names, *offload;
    Recompute recompute;
    bool split, poison, late;
    int threads;
} Variant;

static const Variant variants[] = {
    {"as it is", "1f1b", NULL, NULL, RECOMPUTE_NONE, false, false, false, 1},
    {"in flight", "gpipe", NULL, NULL, RECOMPUTE_NONE, false, false, false, 1},
    {"split", "gpipe", NULL, NULL, RECOMPUTE_NONE, true, false, false, 1},
    {"poisoned", "1f1b", NULL, NULL, RECOMPUTE_NONE, false, true, false, 1},
    {"selective", "gpipe", NULL, NULL, RECOMPUTE_SELECTIVE, false, true, false, 1},
    {"full", "gpipe", NULL, NULL, RECOMPUTE_FULL, false, false, false, 1},
    {"full, split", "1f1b", NULL, NULL, RECOMPUTE_FULL, true, true, false, 1},
    {"named", "gpipe", "mlp.*,attn.q*", NULL, RECOMPUTE_NAMED, false, true, false, 1},
    {"a sum, by name", "gpipe", "mid", NULL, RECOMPUTE_NAMED, false, true, false, 1},
    {"a sum, by name, split", "1f1b", "mid,attn.in", NULL, RECOMPUTE_NAMED, true, true, false, 1},
    {"offloaded", "gpipe", NULL, "attn.*,mlp.*", RECOMPUTE_NONE, false, true, true, 1},
    {"both", "gpipe", NULL, "mid,mlp.up", RECOMPUTE_SELECTIVE, true, true, true, 1},
    {"three threads", "gpipe", NULL, NULL, RECOMPUTE_NONE, false, false, false, 3},
};

typedef struct {
    TestJob t;
    double loss[STEPS];
} Run;

static void run_variant(Run *r, const char *model, DType dtype, int micros, const Variant *variant)
{
    JobSettings set = test_job_settings(model, JOB_STEP);
    set.dtype = dtype;
    set.micros = micros;
    set.schedule = variant->schedule;
    set.split = variant->split;
    set.compile.recompute = variant->recompute;
    set.compile.recompute_names = variant->recompute_names;
    set.compile.offload_names = variant->offload;
    DO(test_job_open(&r->t, &set, variant->threads));
    r->t.rank.settings.poison = variant->poison;
    r->t.rank.settings.late = variant->late;
    for (int s = 0; s < STEPS; s++) {
        StepResult result;
        for (int m = 0; m < micros; m++) {
            TestBatch b = test_job_batch(&set, m);
            b.seed = (uint64_t)(s % 5 * micros + m);
            rank_fill_batch(&r->t.rank, m, &b);
        }
        DO(rank_step(&r->t.rank, &(StepSettings){.step = s + 1, .lr = 1e-2}, &result));
        r->loss[s] = result.loss;
    }
}

/* A tied weight has one gradient sum per unit, so tied models are equal across schedules too. */
static void compare_variants(const char *model, DType dtype, int micros)
{
    static Run first, other;
    run_variant(&first, model, dtype, micros, &variants[0]);
    assert_true(first.loss[STEPS - 1] < first.loss[0]); /* the loss falls */
    for (size_t k = 0; k < sizeof variants / sizeof *variants; k++) {
        int p;
        run_variant(&other, model, dtype, micros, &variants[k]);
        for (int s = 0; s < STEPS; s++)
            if (other.loss[s] != first.loss[s])
                fail_msg("%s, %s: loss of step %d is %.17g, not %.17g", model, variants[k].name,
                         s + 1, other.loss[s], first.loss[s]);
        if (!ranks_equal(&first.t.rank, &other.t.rank, PART_WEIGHT, &p))
            fail_msg("%s, %s: %s differs", model, variants[k].name,
                     first.t.job.model.param[p].name);
        test_job_close(&other.t);
    }
    test_job_close(&first.t);
}

static void same_bits_f32(void **state)
{
    (void)state;
    compare_variants("gpt2", F32, 2);
    compare_variants("gpt2-untied", F32, 2);
    compare_variants("llama", F32, 4);
}

static void same_bits_f64(void **state)
{
    (void)state;
    compare_variants("qwen3", F64, 4);
}

/* Four micro-batches in flight give the gradients of one at a time, for every model. */
static void in_flight_same_gradients(void **state)
{
    (void)state;
    static TestJob t[2];
    for (const TestModel *m = test_models; m->name; m++) {
        for (int k = 0; k < 2; k++) {
            JobSettings set = test_job_settings(m->name, JOB_GRADIENTS);
            StepResult result;
            set.micros = 4;
            set.schedule = k ? "gpipe" : "1f1b";
            DO(test_job_open(&t[k], &set, 1));
            DO(rank_step(&t[k].rank, &(StepSettings){.step = 1, .lr = 0}, &result));
        }
        const double off = ranks_differ(&t[0].rank, &t[1].rank, PART_GRAD);
        assert_true(off == 0);
        for (int k = 0; k < 2; k++) test_job_close(&t[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_micro_batches),
        cmocka_unit_test(in_flight_same_gradients),
        cmocka_unit_test(same_bits_f32),
        cmocka_unit_test(same_bits_f64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
