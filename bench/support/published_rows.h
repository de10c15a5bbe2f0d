/* published_rows.h -- the rows of all tables, their clusters and stacks, and their predictions. */
#ifndef BENCH_SUPPORT_PUBLISHED_ROWS_H
#define BENCH_SUPPORT_PUBLISHED_ROWS_H

#include "support/published_clock.h"
#include "support/published_memory.h"
#include "support/stacks.h"

enum { MAX_ROWS_READ = 1 << 13, MAX_SETS = 24, MAX_SHAPES = 512 };

/* Layers that are alike on one cluster: support/published_shapes.h. */
typedef struct {
    int set, tp;
    int64_t width, sequences, tokens;
    double factor; /* on the seconds of work and launches */
} LayerShape;

typedef struct {
    const char *source, *id, *gpu;
    /* Of its lines in the report: the source, or "SOURCE fp8"; and the same with its release. */
    const char *label, *release;
    const char *skip; /* why it has no prediction; NULL: it has */
    PublishedRow plan;
    StackRow *stack; /* NULL: the cluster of its GPU, as Sheaf would run it */
    int set;
    const char *group; /* model, GPUs, sequences per step and their tokens */
    bool quarter;      /* constants may be fitted on it */
    bool dealt;        /* to folds: of the quarter, or with --regret of any group */
    bool fitted;       /* constants are fitted on it: it is not reported with them */
    int fold;          /* of the rows that are dealt: the part that is held out in turn */
    bool opened;       /* its clocks are compiled */
    RowClocks clocks;
    StepTime time;
    double seconds;     /* predicted */
    StepTime held_time; /* with folds: `time` and `seconds` by the fit that held it out */
    double held_seconds;
    int oom;        /* 1: ran out of memory, 0: did not, -1: not said */
    bool recovered; /* it finished, although its log has an error of memory: oom is -1 */
    double memory_bytes, needed_bytes; /* measured peak, predicted; 0: not given */
    StackShape shape;                  /* with needed_bytes */
    const LayerShape *shape_at;        /* NULL: rates alone */
} RowRecord;

/* A cluster file: one set of constants. */
typedef struct {
    char file[64];
    bool fits; /* --fit: it has a file of priors */
    Cluster cluster, prior;
} ClusterSet;

typedef struct {
    const char *folder; /* of cluster files */
    Arena *keep;
    PlanCache cache;
    StackTable stacks;
    int n_rows, n_sets;
    RowRecord *row; /* [MAX_ROWS_READ] */
    bool by_group;  /* the quarter that constants are fitted on is one of groups, not of rows */
    bool deal_all;  /* all rows are dealt to folds, and none is of the quarter */
    ClusterSet set[MAX_SETS];
    int n_shapes;
    LayerShape shape[MAX_SHAPES];
    int64_t stamp; /* counts changes of constants */
} PublishedRows;

/* Local. Appends every `every`-th row of a table. */
Err rows_read(PublishedRows *p, const char *path, int every);
/* Local. Predicts a row's time; compiles it the first time. A plan that cannot be compiled is a
 * skip. */
Err rows_predict(PublishedRows *p, int row);
/* Local. Predicts a row's memory, if its stack has numbers for it. */
void rows_predict_memory(RowRecord *r);

#endif
