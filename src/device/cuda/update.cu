/* update.cu -- AdamW and SGD over a list of tensors in one launch: updates f32 master weights and
 * moments, and writes the weights in bf16. update.cuh has the formula of AdamW.
 *
 * A thread has two groups of four elements at a time, so that the f32 loads and stores of a warp
 * are contiguous. The factor is that of the clip; NaN skips the step. The factor and the rates are
 * read from device memory, because they change in each step of a graph. */
#include "device/cuda/lists.cuh"
#include "device/cuda/update.cuh"

enum { THREADS = 256, EACH = 4, QUAD = 4, GROUPS = 2 };
enum { CHUNK = THREADS * EACH * GROUPS * QUAD };
static_assert((int)CHUNK == (int)UPDATE_CHUNK, "as planned");

/* w -= lr (factor g + decay w) */
static __device__ inline void sgd_step(const UpdatePiece &p, const AdamwNumbers &u, float factor,
                                       int64_t at)
{
    const float g = value_get(p.grad, p.grad_type, at), w = p.master[at];
    if (p.marks) {
        p.master[at] = g > 0 ? 1 : 0.5f * w;
        return;
    }
    if (p.sign_rate > 0) {
        p.master[at] = w - (float)p.sign_rate * (float)((g > 0) - (g < 0));
        return;
    }
    p.master[at] = fmaf(-u.lr, fmaf((float)p.decay, w, __fmul_rn(factor, g)), w);
    if (p.weight) value_set(p.weight, BF16, at, p.master[at]);
}

/* Elements [at, at + W) of a piece, and N - 1 more groups at a distance of THREADS groups. */
template <int W, int N, DType T>
static __device__ inline void adamw_steps(const UpdatePiece &p, const AdamwNumbers &u, float factor,
                                          int64_t at)
{
    enum { GRAD, MASTER, M, V, ALL };
    PackedElements<W> old[N][ALL];
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int64_t i = at + k * (W * THREADS);
        old[k][GRAD] = piece_load<W>(p.grad, T, i);
        old[k][MASTER] = piece_load<W>(p.master, F32, i);
        old[k][M] = piece_load<W>(p.m, F32, i);
        old[k][V] = piece_load<W>(p.v, F32, i);
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int64_t i = at + k * (W * THREADS);
        float g[W], w[W], m[W], v[W];
        piece_floats(old[k][GRAD], T, g);
        piece_floats(old[k][MASTER], F32, w);
        piece_floats(old[k][M], F32, m);
        piece_floats(old[k][V], F32, v);
#pragma unroll
        for (int e = 0; e < W; e++)
            adamw_step(u, (float)p.decay, __fmul_rn(factor, g[e]), &w[e], &m[e], &v[e]);
        piece_store<W>(p.master, F32, i, w);
        piece_store<W>(p.m, F32, i, m);
        piece_store<W>(p.v, F32, i, v);
        if (p.weight) piece_store<W>(p.weight, BF16, i, w);
    }
}

/* A chunk that is not whole, not aligned, or has no moments. */
static __device__ inline void update_any(const UpdatePiece &p, const AdamwNumbers &u, float factor,
                                         int64_t from)
{
    const int64_t to = min(from + CHUNK, p.n);
    for (int64_t i = from + threadIdx.x; i < to; i += THREADS) {
        if (!p.m)
            sgd_step(p, u, factor, i);
        else if (p.grad_type == BF16)
            adamw_steps<1, 1, BF16>(p, u, factor, i);
        else
            adamw_steps<1, 1, F32>(p, u, factor, i);
    }
}

template <DType T>
static __device__ inline void update_whole(const UpdatePiece &p, const AdamwNumbers &u,
                                           float factor, int64_t from)
{
    for (int k = 0; k < EACH; k++)
        adamw_steps<QUAD, GROUPS, T>(p, u, factor,
                                     from + QUAD * ((int64_t)k * GROUPS * THREADS + threadIdx.x));
}

/* Computed in f64 as on the host, for the same bits as the kernel of one tensor. */
static __device__ inline AdamwNumbers numbers_of(const UpdateNumbers &a)
{
    const UpdateRates r = *a.rates;
    return {(float)r.lr,    (float)(1 / r.bias1), (float)(1 / r.bias2),
            (float)a.beta1, (float)a.beta2,       (float)a.eps};
}

static __global__ void __launch_bounds__(THREADS, 4)
    update_kernel(const UpdatePiece *piece, const ListBlock *block, UpdateNumbers of)
{
    const ListBlock b = block[blockIdx.x];
    const float factor = (float)*of.factor;
    const AdamwNumbers u = numbers_of(of);
    UpdatePiece p = piece[b.piece];
    const int64_t from = (int64_t)b.chunk * CHUNK;
    if (isnan(factor)) return; /* the step is skipped */
    p.grad = in_global(p.grad), p.master = in_global(p.master);
    p.m = in_global(p.m), p.v = in_global(p.v), p.weight = in_global(p.weight);
    const bool wide = is_aligned(p.grad) && is_aligned(p.master) && is_aligned(p.m) &&
                      is_aligned(p.v) && is_aligned(p.weight);
    if (!wide || !p.m || from + CHUNK > p.n)
        update_any(p, u, factor, from);
    else if (p.grad_type == BF16)
        update_whole<BF16>(p, u, factor, from);
    else
        update_whole<F32>(p, u, factor, from);
}

static int64_t count_of(const void *piece) { return ((const UpdatePiece *)piece)->n; }

extern "C" Err cuda_update_open(DeviceContext *c, const UpdatePiece *piece, int n, void *memory,
                                DeviceList **out)
{
    return list_open(c, {piece, {sizeof *piece, CHUNK}, count_of, n}, memory, out);
}

extern "C" Err cuda_update_run(DeviceQueue *q, const DeviceList *l, const UpdateNumbers *a)
{
    CUDA_TRY(cudaSetDevice(q->context->ordinal));
    if (l->blocks == 0) return OK;
    update_kernel<<<(unsigned)l->blocks, THREADS, 0, q->stream>>>((const UpdatePiece *)l->piece,
                                                                  l->block, *a);
    return cuda_launched(KERNEL_adamw);
}
