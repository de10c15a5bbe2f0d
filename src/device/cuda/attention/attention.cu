/* attention.cu -- the entries of attention: arguments, hulls, delta, merge; and the choice of the
 * kernel.
 *
 *     ours, wgmma              bf16 on sm_90, if the call fits (hopper_*ward.h)
 *     cuDNN's fused kernels    if the call fits them (cudnn_fit.h)
 *     ours, tensor cores       bf16
 *     ours, plain f32          f32
 *
 * choice.h chooses. All kernels write (o, lse); the gradients read the lse over all blocks of
 * keys. */
#include "device/cuda/attention/along.h"
#include "device/cuda/attention/attention.cuh"
#include "device/cuda/attention/choice.h"
#include "device/cuda/attention/cudnn.h"
#include "device/cuda/attention/hopper_backward.h"
#include "device/cuda/attention/hopper_forward.h"
#include "device/cuda/attention/tiles.cuh"

extern "C" {
#include "device/cuda/context.h"
#include "device/heads.h"
}

/* Bit k is set if range k of both rows is not empty and the two touch. */
static __device__ inline int rows_touch(const BlockHull &a, const BlockHull &b)
{
    int solid = 0;
    for (int k = 0; k < 2; k++)
        if (!range_empty(&a.any[2 * k]) && !range_empty(&b.any[2 * k]) &&
            max(a.any[2 * k], b.any[2 * k]) <= min(a.any[2 * k + 1], b.any[2 * k + 1]))
            solid |= 1 << k;
    return solid;
}

/* A block computes the hulls of its rows, one for HULL_ROWS, and orders a tile of these rows. A
 * union has no gap if the ranges of each two neighboring rows touch, or if it is empty. */
static __global__ void hull_kernel(const __grid_constant__ Attention a, BlockHull *hull)
{
    __shared__ BlockHull part[MAX_TILE_ROWS];
    const int row = blockIdx.x * blockDim.x + threadIdx.x, i = threadIdx.x % HULL_ROWS;
    BlockHull u = row_hull(a, row, row_ranges(a, row));
    part[threadIdx.x] = u;
    __syncthreads();
    if (i < HULL_ROWS - 1 && row < a.t - 1) u.solid = rows_touch(u, part[threadIdx.x + 1]);
    __syncthreads();
    part[threadIdx.x] = u;
    for (int step = HULL_ROWS / 2; step > 0; step /= 2) {
        __syncthreads();
        if (i < step) part[threadIdx.x] = hull_join(part[threadIdx.x], part[threadIdx.x + step]);
    }
    if (i == 0) {
        for (int k = 0; k < 2; k++)
            if (range_empty(&part[threadIdx.x].any[2 * k])) part[threadIdx.x].solid |= 1 << k;
        hull[row / HULL_ROWS] = part[threadIdx.x];
    }
    if (!a.order.tile_rows) return;
    __syncthreads();
    if (threadIdx.x > 0) return;
    u = part[0];
    for (int k = HULL_ROWS; k < blockDim.x; k += HULL_ROWS) u = hull_append(u, part[k]);
    tile_append(a.order, row, u);
}

/* Eight threads per row (t, h) of x[t, h, c]. */
enum { ROW_THREADS = 8, THREADS = 256 };

typedef struct {
    Tensor x[2], lse[2], out, out_lse; /* delta: dout and o; merge: o1 and o2 */
} HeadRows;

/* The row (t, h) of this thread; false past the end. */
static __device__ inline bool row_of(const HeadRows &r, int64_t *t, int64_t *h)
{
    const int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / ROW_THREADS;
    *t = row / r.x[0].n[1];
    *h = row % r.x[0].n[1];
    return *t < r.x[0].n[0];
}

static __device__ inline int64_t at_row(const Tensor &x, int64_t t, int64_t h)
{
    return head_offset(x, (int)t, (int)h);
}

/* An operand whose heads are of several sequences, or all of one. */
static Tensor with_heads(Tensor x, bool several)
{
    if (!several) x.n[3] = INT_MAX, x.stride[3] = 0;
    return x;
}

static bool rows_wide(const Tensor &x)
{
    return walk_rows_wide(&x) && x.stride[3] % WALK_WIDE == 0;
}

