/* lists.cu -- the end of a step, over many tensors in one launch: squares, the clip, AdamW.
 *
 * A list lies in device memory: its pieces, and for each the number of blocks of all before it; a
 * block finds its piece by halving. Sums of squares have one order that follows from n alone:
 *
 *     chunk   65,536 elements, one block: thread i sums the groups of eight i, i + 512, ..., in
 *             f64, and the 512 sums go up a fixed tree
 *     sum     the chunks of a piece, folded from the left
 */
#include <stdlib.h>
#include <string.h>

#include "device/cuda/update.cuh"
#include "device/cuda/value.cuh"

enum { CHUNK = 65536, SQUARE_THREADS = 512, UPDATE_THREADS = 256, UPDATE_EACH = 4 };
enum { UPDATE_CHUNK = UPDATE_THREADS * UPDATE_EACH * WALK_WIDE };

struct DeviceList {
    DeviceContext *context;
    void *piece;    /* in device memory: SquaresPiece or UpdatePiece */
    int64_t *first; /* likewise, of each piece, and of all */
    double *chunk;  /* sums of chunks, by block */
    int n;
    int64_t blocks;
};

/* The piece of a block: the last whose first block is not past it. */
static __device__ inline int piece_of(const int64_t *first, int n, int64_t block)
{
    int lo = 0, hi = n;
    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        if (first[mid] <= block)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* The squares of [from, to), by a block; elements at stride. */
template <int W>
static __device__ inline double squares(const void *x, DType dtype, int64_t stride, int64_t from,
                                        int64_t to)
{
    double sum = 0;
    for (int64_t i = from + 8 * (int64_t)threadIdx.x; i < to; i += 8 * SQUARE_THREADS) {
        float v[8];
        if (W == 8 && i + 8 <= to) {
            piece_floats(piece_load<8>(x, dtype, i), dtype, v);
        } else {
            for (int e = 0; e < 8; e++)
                v[e] = i + e < to ? value_get(x, dtype, (i + e) * stride) : 0;
        }
#pragma unroll
        for (int e = 0; e < 8; e++) sum += (double)v[e] * (double)v[e];
    }
    return group_sum<SQUARE_THREADS>(sum);
}

static __device__ inline bool is_aligned(const void *at) { return (uintptr_t)at % 16 == 0; }

static __global__ void __launch_bounds__(SQUARE_THREADS)
    squares_kernel(const SquaresPiece *piece, const int64_t *first, int n, double *chunk)
{
    const int p = piece_of(first, n, blockIdx.x);
    const SquaresPiece s = piece[p];
    const int64_t from = (blockIdx.x - first[p]) * CHUNK, to = min(from + CHUNK, s.n);
    const double sum = is_aligned(s.x) ? squares<8>(s.x, s.dtype, 1, from, to)
                                       : squares<1>(s.x, s.dtype, 1, from, to);
    if (threadIdx.x == 0) chunk[blockIdx.x] = sum;
}

static __global__ void squares_fold_kernel(const SquaresPiece *piece, const int64_t *first, int n,
                                           const double *chunk)
{
    const int p = blockIdx.x * blockDim.x + threadIdx.x;
    if (p >= n) return;
    const SquaresPiece s = piece[p];
    double sum = 0;
    for (int64_t b = first[p]; b < first[p + 1]; b++) sum += chunk[b];
    *s.sum = s.keep == 0 ? sum : s.keep * *s.sum + sum;
}

/* The kernel of one tensor: the same chunks, by the same threads, in the same order. */
static __global__ void __launch_bounds__(SQUARE_THREADS)
    tensor_squares_kernel(Tensor x, double *chunk)
{
    const int64_t from = (int64_t)blockIdx.x * CHUNK, to = min(from + CHUNK, x.n[0]);
    const double sum = x.stride[0] == 1 && is_aligned(x.data)
                           ? squares<8>(x.data, x.dtype, 1, from, to)
                           : squares<1>(x.data, x.dtype, x.stride[0], from, to);
    if (threadIdx.x == 0) chunk[blockIdx.x] = sum;
}

static __global__ void tensor_fold_kernel(const double *chunk, int64_t n, double keep, Tensor out)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += chunk[i];
    if (out.dtype == F64) {
        double *at = (double *)out.data;
        *at = keep == 0 ? sum : keep * *at + sum;
    } else {
        value_keep(out.data, out.dtype, 0, (float)keep, (float)sum);
    }
}

