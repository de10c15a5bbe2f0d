/* trial_clips.c -- the data of a trial of a model of clips: latents and texts are random numbers of
 * (seed, clip, element), so every layout reads the same clips. */
#include <stdio.h>

#include "base/philox.h"
#include "data/clips.h"
#include "job/batch.h"
#include "verify/trial_parts.h"

typedef struct {
    const ModelConfig *model;
    Random latents, text;
} RandomClip;

static void put_normals(const Random *random, int64_t from, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++) out[i] = (float)random_normal(random, (uint64_t)(from + i));
}

static void random_patch(const void *context, int64_t token, float *out)
{
    const RandomClip *c = context;
    const int64_t P = clip_patch_size(&c->model->clip);
    put_normals(&c->latents, token * P, P, out);
}

static void random_text(const void *context, int64_t state, float *out)
{
    const RandomClip *c = context;
    const int64_t K = c->model->clip.text_width;
    put_normals(&c->text, state * K, K, out);
}

static void fill_clip(const TrialSettings *s, const ClipRows *in, int64_t clip, int64_t number)
{
    char name[48];
    RandomClip c = {.model = s->job.config};
    snprintf(name, sizeof name, "latents %lld", (long long)number);
    c.latents = random_named(s->seed, name);
    snprintf(name, sizeof name, "text %lld", (long long)number);
    c.text = random_named(s->seed, name);
    clip_fill(c.model,
              &(ClipSource){.patch = random_patch,
                            .text = random_text,
                            .context = &c,
                            .seed = s->seed,
                            .number = number},
              in, clip);
}

void trial_fill_clips(Rank *r, const Job *job, const TrialSettings *s, int64_t step)
{
    const BatchSplit split = batch_split(job);
    const ModelConfig *c = s->job.config;
    for (int m = 0; m < job->settings.micros; m++) {
        const BatchPart part = batch_part(&split, s->global, m);
        const ClipRows in = clip_rows(r, m);
        for (int64_t i = 0; i < split.each; i++) {
            const int64_t clip = part.first + i; /* of the step */
            const bool blank = s->blank && clip >= (s->global + 1) / 2;
            if (i < part.n && !blank)
                fill_clip(s, &in, i, (step - 1) * s->global + clip);
            else
                clip_fill_padding(c, &in, i);
        }
        rank_set_rows(r, m, split.each * c->max_positions);
    }
}
