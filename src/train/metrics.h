/* metrics.h -- what a step was: one object a line in metrics.jsonl, a line for people, and an event
 * file for TensorBoard when asked. */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

typedef struct {
    int64_t step, steps; /* steps: of the whole run */
    double loss, grad_norm, lr;
    int64_t tokens; /* live ones, since the start of the run */
    double step_ms, tokens_per_s;
    double mfu;         /* share of the device's measured peak; 0 to 1 */
    int64_t peak_bytes; /* the highest rank's */
    int64_t sent_bytes; /* left ranks, summed */
    bool skipped;       /* nothing was updated */
    bool has_valid;
    double valid_loss;
} Metrics;

typedef struct {
    FILE *jsonl, *events;
    char path[1024];
} MetricsFiles;

/* Local. Opens dir/metrics.jsonl, cut back to `step` (0: empty), and a new
 * dir/events.out.tfevents.* when asked, which tells TensorBoard to forget what it has past `step`. */
Err metrics_open(MetricsFiles *f, const char *dir, bool tensorboard, int64_t step);
/* Local. A line each; on disk when it returns. */
Err metrics_write(MetricsFiles *f, const Metrics *m);
Err metrics_close(MetricsFiles *f);

/* Local. The line for people. On a terminal it replaces the line before; eta_s < 0: not known. */
void metrics_line(FILE *out, bool terminal, const Metrics *m, double eta_s);

/* ---- tensorboard.c ---- */

/* Local. Writes the header of a file that begins after `step`; then one event a step. */
Err events_begin(FILE *f, int64_t step, double wall_s);
Err events_write(FILE *f, const Metrics *m, double wall_s);

#endif
