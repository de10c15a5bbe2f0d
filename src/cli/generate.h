/* generate.h -- between generate.c, which prepares and concludes, and generate_rank.c, which is what
 * each rank does. */
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
    const TextStream *stream; /* of the first rank here, while its arena lives */
    GenerateResult result;
    _Atomic int64_t cache_bytes; /* of all ranks here */
} GenerateRequest;

/* Collective over all ranks: the body of a rank of the world. */
Err generate_rank(WorldRank *w, void *request);
/* Local. One object on standard output. */
Err generate_json(const GenerateRequest *g);

#endif
