/* denoise.c -- Euler steps: every rank has x; the last stage broadcasts the velocity, each of its
 * ranks along cp that of its frames. */
#include "infer/denoise.h"

#include <string.h>
#include "base/clock.h"
#include "data/clips.h"
#include "data/row_walk.h"
#include "world/scalars.h"

typedef struct {
    const DenoiseSettings *s;
    Rank *rank;
    WorldRank *world;
    const Job *job;
    int64_t room, each, patch; /* clips of a call; elements of a clip, of a token */
    double *x;                 /* [room, each], in the order of tokens */
    float *velocity; /* [1 + room * each]: registered as ARENA_CHOICE; the first: 1 to stop */
} Denoiser;

static Err open_denoiser(const DenoiseSettings *s, Denoiser *d)
{
    const ModelConfig *c = s->model;
    *d = (Denoiser){.s = s,
                    .rank = &s->session->rank[0],
                    .world = s->session->settings.world,
                    .job = &s->session->settings.jobs->call[0],
                    .room = s->session->settings.jobs->shape.sequences,
                    .each = c->max_positions * clip_patch_size(&c->clip),
                    .patch = clip_patch_size(&c->clip)};
    const int64_t n = d->room * d->each;
    TRY(ARENA_NEW(s->arena, n, &d->x));
    TRY(ARENA_NEW(s->arena, n + 1, &d->velocity));
    return comm_register(d->world->comm, ARENA_CHOICE, d->velocity,
                         (size_t)(n + 1) * sizeof *d->velocity);
}

static void put_reals(const Tensor *t, int64_t at, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (t->dtype == F64)
            ((double *)t->data)[at + i] = x[i];
        else
            ((float *)t->data)[at + i] = (float)x[i];
}

/* Ranks along cp have some frames of every clip; all else is on all ranks. */
static unsigned frames_axes(const Denoiser *d)
{
    return mesh_axes(&d->job->mesh, VIEW_DENSE, "cp");
}

static int frames_parts(const Denoiser *d)
{
    return mesh_parts(&d->job->mesh, VIEW_DENSE, frames_axes(d));
}

/* Rows of a call whose velocity a part of the ranks computes. */
static HeldSpans rows_of(const Denoiser *d, int part)
{
    const SpanMap *map = d->job->strategy.tokens;
    return map ? held_map(map, part) : held_all(d->room * d->s->model->max_positions);
}

static void fill(Denoiser *d, double t)
{
    const int64_t rows = d->room * d->s->model->max_positions;
    const ClipRows in = clip_rows(d->rank, 0);
    const Tensor noised = rank_input(d->rank, 0, INPUT_NOISED);
    const Tensor times = rank_input(d->rank, 0, INPUT_TIMES);
    RowWalk w = row_walk(in.held ? &in.held[INPUT_NOISED] : NULL, 0, rows);
    int64_t at, row;
    for (int64_t b = 0; b < d->room; b++) {
        clip_fill_places(d->s->model, &in, b);
        put_reals(&times, b, &t, 1);
    }
    while (noised.data && next_row(&w, &at, &row))
        put_reals(&noised, at * d->patch, d->x + row * d->patch, d->patch);
}

/* The texts of clips `first` and following; clips without one have zeros. */
static void fill_text(Denoiser *d, int64_t first, int64_t n)
{
    const int64_t text = d->s->model->clip.text_length * d->s->model->clip.text_width;
    const Tensor in = rank_input(d->rank, 0, INPUT_TEXT);
    for (int64_t i = 0; i < d->room * text; i++) {
        const bool there = d->s->text && i < n * text;
        const double x = there ? (double)d->s->text[first * text + i] : 0;
        put_reals(&in, i, &x, 1);
    }
}

static float get_real(const Tensor *t, int64_t row, int64_t column)
{
    const int64_t at = row * t->stride[0] + column * t->stride[1];
    float x;
    if (t->dtype == F64) return (float)((const double *)t->data)[at];
    if (t->dtype == F32) return ((const float *)t->data)[at];
    const uint32_t bits = (uint32_t)((const uint16_t *)t->data)[at] << 16; /* bf16 */
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Subtracts `length` times the velocity `v` of one part of the ranks, from the rank that has it. */
static Err take_part(Denoiser *d, int part, const Tensor *v, double length)
{
    const int owner =
        mesh_move(&d->job->mesh, VIEW_DENSE, frames_axes(d), part, d->s->session->sampling_rank);
    const HeldSpans rows = rows_of(d, part);
    RowWalk w = row_walk(&rows, 0, d->room * d->s->model->max_positions);
    int64_t at, row;
    if (d->world->rank == owner) {
        d->velocity[0] = d->s->stop && *d->s->stop ? 1 : 0;
        for (int64_t i = 0; i < rows.count * d->patch; i++)
            d->velocity[1 + i] = get_real(v, i / d->patch, i % d->patch);
    }
    TRY(world_broadcast(d->world, owner, ARENA_CHOICE, 1 + rows.count * d->patch, F32));
    while (next_row(&w, &at, &row))
        for (int64_t i = 0; i < d->patch; i++)
            d->x[row * d->patch + i] -= length * (double)d->velocity[1 + at * d->patch + i];
    return OK;
}

/* One Euler step from time t on. */
static Err step(Denoiser *d, double t, double length)
{
    const int mine = mesh_part(&d->job->mesh, VIEW_DENSE, frames_axes(d), d->world->rank);
    StepResult result;
    Tensor v;
    fill(d, t);
    rank_set_logit_rows(d->rank, rows_of(d, mine).count);
    rank_set_rows(d->rank, 0, d->room * d->s->model->max_positions);
    TRY(rank_step(d->rank, &(StepSettings){.step = 1}, &result));
    TRY(rank_logits(d->rank, &v));
    for (int part = 0; part < frames_parts(d); part++) TRY(take_part(d, part, &v, length));
    return OK;
}

/* Clips first .. first + n. */
static Err denoise(Denoiser *d, int64_t first, int64_t n, float *latents, bool *stopped)
{
    const DenoiseSettings *s = d->s;
    memset(d->x, 0, (size_t)(d->room * d->each) * sizeof *d->x);
    for (int64_t b = 0; b < n; b++) clip_noise(s->seed, first + b, 0, d->each, d->x + b * d->each);
    fill_text(d, first, n);
    for (int64_t k = 0; k < s->steps && !*stopped; k++) {
        TRY(step(d, 1 - (double)k / (double)s->steps, 1 / (double)s->steps));
        *stopped = d->velocity[0] > 0;
    }
    for (int64_t b = 0; b < n && !*stopped; b++)
        clip_join(s->model, d->x + b * d->each, latents + (first + b) * d->each);
    return OK;
}

Err denoise_run(const DenoiseSettings *s, float *latents, DenoiseResult *out)
{
    Denoiser d;
    const double begin_s = now_s();
    *out = (DenoiseResult){.clips = 0};
    TRY(world_agree(s->session->settings.world, open_denoiser(s, &d)));
    for (int64_t first = 0; first < s->clips && !out->stopped; first += d.room) {
        const int64_t n = s->clips - first < d.room ? s->clips - first : d.room;
        TRY(denoise(&d, first, n, latents, &out->stopped));
        if (!out->stopped) out->clips += n;
    }
    out->seconds = now_s() - begin_s;
    return OK;
}
