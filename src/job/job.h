/* job.h -- from a configuration to a linked program: the whole compiler in one call.
 *
 *     model_build -> generate -> cut into slices -> compile_unit for each kind -> cut into chunks,
 *     expand, reduce, gather, check -> link the rank's list
 *
 * Ranks that differ along pp are stages: each has the units of its chunks, and the schedule is of
 * all. One stage is a pipeline too.
 *
 * `explain` prints what is here, the trainer runs it, tests compare it. */
#ifndef JOB_JOB_H
#define JOB_JOB_H

#include "compile/compile.h"
#include "model/build.h"
#include "run/rank.h"
#include "schedule/action.h"
#include "schedule/gather.h"
#include "schedule/link/link.h"
#include "schedule/slices.h"

typedef enum {
    JOB_STEP,      /* forward, backward, norm, update */
    JOB_GRADIENTS, /* forward and backward: sums stay to be looked at */
    JOB_LOSS,      /* forward alone */
    JOB_GENERATE   /* forward alone, of a session: logits, no loss */
} JobKind;

/* How the job is laid over ranks. All zero: one rank. */
typedef struct {
    MeshSizes mesh;
    int rank;             /* whose program this is */
    int zero;             /* 0 to 3: what the ranks along dp_shard share */
    int live;             /* zero 3: units gathered at once, at most; 0: 2 */
    int fold;             /* dp ranks whose order of sums one rank imitates; 0: 1 */
    bool reduce_each;     /* gradients are summed over ranks after each micro-batch, not the last */
    bool sequence;        /* tokens of the stream are cut over tp */
    bool keep_gathered;   /* what F gathered is kept for the backward phases, not gathered again */
    bool in_order;        /* every transfer is waited for where it is begun: nothing overlaps */
    const char *schedule; /* a generator's name, or a file's; NULL: the job's */
    bool evict;           /* stages that hold many frames keep some on others: schedule/evict.h */
    const char *split;    /* units of the chunks: see schedule/chunks.h; NULL: even */
    int chunks, slices,
        group; /* of the pipeline, as schedule/gen/generate.h has them; 0: what it likes */
    const int64_t
        *cuts; /* [slices + 1] rows at which slices begin, and the end; NULL: of equal flops */
} ParallelSettings;

/* Stages of a pipeline that recompute otherwise than the rest: early ones keep more micro-batches. */
typedef struct {
    Recompute recompute;
    int first, last;
} StageRecompute;

enum { MAX_STAGE_RULES = 16 };

typedef struct {
    JobKind kind;
    const ModelConfig *config;
    DType dtype;
    BatchShape batch;     /* of a micro-batch */
    SessionShape session; /* of JOB_GENERATE, which has no batch */
    int micros;
    bool
        causal; /* a promise: rows of micro-batches are whole sequences, and each row's range begins
                    with its own; devices may be faster then */
    const char *schedule;                  /* a generator's name, or a file's */
    bool split;                            /* run I and W apart where the generator says B */
    bool note_freed;                       /* see LinkInput */
    CompileOptions compile;                /* strategy, mesh and backward are filled in */
    StageRecompute stage[MAX_STAGE_RULES]; /* the first that names a stage holds there */
    int n_stage_rules;
    OptimSettings optim;
    ParallelSettings parallel;
} JobSettings;

typedef struct {
    JobSettings settings;
    Mesh mesh;
    Strategy strategy;
    Model model;
    Program program[MAX_KINDS]; /* of the longest slice */
    Program *by_slice;          /* [model.n_kinds][slices.n] */
    UnitSwitches *switches;     /* [model.n_units] */
    GatherCount *gathers;       /* [model.n_units] */
    SlicePlan slices;
    Schedule chunks, units; /* as generated; as expanded, with gathers and reductions */
    LinkedProgram linked;
} Job;

/* Local. `job` must stay where it is: the linked program points into it. */
Err job_compile(const JobSettings *settings, Arena *arena, Job *job);
/* Local. Does the job run backward phases? */
static inline bool job_goes_back(const JobSettings *s)
{
    return s->kind == JOB_STEP || s->kind == JOB_GRADIENTS;
}
/* Local. The name of its schedule. */
const char *job_schedule(const JobSettings *settings);
/* Local. What its kinds of unit were compiled with: to compile one again and watch the passes. */
CompileOptions job_options(const Job *job);
/* Local. A rank that runs the job on `ref` with this team (NULL: one thread). */
Err job_open_rank(const Job *job, Comm *comm, Team *team, Rank *out);

#endif
