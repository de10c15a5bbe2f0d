#define _DEFAULT_SOURCE
/* Losses and gradients of diffusion transformers that PyTorch computed in f64, reproduced on `ref`
 * (tests/golden/make_stdit.py): with and without text, along two and three dims. Tolerances
 * relative to the tensor's largest entry: f64 1e-9, f32 1e-5. Variants: recomputed, with I and W
 * apart, in micro-batches of which the last lacks a clip. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/clips.h"
#include "job/job.h"
#include "support/expect.h"
#include "support/golden.h"
#include "support/tiny.h"

static const char *const names[] = {"stdit", "stdit_text", "stdit_3d"};

typedef struct {
    DType dtype;
    double tolerance;
    Recompute recompute;
    int micros;
    const char *schedule;
    bool split;
} Way;

static void read_config(const json_t *root, Arena *arena, ModelConfig *out)
{
    char path[] = "/tmp/sheaf-stdit-XXXXXX";
    close(mkstemp(path));
    assert_int_equal(json_dump_file(json_object_get(root, "config"), path, 0), 0);
    DO(model_config_load(path, NULL, 0, arena, out));
    unlink(path);
}

static void fill_weights(const Model *m, Rank *r)
{
    for (int p = 0; p < m->n_params; p++) {
        const Tensor w = rank_param(r, p, PART_WEIGHT), dw = rank_param(r, p, PART_GRAD);
        for (int64_t e = 0; e < m->param[p].count; e++) {
            real_set(&w, e, golden_weight(m->param[p].name, e));
            real_set(&dw, e, (double)NAN);
        }
    }
}

/* Clip `clip` of the file to clip `to` of the micro-batch. */
static void fill_clip(const ModelConfig *c, Rank *r, int micro, int64_t clip, int64_t to)
{
    const int64_t T = c->max_positions, P = clip_patch_size(&c->clip);
    const int64_t L = c->clip.text_length * c->clip.text_width;
    const Tensor noised = rank_input(r, micro, INPUT_NOISED),
                 velocity = rank_input(r, micro, INPUT_VELOCITY),
                 times = rank_input(r, micro, INPUT_TIMES),
                 weights = rank_input(r, micro, INPUT_WEIGHTS),
                 text = rank_input(r, micro, INPUT_TEXT);
    const double t = 0.5 + golden_weight("data.times", clip);
    real_set(&times, to, t);
    for (int64_t i = 0; i < T * P; i++) {
        const int64_t at = clip * T * P + i;
        const double x = golden_weight("data.latents", at), n = 8 * golden_weight("data.noise", at);
        real_set(&noised, to * T * P + i, (1 - t) * x + t * n);
        real_set(&velocity, to * T * P + i, n - x);
    }
    for (int64_t i = 0; i < T; i++) {
        const int64_t n = clip * T + i;
        real_set(&weights, to * T + i, n % 5 == 3 ? 0 : 1 + golden_weight("data.weights", n));
    }
    for (int64_t i = 0; i < L; i++)
        real_set(&text, to * L + i, golden_weight("data.text", clip * L + i));
}

static void fill_inputs(const ModelConfig *c, Rank *r, int64_t batch, int micros)
{
    const int64_t each = (batch + micros - 1) / micros;
    for (int m = 0; m < micros; m++) {
        const ClipRows rows = clip_rows(r, m);
        for (int64_t i = 0; i < each; i++) {
            const int64_t clip = m + i * micros;
            clip_fill_padding(c, &rows, i);
            if (clip < batch) fill_clip(c, r, m, clip, i);
        }
        rank_set_rows(r, m, each * c->max_positions);
    }
}

