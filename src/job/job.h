/* job.h -- the compiler driver: from settings to the linked program of one rank in one call.
 *
 *     model_build         graphs of the unit kinds, global shapes
 *     job_generate        lists over chunks, of all stages
 *     job_slices          cuts of sequences
 *     job_make_moves      units of the chunks; sends and receives; checks them
 *     job_settle_units    options of each unit, and the layout of the stream between units
 *     ---- the same on all ranks up to here ----
 *     compile_unit        one program per class of units and slice length
 *     job_make_units      the list of the rank's stage over units, with gathers and reductions
 *     schedule_link       the same with addresses
 *
 * Ranks that differ along pp are stages. Each stage has the units of its chunks; the schedule
 * describes all stages. A job without a pipeline has one stage.
 *
 * The trainer runs a Job, `sheaf explain` prints it, plan/ simulates it. */
#ifndef JOB_JOB_H
#define JOB_JOB_H

#include "compile/compile.h"
#include "cost/cluster.h"
#include "job/context_auto.h"
#include "layout/tokens.h"
#include "model/build.h"
#include "run/rank.h"
#include "schedule/action.h"
#include "schedule/gather.h"
#include "schedule/link/link.h"
#include "schedule/slices.h"

typedef enum {
    JOB_STEP,      /* forward, backward, norm, update */
    JOB_GRADIENTS, /* forward and backward; the gradient sums can be read afterwards */
    JOB_LOSS,      /* forward */
    JOB_GENERATE   /* forward of an inference session: logits, no loss */
} JobKind;

/* The choices of one unit that may differ from those of other units. Layers with other choices are
 * of another class (schedule/programs.h), so few combinations mean few programs. */
typedef struct {
    Recompute recompute;
    const char *recompute_names; /* NAMED: as CompileOptions.recompute_names */
    const char *offload_names;   /* as CompileOptions.offload_names; NULL: none */
    const char *fp8_names;       /* as Fp8Options.names; NULL: no GEMM in FP8 */
    int zero;                    /* ZeRO level of its packs: 0 to 3 */
    const char *zero_weights;    /* levels of single weights: "mlp.*=3,self_attn.o_proj.*=0"; the
                                  * first pattern that matches decides. NULL: all have `zero` */
    bool reduce_each;    /* reduce its gradients after each micro-batch; zero 2, 3: always */
    bool keep_gathered;  /* values gathered in F are saved for backward */
    bool sequence;       /* the tokens of the stream that it writes are sharded over tp */
    ContextKind context; /* attention over cp; AUTO: as the job's */
} UnitOptions;

typedef struct TpChoice TpChoice; /* job/tp_choice.h */

/* Distribution of the job over ranks. All zero: one rank. */
typedef struct {
    MeshSizes mesh;
    int rank;                 /* the rank that the program is compiled for */
    int zero;                 /* ZeRO level 0 to 3, over dp_shard x cp */
    const char *zero_weights; /* as UnitOptions.zero_weights */
    const char *tp_weights;   /* layouts of weights along tp, as rules (compile/tp_weights.h); NULL:
                               * Megatron's */
    const TpChoice *tp_choice; /* how tp_weights was found, for reports; NULL: it was given */
    int live;                  /* zero 3: most units gathered at once; 0: 2 */
    int fold;                  /* dp ranks whose order of sums one rank reproduces; 0: 1 */
    bool reduce_each;          /* reduce gradients after each micro-batch, not after the last */
    bool sequence;             /* sequence parallelism: the stream's tokens are sharded over tp */
    ContextKind context;       /* attention over cp */
    TokenMap tokens;           /* tokens over cp; TOKENS_AUTO: by context */
    int cp_inner;              /* double-ring: ranks of an inner ring; 0: those of one host */
    int host_ranks;            /* ranks of one host; 0: those of the cluster, or all */
    const Cluster *cluster; /* AUTO compares with its rates and its memory; NULL: default rates */
    double expert_rows;     /* as CompileOptions.expert_rows */
    bool rounds;            /* as CompileOptions.rounds */
    bool keep_gathered;     /* values gathered in F are saved for backward, not gathered again */
    bool in_order;          /* every transfer is waited for where it begins: no overlap */
    /* [layers + 2]: the embedding, each layer, the head. They replace `zero`, `zero_weights`,
     * `reduce_each`, `sequence`, `context`, `keep_gathered` and the recomputation and offload of
     * JobSettings.compile. NULL: all units have those. job_unit_options returns them as a start. */
    const UnitOptions *units;
    const char *schedule; /* name of a generator or a file; NULL: that of JobSettings */
    bool evict;           /* balance frames between stages: schedule/evict.h */
    const char *split;    /* units of the chunks: schedule/chunks.h; NULL: even */
    /* Pipeline shape, as in schedule/gen/generate.h; 0: the generator's default. */
    int chunks, slices, group;
    const int64_t *cuts; /* [slices + 1]: first row of each slice, and the end; NULL: equal flops */
} ParallelSettings;

