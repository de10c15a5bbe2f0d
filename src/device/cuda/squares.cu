/* squares.cu -- sums of squares, of one tensor and of a list, and the clip factor.
 *
 * The order of a sum depends on n alone:
 *
 *     chunk   65,536 elements, one block: thread i adds the groups of eight i, i + 512, ..., in
 *             f64, and the 512 sums are reduced by a fixed tree
 *     sum     the chunks in the same way, by 256 threads: thread i has i, i + 256, ... */
#include "device/cuda/lists.cuh"

enum { CHUNK = SQUARES_CHUNK, THREADS = 512, FOLD_THREADS = 256, PREFETCH = 4 };

static __device__ inline double add_squares(const float (&v)[8], double sum)
{
#pragma unroll
    for (int e = 0; e < 8; e++) sum += (double)v[e] * (double)v[e];
    return sum;
}

/* An aligned whole chunk: PREFETCH groups are loaded before the first is added. */
template <DType T> static __device__ inline double whole_squares(const void *x, int64_t from)
{
    double sum = 0;
    int64_t i = from + 8 * (int64_t)threadIdx.x;
    for (int k = 0; k < CHUNK / (8 * THREADS); k += PREFETCH) {
        PackedElements<8> piece[PREFETCH];
#pragma unroll
        for (int a = 0; a < PREFETCH; a++, i += 8 * THREADS) piece[a] = piece_load<8>(x, T, i);
#pragma unroll
        for (int a = 0; a < PREFETCH; a++) {
            float v[8];
            piece_floats(piece[a], T, v);
            sum = add_squares(v, sum);
        }
    }
    return sum;
}

/* Squares of elements [from, to) at `stride`, by a block. */
static __device__ inline double squares(const void *x, DType dtype, int64_t stride, int64_t from,
                                        int64_t to)
{
    double sum = 0;
    if (to - from == CHUNK && stride == 1 && is_aligned(x))
        return group_sum<THREADS>(dtype == BF16 ? whole_squares<BF16>(x, from)
                                                : whole_squares<F32>(x, from));
    for (int64_t i = from + 8 * (int64_t)threadIdx.x; i < to; i += 8 * THREADS) {
        float v[8];
        for (int e = 0; e < 8; e++) v[e] = i + e < to ? value_get(x, dtype, (i + e) * stride) : 0;
        sum = add_squares(v, sum);
    }
    return group_sum<THREADS>(sum);
}

static __global__ void __launch_bounds__(THREADS)
    list_kernel(const SquaresPiece *piece, const ListBlock *block, double *chunk)
{
    const ListBlock b = block[blockIdx.x];
    const SquaresPiece s = piece[b.piece];
    const int64_t from = (int64_t)b.chunk * CHUNK;
    const double sum = squares(in_global(s.x), s.dtype, 1, from, min(from + CHUNK, s.n));
    if (threadIdx.x == 0) chunk[blockIdx.x] = sum;
}

/* Sum of the chunks by a block, valid in its first thread. */
static __device__ inline double fold(const double *chunk, int64_t n)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += FOLD_THREADS) sum += chunk[i];
    return group_sum<FOLD_THREADS>(sum);
}

/* A piece of one chunk needs one thread; larger pieces a block each. */
static __global__ void __launch_bounds__(FOLD_THREADS)
    list_fold_kernel(const SquaresPiece *piece, const int64_t *first, int n, const double *chunk)
{
    __shared__ int large[FOLD_THREADS], larges;
    const int p = blockIdx.x * FOLD_THREADS + threadIdx.x;
    if (threadIdx.x == 0) larges = 0;
    __syncthreads();
    if (p < n) {
        const SquaresPiece s = piece[p];
        const int64_t chunks = first[p + 1] - first[p];
        const double sum = chunks > 0 ? chunk[first[p]] : 0;
        if (chunks > 1)
            large[atomicAdd(&larges, 1)] = p; /* in any order: each has its own sum */
        else
            *s.sum = s.keep == 0 ? sum : s.keep * *s.sum + sum;
    }
    __syncthreads();
    for (int i = 0; i < larges; i++) {
        const SquaresPiece s = piece[large[i]];
        const int64_t from = first[large[i]];
        const double sum = fold(chunk + from, first[large[i] + 1] - from);
        if (threadIdx.x == 0) *s.sum = s.keep == 0 ? sum : s.keep * *s.sum + sum;
    }
}

