/* rope.cu -- rotary positions: pairs (i, i + c/2) of a head, turned by pos * frequency(i).
 *
 * Angles grow with the position, so they are made in f64; a thread makes those of some pairs once
 * and turns them in many heads of its token. Frequencies come from the host, by the one formula. */
#include "device/cuda/value.cuh"

extern "C" {
#include "device/rope.h"
}

enum { THREADS = 128, MAX_PAIRS = 256 };

typedef struct {
    Tensor x, pos, y;
    int64_t half;
    double sign;
    int shares; /* threads that split the heads of a token's pairs */
    double frequency[MAX_PAIRS];
} Rope;

template <int W>
static __global__ void __launch_bounds__(THREADS) rope_kernel(const __grid_constant__ Rope r)
{
    const int64_t pieces = r.half / W, index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t i = index % pieces * W, share = index / pieces % r.shares;
    const int64_t token = index / pieces / r.shares;
    if (token >= r.x.n[0]) return;
    const double pos = ((const int32_t *)r.pos.data)[token * r.pos.stride[0]];
    float cosine[W], sine[W];
#pragma unroll
    for (int e = 0; e < W; e++) {
        double s, c;
        sincos(pos * r.frequency[i + e], &s, &c);
        cosine[e] = (float)c;
        sine[e] = (float)(r.sign * s);
    }
    for (int64_t h = share; h < r.x.n[1]; h += r.shares) {
        const int64_t from = token * r.x.stride[0] + h * r.x.stride[1];
        const int64_t to = token * r.y.stride[0] + h * r.y.stride[1];
        const Piece<W> pa = piece_load<W>(r.x.data, r.x.dtype, from + i * r.x.stride[2]);
        const Piece<W> pb = piece_load<W>(r.x.data, r.x.dtype, from + (r.half + i) * r.x.stride[2]);
        float a[W], b[W];
        piece_floats(pa, r.x.dtype, a);
        piece_floats(pb, r.x.dtype, b);
#pragma unroll
        for (int e = 0; e < W; e++) {
            const float re = a[e], im = b[e];
            a[e] = re * cosine[e] - im * sine[e];
            b[e] = im * cosine[e] + re * sine[e];
        }
        piece_store<W>(r.y.data, r.y.dtype, to + i * r.y.stride[2], a);
        piece_store<W>(r.y.data, r.y.dtype, to + (r.half + i) * r.y.stride[2], b);
    }
}

extern "C" Err cuda_rope(const Call *call)
{
    Rope r = {};
    r.x = call->in[0], r.pos = call->in[1], r.y = call->out[0];
    r.half = r.x.n[2] / 2;
    r.sign = call->attr.rope.back ? -1 : 1;
    TRY(cuda_begin(call, KERNEL_rope));
    if (r.half > MAX_PAIRS)
        return err_fail(ERR_CONFIG, "cuda: rope of heads of %lld channels; the most is %d",
                        (long long)r.x.n[2], 2 * MAX_PAIRS);
    if (tensor_count(&r.x) == 0 || r.half == 0) return OK;
    for (int64_t i = 0; i < r.half; i++) r.frequency[i] = rope_frequency(&call->attr, i, r.x.n[2]);
    const bool wide = walk_rows_wide(&r.x) && walk_rows_wide(&r.y) && r.half % WALK_WIDE == 0;
    r.shares = (int)(r.x.n[1] < 4 ? r.x.n[1] : 4);
    const int64_t pieces = wide ? r.half / WALK_WIDE : r.half;
    const unsigned blocks = (unsigned)blocks_of(r.x.n[0] * r.shares * pieces, THREADS);
    if (wide)
        rope_kernel<WALK_WIDE><<<blocks, THREADS, 0, call->queue->stream>>>(r);
    else
        rope_kernel<1><<<blocks, THREADS, 0, call->queue->stream>>>(r);
    return cuda_launched(KERNEL_rope);
}
