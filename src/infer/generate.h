/* generate.h -- prompts in, tokens out: the loop over the calls of a session.
 *
 *     seats      0: prompt 0   1: prompt 1   2: prompt 2     one that ends gives its seat to the next
 *     prefill    rows of prompts that are not yet in the cache, as many as a call has
 *     decode     the last token of every seat
 *     choose     on the rank that has the logits (sampler.h); told to all
 *
 * Every rank runs the loop, and all know all tokens, so all come to the same end of each prompt. */
#ifndef INFER_GENERATE_H
#define INFER_GENERATE_H

#include <signal.h>
#include "infer/sampler.h"
#include "infer/session.h"

typedef struct {
    const int32_t *token;
    int64_t n; /* at least 1, at most the session's context */
} Prompt;

/* Why a prompt got no more tokens. */
typedef enum { END_STOP, END_TOKEN, END_LENGTH, END_CONTEXT, END_INTERRUPT, N_ENDS } GenerateEnd;

/* Called on every rank, in the same order. `token` answers whether this was enough; it must depend
 * on the tokens alone. */
typedef struct {
    bool (*token)(void *context, int64_t prompt, int32_t token);
    void (*end)(void *context, int64_t prompt, GenerateEnd why);
    void *context;
} GenerateListener;

typedef struct {
    Session *session;
    const Prompt *prompt;
    int64_t n_prompts;
    SamplerSettings sample;
    int64_t max_tokens;        /* of each prompt */
    const int32_t *stop_token; /* that end a sequence, and are not told */
    int n_stop_tokens;
    GenerateListener listener;
    const volatile sig_atomic_t *stop; /* not 0: end now; NULL: nobody asks */
    Arena *arena;
} GenerateSettings;

typedef struct {
    int64_t prefill_tokens, decode_tokens;
    double prefill_s, decode_s; /* of the calls, with the choice of tokens */
    bool stopped;
} GenerateResult;

/* Collective over all ranks. */
Err generate_run(const GenerateSettings *s, GenerateResult *out);
/* "stop", "eos", "length", "context", "interrupt" */
const char *generate_end_name(GenerateEnd why);

#endif
