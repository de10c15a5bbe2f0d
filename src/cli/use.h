/* use.h -- what verbs share that use a model and do not train it: generate, eval.
 *
 *     process   arguments, source, device, tokenizer     use_open
 *     ranks     the verb's body on each                  use_run
 *               team, the model's weights                use_team, use_load
 *
 * Of the keys of a run they read those of where and how: mesh, run, precision.compute. Others are
 * refused, since they would change nothing. */
#ifndef CLI_USE_H
#define CLI_USE_H

#include <signal.h>
#include <stdatomic.h>
#include "cli/args.h"
#include "cli/config/job.h"
#include "cli/launch.h"
#include "data/encode.h"
#include "state/source.h"
#include "world/world.h"

enum { MAX_END_TOKENS = 16 };

typedef struct {
    const char *verb;
    Arena arena;
    Launch launch;
    Config config;
    Source source;
    int32_t end[MAX_END_TOKENS]; /* tokens that end a text */
    int n_end;
    const Device *device;
    Tokenizer *tokenizer; /* NULL: bytes */
    bool no_text;         /* the source has no tokenizer, and its tokens are not bytes */
    FlightRecorder *board;
    const volatile sig_atomic_t *stop;
    Err prepared;          /* what opening came to */
    _Atomic int64_t bytes; /* of all ranks here */
    bool agreed;           /* the error is one that rank 0 tells */
} ModelUse;

/* Local. Arena and launcher, before any thread. */
Err use_begin(ModelUse *u, const char *verb, FlightRecorder *board);
/* Local. The ids of a text, by the model's tokenizer. What is not UTF-8 is said, of `what`, once. */
Err use_spell(const ModelUse *u, const char *what, Bytes text, Arena *a, EncodedText *out);
/* Local. `args.file` is the source; `tokenizer` what --tokenizer said, or NULL. */
Err use_open(ModelUse *u, const Args *args, const char *tokenizer);
/* Collective over all processes. */
Err use_run(ModelUse *u, Err (*body)(WorldRank *w, void *work), void *work);
/* Local. The exit status of an error, which is said once. */
int use_fail(const ModelUse *u, Err err);
void use_end(ModelUse *u);

/* ---- on each rank ---- */

/* Local. Model, type and mesh of this rank: the base of its jobs. */
Err use_job(ModelUse *u, const WorldRank *w, JobSettings *out);
Err use_team(ModelUse *u, const WorldRank *w, Team **out);
/* Collective over all ranks. What they take, added up before, is there; ERR_CONFIG names it. Then by
 * what memory of devices goes between them, which is said. */
Err use_memory(ModelUse *u, WorldRank *w, const char *way_out);
/* Collective over all ranks. The weights, as they lie on this one. */
Err use_load(ModelUse *u, WorldRank *w, Rank *rank);

#endif
