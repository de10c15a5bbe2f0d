/* explain.h -- the facts that `sheaf explain` prints about one rank, as text or JSON.
 *
 *     run.yaml --> Config --> JobSettings --> Job --> Facts --+--> text
 *                                                             +--> JSON
 *
 * Facts are sums over the compiled Job, the same program that a run executes. Nothing is
 * estimated by a second formula. */
#ifndef CLI_EXPLAIN_EXPLAIN_H
#define CLI_EXPLAIN_EXPLAIN_H

#include "base/text.h"
#include "plan/facts.h"

struct json_t;

/* The cost of a set of instructions, with full micro-batches. */
typedef struct {
    int instructions;
    double flops, flops_recomputed; /* `flops` does not include recomputation */
    /* Memory traffic of compute; of copies to and from the host; bytes sent to other ranks. */
    size_t bytes, bytes_copied, bytes_sent;
} Work;

/* A part of an arena. The rows of the work arena are the live bytes at its peak, and add up to
 * `live`. The rows of another arena add up to its size. */
typedef struct {
    ArenaId arena;
    const char *scope, *key, *what;
    size_t bytes;
} MemoryRow;
enum { MAX_MEMORY_ROWS = 24 };

/* All transfers of a step with the same kind, group and purpose. */
typedef struct {
    const char *what; /* "program", "scalar", or LinkedStep.what */
    CommKind kind;
    unsigned axes; /* of the dense view */
    int ranks;     /* of the group */
    int64_t times;
    size_t bytes, sent_bytes;
} TransferRow;
enum { MAX_TRANSFER_ROWS = 64 };

/* One reduction of a gradient on its route to its home. */
typedef struct {
    const char *what; /* LinkedStep.what */
    CommKind kind;
    RankList group;
} GradRoute;
enum { MAX_GRAD_ROUTES = 16 };

/* A parameter of a unit on this rank. Spans index the rank's pack of unit `owner`. */
typedef struct {
    const char *name;
    int owner;
    bool decay;
    Shape whole, here; /* here: this rank's shard in the use layout */
    const char *use;   /* the use layout as text */
    Span pack, home;   /* home: empty if no element is at home on this rank */
    int n_routes;
    GradRoute route[MAX_GRAD_ROUTES];
} ParamFacts;

/* The schedule as simulated: time 1 for F, I and W of a unit of the model, 2 for B. */
typedef struct {
    Play play;
    double barrier;      /* time lost to the global gradient norm; < 0: unknown */
    int evicted;         /* frames that all stages evict in a step */
    int *held;           /* [stages]: most frames at once without eviction; NULL: no eviction */
    size_t work_without; /* bytes of the rank's work arena without eviction */
} PipelineFacts;

typedef struct {
    const Config *config;
    const ModelConfig *model;
    const Job *job;
    const char *device; /* the device that `sheaf train` would use */
    int only;           /* the kind whose program is printed; -1: all */

    /* Units of a kind in the model; on this rank's stage; the first on the stage, or of the
     * model. */
    int units_of[MAX_KINDS], units_here[MAX_KINDS], first_unit[MAX_KINDS];
    ParamFacts *param[MAX_KINDS]; /* of the first unit of the kind */
    Work of[MAX_KINDS][N_PHASES]; /* one run of a phase */
    Work step;                    /* all runs of the action list */
    double flops_forward;         /* the part of step.flops that computes the loss */
    double flops_formula;         /* (6 N + 12 L d T) per token of all ranks, divided by ranks */

    int64_t tokens_micro, tokens_step;
    int n_memory, n_transfers;
    MemoryRow memory[MAX_MEMORY_ROWS];       /* in the order of ArenaId */
    size_t save;                             /* memory of checkpoint saves, outside of the arenas */
    size_t valid;                            /* memory of validation, outside of the arenas */
    size_t total;                            /* arenas, save and valid */
    TransferRow transfer[MAX_TRANSFER_ROWS]; /* sorted by purpose */
    size_t sent_bytes;                       /* by all transfers */
    PipelineFacts pipeline;
} Facts;

/* Local. True if the unit is on this rank's pipeline stage. */
static inline bool unit_is_here(const LinkedProgram *lp, int unit)
{
    return lp->unit[unit].mine.pack_at != NULL;
}

/* Local. Fills all facts. Compiles the forward part once more, to separate its flops from those of
 * backward. */
Err facts_gather(Facts *f, Arena *arena);
/* Local. The parts of facts_gather. ERR_CHECK if the rows of an arena do not add up to its size, or
 * if there are more kinds of transfers than MAX_TRANSFER_ROWS. */
Err facts_memory(Facts *f, Arena *temp);
Err facts_transfers(Facts *f);
Err facts_params(Facts *f, Arena *arena);
/* Local. If the schedule evicts, compiles the rank once more without evictions. */
Err facts_pipeline(Facts *f, Arena *arena);
/* Local. Bytes of all rows of an arena, or of the row with that key. */
size_t memory_sum(const Facts *f, ArenaId arena, const char *key);

/* Local. The whole report as text, and its parts. `temp` must not be the arena of the text. */
Err explain_text(const Facts *f, Arena *temp, Text *out);
void explain_plan_text(const Facts *f, Text *out);                  /* model, plan */
Err explain_units_text(const Facts *f, Arena *temp, Text *out);     /* units, parameters */
Err explain_actions_text(const Facts *f, Arena *temp, Text *out);   /* action list of the rank */
Err explain_transfers_text(const Facts *f, Arena *temp, Text *out); /* transfers of a step */
Err explain_steps_text(const Facts *f, Arena *temp, Text *out); /* steps of GATHER, REDUCE, moves */
void explain_pipeline_text(const Facts *f, Text *out);          /* simulated schedule */
void explain_memory_text(const Facts *f, Text *out);
void explain_cost_text(const Facts *f, Text *out); /* work, flops */
/* Local. The report as one JSON object with keys in a fixed order. */
Err explain_json(const Facts *f, Text *out);
/* Local. Prints the value and releases it. ERR_NOMEM if it is NULL or cannot be printed. */
Err json_text(struct json_t *value, Text *out);

/* Local. "none", "selective", "full", or the patterns. */
const char *recompute_text(const CompileOptions *o);
/* Local. "dp {1 3}"; "tp {8..15}"; "dp, 2048 ranks". Returns `buffer`. */
enum { GROUP_TEXT_BYTES = 96 };
const char *group_text(const Mesh *m, RankList group, char buffer[GROUP_TEXT_BYTES]);
/* Local. "dp x tp". Returns `buffer`. */
const char *axes_text(const Mesh *m, unsigned axes, char buffer[GROUP_TEXT_BYTES]);

/* Local. Draws the schedule into an SVG file. */
Err explain_svg(const Facts *f, const char *path, Arena *temp);
/* Local. Writes the schedule as a file for parallel.schedule. */
Err explain_schedule_file(const Facts *f, const char *path, Arena *temp);

#endif
