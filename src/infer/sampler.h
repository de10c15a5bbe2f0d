/* sampler.h -- samples a token from logits.
 *
 *     logits   of one row
 *       |      repetition penalty r: logits of earlier tokens are divided by r if positive, else
 *       |      multiplied by r
 *       |      temperature t: logits are divided by t; t = 0 takes the largest logit (the lowest
 *       |      token of equal ones) and ignores the rest
 *       |      top-k: removes logits below the k-th largest
 *       |      top-p: keeps the most likely tokens until their probabilities sum to p
 *       v
 *     token    drawn from the remaining probabilities by one random number
 *
 * The definitions and their order are those of the transformers library. The random number is
 * Philox of (seed, request, position) only: a request gets the same tokens alone or in a batch, on
 * any mesh, as long as its logits are the same. */
#ifndef INFER_SAMPLER_H
#define INFER_SAMPLER_H

#include <stdint.h>
#include "base/arena.h"
#include "device/device.h"

typedef struct {
    double temperature; /* at least 0 */
    int64_t top_k;      /* 0: all */
    double top_p;       /* above 0; 1: all */
    double repetition;  /* above 0; 1: no penalty */
    uint64_t seed;
} SamplerSettings;

typedef struct {
    int32_t token;
    double logit;
} Candidate;

typedef struct {
    SamplerSettings settings;
    int64_t vocab;
    Candidate *at;  /* [vocab] */
    int64_t n;      /* candidates that are left */
    bool reordered; /* not in the order of tokens */
    bool *seen;     /* [vocab]: scratch of the repetition penalty */
} Sampler;

/* The position that a token is drawn for. */
typedef struct {
    const int32_t *before; /* [n]: tokens of the sequence so far, with the prompt */
    int64_t n;             /* also the position */
    int64_t request;
} RandomDraw;

/* Local. ERR_CONFIG names a setting that is out of range. */
Err sampler_open(Sampler *s, const SamplerSettings *settings, int64_t vocab, Arena *a);
/* Local. Draws a token for a row of logits (f64, f32 or bf16). ERR_CHECK if a logit is NaN. */
Err sampler_draw(Sampler *s, const Tensor *row, const RandomDraw *draw, int32_t *token);

#endif
