/* plan.h -- the report of `sheaf plan`, shared by the files of the verb.
 *
 *     run.yaml --> Config --> JobSettings, PlanSpace --> plan_search --> PlanReport --> text, JSON,
 *                                                                        SVG, a plan file */
#ifndef CLI_PLAN_PLAN_H
#define CLI_PLAN_PLAN_H

#include "base/text.h"
#include "cli/config/plan_file.h"
#include "plan/calibrate.h"
#include "plan/clock/clock.h"
#include "plan/search/mixed.h"

typedef enum { OBJECTIVE_TIME, OBJECTIVE_COST, OBJECTIVE_ENERGY } Objective;

/* One plan of a report: linked, so its memory is exact. */
typedef struct {
    PlanPoint point;
    int ranks;
    CoarseTime time;
    double memory_bytes, limit_bytes; /* limit: the plan is the best for this much memory */
    double bound_s;                   /* no plan of the space is faster */
    bool complete;                    /* bound_s is its time */
    double alike_s, alike_bound_s; /* of plans whose layers are alike: the best, and its bound; 0:
                                    * none fits */
    /* On a cluster whose nodes differ: the node of each block of ranks, and seconds by which their
     * links and devices make the step longer, in this order (time.step_s has them) and, without a
     * split of its own, in that of the nodes' numbers. */
    int *node_at, n_nodes;
    double links_s, unordered_s;
} PlanRow;

enum { MAX_PLAN_ROWS = 64 };

/* A plan that was run. */
typedef struct {
    PlanRow row;      /* its time is that of the calibrated cluster, */
    CoarseTime first; /* and this that of the cluster file */
    double planned_s, measured_s;
} MeasuredPlan;

typedef struct {
    const Config *config;
    const ModelConfig *model;
    const Cluster *cluster;
    double limit_bytes;
    Objective objective;
    int n_rows, n_frontier;
    PlanRow row[MAX_PLAN_ROWS]; /* of the chosen number of ranks, the best first */
    PlanRow *frontier;          /* [n_frontier]: of each number of ranks, by falling memory */
    double frontier_step;       /* their limits are multiples of it; 0: any */
    bool is_frontier_cut;    /* less memory than that of the last plan of some number is left out */
    int meshes, meshes_left; /* of the space; of these, not among the rows */
    double left_s;           /* a bound of the meshes that are not among the rows */
    int points;              /* of the space of the chosen number of ranks */
    bool loose_bound;        /* the best plan is not proven optimal only because a bound was high */
    bool is_placed;          /* the rows have an order of nodes */
    int placed, splits;      /* if devices differ: plans that were placed, with so many splits */
    double speeds;           /* the sum over the ranks; 0: all are 1 */
    bool mixes;              /* plans whose layers differ were searched, too: */
    int families, bounded, solved;        /* as in MixedPlan, over all searches */
    SearchCounts counts;                  /* of all searches */
    MeasuredPlan measured[MAX_PLAN_ROWS]; /* by --measure */
    int n_measured;
    ClusterFactors factors;  /* of the cluster file's seconds, by the measured plans */
    double measure_s;        /* that the runs took */
    double search_s, link_s; /* seconds of searching; of linking and timing the best plan */
    Config *best_config;     /* the run under the best plan */
    StepTime clock;          /* of the best plan, by the clock that `sheaf simulate` uses */
    double memory_bytes;     /* of the best plan, over all ranks */
    const char *plan;        /* its plan file */
    const char *choice;      /* --explain-choice; NULL: none */
    int n_choice;            /* 0: no plan with this choice fits, or 1 */
    PlanRow with_choice;
    const char *no_choice; /* why there is none */
} PlanReport;

/* Local. The choices that arguments fix. ERR_CONFIG for an argument that is not in the space. */
Err plan_fixed_of(const Config *c, PlanFixed *out);
/* Local. Adds KEY=VALUE to the fixed choices. */
Err plan_fix(const char *setting, Arena *a, PlanFixed *f);
/* Local. The configuration with the choices of a point in place of all that a plan decides. */
Err plan_config_of(const Config *base, const PlanPoint *p, Arena *a, Config *out);

/* Local. Sets mesh.nodes to the row's order, if that is not the order of numbers. */
Err plan_set_nodes(const PlanRow *row, Arena *a, Config *c);
/* Local. Cost in US dollars or energy in joules of a step of the row; its seconds for
 * OBJECTIVE_TIME. */
double plan_objective(const PlanReport *r, const PlanRow *row);
/* Local. (time - bound) / time of the best plan: 0 if it is optimal. */
double plan_gap(const PlanReport *r);

Err plan_report_text(const PlanReport *r, Arena *temp, Text *out);
Err plan_report_json(const PlanReport *r, Arena *temp, Text *out);
/* Local. Draws time against memory of the frontier into a new file. */
Err plan_report_svg(const PlanReport *r, const char *path, Arena *temp);

#endif
