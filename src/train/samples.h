/* samples.h -- logs of the samples of each step.
 *
 *     samples.jsonl   {"step": 3, "cursor": 10, "epoch": 0, "samples": [17, 4, 256, 31, 9]}
 *     skipped.jsonl   {"step": 7, "cursor": 30, "epoch": 0, "loss": 3.1, "grad_norm": null,
 *                      "why": "the norm of the gradient is not finite", "samples": [...]}
 *
 * cursor and epoch are those of the step's first sample; samples are indices in the dataset
 * (data/dataset.h). Rank 0 writes a line after the step. */
#ifndef TRAIN_SAMPLES_H
#define TRAIN_SAMPLES_H

#include <stdbool.h>
#include <stdio.h>
#include "data/dataset.h"

typedef struct {
    const Dataset *data;
    char dir[1024];
    FILE *all;     /* NULL: run.log_samples is false */
    FILE *skipped; /* NULL: no step was skipped yet */
} SampleFiles;

/* The samples [cursor, cursor + n) of the run, which make one step. */
typedef struct {
    int64_t step, cursor, n;
    double loss, grad_norm;
    const char *why; /* the reason for skipping the step; NULL: it was not skipped */
} SampleStep;

/* Local. Truncates both files to `step`. `log`: write all steps, not only skipped ones. */
Err samples_open(SampleFiles *f, const Dataset *data, const char *dir, bool log, int64_t step);
/* Local. Flushed when it returns. Both files are tried. */
Err samples_write(SampleFiles *f, const SampleStep *s);
Err samples_close(SampleFiles *f);

#endif
