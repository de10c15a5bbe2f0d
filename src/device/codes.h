/* codes.h -- coded weights: which elements of a weight share a scale.
 *
 *     x    | row 3, columns 100.. | row 4 | ... |    a part of the master weights, at any element
 *     w    [rows, columns]         blocks of 128 x 128: cells 0 1 2 | 3 4 5 | ...    row by row
 *                                  or one cell for all
 *
 * A part of a weight, on some rank, has parts of cells: the largest magnitudes of all parts make
 * those of the cells. Matrices back to back (those of experts) have cells of their own. */
#ifndef DEVICE_CODES_H
#define DEVICE_CODES_H

#include "base/math.h"
#include "device/device.h"

/* The cells of one matrix. */
static inline int64_t codes_cells(const Attr *a)
{
    const int64_t size = a->codes.block;
    if (size == 0) return 1;
    return (a->codes.rows + size - 1) / size * ((a->codes.columns + size - 1) / size);
}

/* The cell of element i of x. */
static inline int64_t codes_cell(const Attr *a, int64_t i)
{
    const int64_t size = a->codes.block, columns = a->codes.columns, at = a->codes.at + i;
    const int64_t matrix = at / (a->codes.rows * columns), row = at / columns % a->codes.rows;
    if (size == 0) return matrix;
    return matrix * codes_cells(a) + row / size * ((columns + size - 1) / size) +
           at % columns / size;
}

/* The elements of x from i on, at most `most`, that are next to each other in one cell. */
static inline int64_t codes_run(const Attr *a, int64_t i, int64_t most)
{
    const int64_t size = a->codes.block, columns = a->codes.columns, at = a->codes.at + i;
    const int64_t all = a->codes.rows * columns, column = at % columns;
    if (size == 0) return min_i64(most, all - at % all);
    return min_i64(most, min_i64(size - column % size, columns - column));
}

#endif
