/* generate.h -- a request of `sheaf generate`: filled and reported by generate.c, executed on each
 * rank by rank.c. */
#ifndef CLI_GENERATE_GENERATE_H
#define CLI_GENERATE_GENERATE_H

#include "cli/text_stream.h"
#include "infer/denoise.h"

/* The part of a request for a model of clips. */
typedef struct {
    int64_t n, steps; /* clips; Euler steps. n is 0 for a model of text */
    uint64_t seed;
    const char *out;
    float *text, *latents; /* text: [n, text_length, text_width], or NULL; latents: of rank 0 */
    DenoiseResult result;
} ClipRequest;

/* Values of the flags for clips, or NULL. */
typedef struct {
    const char *out, *clips, *steps, *texts;
} ClipFlags;

typedef struct {
    InferContext infer;
    ClipRequest clip;
    Prompts prompts;
    SamplerSettings sample;
    SessionShape shape;
    int64_t max_tokens;
    const char *stop[MAX_STOPS];
    int n_stops;
    bool ids, json;
    const TextStream *stream; /* of the first rank of this process; valid while its arena is open */
    GenerateResult result;
    _Atomic int64_t cache_bytes;      /* KV caches of all ranks of this process */
    _Atomic int64_t rank_cache_bytes; /* the largest of them */
} GenerateRequest;

/* Collective over all ranks: the body of a rank; `request` is a GenerateRequest. */
Err generate_rank(WorldRank *w, void *request);
/* ---- clips.c ---- */

/* Local. Fills the request for a model of clips; `batch` and `seed`: values of flags, or NULL. */
Err generate_clips_prepare(GenerateRequest *g, const ClipFlags *f, const char *batch,
                           const char *seed);
/* Collective over all ranks: samples; rank 0 writes the file. */
Err generate_clips(GenerateRequest *g, Session *session, WorldRank *w);
/* Local. A line about the samples. */
void generate_clips_summary(const GenerateRequest *g);

/* Local. Prints the result as one JSON object. */
Err generate_json(const GenerateRequest *g);

#endif
