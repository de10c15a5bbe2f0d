/* facts.h -- the numbers of one rank's compiled job: work, memory, parameters, transfers, pipeline.
 *
 *     Job --> facts_gather --> Facts --+--> explain: text, JSON, SVG
 *                                      +--> planner
 *
 * Facts are sums over the Job; they contain nothing that the program to be run does not contain. */
#ifndef PLAN_FACTS_FACTS_H
#define PLAN_FACTS_FACTS_H

#include "job/job.h"
#include "schedule/play.h"
#include "schedule/traffic.h"

/* Work of instructions, at full extents. */
typedef struct {
    int instructions;
    double flops, flops_recomputed; /* flops excludes the recomputed ones */
    size_t bytes;                   /* read and written by the compute queue */
    size_t bytes_copied;            /* by copies between host and device memory */
    size_t bytes_sent;              /* sent to other ranks */
} Work;

/* A part of an arena. The rows of the work arena are the tensors alive at its peak and add up to
 * LinkedProgram.live; the rows of any other arena add up to its size. */
typedef struct {
    ArenaId arena;
    const char *scope, *key, *what; /* key: for JSON; what: label for people */
    size_t bytes;
} MemoryRow;
enum { MAX_MEMORY_ROWS = 32 };

/* Transfers of a step with the same kind, group and purpose. */
typedef struct {
    const char *what; /* "program", "scalar", or LinkedStep.what */
    const char *text; /* label for people */
    CommKind kind;
    unsigned axes; /* of the dense view */
    int ranks;     /* of the group */
    int64_t times;
    size_t bytes, sent_bytes;
} TransferRow;
enum { MAX_TRANSFER_ROWS = 64 };

/* One reduction of a gradient between the rank that computes it and its home. */
typedef struct {
    const char *what; /* LinkedStep.what */
    CommKind kind;
    RankList group;
} GradReduction;
enum { MAX_GRAD_REDUCTIONS = 16 };

/* A parameter of a unit on this rank. Spans are in elements of the rank's pack. */
typedef struct {
    const char *name;
    int owner, pack_number; /* owner: the unit of the pack */
    bool decay, coded;      /* coded: ir/unit.h */
    Shape whole, here;      /* here: in the use layout */
    const char *use;        /* the use layout as text */
    Span pack, home;        /* home: empty if no element has its home on this rank */
    int n_reductions;
    GradReduction reduction[MAX_GRAD_REDUCTIONS];
} ParamFacts;

/* The units of a class (schedule/programs.h). */
typedef struct {
    const char *label;      /* the kind, with the units if the kind has several classes */
    int units, here;        /* in the model; on the rank's stage */
    int first;              /* unit: the first on the stage, or of the model if it has none */
    ParamFacts *param;      /* of unit `first` */
    Work phase[N_PHASES];   /* one RUN of a phase, of variant 0 */
    int64_t runs[N_PHASES]; /* in the rank's list */
} ClassFacts;

/* The schedule played with 1 unit of time for F, I and W of a unit of the model and 2 for B;
 * transfers are free. */
typedef struct {
    Play play;
    double barrier;      /* time lost by waiting for the global gradient norm; < 0: not known */
    int evicted;         /* frames that all stages evict in a step */
    int *held;           /* [stages]: most frames held without eviction; NULL: nothing is evicted */
    size_t work_without; /* bytes of the rank's work arena without eviction */
} PipelineFacts;

typedef struct {
    /* Set by the caller. */
    const Job *job;
    const ModelConfig *model;
    const char *device; /* name of the device that `sheaf train` would use */
    int only;           /* the kind of unit whose programs are printed; -1: all */
    int64_t global;     /* batch.global */
    double lr;          /* optim.lr */
    int64_t save_every; /* run.save_every */
    bool validates;     /* run.valid_every > 0 */

    ClassFacts *class;    /* [job->programs.n_classes] */
    Work step;            /* all RUNs of the list */
    double flops_forward; /* the part of step.flops that the loss alone needs */
    double flops_formula; /* tokens * (6 N + 12 L d T) / ranks */

    int64_t tokens_micro, tokens_step;
    int n_memory, n_transfers;
    MemoryRow memory[MAX_MEMORY_ROWS];       /* in the order of ArenaId */
    size_t save;                             /* outside the arenas: buffers of saves */
    size_t valid;                            /* outside the arenas: memory of validation */
    size_t pinned;                           /* outside the arenas: LinkedProgram.pinned_bytes */
    size_t total;                            /* arenas, save, valid and pinned */
    TransferRow transfer[MAX_TRANSFER_ROWS]; /* by purpose */
    size_t sent_bytes;                       /* of all transfers */
    ChannelCount channels;                   /* communicators that NCCL opens for them */
    PipelineFacts pipeline;
} Facts;

/* Local. True if the unit is on the rank's stage of the pipeline. */
static inline bool unit_is_here(const LinkedProgram *lp, int unit)
{
    return lp->unit[unit].stage == lp->stage;
}

/* Local. The options of the first unit on the rank's stage. */
static inline UnitOptions facts_options_here(const Facts *f)
{
    int u = 0;
    while (!unit_is_here(&f->job->linked, u)) u++;
    return f->job->unit[u];
}
/* Local. True if the class is of the kind that is printed. */
static inline bool facts_show(const Facts *f, int class)
{
    return f->only < 0 || f->only == f->job->programs.kind_of[class];
}

/* Local. Fills the facts. Compiles the forward phases once more to separate their flops from those
 * of backward. */
Err facts_gather(Facts *f, Arena *arena);
/* Local. The parts of facts_gather. ERR_CHECK if the rows of an arena do not add up to its size, or
 * if there are more than MAX_TRANSFER_ROWS kinds of transfers. */
Err facts_memory(Facts *f, Arena *temp);
Err facts_transfers(Facts *f);
Err facts_params(Facts *f, Arena *arena);
/* Local. Compiles the rank once more without eviction if the schedule evicts frames. */
Err facts_pipeline(Facts *f, Arena *arena);
/* Local. Bytes of all rows of an arena; of the row with that key if `key` is not NULL. */
size_t memory_sum(const Facts *f, ArenaId arena, const char *key);

#endif
