/* verb.h -- internal to `sheaf plan`.
 *
 *     plan.c         the verb: flags, then the parts below, then the output
 *     flags.c        the space and its limits
 *     search.c       searches: for each number of ranks, for the frontier, for a choice
 *     no_choice.c    why no plan has a choice
 *     nodes.c        the order of the nodes
 *     measure.c      runs of the best plans, and the cluster calibrated by them
 *     run.c          one run
 *     best.c         the best plan as `sheaf train --plan` would read it */
#ifndef CLI_PLAN_VERB_H
#define CLI_PLAN_VERB_H

#include "cli/args.h"
#include "cli/plan/plan.h"
#include "cli/progress.h"

typedef struct {
    const char *cluster, *gpus, *memory, *objective, *choice, *out, *svg, *top, *nodes, *measure,
        *launcher;
    bool json, frontier, alike;
} PlanFlags;

typedef struct {
    PlanFlags flag;
    Args args;
    Arena *arena, *temp;
    JobSettings job; /* the run's, of which the search changes the distribution */
    PlanSpace space;
    /* With links and devices of single nodes, which searches leave out; NULL: nodes are alike. */
    const Cluster *linked;
    Cluster *ordered; /* on which the best plan is timed */
    PlanCache *cache;
    int ranks[32], n_ranks, top, max_nodes, measure;
    int shown;           /* rows of the report: fewer than `top` if devices differ */
    const char *refused; /* why there is no plan, if the compiler refuses all of the last search */
    ProgressLine line;
    PlanReport report;
} PlanVerb;

/* Local. Opens the space of the request, and reads the flags that limit it. */
Err plan_open_space(PlanVerb *v);
/* Local. Fills the rows and the frontier of the report. */
Err plan_search_all(PlanVerb *v);
/* Local. A search without its nodes: for single plans. */
PlanSearch plan_single(PlanVerb *v, int ranks, const PlanFixed *fixed);
/* Local. Opens a search; also for a single plan. */
Err plan_open_search(PlanVerb *v, int ranks, const PlanFixed *fixed, PlanSearch *s);
/* Local. Why no plan of a search has the choice of --explain-choice. */
Err plan_no_choice(const PlanVerb *v, PlanSearch *s, const char **out);
/* Local. Why the compiler refuses all plans of a search; NULL: it does not. */
Err plan_refused(const PlanVerb *v, PlanSearch *s, const char **out);
/* Local. Reasons why the space has no plan for this number of ranks under the given keys. */
Err plan_no_space(const PlanVerb *v, int ranks, const char **out);
/* Local. Runs the best plans, calibrates the cluster, and searches again, if --measure is there. */
Err plan_measure(PlanVerb *v);
/* Local. Runs a plan for a few steps; *seconds is the median of the later ones. */
Err plan_run(PlanVerb *v, const PlanPoint *p, double *seconds);
/* Local. Orders the nodes for each row, if the cluster's nodes differ; deals the layers of a
 * pipeline to its stages, if devices differ. */
Err plan_place_nodes(PlanVerb *v);
/* Local. The arguments without those that a plan decides. */
Err plan_other_settings(const PlanVerb *v, const char ***out, int *n);
/* Local. Writes the best plan, reads it again, links it on all ranks, and times it. */
Err plan_finish(PlanVerb *v);
/* Local. The copies of state that saves hold in the cluster's memory. */
SaveMemory plan_saves(const PlanVerb *v);

#endif