/* Recomputation of some stages: early stages hold the frames of more micro-batches than late
 * ones. */
typedef struct {
    Recompute recompute;
    int first, last;
} StageRecompute;

enum { MAX_STAGE_RULES = 16 };

/* Where the patterns of keys were written, for messages: "plan.yaml:18"; NULL: nowhere. */
typedef struct {
    const char *recompute, *offload, *zero_weights, *tp_weights, *fp8;
} PatternOrigins;

typedef struct {
    JobKind kind;
    bool inference; /* no training job shares its state: weights have no f32 master copy. JOB_LOSS
                     * only; always so for JOB_GENERATE */
    const ModelConfig *config;
    DType dtype;
    BatchShape batch;     /* of a micro-batch */
    SessionShape session; /* JOB_GENERATE only */
    int micros;
    /* Each row attends to its own sequence up to itself, and rows are whole sequences. Devices may
     * use faster attention kernels then. */
    bool causal;
    const char *schedule;                  /* name of a generator or a file */
    bool split;                            /* run B of the schedule as I, then W */
    bool note_freed;                       /* as LinkInput.note_freed */
    CompileOptions compile;                /* mesh, strategy, rank and backward are filled in */
    const DeviceWorkspace *workspace;      /* as LinkInput.workspace */
    PackMemo *packings;                    /* the same */
    bool sizes_only;                       /* the same */
    StageRecompute stage[MAX_STAGE_RULES]; /* the first rule that contains a stage applies */
    int n_stage_rules;
    OptimSettings optim;
    ParallelSettings parallel;
    PatternOrigins origin;
} JobSettings;

/* What the programs of a variant run: any slice of this length, or one slice if cp shards its
 * tokens. */
typedef struct {
    int64_t rows, at;   /* at: the first row of the slice */
    Strategy *strategy; /* [2 * N_CONTEXTS]: Job.strategy_of with the slice's tokens; NULL: as is */
    Layout *stream;     /* [model.n_units]: Job.stream with the slice's tokens */
} JobVariant;

