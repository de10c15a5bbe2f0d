/* loss.cu -- cross entropy of softmax(logits), in steps between which a sharded vocabulary is
 * reduced.
 *
 *     row_max   m[t]                           shards combine by max, those of z by sum
 *     row_sums  z[t] = sum exp(logits - m) without the target, logits[target] - m
 *     loss      sum of weight log(1 + z0 / s), s = exp(z1)
 *     loss_dx   weight exp(logits - m) / (z0 + s); -weight z0 / (z0 + s) at the target
 *
 * One block per row. A row of weight 0 is dead: its target may be anything and its values reach no
 * result. One block sums the loss in f64; it reads 12 bytes per token. */
#include "device/cuda/value.cuh"

enum { THREADS = 256, SUM_THREADS = 1024 };

typedef struct {
    Tensor logits, m, z, targets, weights, out;
    int64_t base;
    float keep;
} LossArgs;

static __device__ inline float stat_get(const Tensor &t, int64_t row)
{
    return ((const float *)t.data)[row * t.stride[0]];
}

template <int W> static __device__ inline int64_t piece_at(const Tensor &t, int64_t row, int64_t i)
{
    return row * t.stride[0] + i * W * (W == 1 ? t.stride[1] : 1);
}

/* Calls body(i, x) for each piece of this thread in the row, with two loads in flight. */
template <int W, class Body>
static __device__ inline void row_sweep(const Tensor &t, int64_t row, Body body)
{
    const int64_t pieces = t.n[1] / W;
    for (int64_t i = threadIdx.x; i < pieces; i += 2 * THREADS) {
        const bool second = i + THREADS < pieces;
        const PackedElements<W> a = piece_load<W>(t.data, t.dtype, piece_at<W>(t, row, i));
        PackedElements<W> b = a;
        if (second) b = piece_load<W>(t.data, t.dtype, piece_at<W>(t, row, i + THREADS));
        float x[W];
        piece_floats(a, t.dtype, x);
        body(i, x);
        if (!second) break;
        piece_floats(b, t.dtype, x);
        body(i + THREADS, x);
    }
}

template <int W>
static __global__ void __launch_bounds__(THREADS) row_max_kernel(const __grid_constant__ LossArgs r)
{
    const int64_t row = blockIdx.x;
    float row_max = -INFINITY;
    row_sweep<W>(r.logits, row, [&](int64_t, const float *x) {
#pragma unroll
        for (int e = 0; e < W; e++)
            if (x[e] > row_max) row_max = x[e];
    });
    row_max = group_max<THREADS>(row_max);
    if (threadIdx.x == 0) ((float *)r.out.data)[row * r.out.stride[0]] = row_max;
}

template <int W>
static __global__ void __launch_bounds__(THREADS)
    row_sums_kernel(const __grid_constant__ LossArgs r)
{
    const int64_t row = blockIdx.x;
    const float row_max = stat_get(r.m, row);
    const int64_t target = ((const int32_t *)r.targets.data)[row * r.targets.stride[0]] - r.base;
    float sum = 0;
    row_sweep<W>(r.logits, row, [&](int64_t i, const float *x) {
#pragma unroll
        for (int e = 0; e < W; e++) sum += i * W + e == target ? 0 : __expf(x[e] - row_max);
    });
    sum = group_sum<THREADS>(sum);
    if (threadIdx.x > 0) return;
    float *z = (float *)r.out.data + row * r.out.stride[0];
    z[0] = sum;
    z[r.out.stride[1]] = 0;
    if (target >= 0 && target < r.logits.n[1])
        z[r.out.stride[1]] = value_get(r.logits.data, r.logits.dtype,
                                       row * r.logits.stride[0] + target * r.logits.stride[1]) -
                             row_max;
}

