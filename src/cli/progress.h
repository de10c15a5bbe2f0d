/* progress.h -- a progress line on the terminal, and large counts with separators. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const char *what, *path; /* "reading corpus.bin" */
    int64_t total;           /* in the unit of `done` */
    int percent;             /* printed last; -1: nothing yet */
    bool on;                 /* stderr is a terminal; a pipe gets no progress line */
} ProgressLine;

ProgressLine progress_begin(const char *what, const char *path, int64_t total);
/* Local. Rewrites the line when the percentage has changed. */
void progress_at(ProgressLine *p, int64_t done);
/* Local. The same as a callback: `line` is a ProgressLine. */
void progress_parts(void *line, int done, int total);
/* Local. Erases the line. */
void progress_end(ProgressLine *p);

enum { COUNT_BYTES = 32 };
/* Local. "1,234,567"; `buffer` has at least COUNT_BYTES and is returned. */
const char *grouped_digits(int64_t n, char *buffer);

#endif
