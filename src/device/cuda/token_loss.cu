/* token_loss.cu -- cross entropy of softmax(logits) and its gradient, for an unsharded vocabulary.
 *
 *     first sweep     online softmax: running maximum and sum of exp(x - maximum), per thread, then
 *                     merged over the block
 *     second sweep    dlogits = weight (exp(x - max) / sum - one at the target), maybe in place
 *
 * A block has one row at a time, and each thread the same pieces in both sweeps (token_row.cuh).
 * Pieces stay in registers. The last sweep that reads one prefetches the next row's piece into it,
 * so that reads continue while the block computes and writes. Two blocks share an SM if their rows
 * fit. Exponentials are powers of two of scaled logits: one fused multiply-add and one instruction
 * each. Losses of rows go to scratch; the last block to finish adds them in the order of rows, in
 * f64. */
#include "device/cuda/token_row.cuh"

enum { SMALL = 512, LARGE = 1024, STATIC_BYTES = 2048 };

typedef struct {
    /* dlogits: data NULL if only the loss is computed */
    Tensor logits, targets, weights, dlogits, sum;
    float keep;
    double *loss; /* [rows] */
    unsigned *ticket;
    int held; /* pieces of a thread that fit shared memory */
} TokenLossArgs;

#define LOG2_E 1.44269504088896340736f

static __device__ inline float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* State of an online softmax: the largest x LOG2_E and the sum of 2^(x LOG2_E - largest). Empty:
 * -inf and 0. */
typedef struct {
    float max_log2, sum;
} OnlineSoftmax;

/* Factor of a sum when the maximum rises to `of`. */
static __device__ inline float rescale(float max_log2, float of)
{
    return max_log2 == -INFINITY ? 0 : power_of_two(max_log2 - of);
}

template <DType T, int W, int P>
static __device__ inline void softmax_add(const PackedElements<W> (&piece)[P], OnlineSoftmax *s)
{
    const float max_log2 = LOG2_E * pieces_max<T>(piece);
    if (max_log2 > s->max_log2) {
        s->sum *= rescale(s->max_log2, max_log2);
        s->max_log2 = max_log2;
    }
    const float base = s->max_log2 == -INFINITY ? 0 : s->max_log2;
#pragma unroll
    for (int i = 0; i < P; i++) {
        float x[W];
        piece_floats(piece[i], T, x);
#pragma unroll
        for (int e = 0; e < W; e++) s->sum += power_of_two(fmaf(x[e], LOG2_E, -base));
    }
}

static __device__ inline OnlineSoftmax softmax_merge_warp(OnlineSoftmax s)
{
    const float max_log2 = warp_max(s.max_log2);
    return {max_log2, warp_sum(s.sum * rescale(s.max_log2, max_log2))};
}

/* Merges the states of all threads, for each of them; `part` must differ from that of the previous
 * call. */
template <int N>
static __device__ inline OnlineSoftmax softmax_merge_block(OnlineSoftmax s,
                                                           OnlineSoftmax (*part)[32])
{
    const int lane = threadIdx.x % 32;
    s = softmax_merge_warp(s);
    if (lane == 0) (*part)[threadIdx.x / 32] = s;
    __syncthreads();
    s = (*part)[lane % (N / 32)];
    if (lane >= N / 32) s = {-INFINITY, 0};
    return softmax_merge_warp(s);
}

/* State of a thread's part of the row. Without a second sweep, this one prefetches `next`. */
template <int N, int W, DType T>
static __device__ inline OnlineSoftmax softmax_row(TokenRow<N, W, T> &p, int64_t row, int64_t next,
                                                   bool dx)
{
    OnlineSoftmax s = {-INFINITY, 0};
    const char *from = p.first_or_null(next);
    const int groups = p.groups();
    for (int k = 0; k < p.held; k += ROW_GROUP) {
        p.wait(groups - 1 - (dx ? k / ROW_GROUP : 0));
        if (p.is_full(k)) {
#pragma unroll
            for (int i = 0; i < ROW_GROUP; i += 2) {
                const PackedElements<W> two[2] = {p.take(k + i), p.take(k + i + 1)};
                softmax_add<T>(two, &s);
            }
        } else {
            for (int i = k; i < min(k + ROW_GROUP, p.held) && p.has(i); i++) {
                const PackedElements<W> one[1] = {p.take(i)};
                softmax_add<T>(one, &s);
            }
        }
        if (!dx) p.template fetch_group<false>(from, k);
    }
    if (p.REST > 0) softmax_add<T>(p.rest, &s);
    if (!dx) p.load_rest(next);
    for (int k = p.held + p.REST; p.has(k); k += ROW_GROUP) {
        PackedElements<W> piece[ROW_GROUP];
#pragma unroll
        for (int i = 0; i < ROW_GROUP; i++) piece[i] = p.load(row, k + i);
        softmax_add<T>(piece, &s);
    }
    return s;
}

