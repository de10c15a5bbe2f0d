/* sampler.h -- from logits to a token.
 *
 *     logits   of one row
 *       |      repetition penalty r: of tokens seen before, a logit above 0 is divided by r, one below
 *       |      is multiplied
 *       |      temperature t: divided by t; t = 0: the largest is taken, the first of equals, and the
 *       |      rest does not matter
 *       |      top-k: those below the k-th largest are out
 *       |      top-p: from the most likely on, those are in before which less than p is summed up
 *       v
 *     token    the one in whose share of the remaining probability a random number falls
 *
 * The definitions and their order are those of the transformers library. The number is Philox of
 * (seed, request, position) and nothing else: a request gets the same tokens alone or among others,
 * on any mesh, as far as its logits are the same. */
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
    int64_t n;      /* that are left */
    bool reordered; /* they are not in the order of tokens */
    bool *seen;     /* [vocab] */
} Sampler;

/* What a token is drawn for. */
typedef struct {
    const int32_t *before; /* tokens of the sequence so far, the prompt's too */
    int64_t n;             /* of these: the position */
    int64_t request;
} Draw;

/* Local. ERR_CONFIG names the setting that is out of its range. */
Err sampler_open(Sampler *s, const SamplerSettings *settings, int64_t vocab, Arena *a);
/* Local. The token for a row of logits, of f64, f32 or bf16. ERR_CHECK when one of them is NaN. */
Err sampler_draw(Sampler *s, const Tensor *row, const Draw *draw, int32_t *token);
/* Local. Element i of a row of floats. */
double logit_at(const Tensor *row, int64_t i);

#endif