/* The kernel of one tensor: the same chunks, threads and order. */
static __global__ void __launch_bounds__(THREADS) tensor_kernel(Tensor x, double *chunk)
{
    const int64_t from = (int64_t)blockIdx.x * CHUNK, to = min(from + CHUNK, x.n[0]);
    const double sum = squares(x.data, x.dtype, x.stride[0], from, to);
    if (threadIdx.x == 0) chunk[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(FOLD_THREADS)
    tensor_fold_kernel(const double *chunk, int64_t n, double keep, Tensor out)
{
    const double sum = n == 1 ? chunk[0] : fold(chunk, n);
    if (threadIdx.x > 0) return;
    if (out.dtype == F64) {
        double *at = (double *)out.data;
        *at = keep == 0 ? sum : keep * *at + sum;
    } else {
        value_keep(out.data, out.dtype, 0, (float)keep, (float)sum);
    }
}

extern "C" Err cuda_sum_squares(const Call *call)
{
    const cudaStream_t stream = call->queue->stream;
    Tensor x = call->in[0];
    void *chunk;
    TRY(cuda_begin(call, KERNEL_sum_squares));
    if (x.dtype == F64)
        return err_fail(ERR_CONFIG, "cuda: sum_squares of f64; run.device=ref computes f64");
    const int64_t chunks = blocks_of(x.n[0], CHUNK);
    TRY(cuda_scratch(call->queue, scratch_squares(x.n[0]), &chunk));
    if (chunks > 0) tensor_kernel<<<(unsigned)chunks, THREADS, 0, stream>>>(x, (double *)chunk);
    tensor_fold_kernel<<<1, FOLD_THREADS, 0, stream>>>((const double *)chunk, chunks,
                                                       call->number[0], call->out[0]);
    return cuda_launched(KERNEL_sum_squares);
}

static int64_t count_of(const void *piece) { return ((const SquaresPiece *)piece)->n; }

extern "C" Err cuda_squares_open(DeviceContext *c, const SquaresPiece *piece, int n, void *memory,
                                 DeviceList **out)
{
    return list_open(c, {piece, {sizeof *piece, CHUNK}, count_of, n}, memory, out);
}

extern "C" Err cuda_squares_run(DeviceQueue *q, const DeviceList *l)
{
    const SquaresPiece *piece = (const SquaresPiece *)l->piece;
    CUDA_TRY(cudaSetDevice(q->context->ordinal));
    if (l->n == 0) return OK;
    if (l->blocks > 0)
        list_kernel<<<(unsigned)l->blocks, THREADS, 0, q->stream>>>(piece, l->block, l->sum);
    list_fold_kernel<<<(unsigned)blocks_of(l->n, FOLD_THREADS), FOLD_THREADS, 0, q->stream>>>(
        piece, l->first, l->n, l->sum);
    return cuda_launched(KERNEL_sum_squares);
}

/* One thread adds the prefetched sums in order. The additions are the bottleneck, not the memory.
 * Past the end it adds zeros, so that it need not count. */
static __device__ inline double fold_in_order(const double *sums, int64_t n)
{
    __shared__ double part[2][THREADS];
    double total = 0, next = threadIdx.x < n ? sums[threadIdx.x] : 0;
    for (int64_t from = 0, turn = 0; from < n; from += THREADS, turn ^= 1) {
        const int64_t at = from + THREADS + threadIdx.x;
        part[turn][threadIdx.x] = next;
        __syncthreads(); /* the adding thread is done with the other part */
        next = at < n ? sums[at] : 0;
        if (threadIdx.x == 0)
#pragma unroll 64
            for (int i = 0; i < THREADS; i++) total += part[turn][i];
    }
    return total;
}

static __global__ void __launch_bounds__(THREADS) clip_kernel(DeviceClip c)
{
    bool nonfinite_loss = false;
    for (int64_t i = threadIdx.x; i < c.n_losses; i += THREADS)
        if (!isfinite(c.loss[i * c.loss_stride])) nonfinite_loss = true;
    nonfinite_loss = __syncthreads_or(nonfinite_loss);
    const double total = fold_in_order(c.sums, c.n);
    if (threadIdx.x > 0) return;
    const double mean = *c.mean, norm = sqrt(total) * mean;
    const bool skips = nonfinite_loss || !isfinite(norm) || (c.skip > 0 && norm > c.skip);
    c.out[0] = skips                                 ? nan("")
               : c.max_norm > 0 && norm > c.max_norm ? mean * (c.max_norm / norm)
                                                     : mean;
    c.out[1] = norm;
}

extern "C" Err cuda_clip(DeviceQueue *q, const DeviceClip *clip)
{
    CUDA_TRY(cudaSetDevice(q->context->ordinal));
    clip_kernel<<<1, THREADS, 0, q->stream>>>(*clip);
    return cuda_launched(KERNEL_sum_squares);
}
