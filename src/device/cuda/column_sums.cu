/* column_sums.cu -- sums over rows: the gradient of a bias.
 *
 *   db[j] = sum over t of dy[t,j]
 *
 * Two stages, each in one order that follows from the shape:
 *
 *            columns ->
 *     rows   0 0 0   1 1 1   2 2 2     a block has some warps, and the warps of all blocks take turns
 *            3 3 3   4 4 4   5 5 5     at the rows; then its sums are folded, into a row of f32 in
 *            0 0 0   1 1 1   2 2 2     scratch. The second stage folds the blocks of a strip of
 *            ...                       columns, and adds to what is kept
 *
 * Rows that a norm's gradient would sum beside (norm_back.cu) are taken by its turns: the same bits.
 *
 * Rows are taken from the last on: of what the op before wrote or read, the last rows are still in the
 * card's cache. */
#include "device/cuda/column_fold.cuh"
#include "device/cuda/row_fetch.cuh"

enum { WARPS = 8, BLOCKS = 528, COLUMNS = 32 }; /* blocks: at most so many; four an SM of 132 */

/* Rows that are on their way while one is summed. */
template <DType T> static constexpr __host__ __device__ int prefetch_depth()
{
    return T == BF16 ? 6 : 4;
}

typedef struct {
    Tensor dy;
    int64_t rows, width;
    float *part; /* [gridDim.y, width] */
} ColumnSumArgs;

/* Every `step`-th row from `row` down, of W columns: as soon as one is summed, the one AHEAD is asked
 * for into its place. */
template <int W, DType T>
static __device__ inline void add_rows(const ColumnSumArgs &s, int64_t row, int step,
                                       int64_t column, float (&db)[W])
{
    constexpr int PREFETCH = prefetch_depth<T>();
    Piece<W> ring[PREFETCH] = {};
    int64_t at = row * s.dy.stride[0] + column * s.dy.stride[1];
    int left = (int)(row / step) + 1, to_load = left; /* rows to sum, to ask for */
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

/* Blocks across and down, and warps of a block; the shape alone decides. */
typedef struct {
    int64_t across, strips;
    int warps;
} ColumnGrid;

/* Blocks that run at once, of 64 rows at least. */
static ColumnGrid grid_of(const ColumnSumArgs &s, bool wide)
{
    const int64_t across = blocks_of(s.width, COLUMNS * (wide ? WALK_WIDE : 1));
    const int64_t max_strips = BLOCKS / across > 0 ? BLOCKS / across : 1,
                  strips = blocks_of(s.rows, 64);
    const int norm_warps = span_fits(s.dy) ? fetch_row_warps(s.dy.dtype, s.width) : 0;
    if (norm_warps > 0) return {across, s.rows < FETCH_BLOCKS ? s.rows : FETCH_BLOCKS, norm_warps};
    return {across, strips < max_strips ? strips : max_strips, WARPS};
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
    TRY(cuda_scratch(call->queue, sizeof(float) * (size_t)(t.strips * s.width) + 1, &scratch));
    s.part = (float *)scratch;
    if (t.strips > 0 && s.dy.dtype == BF16)
        TRY(launch<BF16>(s, wide, t, call->queue));
    else if (t.strips > 0)
        TRY(launch<F32>(s, wide, t, call->queue));
    TRY(column_fold({s.part, (int)t.strips, 1, s.width, {call->out[0]}, {(float)call->number[0]}},
                    call->queue));
    return cuda_launched(KERNEL_sum_rows);
}
