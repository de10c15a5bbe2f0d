/* clip_sums.cu -- sums over the tokens of a clip: gradients of its scale, shift and gate
 * (device/ref/modulate.c).
 *
 *     tokens   0 .. 511     512 .. 1023    ..      a block per chunk of tokens, clip, 32 W columns:
 *     warp 0   0, 8, ..     512, 520, ..           its warps take rows in turn
 *     warp 1   1, 9, ..     513, 521, ..
 *
 * Sums of warps are added in order, and then those of chunks: the same bits every time. */
#include "device/cuda/value.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

typedef struct {
    Tensor dy, x, clip, mean, rstd, product, plain; /* mean, plain: data NULL if there is none */
    float keep_product, keep_plain;
    int chunks;
    float *part; /* [2, chunks, clips, width]: products, plain */
} ClipSumArgs;

static __device__ inline float stat_get(const Tensor &t, int64_t row)
{
    return ((const float *)t.data)[row * t.stride[0]];
}

template <int W>
static __device__ inline void row_get(const Tensor &t, int64_t row, int64_t i, float x[W])
{
    piece_floats(piece_load<W>(t.data, t.dtype, row * t.stride[0] + i * t.stride[1]), t.dtype, x);
}

/* Sum over the warps of one column's `part`, in order. */
template <int N> static __device__ inline float warps_sum(const float part[WARPS][N], int column)
{
    float sum = 0;
    for (int w = 0; w < WARPS; w++) sum += part[w][column];
    return sum;
}

template <int W>
static __global__ void __launch_bounds__(THREADS)
    chunk_kernel(const __grid_constant__ ClipSumArgs s)
{
    enum { COLUMNS = 32 * W };
    __shared__ float part[2][WARPS][COLUMNS];
    const int64_t clip = blockIdx.y, width = s.product.n[1], rows = s.dy.n[0];
    const int64_t first = rows * blockIdx.z / s.chunks, end = rows * (blockIdx.z + 1) / s.chunks;
    const int64_t from = (int64_t)blockIdx.x * COLUMNS, i = from + threadIdx.x % 32 * W;
    const int warp = threadIdx.x / 32;
    float product[W] = {}, plain[W] = {}, g[W], x[W];
    for (int64_t t = first + warp; t < end && i < width; t += WARPS) {
        if (((const int32_t *)s.clip.data)[t * s.clip.stride[0]] != clip) continue;
        const float mean = s.mean.data ? stat_get(s.mean, t) : 0;
        const float rstd = s.mean.data ? stat_get(s.rstd, t) : 1;
        row_get<W>(s.dy, t, i, g);
        row_get<W>(s.x, t, i, x);
#pragma unroll
        for (int e = 0; e < W; e++) {
            product[e] = fmaf(g[e], (x[e] - mean) * rstd, product[e]);
            plain[e] += g[e];
        }
    }
#pragma unroll
    for (int e = 0; e < W; e++) {
        part[0][warp][threadIdx.x % 32 * W + e] = product[e];
        part[1][warp][threadIdx.x % 32 * W + e] = plain[e];
    }
    __syncthreads();
    const int64_t clips = s.product.n[0], each = s.chunks * clips * width;
    for (int c = threadIdx.x; c < COLUMNS && from + c < width; c += THREADS) {
        float *to = s.part + ((int64_t)blockIdx.z * clips + clip) * width + from + c;
        to[0] = warps_sum<COLUMNS>(part[0], c);
        if (s.plain.data) to[each] = warps_sum<COLUMNS>(part[1], c);
    }
}

/* A thread per clip and column. */
static __global__ void __launch_bounds__(THREADS) fold_kernel(const __grid_constant__ ClipSumArgs s)
{
    const int64_t width = s.product.n[1], all = s.product.n[0] * width;
    const int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x, clip = k / width, i = k % width;
    if (k >= all) return;
    for (int which = 0; which < (s.plain.data ? 2 : 1); which++) {
        const Tensor &to = which ? s.plain : s.product;
        float sum = 0;
        for (int c = 0; c < s.chunks; c++) sum += s.part[(which * (int64_t)s.chunks + c) * all + k];
        value_keep(to.data, to.dtype, clip * to.stride[0] + i * to.stride[1],
                   which ? s.keep_plain : s.keep_product, sum);
    }
}

static Err clip_sums(const Call *call, ClipSumArgs s, KernelId id)
{
    const int64_t clips = s.product.n[0], width = s.product.n[1], all = clips * width;
    if (all == 0) return OK;
    if (clips > 65535)
        return err_fail(ERR_CONFIG, "cuda: %s of %lld clips; the limit is 65535", kernel_name(id),
                        (long long)clips);
    void *part;
    s.chunks = (int)clip_chunks(s.dy.n[0]);
    TRY(cuda_scratch(call->queue, scratch_clips(s.dy.n[0], clips, width), &part));
    s.part = (float *)part;
    const bool wide = walk_rows_wide(&s.dy) && walk_rows_wide(&s.x);
    const dim3 grid((unsigned)blocks_of(width, 32 * (wide ? WALK_WIDE : 1)), (unsigned)clips,
                    (unsigned)s.chunks);
    if (wide)
        chunk_kernel<WALK_WIDE><<<grid, THREADS, 0, call->queue->stream>>>(s);
    else
        chunk_kernel<1><<<grid, THREADS, 0, call->queue->stream>>>(s);
    fold_kernel<<<(unsigned)blocks_of(all, THREADS), THREADS, 0, call->queue->stream>>>(s);
    return cuda_launched(id);
}

extern "C" Err cuda_modulate_dw(const Call *call)
{
    ClipSumArgs s = {};
    TRY(cuda_begin(call, KERNEL_modulate_dw));
    s.dy = call->in[0], s.x = call->in[1], s.clip = call->in[2], s.mean = call->in[3];
    s.rstd = call->in[4], s.product = call->out[0], s.plain = call->out[1];
    s.keep_product = (float)call->number[0], s.keep_plain = (float)call->number[1];
    return clip_sums(call, s, KERNEL_modulate_dw);
}

extern "C" Err cuda_gate_add_dw(const Call *call)
{
    ClipSumArgs s = {};
    TRY(cuda_begin(call, KERNEL_gate_add_dw));
    s.dy = call->in[0], s.x = call->in[1], s.clip = call->in[2], s.product = call->out[0];
    s.keep_product = (float)call->number[0];
    return clip_sums(call, s, KERNEL_gate_add_dw);
}
