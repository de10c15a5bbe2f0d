/* cover.h -- few combinations of option values that contain every pair, or triple, of values.
 *
 *     tp 1, 2   zero 0, 1   schedule a, b          8 rows; these 4 contain all 12 pairs
 *
 *     1 0 a     1 1 b     2 0 b     2 1 a
 *
 * There are too many combinations of options to try them all, and most faults show in two or three
 * options together. Values that no row has together are left out. */
#ifndef VERIFY_COVER_H
#define VERIFY_COVER_H

#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"

enum { MAX_COVER_OPTIONS = 21, MAX_COVER_STRENGTH = 3 };

typedef struct {
    int n;                         /* options */
    int values[MAX_COVER_OPTIONS]; /* number of values of each; they are 0, 1, ... */
    /* True if a row may begin with these values of the first `n` options. */
    bool (*may)(const void *context, const int *value, int n);
    const void *context;
} CoverSpace;

/* Local. Rows of s->n values each, such that every set of `strength` values of different options
 * that occurs in some possible row occurs in one of them. Deterministic: the row with the most new
 * sets is next. */
Err cover_rows(const CoverSpace *s, int strength, Arena *arena, int **rows, int *n);

#endif
