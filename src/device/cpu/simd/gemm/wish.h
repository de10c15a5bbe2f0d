/* wish.h -- memory that will be read or written soon, asked for line by line while a unit multiplies.
 *
 *     c = a b     multiply 16 words | ask | multiply 16 words | ask | ..
 *
 * A core has some twenty lines under way at a time. Who asks for a whole tile of c at once fills that,
 * and what the unit itself loads from the second cache waits behind it; asked for one by one, all
 * comes from memory while nobody waits. */
#ifndef DEVICE_CPU_SIMD_GEMM_WISH_H
#define DEVICE_CPU_SIMD_GEMM_WISH_H

#include "device/cpu/simd/simd.h"

/* WISH_WORDS: along k, after which a unit asks for more. */
enum { WISH_LINE = 64, WISH_WORDS = 16 };

/* Rows of so many bytes, a step apart. */
typedef struct {
    const char *row;
    int64_t bytes, step;
    int64_t byte;       /* that is asked for next, of this row */
    int64_t left, each; /* lines: of all rows; of them at a time */
} Wish;

enum { MAX_NEAR = 3 };

/* What a product wants: of c, to write it; of what c starts from, of a and of b, to read it; and what is
 * done to c after it. */
typedef struct {
    Wish c, old, a, b, near[MAX_NEAR];
} Wishes;

/* `bytes` from `at` on, and the same of rows behind it. */
static inline Wish wish_for(const void *at, int64_t bytes, int64_t rows, int64_t step)
{
    const int64_t before = (int64_t)((uintptr_t)at % WISH_LINE);
    Wish w = {.row = (const char *)at - before, .bytes = bytes + before, .step = step};
    w.left = bytes > 0 ? rows * blocks_of(w.bytes, WISH_LINE) : 0;
    return w;
}

static inline Wish wish_words(const uint32_t *at, int64_t words)
{
    return wish_for(at, 4 * words, 1, 0);
}

/* All of it, evenly, in so many times. */
static inline void wish_in(Wish *w, int64_t times) { w->each = blocks_of(w->left, times); }

static inline const char *wish_next(Wish *w)
{
    const char *const line = w->row + w->byte;
    w->byte += WISH_LINE;
    w->left--;
    if (w->byte >= w->bytes) {
        w->byte = 0;
        w->row += w->step;
    }
    return line;
}

static inline __attribute__((always_inline)) void wish_read(Wish *w)
{
    for (int64_t n = least(w->each, w->left); n > 0; n--) __builtin_prefetch(wish_next(w), 0, 2);
}

static inline __attribute__((always_inline)) void wishes_ask(Wishes *w)
{
    for (int64_t n = least(w->c.each, w->c.left); n > 0; n--)
        __builtin_prefetch(wish_next(&w->c), 1, 3);
    wish_read(&w->old);
    for (int i = 0; i < MAX_NEAR; i++) wish_read(&w->near[i]);
    wish_read(&w->a);
    wish_read(&w->b);
}

#endif
