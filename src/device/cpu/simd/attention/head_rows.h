/* head_rows.h -- rows of x[t,h,c]: the channels of one head of one token. Rows may have any type
 * and stride; contiguous rows are read and written inline. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_HEAD_ROWS_H
#define DEVICE_CPU_SIMD_ATTENTION_HEAD_ROWS_H

#include "device/cpu/simd/simd.h"

enum { MAX_CHANNELS = 256 }; /* of a head; larger heads run on device/ref */

static inline RowRef head_row(const Tensor *x, int64_t token, int64_t head)
{
    return row_at(x, token * x->stride[0] + head * x->stride[1], x->stride[2]);
}

/* True if the row is contiguous whole vectors of that type, which row_read reads without a call.
 * Passing a RowRef through the stack costs a tenth of a tile's time: it is loaded wider than it was
 * stored, so store forwarding fails. */
static inline bool row_is_whole(RowRef r, DType type, int64_t n)
{
    return r.dtype == type && r.stride == 1 && n % W == 0;
}

static inline const float *row_read(RowRef r, int64_t n, float *buffer)
{
    if (row_is_whole(r, F32, n)) return (const float *)(void *)r.at;
    if (row_is_whole(r, BF16, n))
        for (int64_t c = 0; c < n; c += W)
            v_store(buffer + c, v_load_bf16((const uint16_t *)(void *)r.at + c));
    else
        load_piece(r, 0, n, buffer);
    return buffer;
}

/* row = keep * row + factor * x, for any stride and type. */
static inline void row_blend(RowRef r, int64_t n, float keep, float factor, const float *x)
{
    float scaled[MAX_CHANNELS];
    for (int64_t c = 0; c < n; c += W) v_store(scaled + c, factor * v_load(x + c));
    keep_piece(r, 0, n, keep, scaled);
}

EACH_FORM void write_vectors(ElementForm form, void *to, int64_t n, float factor, const float *x)
{
    for (int64_t c = 0; c < n; c += 2 * W)
        v_store_pair_as(form, to, c, factor * v_load(x + c), factor * v_load(x + c + W));
}

/* row = factor * x, where x is padded to whole pairs of vectors. `form` is form_of_type of the
 * row's type: callers that write many rows compute it once. */
static inline void row_write(RowRef r, ElementForm form, int64_t n, float factor, const float *x)
{
    if (r.stride != 1 || n % (2 * W) != 0 || form == AS_OTHER)
        row_blend(r, n, 0, factor, x);
    else if (form == AS_F32)
        write_vectors(AS_F32, r.at, n, factor, x);
    else if (form == AS_BF16)
        write_vectors(AS_BF16, r.at, n, factor, x);
    else
        write_vectors(AS_BF16_HW, r.at, n, factor, x);
}

#endif