/* `floor`: the scale of tensors whose gradient is 0 but for rounding: biases of keys. */
static void compare(const char *name, json_t *want, const Model *m, const Rank *r, double tolerance,
                    double floor)
{
    const char *param;
    double norm, max, squares = 0;
    json_t *entries, *one;
    size_t i;
    assert_int_equal(json_unpack(want, "{s:s, s:F, s:F, s:o}", "name", &param, "norm", &norm, "max",
                                 &max, "entries", &entries),
                     0);
    const double scale = fmax(max, floor);
    const int p = model_find_param(m, param);
    if (p < 0) fail_msg("%s: no parameter %s", name, param);
    const Tensor dw = rank_param(r, p, PART_GRAD);
    for (int64_t e = 0; e < m->param[p].count; e++) squares += real_get(&dw, e) * real_get(&dw, e);
    json_array_foreach(entries, i, one)
    {
        const json_int_t at = json_integer_value(json_array_get(one, 0));
        const double x = json_number_value(json_array_get(one, 1)), got = real_get(&dw, at);
        if (!(fabs(got - x) <= tolerance * scale))
            fail_msg("%s: d.%s[%lld] is %.17g, not %.17g", name, param, (long long)at, got, x);
    }
    if (!(fabs(sqrt(squares) - norm) <= tolerance * fmax(norm, floor)))
        fail_msg("%s: norm of d.%s", name, param);
}

static void run_case(const char *name, const Way *w)
{
    Arena arena;
    ModelConfig config;
    Job job;
    Rank rank;
    StepResult result;
    char path[1024];
    snprintf(path, sizeof path, "%s/stdit/%s.json", GOLDEN_DIR, name);
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, NULL), *one;
    size_t i;
    assert_non_null(root);
    DO(arena_open(&arena, "stdit", ARENA_PLENTY));
    read_config(root, &arena, &config);
    const int64_t batch = json_integer_value(json_object_get(root, "batch"));
    const double loss = json_number_value(json_object_get(root, "loss"));
    json_t *params = json_object_get(root, "params");
    const JobSettings set = {.kind = JOB_GRADIENTS,
                             .config = &config,
                             .dtype = w->dtype,
                             .micros = w->micros,
                             .batch = {(batch + w->micros - 1) / w->micros, config.max_positions},
                             .schedule = w->schedule,
                             .split = w->split,
                             .optim = {.block = 16},
                             .compile = {.recompute = w->recompute}};
    DO(job_compile(&set, &arena, &job));
    DO(job_open_rank(&job, NULL, NULL, &rank));
    rank.settings.poison = true;
    rank.settings.late = true;
    fill_weights(&job.model, &rank);
    fill_inputs(&config, &rank, batch, w->micros);
    DO(rank_step(&rank, &(StepSettings){.step = 1, .lr = 0}, &result));
    if (!(fabs(result.loss_sum - loss) <= w->tolerance * fabs(loss)))
        fail_msg("%s: loss %.17g, not %.17g", name, result.loss_sum, loss);
    assert_int_equal(json_array_size(params), job.model.n_params);
    double largest = 0;
    json_array_foreach(params, i, one) largest =
        fmax(largest, json_number_value(json_object_get(one, "max")));
    json_array_foreach(params, i, one)
        compare(name, one, &job.model, &rank, w->tolerance, 1e-3 * largest);
    rank_close(&rank);
    json_decref(root);
    arena_close(&arena);
}

static void all_cases(Way w)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) run_case(names[i], &w);
}

static void f64_agrees(void **state)
{
    (void)state;
    all_cases((Way){.dtype = F64, .tolerance = 1e-9, .micros = 1, .schedule = "1f1b"});
}

static void f32_agrees(void **state)
{
    (void)state;
    all_cases((Way){.dtype = F32, .tolerance = 1e-5, .micros = 1, .schedule = "gpipe"});
}

static void in_micro_batches(void **state)
{
    (void)state;
    for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++)
        all_cases((Way){.dtype = F64,
                        .tolerance = 1e-9,
                        .recompute = (Recompute)r,
                        .micros = 2,
                        .schedule = "gpipe",
                        .split = r == RECOMPUTE_SELECTIVE});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f64_agrees),
        cmocka_unit_test(f32_agrees),
        cmocka_unit_test(in_micro_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
