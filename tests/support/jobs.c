/* jobs.c -- jobs of small models. */
#include "support/jobs.h"

#include <float.h>
#include <math.h>
#include <string.h>

JobSettings test_job_settings(const char *model, JobKind kind)
{
    const ModelConfig *c = test_model(model);
    return (JobSettings){.kind = kind,
                         .config = c,
                         .dtype = F64,
                         .batch = {1, TEST_T},
                         .micros = 2,
                         .schedule = "1f1b",
                         .compile = {.chunk_elements = 3 * c->vocab},
                         .optim = {.kind = OPTIM_ADAMW,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .weight_decay = 0.1,
                                   .clip = 1.0,
                                   .block = 16}};
}

TestBatch test_job_batch(const JobSettings *set, int micro)
{
    const int64_t dead = set->config->frames ? 0 : micro % 3; /* clips are whole */
    return (TestBatch){.seed = (uint64_t)(1 + micro),
                       .rows = set->batch.sequences * set->batch.seq_len - dead,
                       .documents = 1 + micro % 2,
                       .window = set->config->window,
                       .ids = set->config->vocab,
                       .vocab = set->config->vocab,
                       .positions = set->config->max_positions};
}

Err test_job_open(TestJob *t, const JobSettings *set, int threads)
{
    *t = (TestJob){0};
    TRY(arena_open(&t->arena, "job", ARENA_PLENTY));
    TRY(model_config_check(set->config));
    TRY(job_compile(set, &t->arena, &t->job));
    if (threads > 1) TRY(team_open(&t->team, threads, NULL));
    TRY(job_open_rank(&t->job, NULL, t->team, &t->rank));
    for (int i = 0; i < N_ARENAS; i++) rank_poison(&t->rank, (ArenaId)i);
    rank_fill_weights(&t->rank, 5);
    for (int m = 0; m < set->micros; m++) {
        const TestBatch b = test_job_batch(set, m);
        rank_fill_batch(&t->rank, m, &b);
    }
    return OK;
}

void test_job_close(TestJob *t)
{
    rank_close(&t->rank);
    if (t->team) team_close(t->team);
    arena_close(&t->arena);
}

bool ranks_equal(const Rank *a, const Rank *b, ParamPart part, int *param)
{
    const Model *m = a->settings.program->model;
    for (*param = 0; *param < m->n_params; ++*param) {
        const Tensor x = rank_param(a, *param, part), y = rank_param(b, *param, part);
        const size_t bytes = (size_t)tensor_count(&x) * dtype_bytes(x.dtype);
        if (memcmp(x.data, y.data, bytes) != 0) return false;
    }
    return true;
}

static double largest(const Rank *r, int param, ParamPart part)
{
    const Tensor x = rank_param(r, param, part);
    double most = 0;
    for (int64_t i = 0; i < tensor_count(&x); i++) most = fmax(most, fabs(real_get(&x, i)));
    return most;
}

double ranks_differ(const Rank *a, const Rank *b, ParamPart part)
{
    const Model *m = a->settings.program->model;
    double worst = 0, of_all = 0;
    for (int p = 0; p < m->n_params; p++) of_all = fmax(of_all, largest(a, p, part));
    for (int p = 0; p < m->n_params; p++) {
        const Tensor x = rank_param(a, p, part), y = rank_param(b, p, part);
        const double scale = fmax(largest(a, p, part), 1e-4 * of_all);
        for (int64_t i = 0; i < tensor_count(&x); i++) {
            const double off = fabs(real_get(&x, i) - real_get(&y, i));
            if (!(off <= DBL_MAX)) return HUGE_VAL; /* NaN */
            if (off > 0) worst = fmax(worst, off / scale);
        }
    }
    return worst;
}
