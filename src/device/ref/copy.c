/* copy.c -- bytes as they are: integers and NaN payloads too, so not by way of doubles. */
#include "device/ref/ref.h"

#include <string.h>

enum { ROWS = 64 }; /* per tile */

static void copy_row(Row from, Row to, int64_t n, size_t bytes)
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
    const int64_t end = least((tile + 1) * ROWS, row_count(y));
    for (int64_t row = tile * ROWS; row < end; row++)
        copy_row(tensor_row(x, row), tensor_row(y, row), row_length(y), dtype_bytes(y->dtype));
}

Err ref_copy(const Call *call)
{
    const Tensor *y = &call->out[0];
    if (row_length(y) > 0) ref_tiles(call, blocks_of(row_count(y), ROWS), copy_tile);
    return OK;
}
