/* lines.h -- files of a line a step, kept to the steps that count.
 *
 *     metrics.jsonl   {"step": 19, ...}
 *                     {"step": 20, ...}      the checkpoint that a run goes on from is of step 20
 *                     {"step": 21, ...}      done, and lost with the weights: it will be done again
 *                     {"step": 22, "lo       where the process was killed
 *
 * A run that goes on first cuts such a file back, so each step stands in it once, whatever
 * happened. */
#ifndef TRAIN_LINES_H
#define TRAIN_LINES_H

#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

/* Local. Removes the lines of steps past `step`, and those that are no whole line of a step; a file
 * that is not there has none. The file is replaced as a whole: a crash leaves the old one. */
Err lines_cut(const char *path, int64_t step);
/* Local. Cut to `step`, then open to write more at its end. */
Err lines_open(const char *path, int64_t step, FILE **out);
/* Local. `, "key": x`; JSON has no NaN and no infinity: null says that there was no number. */
void lines_number(FILE *f, const char *key, double x);

#endif
