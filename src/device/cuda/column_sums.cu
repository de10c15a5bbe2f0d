/* column_sums.cu -- sums over rows: the gradient of a bias.
 *
 *   db[j] = sum over t of dy[t,j]
 *
 * Two stages, each in one order that the shape determines:
 *
 *            columns ->
 *     rows   0 0 0   1 1 1   2 2 2    Warp i of all blocks takes every n-th row from row i on. A
 *            3 3 3   4 4 4   5 5 5    block adds the sums of its warps and writes a row of f32 to
 *            0 0 0   1 1 1   2 2 2    scratch. The second stage adds the blocks of a strip of
 *            ...                      columns, and keep times the output (column_fold.cuh)
 *
 * Rows whose sum a norm's gradient can also compute (norm_back.cu) are assigned as in that kernel,
 * which gives the same bits.
 *
 * Rows are processed from the last to the first: the preceding op left the last rows in L2. */
#include "device/cuda/column_fold.cuh"
#include "device/cuda/row_fetch.cuh"

enum { WARPS = 8, COLUMNS = STRIP_COLUMNS };

/* Rows in flight while one is summed. */
template <DType T> static constexpr __host__ __device__ int prefetch_depth()
{
    return T == BF16 ? 6 : 4;
}

typedef struct {
    Tensor dy;
    int64_t rows, width;
    float *part; /* [gridDim.y, width] */
} ColumnSumArgs;

/* Adds every `step`-th row from `row` down, W columns each. When a row has been added, the row
 * PREFETCH further is loaded into its place. */
template <int W, DType T>
static __device__ inline void add_rows(const ColumnSumArgs &s, int64_t row, int step,
                                       int64_t column, float (&db)[W])
{
    constexpr int PREFETCH = prefetch_depth<T>();
    PackedElements<W> ring[PREFETCH] = {};
    int64_t at = row * s.dy.stride[0] + column * s.dy.stride[1];
    int left = (int)(row / step) + 1, to_load = left; /* rows to add, rows to load */
    auto prefetch = [&](int k) {
        if (to_load-- > 0) ring[k] = piece_load<W>(s.dy.data, T, at);
        at -= step * s.dy.stride[0];
    };
    auto add = [&](int k) {
        float g[W];
        piece_floats(ring[k], T, g);
#pragma unroll
        for (int e = 0; e < W; e++) db[e] += g[e];
    };
#pragma unroll
    for (int k = 0; k < PREFETCH; k++) prefetch(k);
    for (; left >= PREFETCH; left -= PREFETCH)
#pragma unroll
        for (int k = 0; k < PREFETCH; k++) {
            add(k);
            prefetch(k);
        }
#pragma unroll
    for (int k = 0; k < PREFETCH; k++)
        if (k < left) add(k);
}

template <int W, DType T>
static __global__ void __launch_bounds__(32 * WARPS, 4)
    strip_kernel(const __grid_constant__ ColumnSumArgs s)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const int64_t column = ((int64_t)blockIdx.x * COLUMNS + lane) * W;
    const int64_t row = s.rows - 1 - (blockIdx.y * warps + warp);
    float db[W] = {};
    pdl_trigger();
    pdl_wait();
    if (column < s.width && row >= 0) add_rows<W, T>(s, row, warps * gridDim.y, column, db);
    __shared__ float fold[WARPS][W][COLUMNS];
#pragma unroll
    for (int e = 0; e < W; e++) fold[warp][e][lane] = db[e];
    __syncthreads();
    for (int i = threadIdx.x; i < COLUMNS * W; i += blockDim.x) {
        const int64_t j = (int64_t)blockIdx.x * COLUMNS * W + i;
        float sum = 0;
        for (int k = 0; k < warps; k++) sum += fold[k][i % W][i / W];
        if (j < s.width) s.part[(int64_t)blockIdx.y * s.width + j] = sum;
    }
}

/* Blocks across and down, and warps per block; the shape alone decides. */
typedef struct {
    int64_t across, strips;
    int warps;
} ColumnGrid;

/* As many blocks as run at once, with at least 64 rows each. */
static ColumnGrid grid_of(const ColumnSumArgs &s, bool wide)
{
    const int64_t across = blocks_of(s.width, COLUMNS * (wide ? WALK_WIDE : 1));
    const int norm_warps = span_fits(s.dy) ? fetch_row_warps(s.dy.dtype, s.width) : 0;
    if (norm_warps > 0) return {across, s.rows < FETCH_BLOCKS ? s.rows : FETCH_BLOCKS, norm_warps};
    return {across, strips_down(s.rows, across), WARPS};
}

template <DType T>
static Err launch(const ColumnSumArgs &s, bool wide, const ColumnGrid &t, const DeviceQueue *q)
{
    const LaunchShape shape = {dim3((unsigned)t.across, (unsigned)t.strips),
                               dim3(32 * (unsigned)t.warps), 0};
    return wide ? pdl_launch(strip_kernel<WALK_WIDE, T>, shape, q, s)
                : pdl_launch(strip_kernel<1, T>, shape, q, s);
}

extern "C" Err cuda_sum_rows(const Call *call)
{
    ColumnSumArgs s = {call->in[0], call->in[0].n[0], call->in[0].n[1], NULL};
    void *scratch;
    TRY(cuda_begin(call, KERNEL_sum_rows));
    if (s.width == 0) return OK;
    const bool wide = walk_rows_wide(&s.dy);
    const ColumnGrid t = grid_of(s, wide);
    TRY(cuda_scratch(call->queue, scratch_columns(1, t.strips, s.width), &scratch));
    s.part = (float *)scratch;
    if (t.strips > 0 && s.dy.dtype == BF16)
        TRY(launch<BF16>(s, wide, t, call->queue));
    else if (t.strips > 0)
        TRY(launch<F32>(s, wide, t, call->queue));
    TRY(column_fold({s.part, (int)t.strips, 1, s.width, {call->out[0]}, {(float)call->number[0]}},
                    call->queue));
    return cuda_launched(KERNEL_sum_rows);
}