/* Output of the second sweep: share * 2^(x LOG2_E - max_log2), at this thread's first piece. */
typedef struct {
    float share, max_log2;
    char *to;
} Slope;

template <int W, DType T>
static __device__ inline void store_piece(const Slope &d, const PackedElements<W> &piece,
                                          int64_t piece_offset)
{
    float x[W];
    piece_floats(piece, T, x);
#pragma unroll
    for (int e = 0; e < W; e++) x[e] = d.share * power_of_two(fmaf(x[e], LOG2_E, -d.max_log2));
    piece_store<W>(d.to + piece_offset, T, 0, x);
}

template <bool FULL, int N, int W, DType T>
static __device__ inline void store_group(const TokenRow<N, W, T> &p, const Slope &d,
                                          const char *from, int k)
{
    PackedElements<W> piece[ROW_GROUP];
#pragma unroll
    for (int i = 0; i < ROW_GROUP; i++)
        if (p.template holds<FULL>(k + i)) piece[i] = p.take(k + i);
    p.template fetch_group<FULL>(from, k);
#pragma unroll
    for (int i = 0; i < ROW_GROUP; i++)
        if (p.template holds<FULL>(k + i))
            store_piece<W, T>(d, piece[i], (int64_t)(k + i) * (N * p.BYTES));
}

template <int N, int W, DType T>
static __device__ inline void store_row(TokenRow<N, W, T> &p, const Slope &d, const Tensor &out,
                                        int64_t row, int64_t next)
{
    const char *from = p.first_or_null(next);
    int k = 0;
    for (; p.is_full(k); k += ROW_GROUP) store_group<true>(p, d, from, k);
    for (; k < p.held; k += ROW_GROUP) store_group<false>(p, d, from, k);
#pragma unroll
    for (int i = 0; i < p.REST; i++)
        if (p.has(p.held + i)) store_piece<W, T>(d, p.rest[i], p.piece_offset(out, p.held + i));
    p.load_rest(next);
#pragma unroll 2
    for (k = p.held + p.REST; p.has(k); k++)
        store_piece<W, T>(d, p.load(row, k), p.piece_offset(out, k));
}

template <int N, int W, DType T>
static __device__ inline void store_zeros(const TokenRow<N, W, T> &p, const Tensor &out,
                                          int64_t row)
{
    const float zero[W] = {};
    for (int k = 0; p.has(k); k++)
        piece_store<W>(p.first(out, row) + p.piece_offset(out, k), T, 0, zero);
}

/* A row with a weight other than 0. `next`: the row to prefetch, or NO_ROW. The thread that has the
 * target writes the loss, and that element of dlogits again. */
template <int N, int W, DType T>
static __device__ inline void do_row(const TokenLossArgs &r, TokenRow<N, W, T> &p, int64_t row,
                                     int64_t next, float weight)
{
    __shared__ OnlineSoftmax part[2][32];
    const int64_t target = ((const int32_t *)r.targets.data)[row * r.targets.stride[0]];
    const bool there = target >= 0 && target < r.logits.n[1];
    const bool mine = threadIdx.x == (there ? target / W % N : 0);
    float x = 0; /* read before dlogits overwrites it */
    if (mine && there)
        x = value_get(r.logits.data, T, row * r.logits.stride[0] + target * r.logits.stride[1]);
    const OnlineSoftmax s =
        softmax_merge_block<N>(softmax_row(p, row, next, r.dlogits.data), &part[p.done++ % 2]);
    if (mine) {
        const double off = fma((double)x, (double)LOG2_E, -(double)s.max_log2);
        r.loss[row] = (double)weight * (log((double)s.sum) - (there ? off * M_LN2 : 0));
    }
    if (!r.dlogits.data) return;
    const Slope d = {weight / s.sum, s.max_log2, p.first(r.dlogits, row)};
    store_row(p, d, r.dlogits, row, next);
    if (mine && there)
        value_set(r.dlogits.data, T, row * r.dlogits.stride[0] + target * r.dlogits.stride[1],
                  d.share * power_of_two(fmaf(x, LOG2_E, -s.max_log2)) - weight);
}

