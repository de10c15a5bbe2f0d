/* token_loss.cu -- cross entropy of softmax(logits), and its gradient, of a vocabulary that is not cut.
 *
 *     first sweep    running maximum and sum of exp(x - maximum), a pair a thread; then of the block
 *     second         dlogits = weight (exp(x - max) / sum - one at the target), over logits
 *
 * A block has a row at a time, each thread the same pieces in both sweeps: it keeps them in shared
 * memory, as far as that goes, and reads the rest again, from L2. Two blocks an SM where their rows
 * fit, so that one loads while the other computes. Losses of rows go to scratch; the block that is
 * done last sums them, in the order of rows, in f64. */
#include "device/cuda/value.cuh"

enum { SMALL = 512, LARGE = 1024, AHEAD = 4, STATIC_BYTES = 2048 }; /* AHEAD: loads in flight */

typedef struct {
    Tensor logits, targets, weights, dlogits, sum; /* dlogits: data NULL for the loss alone */
    float keep;
    double *loss; /* [rows] */
    unsigned *ticket;
    int held; /* pieces of a thread that shared memory has room for */
} TokenLoss;

/* One thread's pieces of a row. */
template <int N, int W, DType T> struct RowPieces {
    enum { WORDS = T == BF16 ? 1 : 2 };
    const TokenLoss *r;
    uint4 *room; /* [held][WORDS][N] */
    int64_t row, pieces;

    __device__ int64_t index(int k) const { return threadIdx.x + (int64_t)k * N; }
    __device__ bool has(int k) const { return index(k) < pieces; }
    __device__ int64_t at(const Tensor &t, int k) const
    {
        return row * t.stride[0] + index(k) * W * (W == 1 ? t.stride[1] : 1);
    }
    __device__ Piece<W> load(int k) const
    {
        return piece_load<W>(r->logits.data, T, at(r->logits, k));
    }
    __device__ void hold(int k, const Piece<W> &p) const
    {
        if (W == 1 || k >= r->held) return;
        room[k * WORDS * N + threadIdx.x] =
            make_uint4(p.word[0], p.word[1 % W], p.word[2 % W], p.word[3 % W]);
        if (WORDS == 2)
            room[(k * WORDS + 1) * N + threadIdx.x] =
                make_uint4(p.word[4 % W], p.word[5 % W], p.word[6 % W], p.word[7 % W]);
    }
    __device__ Piece<W> again(int k) const
    {
        Piece<W> p;
        if (W == 1 || k >= r->held) return load(k);
        const uint4 a = room[k * WORDS * N + threadIdx.x];
        p.word[0] = a.x, p.word[1 % W] = a.y, p.word[2 % W] = a.z, p.word[3 % W] = a.w;
        if (WORDS == 2) {
            const uint4 b = room[(k * WORDS + 1) * N + threadIdx.x];
            p.word[4 % W] = b.x, p.word[5 % W] = b.y, p.word[6 % W] = b.z, p.word[7 % W] = b.w;
        }
        return p;
    }
};

/* What a thread has seen: the largest x, and the sum of exp(x - largest). Nothing: -inf and 0. */
typedef struct {
    float most, sum;
} Seen;

template <int W> static __device__ inline void see(const float *x, Seen *s)
{
    float most = x[0];
#pragma unroll
    for (int e = 1; e < W; e++) most = fmaxf(most, x[e]);
    if (most > s->most) {
        s->sum *= __expf(s->most - most);
        s->most = most;
    }
    const float base = s->most == -INFINITY ? 0 : s->most;
#pragma unroll
    for (int e = 0; e < W; e++) s->sum += __expf(x[e] - base);
}

/* Of the row, the same for all threads. */
template <int N, int W, DType T> static __device__ inline Seen see_row(const RowPieces<N, W, T> &p)
{
    Seen s = {-INFINITY, 0};
    for (int k = 0; p.has(k); k += AHEAD) {
        Piece<W> piece[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (p.has(k + i)) piece[i] = p.load(k + i);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float x[W];
            if (!p.has(k + i)) break;
            if (p.r->dlogits.data) p.hold(k + i, piece[i]);
            piece_floats(piece[i], T, x);
            see<W>(x, &s);
        }
    }
    const float most = group_max<N>(s.most);
    const float share = s.most == -INFINITY ? 0 : __expf(s.most - most);
    return {most, group_sum<N>(s.sum * share)};
}

template <int N, int W, DType T>
static __device__ inline void store_dx(const RowPieces<N, W, T> &p, const Seen &s, float weight,
                                       int64_t target)
{
    const float share = weight / s.sum;
    const Tensor &out = p.r->dlogits;
#pragma unroll 2
    for (int k = 0; p.has(k); k++) {
        float x[W];
        piece_floats(p.again(k), T, x);
#pragma unroll
        for (int e = 0; e < W; e++) x[e] = share * __expf(x[e] - s.most);
        const int64_t first = p.index(k) * W;
        if (target >= first && target < first + W)
#pragma unroll
            for (int e = 0; e < W; e++)
                if (first + e == target) x[e] -= weight;
        piece_store<W>(out.data, T, p.at(out, k), x);
    }
}

