/* clock.h -- the time of a step on a cluster: plays the linked programs of the ranks.
 *
 *     rank 0   compute   F0.0 ...  | F0.1 ...        | B0.0 ...
 *              channel    gather.1 ====   send ==                    transfers overlap
 *     rank 1   compute             (waits: pp)  | F1.0 ...
 *
 * Every instruction, step and scalar of a linked program becomes an event on a tape: work on the
 * compute queue, the begin of a transfer, or a wait. Tapes of different ranks meet on channels, one
 * for each (group, purpose): a transfer starts when all members have begun it and the one before it
 * on the channel has ended. On a cluster whose transfers do not overlap, a rank that waits carries
 * out the transfer itself. A kernel or a transfer starts no earlier than the host has launched it.
 *
 * The time of each event is cost/cost.h's. Links have the rate that they have while all ranks use
 * theirs; on a cluster with share_links, flows of a rank at one level share that (shares.c).
 * Ranks that differ only along dp run the same tape, with the longest updates at coordinate 0, so
 * one of them is played for all; and so do ranks along tp if it divides all shapes. If the axes cut
 * across the machine's nodes (tp=3 on nodes of 8), or links between nodes or ranks differ, every
 * rank is played. Work takes its seconds over the speed of the rank's device: one rank is played
 * for those that have the same devices at all other coordinates. */
#ifndef PLAN_CLOCK_CLOCK_H
#define PLAN_CLOCK_CLOCK_H

#include "cost/cluster.h"
#include "job/job.h"

/* Kinds of time of a rank: work, and waits for transfers that are not hidden. */
typedef enum {
    TIME_GEMM,
    TIME_ATTENTION,
    TIME_POINTWISE, /* all other kernels of programs, packs, sums of gradients */
    TIME_HOST,      /* waits for launches by the host, and for copies to and from it */
    TIME_TP,        /* waits for transfers within units, along tp */
    TIME_CP,        /* the same along cp, or along cp and tp */
    TIME_EP,        /* the same to experts of other ranks, where these cross dp */
    TIME_DP,        /* waits for GATHERs and REDUCEs */
    TIME_PP,        /* waits for other stages: the bubble, and transfers between stages */
    TIME_UPDATE,    /* norm, exchange of scalars, update */
    TIME_IDLE,      /* from the rank's end of the step to that of the last rank */
    N_TIMES
} TimeKind;

/* "gemm", "attention", "pointwise", "host", "tp", "cp", "ep", "dp", "pp", "update", "idle" */
const char *time_kind_name(TimeKind kind);

typedef struct {
    double step_s;
    double spent_s[N_TIMES]; /* mean over the ranks; the sum is step_s */
    /* Along the critical path, from the begin of the step to the end of its last rank: work of the
     * ranks that it visits, and transfers that it passes through; the sum is step_s. */
    double path_s[N_TIMES];
    double model_flops; /* of all ranks: GEMMs and attention without recomputation */
    int64_t tokens;     /* of full micro-batches */
    int played;         /* ranks whose tapes were played */
} StepTime;

typedef struct {
    const Cluster *cluster;
    const JobSettings *job; /* the rank is filled in */
    const Mesh *mesh;
    bool every_rank;  /* plays each rank; for tests */
    bool keeps_order; /* every cluster that is played has the nodes of this one */
    /* Ranks that send one part each of a message between stages, which all of them hold, and gather
     * it behind the link; 0: 1, as Sheaf's programs do. */
    int send_parts;
    /* Collectives that a GATHER or a REDUCE of a unit is made of; less than 1: one serves several
     * units. And their bytes over those of the programs. 0: 1, as Sheaf's programs do. */
    double dp_calls, dp_bytes;
    /* Kernels that the host launches for each attention beyond the first; 0 for Sheaf's own. */
    int attention_launches;
} ClockInput;

/* A step that is compiled: its tapes, without seconds. */
typedef struct StepClock StepClock;

/* Local. Compiles the ranks that are played, and keeps their tapes in `arena`; `temp` is rewound.
 * Of the cluster it reads the sizes of the levels, and whether rates.nodes and
 * rates.pairs are there. `in` must not
 * move. */
Err clock_open(const ClockInput *in, Arena *arena, Arena *temp, StepClock **out);
/* Local. Plays the tapes on a cluster whose levels have the sizes that they were made for. Tapes of
 * a cluster with rates.nodes play any order of the nodes, unless keeps_order is set.
 * ERR_CHECK names the ranks if they wait for each other. */
Err clock_play(StepClock *c, const Cluster *cluster, StepTime *out);
/* ---- seconds that were measured ---- */

/* Local. Later plays use the median measured seconds of work instead of a cluster's. `trace` has
 * the events of steps of the linked program lp, which has one slice; of a single rank also norms.
 * Work that the trace does not have, on other ranks, gets the rates of that which it has: they are
 * written to *rates, whose links are not changed. */
Err clock_calibrate(StepClock *c, const LinkedProgram *lp, const RankTrace *trace,
                    CostRates *rates);

/* ---- the played step, event by event ---- */

typedef enum {
    SPAN_WORK,    /* a kernel */
    SPAN_WAIT,    /* the compute queue waits: for a transfer, for the host */
    SPAN_TRANSFER /* a transfer that this rank takes part in */
} SpanKind;

typedef struct {
    SpanKind kind;
    int rank; /* that was played */
    TimeKind time;
    double start_s, end_s;
    Action action; /* of the rank's list; kind N_ACTION_KINDS: the end of the step */
    int op;        /* work: OpId; 0 for packs, sums and updates */
    int channel; /* transfers and waits for them: transfers of a channel never overlap; -1: none */
    int purpose; /* of the channel: PURPOSE_*, or beyond them copies to and from the host */
    CommKind transfer;
    int members; /* of the transfer */
    double bytes;
} ClockSpan;

/* Called for every span while tapes are played: of one rank in order of time, transfers when they
 * are waited for. */
typedef struct {
    Err (*span)(void *context, const ClockSpan *span);
    void *context;
} ClockWatch;

/* Local. Later plays call `watch`; NULL: none. */
void clock_watch(StepClock *c, const ClockWatch *watch);
/* Local. The ranks that are played: their number, the i-th, and how many ranks it stands for. */
int clock_ranks(const StepClock *c);
int clock_rank(const StepClock *c, int i, int *stands_for);

/* Local. Opens and plays one step with full micro-batches. `arena` and `temp` are different and are
 * rewound. */
Err clock_step(const ClockInput *in, Arena *arena, Arena *temp, StepTime *out);

#endif
