/* Gradients of whole models of two layers against differences in f64, below 1e-6 of the tensor's
 * largest entry: every family, grouped heads, three ropes, windows, tied and untied; packed
 * documents; two micro-batches of different sizes in flight. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "support/expect.h"
#include "support/models.h"
#include "support/slopes.h"
#include "support/tiny.h"
#include "train/job.h"

enum { T = 10, MICROS = 2, EACH = 5, MAX_SLOPES = 512 };

typedef struct {
    Arena arena;
    Job job;
    Rank rank;
} Open;

static void open_job(Open *o, const ModelConfig *config, JobKind kind, int way)
{
    DO(arena_open(&o->arena, "job", ARENA_PLENTY));
    const JobSettings set = {.kind = kind,
                             .config = config,
                             .dtype = F64,
                             .micros = MICROS,
                             .batch = {1, T},
                             .schedule = way % 2 ? "1f1b" : "gpipe",
                             .split = way / 2 % 2,
                             .optim = {.block = 16},
                             .compile = {.recompute = (Recompute)(way % 3),
                                         .chunk_elements = way ? 3 * config->vocab : 0}};
    DO(model_config_check(config));
    DO(job_compile(&set, &o->arena, &o->job));
    DO(job_open_rank(&o->job, NULL, NULL, &o->rank));
    o->rank.settings.poison = true;
    rank_fill_weights(&o->rank, 5);
    for (int m = 0; m < MICROS; m++) {
        const TestBatch b = {.seed = (uint64_t)m + 1,
                             .rows = T - 3 * m,
                             .documents = 3 - m,
                             .window = config->window,
                             .ids = config->vocab,
                             .vocab = config->vocab,
                             .positions = config->max_positions};
        rank_fill_batch(&o->rank, m, &b);
    }
}

static void close_job(Open *o)
{
    rank_close(&o->rank);
    arena_close(&o->arena);
}

static void check_model(const ModelConfig *config)
{
    static Slope slope[MAX_SLOPES];
    static Open loss, grad;
    Err err;
    open_job(&loss, config, JOB_LOSS, 0);
    const int n = slopes_measure(&loss.rank, EACH, MAX_SLOPES, slope, &err);
    DO(err);
    assert_true(n == EACH * loss.job.model.n_params);
    close_job(&loss);
    for (int way = 0; way < 4; way++) {
        StepResult result;
        int worst = 0;
        open_job(&grad, config, JOB_GRADIENTS, way);
        DO(rank_step(&grad.rank, &(StepSettings){1, 0}, &result));
        const double off = slopes_compare(&grad.rank, slope, n, &worst);
        const Slope *at = &slope[worst];
        const Tensor dw = rank_param(&grad.rank, at->param, PART_GRAD);
        if (!(off < 1e-6))
            fail_msg("%s, way %d: d.%s[%lld] is %.15g, the slope %.15g: off by %g", config->name,
                     way, grad.job.model.param[at->param].name, (long long)at->at,
                     real_get(&dw, at->at), at->slope, off);
        close_job(&grad);
    }
}

static void gpt2(void **state)
{
    (void)state;
    check_model(test_model("gpt2"));
    check_model(test_model("gpt2-untied"));
}

static void llama(void **state)
{
    (void)state;
    check_model(test_model("llama"));
    check_model(test_model("llama-tied"));
}

static void relatives(void **state)
{
    (void)state;
    check_model(test_model("mistral"));
    check_model(test_model("qwen2"));
    check_model(test_model("qwen3"));
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
