/* test_denoise.c -- sampling: a model whose velocity is known ends where the flow ends, for any
 * number of steps; a random model has the same samples for any number of clips at once, and on tp,
 * pp and cp. All memory but the weights is initially NaN. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/clips.h"
#include "infer/denoise.h"
#include "support/expect.h"
#include "support/tiny.h"

enum { CLIPS = 5, EACH = 3 * 4 * 4 * 2, TEXT = 5 * 7 };

typedef struct {
    ModelConfig config;
    MeshSizes mesh;
    int64_t at_once, steps;
    bool known; /* the velocity of element e of a patch is e / 8 - 1 */
    float latents[CLIPS * EACH];
    double last_time;
} Case;

/* The head's weights are 0, and its bias is the velocity. */
static void set_velocity(Rank *r)
{
    const Model *m = r->settings.program->model;
    const Tensor w = rank_param(r, model_find_param(m, "head.weight"), PART_WEIGHT);
    const Tensor b = rank_param(r, model_find_param(m, "head.bias"), PART_WEIGHT);
    for (int64_t i = 0; i < tensor_count(&w); i++) real_set(&w, i, 0);
    for (int64_t i = 0; i < tensor_count(&b); i++) real_set(&b, i, (double)i / 8 - 1);
}

static Err body(WorldRank *w, void *work)
{
    Case *c = work;
    JobSettings base = {.config = &c->config, .dtype = F64, .optim = {.block = 16}};
    SessionJobs *jobs;
    Session *s;
    float *latents, text[CLIPS * TEXT];
    DenoiseResult result;
    const int64_t rows = c->at_once * c->config.max_positions;
    const SessionShape shape = {rows, rows, c->at_once, c->config.max_positions, false};
    base.parallel.mesh = c->mesh;
    base.parallel.rank = w->rank;
    TRY(ARENA_NEW(w->arena, 1, &jobs));
    TRY(ARENA_NEW(w->arena, 1, &s));
    TRY(ARENA_NEW(w->arena, CLIPS * EACH, &latents));
    TRY(world_agree(w, session_compile(&base, &shape, w->arena, jobs)));
    const SessionSettings open = {jobs, &device_ref, w, NULL};
    TRY(world_agree(w, session_open(s, &open)));
    for (int a = 0; a < N_ARENAS; a++) rank_poison(&s->rank[0], (ArenaId)a);
    TRY(world_agree(w, rank_init_weights(&s->rank[0], 5)));
    if (c->known) set_velocity(&s->rank[0]);
    for (int i = 0; i < CLIPS * TEXT; i++) text[i] = (float)(i * 7 % 11) / 8;
    const DenoiseSettings set = {.session = s,
                                 .model = &c->config,
                                 .clips = CLIPS,
                                 .steps = c->steps,
                                 .seed = 3,
                                 .text = text,
                                 .arena = w->arena};
    const Err err = denoise_run(&set, latents, &result);
    if (err == OK && result.clips != CLIPS) fail_msg("%d clips", (int)result.clips);
    const Tensor times = rank_input(&s->rank[0], 0, INPUT_TIMES);
    if (w->rank == 0) c->last_time = real_get(&times, 0);
    if (w->rank == 0) memcpy(c->latents, latents, sizeof c->latents);
    world_leave(w, err);
    session_close(s);
    return err;
}

static void run(Case *c, int64_t at_once, int64_t steps, int tp, int pp, int cp)
{
    static const ModelField set[] = {
        {"num_frames", "3", "test", 1},         {"latent_height", "4", "test", 1},
        {"latent_width", "4", "test", 1},       {"latent_channels", "2", "test", 1},
        {"patch_size", "2", "test", 1},         {"hidden_size", "24", "test", 1},
        {"text_length", "5", "test", 1},        {"text_width", "7", "test", 1},
        {"initializer_range", "0.3", "test", 1}};
    Arena arena;
    const WorldSettings world = {.ranks = tp * pp * cp,
                                 .in_flight = 64,
                                 .records = 64,
                                 .timeout_s = 60,
                                 .body = body,
                                 .work = c};
    DO(arena_open(&arena, "denoise", ARENA_PLENTY));
    DO(model_config_load("stdit-tiny", set, sizeof set / sizeof *set, &arena, &c->config));
    c->mesh = (MeshSizes){.tp = tp, .pp = pp, .cp = cp};
    c->at_once = at_once;
    c->steps = steps;
    DO(world_run(&world));
    arena_close(&arena);
}

/* x(0) = noise - velocity, whatever the steps; the last one begins at t = 1 / steps. */
static void known_velocity(void **state)
{
    (void)state;
    static Case c;
    for (int64_t steps = 1; steps <= 7; steps += 3) {
        c = (Case){.known = true};
        run(&c, 2, steps, 1, 1, 1);
        assert_true(fabs(c.last_time - 1.0 / (double)steps) < 1e-15);
        for (int clip = 0; clip < CLIPS; clip++) {
            double x[EACH];
            float want[EACH];
            clip_noise(3, clip, 0, EACH, x);
            for (int i = 0; i < EACH; i++) x[i] -= (double)(i % 8) / 8 - 1;
            clip_join(&c.config, x, want);
            for (int i = 0; i < EACH; i++)
                assert_true(fabs((double)(c.latents[clip * EACH + i] - want[i])) < 1e-6);
        }
    }
}

/* Velocities are broadcast in f32. */
static void expect_near(const Case *a, const Case *b)
{
    for (int i = 0; i < CLIPS * EACH; i++)
        if (!(fabs((double)(a->latents[i] - b->latents[i])) < 1e-5))
            fail_msg("element %d: %g, not %g", i, (double)a->latents[i], (double)b->latents[i]);
}

static void other_calls_and_meshes(void **state)
{
    (void)state;
    static Case one, other;
    run(&one, 1, 3, 1, 1, 1);
    run(&other, 3, 3, 1, 1, 1); /* the second call lacks a clip */
    expect_near(&other, &one);
    run(&other, 5, 3, 2, 1, 1);
    expect_near(&other, &one);
    run(&other, 2, 3, 2, 3, 1);
    expect_near(&other, &one);
    for (int cp = 2; cp <= 4; cp++) { /* three frames: shares of 2 and 1; a rank without one */
        run(&other, cp, 3, cp == 2 ? 2 : 1, cp == 3 ? 2 : 1, cp);
        expect_near(&other, &one);
    }
    run(&other, 1, 4, 1, 1, 1);
    double most = 0;
    for (int i = 0; i < CLIPS * EACH; i++)
        most = fmax(most, fabs((double)(one.latents[i] - other.latents[i])));
    assert_true(most > 1e-3); /* the velocity does depend on the steps */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_velocity),
                                       cmocka_unit_test(other_calls_and_meshes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
