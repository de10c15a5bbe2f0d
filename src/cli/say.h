/* say.h -- how far a long walk is, on a terminal; large counts for people. */
#ifndef CLI_SAY_H
#define CLI_SAY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const char *what, *path;
    int64_t total;
    int percent;
    bool on; /* stderr is a terminal; a pipe gets no progress */
} Progress;

Progress progress_begin(const char *what, const char *path, int64_t total);
void progress_at(Progress *p, int64_t done);
void progress_end(Progress *p);

enum { COUNT_BYTES = 32 };
/* "1,234,567"; `buffer` is at least COUNT_BYTES and is returned. */
const char *say_count(int64_t n, char *buffer);

#endif
