/* infer.h -- the inference context: common setup of the verbs that run a model without training it,
 * generate and eval.
 *
 *     process   arguments, model, device, tokenizer      infer_begin, infer_open
 *     ranks     the body of the verb                     infer_run
 *       each    settings, threads                        infer_job, infer_team
 *               memory check, transport, weights         infer_start, infer_load
 *
 * These verbs read the keys that place the work: mesh.*, parallel.split, precision.compute,
 * model.ignore and some of run.*. Any other key is refused, because it would have no effect. */
#ifndef CLI_INFER_H
#define CLI_INFER_H

#include <signal.h>
#include <stdatomic.h>
#include "cli/args.h"
#include "cli/config/job.h"
#include "cli/launch.h"
#include "data/encode.h"
#include "state/source.h"
#include "world/world.h"

enum { MAX_END_TOKENS = 16 };

/* Shared by all ranks of a process. */
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
    bool no_text;         /* the model has no tokenizer, and its tokens are not bytes */
    FlightRecorder *recorder;
    const volatile sig_atomic_t *stop; /* set by Ctrl-C */
    Err prepared;                      /* result of the setup; the ranks agree on it first */
    _Atomic int64_t bytes;             /* memory of all ranks of this process */
    bool agreed;                       /* all ranks have the error, and rank 0 prints it */
} InferContext;

/* Collective over the processes, before any thread. Opens the arena and the launcher, and installs
 * the handler of Ctrl-C. */
Err infer_begin(InferContext *ctx, const char *verb, FlightRecorder *recorder);
/* Local. Encodes a text with the model's tokenizer. Rank 0 prints a warning with the name `what` if
 * the text is not UTF-8. */
Err infer_encode(const InferContext *ctx, const char *what, Bytes text, Arena *a, EncodedText *out);
/* Local. Opens the model `args.file`, its tokenizer (`tokenizer`: the value of --tokenizer, or
 * NULL) and the device. */
Err infer_open(InferContext *ctx, const Args *args, const char *tokenizer);
/* Collective over all processes. Runs `body` on every rank. A failed setup is returned here, or by
 * the first world_agree of the bodies if the ranks are processes. */
Err infer_run(InferContext *ctx, Err (*body)(WorldRank *w, void *work), void *work);
/* Local. The exit status for an error. Rank 0 prints the message; another rank prints only an error
 * of its own, on which the ranks have not agreed. */
int infer_fail(const InferContext *ctx, Err err);
/* Collective over the processes. */
void infer_close(InferContext *ctx);

/* ---- on each rank ---- */

/* Local. Model, element type and mesh of this rank: the base of the settings of its jobs. */
Err infer_job(InferContext *ctx, const WorldRank *w, JobSettings *out);
/* Local. The threads of this rank. */
Err infer_team(InferContext *ctx, const WorldRank *w, Team **out);
/* Collective over all ranks. Checks that ctx->bytes, to which every rank has added its memory, fits
 * on this machine; ERR_CONFIG with `way_out` if not. Then opens the transport of device memory and
 * prints its name. */
Err infer_start(InferContext *ctx, WorldRank *w, const char *way_out);
/* Collective over all ranks. Loads this rank's shards of the weights. */
Err infer_load(InferContext *ctx, WorldRank *w, Rank *rank);

#endif
