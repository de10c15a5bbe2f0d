/* column_sums.cu -- sums over rows: bias gradients, and dw and db of the norms.
 *
 *   sum_rows   db[j] = sum over t of dy[t,j]
 *   norms      dw[j] = sum over t of dy (x - mean[t]) rstd[t],  db[j] = sum over t of dy
 *
 * Two stages, each in one order that follows from the shape:
 *
 *            columns ->
 *     rows   [block][block][block]     a block: 8 warps sum every 8th row of their strip, then the
 *            [block][block][block]     8 sums are folded, into a row of f32 in scratch;
 *            ---------------------     the second stage folds the strips, and adds to what is kept
 */
#include "device/cuda/value.cuh"

enum { WARPS = 8, BLOCKS = 528, COLUMNS = 32 }; /* blocks: about so many; four an SM of 132 */

typedef struct {
    Tensor dy, x, mean, rstd; /* x, mean, rstd: data NULL where there is none */
    Tensor dw, db;            /* dw: NULL for sum_rows */
    int64_t rows, width, per_strip;
    float *part; /* [strips, 2, width] */
    int strips;
    float keep_dw, keep_db;
} Columns;

/* The rows of x[t,h,c] are t and h together. */
static __device__ inline int64_t row_at(const Tensor &t, int dims, int64_t row)
{
    if (dims == 1) return row * t.stride[0];
    return row / t.n[1] * t.stride[0] + row % t.n[1] * t.stride[1];
}

/* Rows row, row + WARPS, ... before `to`, AHEAD of them: all are loaded before one is summed. */
template <int W, bool NORM, int AHEAD>
static __device__ inline void add_rows(const Columns &s, int64_t row, int64_t to, int64_t column,
                                       float dw[W], float db[W])
{
    const int dims = s.dy.ndim - 1;
    Piece<W> dy[AHEAD], x[NORM ? AHEAD : 1];
    float shift[AHEAD] = {}, scale[AHEAD] = {};
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const int64_t t = row + k * WARPS;
        if (t >= to) break;
        dy[k] = piece_load<W>(s.dy.data, s.dy.dtype,
                              row_at(s.dy, dims, t) + column * s.dy.stride[dims]);
        if (!NORM) continue;
        x[NORM ? k : 0] =
            piece_load<W>(s.x.data, s.x.dtype, row_at(s.x, dims, t) + column * s.x.stride[dims]);
        scale[k] = ((const float *)s.rstd.data)[row_at(s.rstd, dims, t)];
        if (s.mean.data) shift[k] = ((const float *)s.mean.data)[row_at(s.mean, dims, t)];
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        float g[W], v[W];
        if (row + k * WARPS >= to) break;
        piece_floats(dy[k], s.dy.dtype, g);
        if (NORM) piece_floats(x[NORM ? k : 0], s.x.dtype, v);
#pragma unroll
        for (int e = 0; e < W; e++) {
            db[e] += g[e];
            if (NORM) dw[e] += g[e] * (v[e] - shift[k]) * scale[k];
        }
    }
}

template <int W, bool NORM>
static __global__ void __launch_bounds__(32 * WARPS) strip_kernel(const __grid_constant__ Columns s)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t column = ((int64_t)blockIdx.x * COLUMNS + lane) * W;
    const int64_t from = blockIdx.y * s.per_strip, to = min(from + s.per_strip, s.rows);
    enum { AHEAD = NORM ? 4 : 8 };
    float dw[W] = {}, db[W] = {};
    if (column < s.width)
        for (int64_t row = from + warp; row < to; row += WARPS * AHEAD)
            add_rows<W, NORM, AHEAD>(s, row, to, column, dw, db);
    __shared__ float fold[WARPS][2][COLUMNS * W];
#pragma unroll
    for (int e = 0; e < W; e++) {
        fold[warp][0][lane * W + e] = dw[e];
        fold[warp][1][lane * W + e] = db[e];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * COLUMNS * W; i += 32 * WARPS) {
        const int which = i / (COLUMNS * W), at = i % (COLUMNS * W);
        const int64_t j = (int64_t)blockIdx.x * COLUMNS * W + at;
        float sum = 0;
        for (int k = 0; k < WARPS; k++) sum += fold[k][which][at];
        if (j < s.width) s.part[((int64_t)blockIdx.y * 2 + which) * s.width + j] = sum;
    }
}

