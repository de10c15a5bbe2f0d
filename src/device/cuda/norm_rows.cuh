/* norm_rows.cuh -- the rows of a norm: all dims but the last, one or two of them. */
#ifndef DEVICE_CUDA_NORM_ROWS_CUH
#define DEVICE_CUDA_NORM_ROWS_CUH

#include "device/cuda/value.cuh"

/* Offset of a row over the first `dims` dims. There are fewer than 2^31 rows (rows_of), because a
 * 64-bit division costs more than the rest of a short row. */
static __device__ inline int64_t row_at(const Tensor &t, int dims, int64_t row)
{
    if (dims == 1) return row * t.stride[0];
    const uint32_t n = (uint32_t)t.n[1], first = (uint32_t)row / n;
    return first * t.stride[0] + ((uint32_t)row - first * n) * t.stride[1];
}

static Err rows_of(const Tensor &t, int64_t *out)
{
    int64_t rows = 1;
    for (int d = 0; d < t.ndim - 1; d++) rows *= t.n[d];
    if (rows > INT32_MAX)
        return err_fail(
            ERR_CONFIG,
            "cuda: a norm of %lld rows; the limit is 2^31 - 1, use a smaller batch.micro",
            (long long)rows);
    *out = rows;
    return OK;
}

/* Mean or rstd of a row. */
static __device__ inline float stat_at(const Tensor &t, int64_t row)
{
    return t.data ? ((const float *)t.data)[row_at(t, t.ndim, row)] : 0;
}

#endif
