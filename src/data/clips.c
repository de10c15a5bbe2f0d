/* clips.c -- writes the rows of a clip: its patches with noise, their velocity, places and text. */
#include "data/clips.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/philox.h"
#include "data/row_walk.h"

enum { PIECE = 256 }; /* elements noised at a time */

ClipRows clip_rows(Rank *r, int micro)
{
    const LinkedProgram *lp = r->settings.program;
    ClipRows in = {.wide = dtype_wide(lp->model->dtype), .held = lp->input_rows};
    for (int i = 0; i < N_INPUTS; i++)
        if (model_input(lp->model, (Input)i).rows > 0)
            in.at[i] = rank_input(r, micro, (Input)i).data;
    return in;
}

static RowWalk walk(const ClipRows *in, Input which, int64_t lo, int64_t hi)
{
    return in->at[which] ? row_walk(in->held ? &in->held[which] : NULL, lo, hi) : (RowWalk){0};
}

static void put_real(const ClipRows *in, Input which, int64_t at, double x)
{
    if (in->wide == F64)
        ((double *)in->at[which])[at] = x;
    else
        ((float *)in->at[which])[at] = (float)x;
}

/* Row (row - lo) / divisor % modulus of the clip's tokens, for each row of an input. */
static void put_places(const ClipRows *in, Input which, RowWalk w, int64_t lo, int64_t divisor,
                       int64_t modulus)
{
    int64_t at, row;
    while (next_row(&w, &at, &row))
        ((int32_t *)in->at[which])[at] = (int32_t)((row - lo) / divisor % modulus);
}

void clip_fill_places(const ModelConfig *c, const ClipRows *in, int64_t clip)
{
    const int64_t T = c->max_positions, lo = clip * T, hi = lo + T, L = c->clip.text_length;
    int64_t at, row;
    put_places(in, INPUT_CLIPS, walk(in, INPUT_CLIPS, lo, hi), 0, T, INT64_MAX);
    put_places(in, INPUT_FRAMES, walk(in, INPUT_FRAMES, lo, hi), lo, c->places, c->frames);
    put_places(in, INPUT_POSITIONS, walk(in, INPUT_POSITIONS, lo, hi), lo, 1, c->places);
    for (RowWalk w = walk(in, INPUT_TEXT_RANGES, lo, hi); next_row(&w, &at, &row);) {
        const int32_t range[4] = {(int32_t)(clip * L), (int32_t)((clip + 1) * L), 0, 0};
        memcpy((int32_t *)in->at[INPUT_TEXT_RANGES] + 4 * at, range, sizeof range);
    }
}

static void put_weights(const ModelConfig *c, const ClipRows *in, int64_t clip, double weight)
{
    const int64_t T = c->max_positions;
    int64_t at, row;
    for (RowWalk w = walk(in, INPUT_WEIGHTS, clip * T, (clip + 1) * T); next_row(&w, &at, &row);)
        put_real(in, INPUT_WEIGHTS, at, weight);
}

void clip_noise(uint64_t seed, int64_t number, int64_t from, int64_t n, double *out)
{
    char name[48];
    uint64_t index[PIECE];
    snprintf(name, sizeof name, "noise %lld", (long long)number);
    const Random random = random_named(seed, name);
    for (int64_t done = 0; done < n; done += PIECE) {
        const int64_t some = n - done < PIECE ? n - done : PIECE;
        for (int64_t i = 0; i < some; i++) index[i] = (uint64_t)(from + done + i);
        random_normals(&random, index, some, out + done);
    }
}

/* Elements of one patch. */
typedef struct {
    float x[MAX_PATCH];
    double noise[MAX_PATCH];
} PatchBuffer;

/* Writes a x0 + b noise to the rows of an input. */
static void put_patches(const ModelConfig *c, const ClipSource *from, const ClipRows *in,
                        int64_t clip, Input which, double a, double b)
{
    const int64_t T = c->max_positions, lo = clip * T, P = clip_patch_size(&c->clip);
    int64_t at, row;
    PatchBuffer p;
    for (RowWalk w = walk(in, which, lo, lo + T); next_row(&w, &at, &row);) {
        from->patch(from->context, row - lo, p.x);
        clip_noise(from->seed, from->number, (row - lo) * P, P, p.noise);
        for (int64_t i = 0; i < P; i++)
            put_real(in, which, at * P + i, a * (double)p.x[i] + b * p.noise[i]);
    }
}

static void put_text(const ModelConfig *c, const ClipSource *from, const ClipRows *in, int64_t clip)
{
    const int64_t L = c->clip.text_length, K = c->clip.text_width;
    int64_t at, row;
    float x[MAX_TEXT_WIDTH];
    for (RowWalk w = walk(in, INPUT_TEXT, clip * L, (clip + 1) * L); next_row(&w, &at, &row);) {
        memset(x, 0, (size_t)K * sizeof *x);
        if (from) from->text(from->context, row - clip * L, x);
        for (int64_t i = 0; i < K; i++) put_real(in, INPUT_TEXT, at * K + i, (double)x[i]);
    }
}

void clip_fill(const ModelConfig *c, const ClipSource *from, const ClipRows *in, int64_t clip)
{
    const Random times = random_named(from->seed, "times");
    const double t = random_uniform(&times, (uint64_t)from->number);
    clip_fill_places(c, in, clip);
    put_weights(c, in, clip, 1);
    if (in->at[INPUT_TIMES]) put_real(in, INPUT_TIMES, clip, t);
    put_patches(c, from, in, clip, INPUT_NOISED, 1 - t, t);
    put_patches(c, from, in, clip, INPUT_VELOCITY, -1, 1);
    put_text(c, from, in, clip);
}

static void zero_patch(const void *context, int64_t token, float *out)
{
    const ModelConfig *c = context;
    (void)token;
    memset(out, 0, (size_t)clip_patch_size(&c->clip) * sizeof *out);
}

void clip_fill_padding(const ModelConfig *c, const ClipRows *in, int64_t clip)
{
    const ClipSource zeros = {.patch = zero_patch, .context = c};
    clip_fill_places(c, in, clip);
    put_weights(c, in, clip, 0);
    if (in->at[INPUT_TIMES]) put_real(in, INPUT_TIMES, clip, 0);
    put_patches(c, &zeros, in, clip, INPUT_NOISED, 0, 0);
    put_patches(c, &zeros, in, clip, INPUT_VELOCITY, 0, 0);
    put_text(c, NULL, in, clip);
}

void clip_join(const ModelConfig *c, const double *patches, float *latents)
{
    const ClipConfig *x = &c->clip;
    const int64_t P = clip_patch_size(x), columns = x->width / x->patch;
    for (int64_t i = 0; i < c->max_positions * P; i++) {
        const int64_t frame = i / P / c->places, place = i / P % c->places, e = i % P;
        const int64_t row = place / columns * x->patch + e / (x->patch * x->channels);
        const int64_t column = place % columns * x->patch + e / x->channels % x->patch;
        const int64_t at = ((frame * x->height + row) * x->width + column) * x->channels;
        latents[at + e % x->channels] = (float)patches[i];
    }
}
