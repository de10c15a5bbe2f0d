#define _DEFAULT_SOURCE
/* Losses and gradients that PyTorch computed in f64, reproduced through every stage on `ref`:
 * configuration, graph, passes, program, schedule, linked list, executor. Tolerances relative to
 * the tensor's largest entry: f64 1e-9, f32 1e-5. Variants: whole, in chunks of rows, recomputed,
 * with I and W apart, and in several micro-batches. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/golden.h"
#include "job/job.h"

#define DO(call)                                                                                   \
    do {                                                                                           \
        if ((call) != OK) fail_msg("%s", err_text());                                              \
    } while (0)

typedef struct {
    const char *name;
    DType dtype;
    double tolerance;
    Recompute recompute;
    const char *offload;
    int micros; /* sequences are distributed round-robin */
    const char *schedule;
    bool split;
    int64_t chunk;
} Case;

static void set_real(const Tensor *t, int64_t i, double x)
{
    if (t->dtype == F64)
        ((double *)t->data)[i] = x;
    else
        ((float *)t->data)[i] = (float)x;
}

static double get_real(const Tensor *t, int64_t i)
{
    return t->dtype == F64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

static const char *golden_name(const ModelConfig *c, const char *name)
{
    static char whole[256];
    snprintf(whole, sizeof whole, "%s%s", c->family == FAMILY_GPT2 ? "transformer." : "", name);
    return whole;
}

/* Index of element e of a tensor of parameter p in the file's tensor. */
static int64_t there(const HfPlace *at, const Param *p, int64_t e)
{
    const int64_t columns = p->info.ndim > 1 ? p->info.n[p->info.ndim - 1] : 1;
    return hf_index(at, p, e / columns, e % columns);
}

static void fill_weights(const Job *job, Rank *r)
{
    const ModelConfig *c = job->settings.config;
    for (int p = 0; p < job->model.n_params; p++) {
        const Param *q = &job->model.param[p];
        const Tensor w = rank_param(r, p, PART_WEIGHT), dw = rank_param(r, p, PART_GRAD);
        const int64_t each = q->count / hf_tensors(q);
        for (int64_t e = 0; e < q->count; e++) {
            const HfPlace at = hf_place(c, q, e / each);
            set_real(&w, e, golden_weight(golden_name(c, at.name), there(&at, q, e % each)));
            set_real(&dw, e, (double)NAN); /* NaN: sums must be initialized by the run */
        }
    }
}

/* Micro-batch m has the sequences m, m + micros, ...; missing ones are not live. */
static void fill_inputs(const Golden *g, Rank *r, int micros)
{
    int32_t *ranges = calloc((size_t)g->n_tokens, 4 * sizeof *ranges);
    golden_ranges(g, ranges);
    for (int m = 0; m < micros; m++) {
        Tensor in[N_INPUTS];
        int64_t row = 0;
        for (int i = 0; i < N_INPUTS; i++) in[i] = rank_input(r, m, (Input)i);
        for (int64_t s = m; s < g->batch; s += micros) {
            for (int64_t n = s * g->T; n < (s + 1) * g->T; n++, row++) {
                const int32_t shift = (int32_t)(row - n);
                ((int32_t *)in[INPUT_TOKENS].data)[row] = g->tokens[n];
                ((int32_t *)in[INPUT_TARGETS].data)[row] = g->targets[n];
                ((int32_t *)in[INPUT_POSITIONS].data)[row] = g->positions[n];
                set_real(&in[INPUT_WEIGHTS], row, g->weights[n]);
                for (int k = 0; k < 4; k++)
                    ((int32_t *)in[INPUT_RANGES].data)[4 * row + k] =
                        k < 2 ? ranges[4 * n + k] + shift : 0;
            }
        }
        rank_set_rows(r, m, row);
    }
    free(ranges);
}

/* Tensor i of parameter p. An expert without tokens has a gradient of exactly 0. */
static void compare_tensor(const Golden *g, const ModelConfig *c, const Param *q, const Tensor *dw,
                           int64_t i, double tolerance)
{
    const HfPlace at = hf_place(c, q, i);
    const GoldenParam *want = golden_param(g, golden_name(c, at.name));
    const int64_t each = q->count / hf_tensors(q);
    int64_t seen = 0;
    double squares = 0;
    assert_non_null(want);
    for (int64_t e = 0; e < each; e++) {
        const int64_t index = there(&at, q, e);
        const double got = get_real(dw, i * each + e);
        squares += got * got;
        for (int64_t k = 0; k < want->n_entries; k++) {
            if (want->index[k] != index) continue;
            const double off = fabs(got - want->value[k]);
            if (!(off <= tolerance * want->max))
                fail_msg("%s: d.%s[%lld] is %.17g, not %.17g: off by %g", g->name, at.name,
                         (long long)e, got, want->value[k], off / want->max);
            seen++;
        }
    }
    if (each == want->n_elements) {
        assert_int_equal(seen, want->n_entries);
        if (!(fabs(sqrt(squares) - want->norm) <= tolerance * want->norm))
            fail_msg("%s: norm of d.%s", g->name, at.name);
    } else {
        assert_true(seen > 0);
    }
}

static void compare(const Golden *g, const Job *job, const Rank *r, double tolerance)
{
    for (int p = 0; p < job->model.n_params; p++) {
        const Param *q = &job->model.param[p];
        const Tensor dw = rank_param(r, p, PART_GRAD);
        for (int64_t i = 0; i < hf_tensors(q); i++)
            compare_tensor(g, job->settings.config, q, &dw, i, tolerance);
    }
}

static void run_case(const Case *c)
{
    Arena arena;
    Golden g;
    ModelConfig config;
    Job job;
    Rank rank;
    StepResult result;
    char path[] = "/tmp/sheaf-golden-XXXXXX";
    DO(arena_open(&arena, "golden", ARENA_PLENTY));
    DO(golden_load(c->name, &arena, &g));
    close(mkstemp(path));
    DO(golden_write_config(&g, path));
    DO(model_config_load(path, NULL, 0, &arena, &config));
    unlink(path);
    const JobSettings set = {.kind = JOB_GRADIENTS,
                             .config = &config,
                             .dtype = c->dtype,
                             .micros = c->micros,
                             .batch = {(g.batch + c->micros - 1) / c->micros, g.T},
                             .schedule = c->schedule,
                             .split = c->split,
                             .optim = {.block = 16},
                             .compile = {.recompute = c->recompute,
                                         .offload_names = c->offload,
                                         .chunk_elements = c->chunk}};
    DO(job_compile(&set, &arena, &job));
    DO(job_open_rank(&job, NULL, NULL, &rank));
    rank.settings.poison = true;
    rank.settings.late = true;
    fill_weights(&job, &rank);
    fill_inputs(&g, &rank, c->micros);
    DO(rank_step(&rank, &(StepSettings){.step = 1, .lr = 0}, &result));
    if (!(fabs(result.loss_sum - g.loss) <= c->tolerance * fabs(g.loss)))
        fail_msg("%s: loss %.17g, not %.17g", g.name, result.loss_sum, g.loss);
    compare(&g, &job, &rank, c->tolerance);
    rank_close(&rank);
    arena_close(&arena);
}

static void all_models(Case c)
{
    for (int i = 0; golden_names[i]; i++) {
        c.name = golden_names[i];
        run_case(&c);
    }
}

static void f64_agrees(void **state)
{
    (void)state;
    all_models((Case){.dtype = F64, .tolerance = 1e-9, .micros = 1, .schedule = "1f1b"});
}

static void f32_agrees(void **state)
{
    (void)state;
    all_models((Case){.dtype = F32, .tolerance = 1e-5, .micros = 1, .schedule = "gpipe"});
}

static void recomputed_in_chunks(void **state)
{
    (void)state;
    for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++)
        all_models((Case){.dtype = F64,
                          .tolerance = 1e-9,
                          .recompute = (Recompute)r,
                          .micros = 2,
                          .schedule = "gpipe",
                          .split = r == RECOMPUTE_SELECTIVE,
                          .chunk = 400});
}

static void in_micro_batches(void **state)
{
    (void)state;
    for (int split = 0; split < 2; split++) {
        all_models((Case){
            .dtype = F64, .tolerance = 1e-9, .micros = 3, .schedule = "gpipe", .split = split});
        all_models((Case){.dtype = F64,
                          .tolerance = 1e-9,
                          .micros = 2,
                          .schedule = "1f1b",
                          .split = split,
                          .recompute = RECOMPUTE_FULL});
    }
}

static void offloaded(void **state)
{
    (void)state;
    all_models((Case){
        .dtype = F64, .tolerance = 1e-9, .micros = 2, .schedule = "gpipe", .offload = "mlp.*,mid"});
    all_models((Case){.dtype = F64,
                      .tolerance = 1e-9,
                      .micros = 2,
                      .schedule = "gpipe",
                      .split = true,
                      .offload = "attn.out,mid",
                      .recompute = RECOMPUTE_SELECTIVE});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f64_agrees),
        cmocka_unit_test(f32_agrees),
        cmocka_unit_test(recomputed_in_chunks),
        cmocka_unit_test(in_micro_batches),
        cmocka_unit_test(offloaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