extern "C" Err cuda_sum_squares(const Call *call)
{
    Tensor x = call->in[0];
    void *chunk;
    TRY(cuda_begin(call, KERNEL_sum_squares));
    if (x.dtype == F64)
        return err_fail(ERR_CONFIG, "cuda: sum_squares of f64; run.device=ref computes f64");
    const int64_t chunks = blocks_of(x.n[0], CHUNK);
    TRY(cuda_scratch(call->queue, sizeof(double) * (size_t)(chunks + 1), &chunk));
    if (chunks > 0)
        tensor_squares_kernel<<<(unsigned)chunks, SQUARE_THREADS, 0, call->queue->stream>>>(
            x, (double *)chunk);
    tensor_fold_kernel<<<1, 1, 0, call->queue->stream>>>((const double *)chunk, chunks,
                                                         call->number[0], call->out[0]);
    return cuda_launched(KERNEL_sum_squares);
}

/* One thread adds, in order, what the block has fetched: the adds are the bound, not the memory. */
static __global__ void __launch_bounds__(SQUARE_THREADS) clip_kernel(DeviceClip c)
{
    __shared__ double part[SQUARE_THREADS];
    __shared__ int unfit;
    double total = 0;
    if (threadIdx.x == 0) unfit = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < c.n_losses; i += SQUARE_THREADS)
        if (!isfinite(c.loss[i * c.loss_stride])) unfit = 1;
    for (int64_t from = 0; from < c.n; from += SQUARE_THREADS) {
        if (from + threadIdx.x < c.n) part[threadIdx.x] = c.sums[from + threadIdx.x];
        __syncthreads();
        const int count = (int)min((int64_t)SQUARE_THREADS, c.n - from);
        if (threadIdx.x == 0)
            for (int i = 0; i < count; i++) total += part[i];
        __syncthreads();
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    const double norm = sqrt(total) * c.mean;
    const bool skips = unfit || !isfinite(norm) || (c.skip > 0 && norm > c.skip);
    c.out[0] = skips                                 ? nan("")
               : c.max_norm > 0 && norm > c.max_norm ? c.mean * (c.max_norm / norm)
                                                     : c.mean;
    c.out[1] = norm;
}

extern "C" Err cuda_clip(DeviceQueue *q, const DeviceClip *clip)
{
    CUDA_TRY(cudaSetDevice(q->context->ordinal));
    clip_kernel<<<1, SQUARE_THREADS, 0, q->stream>>>(*clip);
    return cuda_launched(KERNEL_sum_squares);
}

typedef struct {
    AdamwNumbers numbers;
    const double *factor;
} Update;

/* w -= lr (factor g + decay w) */
template <int W>
static __device__ inline void sgd_step(const UpdatePiece &p, const Update &u, float factor,
                                       int64_t at, const Piece<W> &grad)
{
    const Piece<W> old_w = piece_load<W>(p.master, F32, at);
    float g[W], w[W];
    piece_floats(grad, p.grad_type, g);
    piece_floats(old_w, F32, w);
#pragma unroll
    for (int e = 0; e < W; e++)
        w[e] = fmaf(-u.numbers.lr, fmaf((float)p.decay, w[e], __fmul_rn(factor, g[e])), w[e]);
    piece_store<W>(p.master, F32, at, w);
    if (p.weight) piece_store<W>(p.weight, BF16, at, w);
}

/* Elements [at, at + W) of a piece. */
template <int W>
static __device__ inline void update_step(const UpdatePiece &p, const Update &u, float factor,
                                          int64_t at)
{
    const Piece<W> grad = piece_load<W>(p.grad, p.grad_type, at);
    if (!p.m) {
        sgd_step<W>(p, u, factor, at, grad);
        return;
    }
    const Piece<W> old_w = piece_load<W>(p.master, F32, at), old_m = piece_load<W>(p.m, F32, at);
    const Piece<W> old_v = piece_load<W>(p.v, F32, at);
    float g[W], w[W], m[W], v[W];
    piece_floats(grad, p.grad_type, g);
    piece_floats(old_w, F32, w);
    piece_floats(old_m, F32, m);
    piece_floats(old_v, F32, v);
#pragma unroll
    for (int e = 0; e < W; e++)
        adamw_step(u.numbers, (float)p.decay, __fmul_rn(factor, g[e]), &w[e], &m[e], &v[e]);
    piece_store<W>(p.master, F32, at, w);
    piece_store<W>(p.m, F32, at, m);
    piece_store<W>(p.v, F32, at, v);
    if (p.weight) piece_store<W>(p.weight, BF16, at, w);
}

static __global__ void __launch_bounds__(UPDATE_THREADS)
    update_kernel(const UpdatePiece *piece, const int64_t *first, int n, Update u)
{
    const int k = piece_of(first, n, blockIdx.x);
    const UpdatePiece p = piece[k];
    const int64_t from = (blockIdx.x - first[k]) * UPDATE_CHUNK;
    const int64_t to = min(from + UPDATE_CHUNK, p.n);
    const float factor = (float)*u.factor;
    if (isnan(factor)) return; /* the step is skipped */
    const bool wide = is_aligned(p.grad) && is_aligned(p.master) && is_aligned(p.m) &&
                      is_aligned(p.v) && is_aligned(p.weight);
    for (int64_t i = from + 8 * (int64_t)threadIdx.x; i < to; i += 8 * UPDATE_THREADS) {
        if (wide && i + 8 <= to)
            update_step<8>(p, u, factor, i);
        else
            for (int e = 0; e < 8 && i + e < to; e++) update_step<1>(p, u, factor, i + e);
    }
}

