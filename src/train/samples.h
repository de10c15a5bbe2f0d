/* samples.h -- which samples a step was made of.
 *
 *     samples.jsonl   {"step": 3, "cursor": 10, "epoch": 0, "samples": [17, 4, 256, 31, 9]}
 *     skipped.jsonl   {"step": 7, "cursor": 30, "epoch": 0, "loss": 3.1, "grad_norm": null,
 *                      "why": "the norm of the gradient is not finite", "samples": [...]}
 *
 * cursor and epoch are of the step's first sample; ids are numbers of samples in the dataset
 * (data/dataset.h). Rank 0 writes a line when the step is done: what was not done is not there. */
#ifndef TRAIN_SAMPLES_H
#define TRAIN_SAMPLES_H

#include <stdbool.h>
#include <stdio.h>
#include "data/dataset.h"

typedef struct {
    const Dataset *data;
    char dir[1024];
    FILE *all, *skipped; /* NULL: not asked for; nothing was skipped yet */
} SampleFiles;

/* The samples [cursor, cursor + n) of the run, all of one step. */
typedef struct {
    int64_t step, cursor, n;
    double loss, grad_norm;
    const char *why; /* it was skipped; NULL: it was not */
} SampleStep;

/* Local. Both files are cut back to `step`; `log`: all samples are written, not only skipped ones. */
Err samples_open(SampleFiles *f, const Dataset *data, const char *dir, bool log, int64_t step);
/* Local. On disk when it returns. */
Err samples_write(SampleFiles *f, const SampleStep *s);
Err samples_close(SampleFiles *f);

#endif