template <int N, int W, DType T>
static __device__ inline void store_zeros(const RowPieces<N, W, T> &p)
{
    const float zero[W] = {};
    for (int k = 0; p.has(k); k++)
        piece_store<W>(p.r->dlogits.data, T, p.at(p.r->dlogits, k), zero);
}

/* A row of weight 0 is dead: its target may be anything and its numbers reach no result. */
template <int N, int W, DType T> static __device__ inline void do_row(const RowPieces<N, W, T> &p)
{
    const TokenLoss &r = *p.r;
    const float weight = value_get(r.weights.data, r.weights.dtype, p.row * r.weights.stride[0]);
    if (weight == 0) {
        if (threadIdx.x == 0) r.loss[p.row] = 0;
        if (r.dlogits.data) store_zeros(p);
        return;
    }
    const int64_t target = ((const int32_t *)r.targets.data)[p.row * r.targets.stride[0]];
    const bool there = target >= 0 && target < r.logits.n[1];
    float x = 0; /* before it is written over */
    if (threadIdx.x == 0 && there)
        x = value_get(r.logits.data, T, p.row * r.logits.stride[0] + target * r.logits.stride[1]);
    const Seen s = see_row(p);
    if (threadIdx.x == 0)
        r.loss[p.row] =
            (double)weight * (log((double)s.sum) - (there ? (double)x - (double)s.most : 0));
    if (r.dlogits.data) store_dx(p, s, weight, target);
}

template <int N, int W, DType T>
static __global__ void __launch_bounds__(N, 1024 / N)
    token_loss_kernel(const __grid_constant__ TokenLoss r)
{
    extern __shared__ uint4 room[];
    __shared__ bool last;
    for (int64_t row = blockIdx.x; row < r.logits.n[0]; row += gridDim.x)
        do_row(RowPieces<N, W, T>{&r, room, row, r.logits.n[1] / W});
    __threadfence(); /* the losses are there before the ticket is drawn */
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(r.ticket, 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    double sum = 0;
    for (int64_t t = threadIdx.x; t < r.logits.n[0]; t += N) sum += __ldcg(&r.loss[t]);
    sum = group_sum<N>(sum);
    if (threadIdx.x > 0) return;
    value_keep(r.sum.data, r.sum.dtype, 0, r.keep, (float)sum);
    *r.ticket = 0;
}

template <int N, int W, DType T> static Err launch_as(const Call *call, TokenLoss r)
{
    const DeviceContext *c = call->queue->context;
    const int64_t piece = 16 * (T == BF16 ? 1 : 2), each = blocks_of(r.logits.n[1] / W, N);
    int room = 0;
    CUDA_TRY(cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, c->ordinal));
    const int64_t fit = (room - STATIC_BYTES) / (N * piece);
    if (W > 1 && r.dlogits.data) r.held = (int)(each < fit ? each : fit);
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

template <DType T> static Err launch(const Call *call, const TokenLoss &r)
{
    const bool wide = walk_rows_wide(&r.logits) && (!r.dlogits.data || walk_rows_wide(&r.dlogits));
    const size_t row = (size_t)r.logits.n[1] * dtype_bytes(T);
    if (!wide) return launch_as<SMALL, 1, T>(call, r);
    if (row <= 13 * SMALL * 16) return launch_as<SMALL, WALK_WIDE, T>(call, r); /* two an SM */
    return launch_as<LARGE, WALK_WIDE, T>(call, r);
}

static Err token_loss(const Call *call, KernelId id, TokenLoss r)
{
    void *scratch;
    TRY(cuda_begin(call, id));
    r.logits = call->in[0], r.targets = call->in[1], r.weights = call->in[2];
    r.ticket = call->queue->ticket;
    TRY(cuda_scratch(call->queue, sizeof(double) * (size_t)(r.logits.n[0] + 1), &scratch));
    r.loss = (double *)scratch;
    TRY(r.logits.dtype == BF16 ? launch<BF16>(call, r) : launch<F32>(call, r));
    return cuda_launched(id);
}

extern "C" Err cuda_token_loss(const Call *call)
{
    TokenLoss r = {};
    r.sum = call->out[0], r.keep = (float)call->number[0];
    return token_loss(call, KERNEL_token_loss, r);
}

extern "C" Err cuda_token_loss_dx(const Call *call)
{
    TokenLoss r = {};
    r.dlogits = call->out[0], r.sum = call->out[1], r.keep = (float)call->number[1];
    return token_loss(call, KERNEL_token_loss_dx, r);
}
