/* generate.h -- text generation: prompts in, tokens out, by calls of a session.
 *
 *     sequences  0: prompt 0   1: prompt 1   2: prompt 2     a finished one is replaced by the next
 *     prefill    rows of prompts that are not in the KV cache yet, as many as a call has
 *     decode     the last token of every sequence
 *     sample     on the rank that has the logits (sampler.h); the tokens are broadcast
 *
 * Every rank runs the loop and has all tokens, so all ranks end a prompt at the same token. */
#ifndef INFER_GENERATE_H
#define INFER_GENERATE_H

#include <signal.h>
#include "infer/sampler.h"
#include "infer/session.h"

typedef struct {
    const int32_t *token;
    int64_t n; /* 1 to the session's context */
} Prompt;

/* The reason why a prompt got no more tokens. */
typedef enum { END_STOP, END_TOKEN, END_LENGTH, END_CONTEXT, END_INTERRUPT, N_ENDS } GenerateEnd;

/* Callbacks, called on every rank in the same order. `token` returns true to end the prompt; its
 * result may depend on nothing but the tokens. */
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
    int64_t max_tokens;        /* per prompt */
    const int32_t *stop_token; /* tokens that end a sequence; not passed to the listener */
    int n_stop_tokens;
    GenerateListener listener;
    const volatile sig_atomic_t *stop; /* not 0: end now; NULL: never */
    Arena *arena;
} GenerateSettings;

typedef struct {
    int64_t prefill_tokens, decode_tokens;
    double prefill_s, decode_s; /* of the calls, sampling included */
    bool stopped;
} GenerateResult;

/* Collective over all ranks. */
Err generate_run(const GenerateSettings *s, GenerateResult *out);
/* Local. "stop", "eos", "length", "context", "interrupt". */
const char *generate_end_name(GenerateEnd why);

#endif