template <int W>
static __global__ void __launch_bounds__(THREADS) loss_dx_kernel(const __grid_constant__ LossArgs r)
{
    const int64_t row = blockIdx.x;
    const float weight = value_get(r.weights.data, r.weights.dtype, row * r.weights.stride[0]);
    if (weight == 0) {
        const float zero[W] = {};
        for (int64_t i = threadIdx.x; i < r.out.n[1] / W; i += THREADS)
            piece_store<W>(r.out.data, r.out.dtype, piece_at<W>(r.out, row, i), zero);
        return;
    }
    const float row_max = stat_get(r.m, row), others = stat_get(r.z, row);
    const float sum = others + expf(((const float *)r.z.data)[row * r.z.stride[0] + r.z.stride[1]]);
    const float share = weight / sum, at_target = -weight * (others / sum);
    const int64_t target = ((const int32_t *)r.targets.data)[row * r.targets.stride[0]] - r.base;
    row_sweep<W>(r.logits, row, [&](int64_t i, const float *x) {
        float dx[W];
#pragma unroll
        for (int e = 0; e < W; e++)
            dx[e] = i * W + e == target ? at_target : share * __expf(x[e] - row_max);
        piece_store<W>(r.out.data, r.out.dtype, piece_at<W>(r.out, row, i), dx);
    });
}

/* log(1 + others / exp(below)); exp(below) may underflow. */
static __device__ inline double token_loss_of(double others, double below)
{
    const double self = exp(below);
    return others < self ? log1p(others / self) : log(others + self) - below;
}

static __global__ void __launch_bounds__(SUM_THREADS)
    loss_kernel(const __grid_constant__ LossArgs r)
{
    double sum = 0;
    for (int64_t t = threadIdx.x; t < r.z.n[0]; t += SUM_THREADS) {
        const float weight = value_get(r.weights.data, r.weights.dtype, t * r.weights.stride[0]);
        const float *z = (const float *)r.z.data + t * r.z.stride[0];
        if (weight != 0) /* z of a dead row may be anything, also NaN */
            sum += (double)weight * token_loss_of((double)z[0], (double)z[r.z.stride[1]]);
    }
    sum = group_sum<SUM_THREADS>(sum);
    if (threadIdx.x == 0) value_keep(r.out.data, r.out.dtype, 0, r.keep, (float)sum);
}

extern "C" Err cuda_row_max(const Call *call)
{
    LossArgs r = {};
    r.logits = call->in[0], r.out = call->out[0];
    TRY(cuda_begin(call, KERNEL_row_max));
    const unsigned rows = (unsigned)r.logits.n[0];
    if (rows == 0) return OK;
    if (walk_rows_wide(&r.logits))
        row_max_kernel<WALK_WIDE><<<rows, THREADS, 0, call->queue->stream>>>(r);
    else
        row_max_kernel<1><<<rows, THREADS, 0, call->queue->stream>>>(r);
    return cuda_launched(KERNEL_row_max);
}

extern "C" Err cuda_row_sums(const Call *call)
{
    LossArgs r = {};
    r.logits = call->in[0], r.m = call->in[1], r.targets = call->in[2], r.out = call->out[0];
    r.base = call->attr.vocab.base;
    TRY(cuda_begin(call, KERNEL_row_sums));
    const unsigned rows = (unsigned)r.logits.n[0];
    if (rows == 0) return OK;
    if (walk_rows_wide(&r.logits))
        row_sums_kernel<WALK_WIDE><<<rows, THREADS, 0, call->queue->stream>>>(r);
    else
        row_sums_kernel<1><<<rows, THREADS, 0, call->queue->stream>>>(r);
    return cuda_launched(KERNEL_row_sums);
}

extern "C" Err cuda_loss_dx(const Call *call)
{
    LossArgs r = {};
    r.logits = call->in[0], r.m = call->in[1], r.z = call->in[2], r.targets = call->in[3];
    r.weights = call->in[4], r.out = call->out[0], r.base = call->attr.vocab.base;
    TRY(cuda_begin(call, KERNEL_loss_dx));
    const unsigned rows = (unsigned)r.out.n[0];
    if (tensor_count(&r.out) == 0) return OK;
    if (walk_rows_wide(&r.logits) && walk_rows_wide(&r.out))
        loss_dx_kernel<WALK_WIDE><<<rows, THREADS, 0, call->queue->stream>>>(r);
    else
        loss_dx_kernel<1><<<rows, THREADS, 0, call->queue->stream>>>(r);
    return cuda_launched(KERNEL_loss_dx);
}

extern "C" Err cuda_loss(const Call *call)
{
    LossArgs r = {};
    r.z = call->in[0], r.weights = call->in[1], r.out = call->out[0];
    r.keep = (float)call->number[0];
    TRY(cuda_begin(call, KERNEL_loss));
    loss_kernel<<<1, SUM_THREADS, 0, call->queue->stream>>>(r);
    return cuda_launched(KERNEL_loss);
}