/* 32 threads a column, each a run of strips; their sums are folded in order. */
static __global__ void fold_kernel(const __grid_constant__ Columns s)
{
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x;
    const int which = blockIdx.y, each = (s.strips + 31) / 32;
    __shared__ float fold[32][32];
    float sum = 0;
    const int to = min((int)(threadIdx.y + 1) * each, s.strips);
    if (j < s.width)
        for (int k = threadIdx.y * each; k < to; k++)
            sum += s.part[((int64_t)k * 2 + which) * s.width + j];
    fold[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    const Tensor &out = which ? s.db : s.dw;
    if (threadIdx.y > 0 || j >= s.width || !out.data) return;
    for (int k = 1; k < 32; k++) sum += fold[k][threadIdx.x];
    value_keep(out.data, out.dtype, j * out.stride[0], which ? s.keep_db : s.keep_dw, sum);
}

static Err launch(const Call *call, KernelId id, Columns s)
{
    const cudaStream_t stream = call->queue->stream;
    void *scratch;
    s.rows = 1;
    s.width = s.dy.n[s.dy.ndim - 1];
    for (int d = 0; d < s.dy.ndim - 1; d++) s.rows *= s.dy.n[d];
    if (s.width == 0) return OK;
    const bool wide = walk_rows_wide(&s.dy) && (!s.x.data || walk_rows_wide(&s.x));
    const int64_t columns = COLUMNS * (wide ? WALK_WIDE : 1), across = blocks_of(s.width, columns);
    /* Enough blocks to fill the card, of 64 rows at least; the shape alone decides. */
    int64_t strips = blocks_of(s.rows, 64);
    if (strips > blocks_of(BLOCKS, across)) strips = blocks_of(BLOCKS, across);
    s.per_strip = strips > 0 ? blocks_of(s.rows, strips) : 1;
    s.strips = (int)blocks_of(s.rows, s.per_strip);
    TRY(cuda_scratch(call->queue, sizeof(float) * 2 * (size_t)(s.strips * s.width) + 1, &scratch));
    s.part = (float *)scratch;
    const dim3 grid((unsigned)across, (unsigned)s.strips);
    if (s.strips > 0 && wide && s.x.data)
        strip_kernel<WALK_WIDE, true><<<grid, 32 * WARPS, 0, stream>>>(s);
    else if (s.strips > 0 && wide)
        strip_kernel<WALK_WIDE, false><<<grid, 32 * WARPS, 0, stream>>>(s);
    else if (s.strips > 0 && s.x.data)
        strip_kernel<1, true><<<grid, 32 * WARPS, 0, stream>>>(s);
    else if (s.strips > 0)
        strip_kernel<1, false><<<grid, 32 * WARPS, 0, stream>>>(s);
    fold_kernel<<<dim3((unsigned)blocks_of(s.width, 32), 2), dim3(32, 32), 0, stream>>>(s);
    return cuda_launched(id);
}

extern "C" Err cuda_sum_rows(const Call *call)
{
    Columns s = {};
    TRY(cuda_begin(call, KERNEL_sum_rows));
    s.dy = call->in[0], s.db = call->out[0];
    s.keep_db = (float)call->number[0];
    return launch(call, KERNEL_sum_rows, s);
}

extern "C" Err cuda_layernorm_dw(const Call *call)
{
    Columns s = {};
    TRY(cuda_begin(call, KERNEL_layernorm_dw));
    s.dy = call->in[0], s.x = call->in[1], s.mean = call->in[2], s.rstd = call->in[3];
    s.dw = call->out[0], s.db = call->out[1];
    s.keep_dw = (float)call->number[0], s.keep_db = (float)call->number[1];
    return launch(call, KERNEL_layernorm_dw, s);
}

extern "C" Err cuda_rmsnorm_dw(const Call *call)
{
    Columns s = {};
    TRY(cuda_begin(call, KERNEL_rmsnorm_dw));
    s.dy = call->in[0], s.x = call->in[1], s.rstd = call->in[2];
    s.dw = call->out[0], s.keep_dw = (float)call->number[0];
    return launch(call, KERNEL_rmsnorm_dw, s);
}
