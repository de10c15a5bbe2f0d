/* generate.h -- a request of `sheaf generate`: filled and reported by generate.c, executed on each
 * rank by generate_rank.c. */
#ifndef CLI_GENERATE_H
#define CLI_GENERATE_H

#include "cli/text_stream.h"

typedef struct {
    InferContext infer;
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
/* Local. Prints the result as one JSON object. */
Err generate_json(const GenerateRequest *g);

#endif