typedef struct {
    JobSettings settings;
    Mesh mesh;
    Strategy strategy;
    ContextKind context;  /* attention over cp, or the way that AUTO chose */
    ContextSearch search; /* what AUTO compared */
    TokenMap tokens;      /* tokens over cp: that of the settings, or the one that AUTO chose */
    /* Of attention over cp, by ContextKind; no row: keys are not moved by a plan. */
    ContextChoice context_plan[N_CONTEXTS];
    ContextChoice slice_plan; /* of CONTEXT_GATHER, in slices */
    Model model;
    Strategy *strategy_of; /* [2][N_CONTEXTS]: by UnitOptions.sequence and context */
    uint64_t *coded;       /* [model.n_units]: bits of the weights that GEMMs in FP8 alone read */
    UnitOptions *unit;     /* [model.n_units]: as compiled, with rules of stages and AUTO settled */
    Layout *stream;        /* [model.n_units]: of x, as the unit before writes it */
    int16_t *alike;        /* [model.n_units]: the first unit that is compiled alike */
    ProgramTable programs;
    Program *program;       /* [programs.n_classes]: those of variant 0 */
    int16_t *class_unit;    /* [programs.n_classes]: a unit with the options of the class */
    JobVariant *variant;    /* [programs.n_variants] */
    PackSwitches *switches; /* [model.n_packs] */
    GatherCount *gathers;   /* [model.n_packs] */
    SlicePlan slices;
    Schedule chunks; /* RUNs over chunks, of all stages */
    Schedule moves;  /* the same with sends and receives */
    /* Over units, with gathers and reductions: the list of the rank's stage. With evictions, the
     * lists of all stages, which exchange frames. */
    Schedule units;
    LinkedProgram linked;
} Job;

/* Local. Compiles the rank's program. `job` must not move: the linked program points into it. */
Err job_compile(const JobSettings *settings, Arena *arena, Job *job);
/* Local. Makes what all ranks share: model, mesh, the lists over chunks, slices. */
Err job_share(const JobSettings *settings, Arena *arena, Job *job);
/* Local. Compares the ways to spread attention over cp, if parallel.context=auto has a choice. The
 * same on all ranks. */
Err job_choose_context(const JobSettings *settings, Arena *arena, ContextSearch *out);
/* Local. The mesh that the job has: that of the settings, with the cp_heads that auto chooses. */
Err job_mesh(const JobSettings *settings, Mesh *out);
/* Local. Compiles a rank's program from what job_share made; its cost does not depend on the
 * number of other stages. `job` must not move, and points into `shared`. */
Err job_compile_rank(const Job *shared, int rank, Arena *arena, Job *job);
/* Local. Links the job, or links it again, with the programs of that table and with those layouts
 * of the parameters in use: [model.n_params]. job_compile ends with it. */
Err job_link(Job *job, const ProgramTable *programs, const Layout *use, Arena *arena);
/* Local. True if the job runs backward phases. */
static inline bool job_has_backward(const JobSettings *s)
{
    return s->kind == JOB_STEP || s->kind == JOB_GRADIENTS;
}
/* Local. True if experts are sharded over axes of their own. Otherwise they are sharded as a dense
 * feed-forward part, by width over tp. */
static inline bool job_shards_experts(const MeshSizes *m) { return m->ep > 1 || m->etp > 1; }
/* Local. The name of its schedule: a generator or a file. */
const char *job_schedule(const JobSettings *settings);
/* Local. The options of a unit as the settings give them, without rules of stages. */
UnitOptions job_unit_options(const JobSettings *settings, int unit);
/* Local. The greatest ZeRO level of the unit's weights. */
int job_most_zero(const UnitOptions *o);
/* Local. The level that UnitOptions.zero_weights gives the weight of that name; -1: none. */
int job_weight_level(const char *rules, const char *name);
/* Local. True if two units have the same options. */
bool job_same_options(const UnitOptions *a, const UnitOptions *b);
/* Local. "none", "selective", "full", or the names. */
const char *job_recompute_text(const UnitOptions *o);
/* Local. The options that a program of its table was compiled with; for compiling it again. */
CompileOptions job_options(const Job *job, int class, int variant);
/* Local. Rows of one sequence in the rank's KV cache: the ranks along cp share its positions. */
int64_t job_cache_rows(const Job *job);
/* Local. The costs of parallel.split=cost: flops of each unit, [model.n_units], forward and
 * backward, of the whole model on one rank. `job` is made by job_share. */
Err job_unit_costs(const Job *job, Arena *temp, double *cost);
/* Local. Opens a rank that runs the job on device `ref`; team == NULL: one thread. */
Err job_open_rank(const Job *job, Comm *comm, Team *team, Rank *out);

#endif
