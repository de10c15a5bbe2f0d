/* lines.h -- files with one JSON line per step, truncated to the steps that count.
 *
 *     metrics.jsonl   {"step": 19, ...}
 *                     {"step": 20, ...}      step of the checkpoint that the run resumes from
 *                     {"step": 21, ...}      its weights were not saved: it will be repeated
 *                     {"step": 22, "lo       the process was killed here
 *
 * A line that cannot be written (a full disk) leaves no part in the file. A resumed run first
 * removes the lines after its checkpoint, so the file contains each step once. */
#ifndef TRAIN_LINES_H
#define TRAIN_LINES_H

#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

/* Local. Removes incomplete lines and the lines of steps after `step`. A missing file is no error.
 * The file is replaced atomically: after a crash the old one is intact. */
Err lines_cut(const char *path, int64_t step);
/* Local. Calls lines_cut, then opens the file for appending. */
Err lines_open(const char *path, int64_t step, FILE **out);
/* Local. The length of the file; called before a line is printed. */
int64_t lines_mark(FILE *f);
/* Local. Writes what was printed since `mark`. After an error no part of it is in the file, which
 * can be written to again; err_text() is the reason and the way out. */
Err lines_flush(FILE *f, int64_t mark);
/* Local. Writes `, "key": x`; null for NaN and infinity, which JSON does not have. */
void lines_number(FILE *f, const char *key, double x);

#endif
