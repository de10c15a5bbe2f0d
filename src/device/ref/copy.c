/* copy.c -- byte copies of all rows, or of rows to given indices. Integers and NaN payloads must
 * survive, so values do not pass through doubles. */
#include "device/ref/ref.h"

#include <string.h>

enum { ROWS = 64 }; /* per tile */

static void copy_row(RowRef from, RowRef to, int64_t n, size_t bytes)
{
    const int64_t step = (int64_t)bytes;
    if (from.stride == 1 && to.stride == 1)
        memcpy(to.at, from.at, (size_t)n * bytes);
    else
        for (int64_t i = 0; i < n; i++)
            memcpy(to.at + i * to.stride * step, from.at + i * from.stride * step, bytes);
}

static void copy_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *x = &call->in[0], *y = &call->out[0];
    const int64_t end = min_i64((tile + 1) * ROWS, row_count(y));
    for (int64_t row = tile * ROWS; row < end; row++)
        copy_row(tensor_row(x, row), tensor_row(y, row), row_length(y), dtype_bytes(y->dtype));
}

Err ref_copy(const Call *call)
{
    const Tensor *y = &call->out[0];
    if (row_length(y) > 0) ref_tiles(call, blocks_of(row_count(y), ROWS), copy_tile);
    return OK;
}

/* RowRef t of x[t,..] and its destination row of y[s,..] have the same inner rows. */
static void put_at_tile(void *work, int64_t t)
{
    const Call *call = work;
    Tensor x = call->in[0], y = call->out[0];
    const size_t bytes = dtype_bytes(y.dtype);
    const int64_t to = int_at(&call->in[1], t);
    if (to < 0) return;
    x.data = (char *)x.data + (size_t)(t * x.stride[0]) * bytes;
    y.data = (char *)y.data + (size_t)(to * y.stride[0]) * bytes;
    x.n[0] = y.n[0] = 1;
    for (int64_t row = 0; row < row_count(&y); row++)
        copy_row(tensor_row(&x, row), tensor_row(&y, row), row_length(&y), bytes);
}

Err ref_put_rows_at(const Call *call)
{
    if (row_length(&call->out[0]) > 0) ref_tiles(call, call->in[0].n[0], put_at_tile);
    return OK;
}
