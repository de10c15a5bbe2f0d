/* space.h -- the plans that a search chooses from.
 *
 *     64 ranks = pp x dp x cp x tp      every way to write it, in this order on the machine
 *       micro-batch 1 2 4 8             sequences
 *       schedule, chunks, split         pp > 1
 *       ZeRO 0 1 2 3                    dp x cp > 1
 *       replicas of shards (HSDP)       ZeRO > 0: one per block of a level of the machine
 *       experts ep x etp                a mixture of experts: ep divides them, etp is 1 or tp
 *       recompute none selective full
 *       sequence parallelism            tp > 1
 *       layouts of weights along tp     Megatron's; with sequence parallelism those of a search too
 *       context gather ring ulysses     cp > 1
 *
 * Plans whose layers differ have ZeRO and recomputation of their own in each layer (mixed.h).
 *
 * tp stays inside the narrowest level of the machine, since its transfers are within layers. A rank
 * of cp has at least min_tokens tokens of a sequence. All else is as in `base`. */
#ifndef PLAN_SEARCH_SPACE_H
#define PLAN_SEARCH_SPACE_H

#include "cost/cluster.h"
#include "job/job.h"

typedef struct {
    MeshSizes mesh; /* no 0, except cp_heads */
    int64_t micro;  /* sequences of a micro-batch */
    int zero;
    const char *zero_weights; /* as UnitOptions.zero_weights: of all units; NULL: none */
    Recompute recompute;
    bool sequence;
    bool tp_search;         /* layouts of weights along tp are those of a search, not Megatron's */
    const char *tp_weights; /* as ParallelSettings.tp_weights; of a search: set by plan_settle */
    ContextKind context;    /* CONTEXT_AUTO: cp is 1 */
    const char *schedule;
    int chunks;        /* 0: the schedule's default */
    bool by_cost;      /* layers are divided among chunks by flops, not evenly */
    bool offload;      /* all saved values are in host memory until backward; beside no recompute */
    const char *split; /* units of each chunk, as "9,8,9"; NULL: even, or by cost */
    /* [layers + 2]: ZeRO, recomputation and offload of each unit, in place of the point's. NULL:
     * all units have zero and recompute. */
    const UnitOptions *unit;
    int n_units; /* of unit */
} PlanPoint;

/* The names of values that a plan offloads: all. */
#define PLAN_OFFLOAD "*"

enum { MIN_CP_TOKENS = 1024 };

/* Choices that are given. */
typedef struct {
    int dp, tp, cp, pp;             /* 0: free */
    int dp_replicate, ep, etp;      /* 0: free */
    int64_t micro;                  /* 0: free */
    int zero, recompute;            /* -1: free */
    int sequence, context;          /* -1: free */
    int tp_search;                  /* -1: free; 0 with tp_weights: those rules */
    const char *tp_weights;         /* NULL: Megatron's */
    const char *schedule;           /* NULL: free */
    int chunks;                     /* 0: free */
    int by_cost;                    /* -1: free */
    bool keeps_offload;             /* offload is as in `base` */
    bool over_cp, over_tp, over_pp; /* only meshes with several ranks along the axis */
} PlanFixed;

typedef struct {
    const JobSettings *base; /* JOB_STEP */
    const Cluster *cluster;
    int64_t global; /* sequences per step */
    int ranks;
    int64_t max_micro;  /* 0: 8 */
    int64_t min_tokens; /* of a sequence on a rank along cp; 0: MIN_CP_TOKENS */
    PlanFixed fixed;
} PlanSpace;

/* Local. Nothing is fixed. */
PlanFixed plan_fixed_none(void);
/* Local. All points of the space, in a fixed order. */
Err plan_points(const PlanSpace *s, Arena *arena, PlanPoint **out, int *n);
/* Local. The job of a point, for rank 0. */
JobSettings plan_job(const PlanSpace *s, const PlanPoint *p);
int plan_dp(const PlanPoint *p);
/* Local. True if the ranks are laid out alike, whatever shards the state over dp. */
bool plan_same_mesh(const PlanPoint *a, const PlanPoint *b);
/* Local. The point with these options for all units. */
PlanPoint plan_uniform(const PlanPoint *p, const UnitOptions *o);
/* Local. True if the space has plans with this schedule. */
bool plan_has_schedule(const char *name);
/* Local. True if backward phases of the schedule run as B, not as I and W. */
bool plan_is_merged(const PlanPoint *p);
/* Local. "dp=8 tp=8 sequence micro=2 zero=1 recompute=selective": axes of one rank are left out. */
void plan_point_text(const PlanPoint *p, Text *out);

#endif