/* A row of weight 0 is dead: its target may be anything and its values reach no result. */
template <int N, int W, DType T>
static __device__ inline void do_rows(const TokenLossArgs &r, TokenRow<N, W, T> &p)
{
    auto weight_of = [&](int64_t row) {
        if (row >= r.logits.n[0]) return 0.0f;
        return value_get(r.weights.data, r.weights.dtype, row * r.weights.stride[0]);
    };
    float weight = weight_of(blockIdx.x);
    if (weight != 0) p.fetch(blockIdx.x);
    for (int64_t row = blockIdx.x; row < r.logits.n[0]; row += gridDim.x) {
        const float weight_next = weight_of(row + gridDim.x);
        const int64_t next = weight_next != 0 ? row + gridDim.x : NO_ROW;
        if (weight != 0) {
            do_row(r, p, row, next, weight);
        } else {
            if (threadIdx.x == 0) r.loss[row] = 0;
            if (r.dlogits.data) store_zeros(p, r.dlogits, row);
            if (next != NO_ROW) p.fetch(next);
        }
        weight = weight_next;
    }
}

template <int N, int W, DType T>
static __global__ void __launch_bounds__(N, 1024 / N)
    token_loss_kernel(const __grid_constant__ TokenLossArgs r)
{
    extern __shared__ uint4 smem[];
    __shared__ bool last;
    TokenRow<N, W, T> p = {r.logits, smem, r.held, (int)(r.logits.n[1] / W)};
    do_rows(r, p);
    __threadfence(); /* the losses are visible before the ticket is drawn */
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(r.ticket, 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    double sum = 0;
#pragma unroll 16
    for (int64_t t = threadIdx.x; t < r.logits.n[0]; t += N) sum += __ldcg(&r.loss[t]);
    sum = group_sum<N>(sum);
    if (threadIdx.x > 0) return;
    value_keep(r.sum.data, r.sum.dtype, 0, r.keep, (float)sum);
    *r.ticket = 0;
}

template <int N, int W, DType T> static Err launch_as(const Call *call, TokenLossArgs r)
{
    const DeviceContext *c = call->queue->context;
    const int64_t piece = 16 * (T == BF16 ? 1 : 2), each = blocks_of(r.logits.n[1] / W, N);
    int smem = 0;
    CUDA_TRY(cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, c->ordinal));
    int64_t fit = (smem - STATIC_BYTES) / (N * piece);
    if (fit > ROW_GROUP * MAX_ROW_GROUPS) fit = ROW_GROUP * MAX_ROW_GROUPS;
    if (W > 1) r.held = (int)(each < fit ? each : fit);
    const size_t bytes = (size_t)(r.held * N * piece);
    const int64_t blocks = (int64_t)c->sms * (1024 / N), rows = r.logits.n[0];
    CUDA_TRY(cudaFuncSetAttribute(token_loss_kernel<N, W, T>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    token_loss_kernel<N, W, T><<<(unsigned)(rows < 1        ? 1
                                            : rows < blocks ? rows
                                                            : blocks),
                                 N, bytes, call->queue->stream>>>(r);
    return OK;
}

template <DType T> static Err launch(const Call *call, const TokenLossArgs &r)
{
    const bool wide = walk_rows_wide(&r.logits) && (!r.dlogits.data || walk_rows_wide(&r.dlogits));
    const size_t row = (size_t)r.logits.n[1] * dtype_bytes(T);
    if (!wide) return launch_as<SMALL, 1, T>(call, r);
    if (row <= 13 * SMALL * 16) return launch_as<SMALL, WALK_WIDE, T>(call, r); /* two per SM */
    return launch_as<LARGE, WALK_WIDE, T>(call, r);
}

static Err token_loss(const Call *call, KernelId id, TokenLossArgs r)
{
    void *scratch;
    TRY(cuda_begin(call, id));
    r.logits = call->in[0], r.targets = call->in[1], r.weights = call->in[2];
    r.ticket = call->queue->ticket;
    TRY(cuda_scratch(call->queue, scratch_token_loss(r.logits.n[0]), &scratch));
    r.loss = (double *)scratch;
    TRY(r.logits.dtype == BF16 ? launch<BF16>(call, r) : launch<F32>(call, r));
    return cuda_launched(id);
}

extern "C" Err cuda_token_loss(const Call *call)
{
    TokenLossArgs r = {};
    r.sum = call->out[0], r.keep = (float)call->number[0];
    return token_loss(call, KERNEL_token_loss, r);
}

extern "C" Err cuda_token_loss_dx(const Call *call)
{
    TokenLossArgs r = {};
    r.dlogits = call->out[0], r.sum = call->out[1], r.keep = (float)call->number[1];
    return token_loss(call, KERNEL_token_loss_dx, r);
}
