/* prefetch.h -- a queue of software prefetches, issued a few cache lines at a time by a
 * micro-kernel.
 *
 *     C = A B     multiply 16 dwords | prefetch | multiply 16 dwords | prefetch | ..
 *
 * A core has about twenty line-fill buffers. Prefetching a whole tile of C at once fills all of
 * them and stalls the micro-kernel's own loads from L2. Spread over the tile's multiplications, the
 * same lines arrive from memory while no load waits. */
#ifndef DEVICE_CPU_SIMD_GEMM_PREFETCH_H
#define DEVICE_CPU_SIMD_GEMM_PREFETCH_H

#include "device/cpu/simd/simd.h"

/* PREFETCH_DWORDS: a micro-kernel calls prefetch_issue after each PREFETCH_DWORDS along k. */
enum { PREFETCH_LINE = 64, PREFETCH_DWORDS = 16 };

/* Rows of `bytes` bytes that start `step` bytes apart. An empty one has left = 0. */
typedef struct {
    const char *row;
    int64_t bytes, step;
    int64_t byte;       /* of the current row; the next line to prefetch */
    int64_t left, each; /* cache lines: still to prefetch; per prefetch_issue */
} Prefetch;

enum { MAX_EPILOGUE_OPERANDS = 3 };

/* The next addresses of a GEMM: C, which is written; its addend, the next block of A and of B, and
 * the operands of the epilogue, which are read. */
typedef struct {
    Prefetch c, addend, a, b, operand[MAX_EPILOGUE_OPERANDS];
} PrefetchQueue;

/* `rows` rows of `bytes` bytes, the first at `at`; rounded down to the start of a cache line. */
static inline Prefetch prefetch_rows(const void *at, int64_t bytes, int64_t rows, int64_t step)
{
    const int64_t before = (int64_t)((uintptr_t)at % PREFETCH_LINE);
    Prefetch p = {.row = (const char *)at - before, .bytes = bytes + before, .step = step};
    p.left = bytes > 0 ? rows * blocks_of(p.bytes, PREFETCH_LINE) : 0;
    return p;
}

static inline Prefetch prefetch_dwords(const uint32_t *at, int64_t dwords)
{
    return prefetch_rows(at, 4 * dwords, 1, 0);
}

/* Spreads the lines evenly over `times` calls of prefetch_issue. */
static inline void prefetch_spread(Prefetch *p, int64_t times)
{
    p->each = blocks_of(p->left, times);
}

static inline const char *prefetch_next_line(Prefetch *p)
{
    const char *const line = p->row + p->byte;
    p->byte += PREFETCH_LINE;
    p->left--;
    if (p->byte >= p->bytes) {
        p->byte = 0;
        p->row += p->step;
    }
    return line;
}

/* Into L2. */
static inline __attribute__((always_inline)) void prefetch_read(Prefetch *p)
{
    for (int64_t n = min_i64(p->each, p->left); n > 0; n--)
        __builtin_prefetch(prefetch_next_line(p), 0, 2);
}

/* Issues the next lines of all entries; those of C into L1, for writing. */
static inline __attribute__((always_inline)) void prefetch_issue(PrefetchQueue *q)
{
    for (int64_t n = min_i64(q->c.each, q->c.left); n > 0; n--)
        __builtin_prefetch(prefetch_next_line(&q->c), 1, 3);
    prefetch_read(&q->addend);
    for (int i = 0; i < MAX_EPILOGUE_OPERANDS; i++) prefetch_read(&q->operand[i]);
    prefetch_read(&q->a);
    prefetch_read(&q->b);
}

#endif
