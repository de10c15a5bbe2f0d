/* explain.h -- what `sheaf explain` says of one rank: one set of facts, for people or as JSON.
 *
 *     run.yaml --> Config --> JobSettings --> Job --> Facts --+--> text
 *                                                             +--> JSON
 *
 * Facts are sums over the Job; nothing here knows more than the program that will run. */
#ifndef CLI_EXPLAIN_EXPLAIN_H
#define CLI_EXPLAIN_EXPLAIN_H

#include "base/text.h"
#include "plan/facts.h"

struct json_t;

/* What instructions do, at full extents. */
typedef struct {
    int instructions;
    double flops, flops_recomputed; /* again: computed a second time; not in flops */
    /* Read and written by compute; by copies between spaces; that leave the rank. */
    size_t bytes, bytes_copied, bytes_sent;
} Work;

/* A part of an arena. Those of the work arena are what lives where it is highest: together they are
 * its `live`. Those of the others add up to all of it. */
typedef struct {
    ArenaId arena;
    const char *scope, *key, *what;
    size_t bytes;
} MemoryRow;
enum { MAX_MEMORY_ROWS = 24 };

/* Transfers of a step that are alike in kind, group and purpose. */
typedef struct {
    const char *what; /* "program", "scalar", or what a LinkedStep says */
    CommKind kind;
    unsigned axes; /* of the dense view */
    int ranks;     /* of the group */
    int64_t times;
    size_t bytes, sent_bytes;
} TransferRow;
enum { MAX_TRANSFER_ROWS = 64 };

/* One way of a gradient from where it is computed to its home. */
typedef struct {
    const char *what; /* as of a LinkedStep */
    CommKind kind;
    RankList group;
} GradRoute;
enum { MAX_GRAD_ROUTES = 16 };

/* A parameter of a unit, as the rank has it. Stretches are of the rank's pack of unit `owner`. */
typedef struct {
    const char *name;
    int owner;
    bool decay;
    Shape whole, here; /* here: in use */
    const char *use;   /* the layout in use, in words */
    Span pack, home;   /* home: empty when none of it is at home here */
    int n_routes;
    GradRoute route[MAX_GRAD_ROUTES];
} ParamFacts;

/* The schedule as it was played: one unit of time for F, I and W of a unit of the model, two for B. */
typedef struct {
    Play play;
    double barrier;      /* what waiting for the norm of all ranks costs; < 0: not known */
    int evicted;         /* frames that all ranks send away in a step */
    int *held;           /* [stages]: frames at most, if none were */
    size_t work_without; /* bytes of the rank's work arena, if none were */
} PipelineFacts;

typedef struct {
    const Config *config;
    const ModelConfig *model;
    const Job *job;
    const char *device; /* that `sheaf train` would use */
    int only;           /* the kind whose program is shown; -1: all */

    /* All of a kind; those on the rank's stage; the first of them, or of all where none is here. */
    int units_of[MAX_KINDS], units_here[MAX_KINDS], first_unit[MAX_KINDS];
    ParamFacts *param[MAX_KINDS]; /* of the first unit of the kind */
    Work of[MAX_KINDS][N_PHASES]; /* one run of a phase */
    Work step;                    /* all runs of the list */
    double flops_forward;         /* of step.flops: what the loss alone needs */
    double flops_formula;         /* (6 N + 12 L d T) for each token of all ranks, by ranks */

    int64_t tokens_micro, tokens_step;
    int n_memory, n_transfers;
    MemoryRow memory[MAX_MEMORY_ROWS];       /* in the order of ArenaId */
    size_t save;                             /* beside the arenas: what saves take */
    size_t valid;                            /* likewise, what validation takes */
    size_t total;                            /* of all of it */
    TransferRow transfer[MAX_TRANSFER_ROWS]; /* by purpose */
    size_t sent_bytes;                       /* of all transfers */
    PipelineFacts pipeline;
} Facts;

/* Local. Has the rank this unit? It has those of its stage of the pipeline. */
static inline bool unit_is_here(const LinkedProgram *lp, int unit)
{
    return lp->unit[unit].mine.pack_at != NULL;
}

/* Local. Compiles the forward part once more, to tell its flops from those of backward. */
Err facts_gather(Facts *f, Arena *arena);
/* Local, parts of it. ERR_CHECK when rows do not add up to the arena that they are of, and when there
 * are more kinds of transfers than can be listed. */
Err facts_memory(Facts *f, Arena *temp);
Err facts_transfers(Facts *f);
Err facts_params(Facts *f, Arena *arena);
/* Local. Compiles the rank once more, without evictions, where there are some. */
Err facts_pipeline(Facts *f, Arena *arena);
/* Local. Bytes of all rows of an arena, or of the one with that key. */
size_t memory_sum(const Facts *f, ArenaId arena, const char *key);

/* Local. All of it, for people; `temp` is another arena than that of the text. */
Err explain_text(const Facts *f, Arena *temp, Text *out);
void explain_plan_text(const Facts *f, Text *out);                  /* model, plan */
Err explain_units_text(const Facts *f, Arena *temp, Text *out);     /* units, parameters */
Err explain_actions_text(const Facts *f, Arena *temp, Text *out);   /* the list of the rank */
Err explain_transfers_text(const Facts *f, Arena *temp, Text *out); /* of a step */
Err explain_steps_text(const Facts *f, Arena *temp, Text *out);     /* of what has steps */
void explain_pipeline_text(const Facts *f, Text *out);              /* as it was played */
void explain_memory_text(const Facts *f, Text *out);
void explain_cost_text(const Facts *f, Text *out); /* work, flops */
/* Local. One object, keys in a fixed order. */
Err explain_json(const Facts *f, Text *out);
/* Local. The value as text; it is given up. ERR_NOMEM when there is none. */
Err json_text(struct json_t *value, Text *out);

/* Local. "none", "selective", "full", or the patterns. */
const char *recompute_text(const CompileOptions *o);
/* Local. "dp {1 3}"; "tp {8..15}"; "dp, 2048 ranks". In `buffer`, which is returned. */
enum { GROUP_TEXT_BYTES = 96 };
const char *group_text(const Mesh *m, RankList group, char buffer[GROUP_TEXT_BYTES]);
/* Local. "dp x tp", likewise. */
const char *axes_text(const Mesh *m, unsigned axes, char buffer[GROUP_TEXT_BYTES]);

/* Local. The schedule as a picture, into a file (explain_svg.c). */
Err explain_svg(const Facts *f, const char *path, Arena *temp);
/* Local. And as a file that parallel.schedule takes. */
Err explain_schedule_file(const Facts *f, const char *path, Arena *temp);

#endif
