/* rope.cu -- rotary positions: pairs (i, i + c/2) of a head, rotated by pos * frequency(i).
 *
 * A thread has some pairs of some heads of a token. It loads all of them, and computes the angles
 * while the loads are in flight. Angles grow with the position, so they are computed and reduced to
 * an eighth of a turn in f64; sine and cosine of the rest are short polynomials in f32. The host
 * computes the frequencies, by the formula that all devices share. */
#include "device/cuda/value.cuh"

extern "C" {
#include "device/rope.h"
}

enum { THREADS = 128, MAX_PAIRS = 256 };

/* Heads per thread: as many as the registers hold. */
template <DType T> static constexpr __host__ __device__ int heads_of() { return T == BF16 ? 4 : 2; }

typedef struct {
    Tensor x, pos, y;
    int64_t half;
    double sign;
    int shares; /* threads that share the heads of a pair: thread s has s, s + shares, .. */
    double frequency[MAX_PAIRS];
} RopeArgs;

/* Within two ulps of f32, like the polynomials (from Cephes) over |x| <= pi / 4. */
static __device__ inline void sine_cosine(double angle, float *sine, float *cosine)
{
    const double round = 6755399441055744.0; /* 1.5 * 2^52: the sum's low bits are an integer */
    const double shifted = fma(angle, 0.63661977236758134308, round), turns = shifted - round;
    const int quarter = __double2loint(shifted);
    const float x =
        (float)fma(-turns, 6.123233995736766e-17, fma(-turns, 1.5707963267948966, angle));
    const float z = x * x;
    const float s =
        fmaf(fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f), z * x, x);
    const float c =
        fmaf(fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f),
             z * z, fmaf(-0.5f, z, 1));
    const float a = quarter & 1 ? c : s, b = quarter & 1 ? s : c;
    *sine = quarter & 2 ? -a : a;
    *cosine = (quarter + 1) & 2 ? -b : b;
}

template <int W, DType T>
static __global__ void __launch_bounds__(THREADS, 6) rope_kernel(const __grid_constant__ RopeArgs r)
{
    constexpr int HEADS = heads_of<T>();
    const unsigned pieces = (unsigned)r.half / W, index = blockIdx.x * THREADS + threadIdx.x;
    const unsigned i = index % pieces * W, share = index / pieces % r.shares;
    const int64_t token = index / pieces / r.shares, heads = r.x.n[1];
    if (token >= r.x.n[0]) return;
    PackedElements<W> low[HEADS], high[HEADS];
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        const int64_t h = share + k * r.shares;
        const int64_t from = token * r.x.stride[0] + h * r.x.stride[1] + i * r.x.stride[2];
        if (h >= heads) continue;
        low[k] = piece_load<W>(r.x.data, T, from);
        high[k] = piece_load<W>(r.x.data, T, from + r.half * r.x.stride[2]);
    }
    const double pos = ((const int32_t *)r.pos.data)[token * r.pos.stride[0]];
    float cosine[W], sine[W];
#pragma unroll
    for (int e = 0; e < W; e++)
        sine_cosine(pos * r.sign * r.frequency[i + e], &sine[e], &cosine[e]);
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        const int64_t h = share + k * r.shares;
        const int64_t to = token * r.y.stride[0] + h * r.y.stride[1] + i * r.y.stride[2];
        float a[W], b[W];
        if (h >= heads) continue;
        piece_floats(low[k], T, a);
        piece_floats(high[k], T, b);
#pragma unroll
        for (int e = 0; e < W; e++) {
            const float re = a[e], im = b[e];
            a[e] = re * cosine[e] - im * sine[e];
            b[e] = im * cosine[e] + re * sine[e];
        }
        piece_store<W>(r.y.data, T, to, a);
        piece_store<W>(r.y.data, T, to + r.half * r.y.stride[2], b);
    }
}

template <DType T> static Err launch(RopeArgs r, bool wide, cudaStream_t stream)
{
    r.shares = (int)blocks_of(r.x.n[1], heads_of<T>());
    const int64_t pieces = wide ? r.half / WALK_WIDE : r.half;
    const int64_t threads = r.x.n[0] * r.shares * pieces;
    if (threads > UINT32_MAX - THREADS) /* indices have 32 bits */
        return err_fail(ERR_CONFIG,
                        "cuda: rope of %lld pieces; the limit is 2^32 - %d, use a smaller "
                        "batch.micro",
                        (long long)threads, THREADS + 1);
    const unsigned blocks = (unsigned)blocks_of(threads, THREADS);
    if (wide)
        rope_kernel<WALK_WIDE, T><<<blocks, THREADS, 0, stream>>>(r);
    else
        rope_kernel<1, T><<<blocks, THREADS, 0, stream>>>(r);
    return OK;
}

extern "C" Err cuda_rope(const Call *call)
{
    RopeArgs r = {};
    r.x = call->in[0], r.pos = call->in[1], r.y = call->out[0];
    r.half = r.x.n[2] / 2;
    r.sign = call->attr.rope.back ? -1 : 1;
    TRY(cuda_begin(call, KERNEL_rope));
    if (r.half > MAX_PAIRS)
        return err_fail(ERR_CONFIG, "cuda: rope of heads of %lld channels; the limit is %d",
                        (long long)r.x.n[2], 2 * MAX_PAIRS);
    if (tensor_count(&r.x) == 0 || r.half == 0) return OK;
    for (int64_t i = 0; i < r.half; i++) r.frequency[i] = rope_frequency(&call->attr, i, r.x.n[2]);
    const bool wide = walk_rows_wide(&r.x) && walk_rows_wide(&r.y) && r.half % WALK_WIDE == 0;
    TRY(r.x.dtype == BF16 ? launch<BF16>(r, wide, call->queue->stream)
                          : launch<F32>(r, wide, call->queue->stream));
    return cuda_launched(KERNEL_rope);
}
