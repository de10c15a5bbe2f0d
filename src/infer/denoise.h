/* denoise.h -- samples of a diffusion model: clips of noise that follow the predicted velocity.
 *
 *     x(1) = noise        x(t - 1/N) = x(t) - velocity(x(t), t) / N        x(0): the sample
 *
 * These are N Euler steps of the flow from noise to data (model/stdit.c). The noise of a clip
 * depends on the seed and the clip's number alone, so samples depend neither on the mesh nor on how
 * many run together. */
#ifndef INFER_DENOISE_H
#define INFER_DENOISE_H

#include <signal.h>
#include "infer/session.h"

typedef struct {
    Session *session; /* of a model of clips: runs shape.sequences clips at a time */
    const ModelConfig *model;
    int64_t clips;
    int64_t steps; /* N */
    uint64_t seed;
    const float *text;                 /* [clips, text_length, text_width]; NULL: zeros */
    const volatile sig_atomic_t *stop; /* not 0: end now; NULL: never */
    Arena *arena;
} DenoiseSettings;

typedef struct {
    int64_t clips; /* that are complete */
    double seconds;
    bool stopped;
} DenoiseResult;

/* Collective over all ranks. Writes the clips, [clips, frames, height, width, channels], on every
 * rank. */
Err denoise_run(const DenoiseSettings *s, float *latents, DenoiseResult *out);

#endif
