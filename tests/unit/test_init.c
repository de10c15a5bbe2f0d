/* Initial weights: every tensor has the mean and the standard deviation of its ParamInfo, which are
 * the published ones; norms are exactly 1 and biases 0. The seed determines the rest. */
#include <math.h>

#include "support/expect.h"
#include "support/jobs.h"

/* Name suffixes; a weight without a row is a matrix with standard deviation 0.02. */
static const struct {
    const char *end;
    double mean, std;
    bool shrinks; /* divided by the root of the number of residual branches: GPT-2, two per layer */
} recipe[] = {
    {".bias", 0, 0, false},
    {"ln_1.weight", 1, 0, false},
    {"ln_2.weight", 1, 0, false},
    {"ln_f.weight", 1, 0, false},
    {"layernorm.weight", 1, 0, false},
    {"model.norm.weight", 1, 0, false},
    {"c_proj.weight", 0, 0.02, true},
    {"", 0, 0.02, false},
};

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

typedef struct {
    Arena arena; /* of the configuration */
    ModelConfig config;
    TestJob job;
} Fresh;

/* A preset with that many layers and the initial weights of a run with this seed. */
static void fresh_open(Fresh *f, const char *preset, const char *layers, DType dtype, uint64_t seed)
{
    const ModelField field = {strncmp(preset, "gpt2", 4) == 0 ? "n_layer" : "num_hidden_layers",
                              layers, "test", 1};
    JobSettings set = test_job_settings("llama", JOB_STEP);
    DO(arena_open(&f->arena, "config", (size_t)1 << 20));
    DO(model_config_load(preset, &field, 1, &f->arena, &f->config));
    set.config = &f->config;
    set.dtype = dtype;
    DO(test_job_open(&f->job, &set, 1));
    rank_poison(&f->job.rank, ARENA_STATE);
    DO(rank_init_weights(&f->job.rank, seed));
}

static void fresh_close(Fresh *f)
{
    test_job_close(&f->job);
    arena_close(&f->arena);
}

/* Within five standard errors of a sample of n; there are about thirty samples. */
static void expect_moments(const char *name, const Tensor *w, double mean, double std)
{
    const double n = (double)tensor_count(w);
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < tensor_count(w); i++) sum += real_get(w, i);
    for (int64_t i = 0; i < tensor_count(w); i++)
        squares += (real_get(w, i) - mean) * (real_get(w, i) - mean);
    const double got = sqrt(squares / n);
    if (!(fabs(sum / n - mean) <= 5 * std / sqrt(n)))
        fail_msg("%s: the mean is %g, not %g", name, sum / n, mean);
    if (!(fabs(got - std) <= 5 * std / sqrt(2 * n)))
        fail_msg("%s: the deviation is %g, not %g", name, got, std);
}

static void expect_recipe(const Fresh *f)
{
    const Model *m = &f->job.job.model;
    for (int p = 0; p < m->n_params; p++) {
        const ParamInfo *info = &m->param[p].info;
        const Tensor w = rank_param(&f->job.rank, p, PART_WEIGHT);
        size_t row = 0;
        while (!ends_with(m->param[p].name, recipe[row].end)) row++;
        const double branches = 2.0 * (double)f->config.n_layers;
        const double std = recipe[row].std / (recipe[row].shrinks ? sqrt(branches) : 1.0);
        assert_true(recipe[row].std == 0 ? info->ndim == 1 : info->ndim == 2);
        expect_moments(m->param[p].name, &w, recipe[row].mean, std);
        expect_moments(m->param[p].name, &w, info->init == INIT_ONES ? 1 : 0,
                       info->init == INIT_NORMAL ? info->std : 0);
        for (int part = PART_MOMENT1; part <= PART_MOMENT2; part++) {
            const Tensor moment = rank_param(&f->job.rank, p, (ParamPart)part);
            expect_moments("a moment", &moment, 0, 0);
        }
    }
}

static void weights_follow_the_recipe(void **state)
{
    (void)state;
    static Fresh f;
    static const char *const layers[] = {"2", "5"};
    for (int k = 0; k < 2; k++) {
        fresh_open(&f, "gpt2-tiny", layers[k], F32, 3);
        expect_recipe(&f);
        fresh_close(&f);
        fresh_open(&f, "llama-tiny", layers[k], k ? F64 : F32, 4);
        expect_recipe(&f);
        fresh_close(&f);
    }
}

/* The same seed gives the same bits; another seed changes every matrix. */
static void the_seed_decides(void **state)
{
    (void)state;
    static Fresh a, b;
    static const char *const preset[] = {"gpt2-tiny", "llama-tiny"};
    for (int k = 0; k < 2; k++)
        for (uint64_t seed = 1; seed <= 2; seed++) {
            int param;
            fresh_open(&a, preset[k], "2", F32, 1);
            fresh_open(&b, preset[k], "2", F32, seed);
            assert_int_equal(ranks_equal(&a.job.rank, &b.job.rank, PART_WEIGHT, &param), seed == 1);
            for (int p = 0; seed == 2 && p < a.job.job.model.n_params; p++) {
                const Tensor x = rank_param(&a.job.rank, p, PART_WEIGHT);
                const Tensor y = rank_param(&b.job.rank, p, PART_WEIGHT);
                int64_t same = 0;
                for (int64_t i = 0; i < tensor_count(&x); i++)
                    same += real_get(&x, i) == real_get(&y, i);
                if (x.ndim == 2 && same > tensor_count(&x) / 1000)
                    fail_msg("%s: %lld of %lld are the same with another seed",
                             a.job.job.model.param[p].name, (long long)same,
                             (long long)tensor_count(&x));
            }
            fresh_close(&a);
            fresh_close(&b);
        }
}

/* Tensors of one shape are not copies of each other. */
static void names_decide_too(void **state)
{
    (void)state;
    static Fresh f;
    fresh_open(&f, "llama-tiny", "3", F32, 1);
    const Model *m = &f.job.job.model;
    for (int p = 0; p < m->n_params; p++)
        for (int q = 0; q < p; q++) {
            const Tensor x = rank_param(&f.job.rank, p, PART_WEIGHT);
            const Tensor y = rank_param(&f.job.rank, q, PART_WEIGHT);
            if (x.ndim == 2 && y.ndim == 2 && real_get(&x, 0) == real_get(&y, 0) &&
                real_get(&x, 1) == real_get(&y, 1))
                fail_msg("%s and %s start alike", m->param[p].name, m->param[q].name);
        }
    fresh_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_follow_the_recipe),
        cmocka_unit_test(the_seed_decides),
        cmocka_unit_test(names_decide_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
