/* summary.h -- the kinds of units of a model under one layout, as a few numbers each.
 *
 *     kind    F        I        W        B        gather   reduce   frame      state
 *     embed   0.2 ms   -        0.5 ms   0.5 ms   0.1 ms   0.3 ms   0          1.1 GiB
 *     layer   9.1 ms   9.9 ms   8.2 ms   18 ms    0.4 ms   0.9 ms   1.1 GiB    2.3 GiB
 *     head    7.5 ms   -        -        -        0.1 ms   0.3 ms   64 MiB     1.1 GiB
 *
 * A layout is everything in JobSettings that a unit's program and its pack depend on: mesh without
 * pp, ZeRO level, sequence and context parallelism, recomputation, offload, rows of a micro-batch.
 * Stages, schedule and number of micro-batches are not part of it: coarse.h combines
 * summaries with a schedule.
 *
 * The numbers are those of the clock (clock.h) for the same programs: a RUN is played alone on all
 * ranks of tp and cp, so its seconds include the transfers that its own work does not hide. Nothing
 * is scaled from another layout. */
#ifndef PLAN_CLOCK_SUMMARY_H
#define PLAN_CLOCK_SUMMARY_H

#include "plan/clock/clock.h"

/* One phase of a unit for one slice of a micro-batch. */
typedef struct {
    double seconds;    /* of the RUN alone: from its begin to its end on the last rank */
    double tp_s, cp_s; /* of these, along the critical path: transfers along tp and to experts,
                        * and along cp */
    double host_s;     /* that the host takes to launch it, beside these seconds */
} RunSummary;

/* One REDUCE of each of some packs. */
typedef struct {
    double before_s; /* its steps before the one that overlaps */
    double begun_s;  /* the step that overlaps with later RUNs; 0: none */
    double after_s;  /* its steps after that one; they run when it is waited for */
} ReduceSummary;

/* A weight in a pack of its unit. */
typedef struct {
    const char *name; /* within the unit */
    int view;
    bool coded;   /* in 8 bits, in a pack of such weights (ir/unit.h) */
    double count; /* elements on a rank, gathered */
} WeightSummary;

typedef struct UnitSummary {
    const char *kind;
    const RunSummary *run; /* [slices][N_PHASES]; a phase without instructions has 0 seconds */
    uint8_t reads;         /* bit p: phase p reads the unit's packs */
    /* By GatherWhen: of one GATHER of each of its packs that are gathered then, and kept for the
     * step or gathered for each use; 0: none. Groups that transfer at the same time count once. */
    double gather_s[2];
    ReduceSummary reduce[2]; /* by ReduceWhen: of its packs whose gradients are reduced then */
    bool late; /* those reduced after the last micro-batch wait for all RUNs: another stage holds
                * its parameters too */
    double prepack_s; /* once a step, with the first F */
    double norm_s, update_s;
    double quantize_s; /* of the codes of its coded weights, once a step before all RUNs */
    double scale_cells[MAX_SCALES]; /* of these weights, which ranks exchange then */
    double norm_cells;        /* sums of squares that the ranks exchange, of all members together */
    size_t y_bytes, dx_bytes; /* sent to the next stage, and to the one before */
    uint8_t x_read, y_read;   /* as in Program: by the unit; x is y of the unit before */
    size_t region_bytes[N_OWN_REGIONS]; /* of (unit, micro-batch, slice), as Program.bytes */
    size_t scratch_bytes[N_PHASES];     /* while the phase runs */
    size_t state_bytes;  /* kept from step to step: weights, master weights, moments */
    size_t expert_bytes; /* of these, of experts in the expert view */
    size_t coded_bytes;  /* of these, of coded weights: in other views, and in that one */
    size_t coded_expert_bytes;
    size_t grad_bytes;      /* kept during the step: gradient sums, prepacked weights */
    size_t pack_bytes;      /* of the pack while it is gathered per use; 0: it stays in the state */
    size_t work_grad_bytes; /* of gradients that are reduced several times a step; 0: none */
    const WeightSummary *weight; /* [n_weights] */
    int n_weights;
    /* The bytes above are the most of all ranks, and the sum of two such numbers may be more than
     * any rank has. Those of the first rank of the stage, and nothing else; NULL: the same. */
    const struct UnitSummary *first;
} UnitSummary;

typedef struct {
    int n_classes, slices, n_units;
    UnitSummary *class;      /* [n_classes]: units that are compiled alike (schedule/programs.h) */
    const int16_t *class_of; /* [n_units] */
    int stage_ranks;         /* ranks of a stage: dp x cp x tp */
    int live;                /* packs that are gathered per use: most at once */
    RankList totals, blocks, squares; /* of rank 0: ranks that exchange loss and norm, within a
                                         stage; totals and blocks extend along pp too */
    RankList stats;    /* the same of the statistics of routers, summed at the end; along pp too */
    double stat_cells; /* of all units; 0: no unit has some */
    RankList scales[MAX_SCALES]; /* the ranks of a stage that exchange scales of coded weights */
} LayoutSummary;

/* Local. Compiles the job's unit kinds once and summarizes them. Of in->job, stages' rules of
 * recomputation are not read, of micros only whether it is 1, and of pp and the schedule only
 * whether stages part the ends: a tied parameter whose units are on two stages is a copy on each.
 * in->mesh is not read. The result is in `arena`; `temp` is another arena and is rewound.
 * ERR_CONFIG for jobs with parallel.evict or in_order. About 10 ms for a model of 128 units, and as
 * much for each further rank along cp. */
Err clock_summarize(const ClockInput *in, Arena *arena, Arena *temp, LayoutSummary *out);
/* Local. Raises the unit's bytes to those that it has on the job's rank; true if two have the same.
 */
void clock_add_bytes(const Job *job, int unit, UnitSummary *u);
bool clock_same_bytes(const UnitSummary *a, const UnitSummary *b);
/* Local. Gives the unit the bytes of the first rank of its stage: sums of them are bounds. */
void clock_take_first(UnitSummary *u);
/* Local. True if one stage has the first and the last unit: it is the only one, or chunks turn
 * back at the last stage. Of schedules in files it is not known: false. */
Err clock_ends_meet(const JobSettings *job, Arena *temp, bool *out);

/* Local. Seconds of all steps of a REDUCE. */
static inline double reduce_seconds(const ReduceSummary *r)
{
    return r->before_s + r->begun_s + r->after_s;
}

#endif
