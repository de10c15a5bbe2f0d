/* coarse.h -- the time of a step from unit summaries and a schedule, in well under a
 * millisecond: for searches over plans.
 *
 *     LayoutSummary (summary.h)   Schedule over chunks, with sends and receives
 *                 \                       /        units of each chunk
 *                  clock_coarse_step  ->  seconds of the step, where they go, bytes of each stage
 *
 * Each stage has one compute queue, one queue of gathers and one of reductions, and a link for each
 * direction to each neighbor. Gathers begin and reductions end where the linked program has them
 * (schedule/gather.h, schedule/link/ends.c). A RUN takes the seconds of its summary, whatever runs
 * beside it: share_links of a cluster counts within a RUN alone.
 *
 * The clock (clock.h) plays instructions and is the reference. tests/unit/test_clock_coarse.c
 * compares the two: 0.5% of the step if transfers overlap, 5% if ranks carry them out themselves,
 * 2% with tied weights on slow links, 8% on clusters where launches or slow-downs decide, 10% if
 * axes cut across nodes, or the head gathers tied weights (ZeRO 3); it has the reasons.
 *
 *     TRY(clock_summarize(&in, arena, temp, &layout));            once for each layout
 *     TRY(schedule_generate("1f1b", &pipe, arena, &chunks));      once for each pipeline
 *     TRY(schedule_moves(&chunks, arena, &moves));
 *     TRY(clock_coarse_step(&(CoarseInput){.cluster = ..., .layout = &layout, .moves = &moves,
 *                                          .first_unit = first}, temp, &time));    for each plan */
#ifndef PLAN_CLOCK_COARSE_H
#define PLAN_CLOCK_COARSE_H

#include "plan/clock/summary.h"
#include "schedule/action.h"

typedef struct {
    const Cluster *cluster;
    const LayoutSummary *layout; /* of the mesh */
    /* [n_units]: layers with their own recomputation or ZeRO row have summaries of other layouts on
     * the same mesh. NULL: those of `layout`, by class. */
    const UnitSummary *const *unit;
    /* RUNs over chunks of all stages, with sends and receives (schedule/moves.h). Its micro-batches
     * and slices are those of the step. No evictions. */
    const Schedule *moves;
    const int16_t *first_unit; /* [chunks + 1]; NULL: that of `moves` */
} CoarseInput;

typedef struct {
    double step_s;
    /* Means over the stages; the sum is step_s. */
    double work_s;     /* RUNs without their transfers, packs, sums */
    double tp_s, cp_s; /* transfers within RUNs that nothing hides */
    double dp_s;       /* waits for gathers and reductions, and steps of reductions */
    double pp_s;       /* waits for other stages: the bubble, and transfers between stages */
    double update_s;   /* norm and update */
    double host_s;     /* waits for launches by the host */
    double idle_s;     /* from a stage's end to that of the last */
    int slowest;       /* the stage that computes most */
    /* Of the stage that needs most: live bytes without inputs and scalars, within 5% of the packed
     * bytes of the linked program. Link a plan before relying on its memory. */
    size_t peak_bytes;
    int peak_stage;
    /* A bound: no linked program needs less. State, gradients that live all step, and the frames of
     * a stage at the end of an F; without gathered packs and gradients that are reduced each time,
     * which may be gone by then, and values that may have been sent. */
    size_t least_bytes;
} CoarseTime;

/* Local. `temp` is rewound. ERR_CONFIG if chunks and units do not match, ERR_CHECK names the stages
 * if they wait for each other. */
Err clock_coarse_step(const CoarseInput *in, Arena *temp, CoarseTime *out);

#endif