/* Uploads the pieces, and the first block of each. */
static Err list_fill(DeviceList *l, const void *piece, size_t piece_bytes, const int64_t *first)
{
    const size_t bytes = piece_bytes * (size_t)l->n, firsts = sizeof(int64_t) * (size_t)(l->n + 1);
    CUDA_TRY(cudaSetDevice(l->context->ordinal));
    CUDA_TRY(cudaMalloc(&l->piece, bytes + 1));
    CUDA_TRY(cudaMalloc((void **)&l->first, firsts));
    CUDA_TRY(cudaMalloc((void **)&l->chunk, sizeof(double) * (size_t)(l->blocks + 1)));
    CUDA_TRY(cudaMemcpy(l->piece, piece, bytes, cudaMemcpyHostToDevice));
    CUDA_TRY(cudaMemcpy(l->first, first, firsts, cudaMemcpyHostToDevice));
    return OK;
}

static Err list_open(DeviceContext *c, int n, int64_t **first, DeviceList **out)
{
    DeviceList *l = (DeviceList *)calloc(1, sizeof *l);
    *first = (int64_t *)calloc((size_t)n + 1, sizeof **first);
    if (!l || !*first) {
        free(l);
        free(*first);
        return err_fail(ERR_NOMEM, "cuda: no memory for a list of %d tensors", n);
    }
    l->context = c;
    l->n = n;
    *out = l;
    return OK;
}

static Err list_finish(DeviceList *l, const void *piece, size_t bytes, int64_t *first,
                       DeviceList **out)
{
    l->blocks = first[l->n];
    const Err err = list_fill(l, piece, bytes, first);
    free(first);
    if (err != OK) {
        cuda_list_close(l);
        return err;
    }
    *out = l;
    return OK;
}

extern "C" Err cuda_squares_open(DeviceContext *c, const SquaresPiece *piece, int n,
                                 DeviceList **out)
{
    DeviceList *l;
    int64_t *first;
    TRY(list_open(c, n, &first, &l));
    for (int i = 0; i < n; i++) first[i + 1] = first[i] + blocks_of(piece[i].n, CHUNK);
    return list_finish(l, piece, sizeof *piece, first, out);
}

extern "C" Err cuda_update_open(DeviceContext *c, const UpdatePiece *piece, int n, DeviceList **out)
{
    DeviceList *l;
    int64_t *first;
    TRY(list_open(c, n, &first, &l));
    for (int i = 0; i < n; i++) first[i + 1] = first[i] + blocks_of(piece[i].n, UPDATE_CHUNK);
    return list_finish(l, piece, sizeof *piece, first, out);
}

extern "C" void cuda_list_close(DeviceList *l)
{
    (void)cudaSetDevice(l->context->ordinal);
    (void)cudaFree(l->piece);
    (void)cudaFree(l->first);
    (void)cudaFree(l->chunk);
    free(l);
}

extern "C" Err cuda_squares_run(DeviceQueue *q, const DeviceList *l)
{
    const SquaresPiece *piece = (const SquaresPiece *)l->piece;
    CUDA_TRY(cudaSetDevice(q->context->ordinal));
    if (l->n == 0) return OK;
    if (l->blocks > 0)
        squares_kernel<<<(unsigned)l->blocks, SQUARE_THREADS, 0, q->stream>>>(piece, l->first, l->n,
                                                                              l->chunk);
    squares_fold_kernel<<<(unsigned)blocks_of(l->n, 64), 64, 0, q->stream>>>(piece, l->first, l->n,
                                                                             l->chunk);
    return cuda_launched(KERNEL_sum_squares);
}

extern "C" Err cuda_update_run(DeviceQueue *q, const DeviceList *l, const UpdateNumbers *a)
{
    const Update u = {{(float)a->lr, (float)(1 / a->bias1), (float)(1 / a->bias2), (float)a->beta1,
                       (float)a->beta2, (float)a->eps},
                      a->factor};
    CUDA_TRY(cudaSetDevice(q->context->ordinal));
    if (l->blocks == 0) return OK;
    update_kernel<<<(unsigned)l->blocks, UPDATE_THREADS, 0, q->stream>>>(
        (const UpdatePiece *)l->piece, l->first, l->n, u);
    return cuda_launched(KERNEL_adamw);
}
