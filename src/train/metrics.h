/* metrics.h -- the metrics of a step and the sinks that they are written to.
 *
 *     Metrics --> metrics_write --+--> metrics.jsonl              one JSON object a line
 *                                 +--> events.out.tfevents.*      TensorBoard, if requested
 *             --> metrics_line        a line for people
 *
 * A new sink is a row of the table in metrics.c. */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

/* Metrics of the routers of a mixture of experts. */
typedef struct {
    int layers;      /* with experts; 0: the model has none, and the rest is 0 */
    double aux, z;   /* balance and z loss, without coefficients: means over tokens and layers */
    double max, min; /* largest and smallest load of an expert over its even share, in any layer */
    /* Tokens of each expert of a layer, in order; borrowed. NULL past the last layer. */
    const double *(*load)(const void *context, int layer);
    const void *context;
    int experts;
    /* Further rounds of their rows, in all layers, micro-batches and groups of ranks; -1: a row
     * without room is an error. */
    int64_t rounds;
} RouterMetrics;

typedef struct {
    int64_t step, steps; /* steps: of the whole run */
    double loss, grad_norm, lr;
    int64_t tokens; /* live ones, since the start of the run */
    double step_ms, tokens_per_s;
    double predicted_ms; /* by the plan (step_plan.h); 0: not known */
    double mfu;          /* share of the measured GEMM peak; 0 to 1 */
    int64_t peak_bytes;  /* the highest rank's */
    int64_t sent_bytes;  /* left ranks, summed */
    bool skipped;        /* nothing was updated */
    bool has_valid;
    double valid_loss;
    RouterMetrics router;
} Metrics;

/* A file that gets the metrics of every step. */
typedef struct MetricsSink {
    Err (*write)(struct MetricsSink *s, const Metrics *m); /* flushed when it returns */
    FILE *file;
    char path[1200];
} MetricsSink;

enum { MAX_SINKS = 4 };
typedef struct {
    int n;
    MetricsSink sink[MAX_SINKS];
} MetricsSinks;

typedef struct {
    const char *dir;  /* run folder */
    bool tensorboard; /* write an event file too */
    int64_t step;     /* the step that the run continues after: later lines are removed; 0: all */
} MetricsSettings;

/* Local. Opens all sinks. */
Err metrics_open(MetricsSinks *s, const MetricsSettings *settings);
/* Local. Writes a step to every sink, also after an error. Returns the error of the first. */
Err metrics_write(MetricsSinks *s, const Metrics *m);
Err metrics_close(MetricsSinks *s);

/* Local. Prints the line for people. On a terminal it replaces the previous line; eta_s < 0:
 * unknown. */
void metrics_line(FILE *out, bool terminal, const Metrics *m, double eta_s);

/* ---- tensorboard.c ---- */

/* Local. Creates an event file if settings->tensorboard is set. Its header makes TensorBoard
 * discard events after settings->step. */
Err tensorboard_open(MetricsSink *s, const MetricsSettings *settings);

#endif