template <int W> static __global__ void delta_kernel(const __grid_constant__ HeadRows r)
{
    int64_t t, h;
    float sum = 0;
    const int lane = threadIdx.x % ROW_THREADS;
    const bool live = row_of(r, &t, &h);
    const Tensor &a = r.x[0], &b = r.x[1];
    for (int64_t i = lane; live && i < a.n[2] / W; i += ROW_THREADS) {
        const PackedElements<W> pa =
            piece_load<W>(a.data, a.dtype, at_row(a, t, h) + i * W * a.stride[2]);
        const PackedElements<W> pb =
            piece_load<W>(b.data, b.dtype, at_row(b, t, h) + i * W * b.stride[2]);
        float x[W], y[W];
        piece_floats(pa, a.dtype, x);
        piece_floats(pb, b.dtype, y);
#pragma unroll
        for (int e = 0; e < W; e++) sum += x[e] * y[e];
    }
    for (int step = ROW_THREADS / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (live && lane == 0) ((float *)r.out.data)[at_row(r.out, t, h)] = sum;
}

/* out[t, h] = sum over c of dout * o. */
static Err delta_run(const Call *call, const Tensor &dout, const Tensor &o, const Tensor &out)
{
    HeadRows r = {};
    r.x[0] = dout, r.x[1] = o, r.out = out;
    const int64_t rows = r.x[0].n[0] * r.x[0].n[1];
    if (rows == 0) return OK;
    const unsigned blocks = (unsigned)blocks_of(rows * ROW_THREADS, THREADS);
    if (rows_wide(r.x[0]) && rows_wide(r.x[1]))
        delta_kernel<WALK_WIDE><<<blocks, THREADS, 0, call->queue->stream>>>(r);
    else
        delta_kernel<1><<<blocks, THREADS, 0, call->queue->stream>>>(r);
    return cuda_launched(KERNEL_attention_delta);
}

extern "C" Err cuda_attention_delta(const Call *call)
{
    TRY(cuda_begin(call, KERNEL_attention_delta));
    return delta_run(call, with_heads(call->in[0], false), with_heads(call->in[1], false),
                     with_heads(call->out[0], false));
}

static __global__ void delta_copy_kernel(const __grid_constant__ Tensor from, float *to)
{
    const int i = blockIdx.x * THREADS + threadIdx.x, heads = (int)from.n[1];
    if (i < from.n[0] * heads)
        to[i] = ((const float *)from.data)[head_offset(from, i / heads, i % heads)];
}

/* The delta of a backward call, dense, in `scratch` unless it is given so. */
static Err delta_find(const Call *call, const Attention &a, float *scratch, const float **out)
{
    const bool several = a.heads_each < a.h;
    const Tensor o = with_heads(call->in[6], several);
    const Tensor dense = {scratch, F32, 2, {a.t, a.h}, {a.h, 1}};
    const int64_t n = (int64_t)a.t * a.h;
    *out = scratch;
    if (o.ndim != 2) return delta_run(call, a.dout, o, with_heads(dense, false));
    if (o.stride[1] == 1 && o.stride[0] == a.h && (!several || o.stride[3] == a.heads_each)) {
        *out = (const float *)o.data;
        return OK;
    }
    if (n > INT_MAX - THREADS)
        return err_fail(ERR_CONFIG, "cuda: attention_dx of %lld rows", (long long)n);
    if (n > 0)
        delta_copy_kernel<<<(unsigned)blocks_of(n, THREADS), THREADS, 0, call->queue->stream>>>(
            o, scratch);
    return OK;
}

static Err check_sizes(const Call *call, KernelId id)
{
    const Tensor *q = &call->in[0], *k = &call->in[1];
    if (q->n[2] > MAX_CHANNELS)
        return err_fail(ERR_CONFIG,
                        "cuda: %s with heads of %lld channels; the limit is %d, use run.device=cpu",
                        kernel_name(id), (long long)q->n[2], MAX_CHANNELS);
    if (call->attr.attention.scale == 0) /* masked scores are infinite, and 0 times that is NaN */
        return err_fail(ERR_CONFIG, "cuda: %s with a scale of 0", kernel_name(id));
    if (q->n[0] > INT_MAX / 2 || k->n[0] > INT_MAX / 2 || q->n[1] > MAX_ATTENTION_HEADS ||
        k->n[1] > MAX_ATTENTION_HEADS)
        return err_fail(ERR_CONFIG,
                        "cuda: %s of %lld queries, %lld keys, %lld heads; the limits are 2^30 rows "
                        "and %d heads",
                        kernel_name(id), (long long)q->n[0], (long long)k->n[0], (long long)q->n[1],
                        MAX_ATTENTION_HEADS);
    return OK;
}

void attention_arguments(const Call *call, bool backward, bool several, Attention *out)
{
    Attention a = {};
    a.q = with_heads(call->in[0], several), a.k = with_heads(call->in[1], several);
    a.v = with_heads(call->in[2], several), a.ranges = call->in[3];
    a.wide = rows_wide(a.q) && rows_wide(a.k) && rows_wide(a.v);
    if (backward) {
        a.dout = with_heads(call->in[4], several), a.lse = with_heads(call->in[5], several);
        a.dq = with_heads(call->out[0], several), a.dk = with_heads(call->out[1], several);
        a.dv = with_heads(call->out[2], several), a.o = with_heads(call->in[6], several);
        a.wide = a.wide && rows_wide(a.dout);
    } else {
        a.o = with_heads(call->out[0], several), a.lse = with_heads(call->out[1], several);
        a.carry = call->number[0] != 0;
    }
    for (int i = 0; i < 3; i++) a.keep[i] = (float)call->number[i];
    a.t = (int)a.q.n[0], a.h = (int)a.q.n[1], a.c = (int)a.q.n[2];
    a.g = (int)a.k.n[1], a.s = (int)key_count(call);
    a.key_at = (int)call->attr.attention.key_at;
    a.head_at = (int)call->attr.attention.head_at;
    a.group = a.g > 0 ? (int)head_group(&call->attr, a.h, a.g) : 1;
    if (a.group < 1) a.group = 1; /* there are no heads */
    a.heads_each = max(several ? (int)call->in[0].n[3] : a.h, 1);
    a.keys_each = max(several ? (int)call->in[1].n[3] : a.g, 1);
    a.scale = (float)call->attr.attention.scale;
    *out = a;
}

Err attention_open(const Call *call, KernelId id, bool backward, bool several, int tile_rows,
                   Attention *out)
{
    Attention a;
    void *hull;
    TRY(check_sizes(call, id));
    attention_arguments(call, backward, several, &a);
    const int rows = tile_rows ? tile_rows : HULL_ROWS;
    const HullScratch s = hull_scratch(a.t, a.h, tile_rows, backward);
    TRY(cuda_scratch(call->queue, hull_scratch_bytes(&s), &hull));
    char *list = (char *)hull + s.hull_bytes;
    a.hull = (const BlockHull *)hull;
    a.order = {(TileRows *)list, (int *)call->queue->ticket + TILE_COUNTS_AT, (int)s.tiles,
               tile_rows};
    if (backward) TRY(delta_find(call, a, (float *)(list + s.list_bytes), &a.delta));
    if (s.hulls > 0)
        hull_kernel<<<(unsigned)s.tiles, (unsigned)rows, 0, call->queue->stream>>>(
            a, (BlockHull *)hull);
    *out = a;
    return cuda_launched(id);
}

static Err forward(const Call *call, bool several)
{
    Attention a;
    TRY(attention_open(call, KERNEL_attention, false, several, 0, &a));
    return a.q.dtype == BF16 ? attention_bf16(call, a) : attention_f32(call, a);
}

static Err backward(const Call *call, bool several)
{
    Attention a;
    TRY(attention_open(call, KERNEL_attention_dx, true, several, 0, &a));
    return a.q.dtype == BF16 ? attention_dx_bf16(call, a) : attention_dx_f32(call, a);
}

static Err generic(const Call *call) { return forward(call, false); }
static Err generic_dx(const Call *call) { return backward(call, false); }

extern "C" AttentionRun attention_run_by(AttentionKernels by, const Call *call, bool dx)
{
    if (by == BY_HOPPER && dx) return hopper_backward_fits(call) ? hopper_backward : NULL;
    if (by == BY_HOPPER) return hopper_forward_fits(call) ? hopper_forward : NULL;
    if (by == BY_GENERIC) return dx ? generic_dx : generic;
    if (!cudnn_takes(call->queue->context->cudnn, call, dx)) return NULL;
    return dx ? cudnn_attention_dx : cudnn_attention;
}

extern "C" Err cuda_attention(const Call *call)
{
    TRY(cuda_begin(call, KERNEL_attention));
    if (call->in[0].n[0] == 0 || call->in[0].n[1] == 0) return OK;
    return attention_choice_run(call, false);
}

extern "C" Err cuda_attention_dx(const Call *call)
{
    TRY(cuda_begin(call, KERNEL_attention_dx));
    if (call->in[0].n[2] == 0) return OK;
    return attention_choice_run(call, true);
}

/* Builds no plan of cuDNN, which takes long: that it fits is a guess. */
extern "C" void cuda_attention_choice(const DeviceContext *c, const Call *call, bool dx, char *out,
                                      size_t bytes)
{
    char library[256];
    Call queued = *call;
    queued.queue = (DeviceQueue *)&c->queue[QUEUE_COMPUTE];
    cudnn_choice(c->cudnn, call, dx, library, sizeof library);
    if (!attention_run_by(BY_HOPPER, &queued, dx))
        snprintf(out, bytes, "%s", library);
    else if (strncmp(library, "cuDNN", 5) == 0)
        snprintf(out, bytes, "our own kernels for sm_90, or %s if it measures faster", library);
    else
        snprintf(out, bytes, "our own kernels for sm_90");
}

extern "C" Err cuda_attention_sequences(const Call *call)
{
    TRY(cuda_begin(call, KERNEL_attention_along));
    if (call->in[0].n[0] == 0 || call->in[0].n[1] == 0) return OK;
    return forward(call, true);
}

extern "C" Err cuda_attention_sequences_dx(const Call *call)
{
    TRY(cuda_begin(call, KERNEL_attention_along_dx));
    if (call->in[0].n[2] == 0) return OK;
    return backward(call, true);
}

/* The outputs may alias the first part: a thread reads its elements and the lse before it
 * writes. */
template <int W> static __global__ void merge_kernel(const __grid_constant__ HeadRows r)
{
    int64_t t, h;
    const int lane = threadIdx.x % ROW_THREADS;
    const bool live = row_of(r, &t, &h);
    float share[2] = {0, 0}, lse = 0;
    if (live)
        lse = merge_shares(((const float *)r.lse[0].data)[at_row(r.lse[0], t, h)],
                           ((const float *)r.lse[1].data)[at_row(r.lse[1], t, h)], share);
    __syncwarp();
    if (!live) return;
    if (lane == 0) ((float *)r.out_lse.data)[at_row(r.out_lse, t, h)] = lse;
    for (int64_t i = lane; i < r.out.n[2] / W; i += ROW_THREADS) {
        float sum[W] = {}, x[W];
        for (int p = 0; p < 2; p++) {
            if (share[p] == 0) continue; /* its o may hold anything */
            const Tensor &o = r.x[p];
            piece_floats(piece_load<W>(o.data, o.dtype, at_row(o, t, h) + i * W * o.stride[2]),
                         o.dtype, x);
#pragma unroll
            for (int e = 0; e < W; e++) sum[e] += share[p] * x[e];
        }
        piece_store<W>(r.out.data, r.out.dtype, at_row(r.out, t, h) + i * W * r.out.stride[2], sum);
    }
}

extern "C" Err cuda_attention_merge(const Call *call)
{
    HeadRows r = {};
    for (int p = 0; p < 2; p++) {
        r.x[p] = with_heads(call->in[2 * p], false);
        r.lse[p] = with_heads(call->in[2 * p + 1], false);
    }
    r.out = with_heads(call->out[0], false), r.out_lse = with_heads(call->out[1], false);
    TRY(cuda_begin(call, KERNEL_attention_merge));
    const int64_t rows = r.out.n[0] * r.out.n[1];
    if (rows == 0) return OK;
    const unsigned blocks = (unsigned)blocks_of(rows * ROW_THREADS, THREADS);
    if (walk_rows_wide(&r.x[0]) && walk_rows_wide(&r.x[1]) && walk_rows_wide(&r.out))
        merge_kernel<WALK_WIDE><<<blocks, THREADS, 0, call->queue->stream>>>(r);
    else
        merge_kernel<1><<<blocks, THREADS, 0, call->queue->stream>>>(r);
    return cuda_launched(KERNEL_attention_merge);
}
