/* row_spans.h -- rows that a rank holds, as triples lo, hi, step in ascending order.
 *
 *     rows 0 1 6 7 of 8       spans (0,2,1) (6,8,1)       rows below 7: 3
 *
 * Stored rows ascend, so the rows of an interval are an interval of stored rows, which starts at
 * the number of rows below it. */
#ifndef DEVICE_ROW_SPANS_H
#define DEVICE_ROW_SPANS_H

#include <stdint.h>

#ifdef __CUDACC__
#define ROW_SPANS_FUNCTION static inline __host__ __device__
#else
#define ROW_SPANS_FUNCTION static inline
#endif

ROW_SPANS_FUNCTION int64_t row_spans_below(const int64_t *span, int64_t n, int64_t bound)
{
    int64_t below = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t lo = span[3 * i], hi = span[3 * i + 1], step = span[3 * i + 2];
        const int64_t end = bound < hi ? bound : hi;
        if (end > lo) below += (end - lo + step - 1) / step;
    }
    return below;
}

#endif
