/* modulate.cu -- rows by the vectors of their clip (device/ref/modulate.c has the formulas), the
 * features of a time, and the squared error of rows. A warp has a row; clip_sums.cu has the sums
 * over the tokens of a clip. */
#include "device/cuda/value.cuh"

enum { THREADS = 256, ROWS = THREADS / 32, SUM_THREADS = 1024 };

typedef struct {
    Tensor dy, x, scale, shift, clip, mean, rstd, y;
    float eps;
    bool has_shift; /* gate_add: shift is the residual */
} ModulateArgs;

static __device__ inline float at(const Tensor &t, int64_t row, int64_t i)
{
    return value_get(t.data, t.dtype, row * t.stride[0] + i * t.stride[1]);
}

static __device__ inline void put(const Tensor &t, int64_t row, int64_t i, float x)
{
    value_set(t.data, t.dtype, row * t.stride[0] + i * t.stride[1], x);
}

/* W elements of a row from i on. */
template <int W>
static __device__ inline void row_get(const Tensor &t, int64_t row, int64_t i, float x[W])
{
    piece_floats(piece_load<W>(t.data, t.dtype, row * t.stride[0] + i * t.stride[1]), t.dtype, x);
}

template <int W>
static __device__ inline void row_put(const Tensor &t, int64_t row, int64_t i, const float x[W])
{
    piece_store<W>(t.data, t.dtype, row * t.stride[0] + i * t.stride[1], x);
}

static __device__ inline int64_t row_of_warp()
{
    return (int64_t)blockIdx.x * ROWS + threadIdx.x / 32;
}

static __device__ inline int64_t clip_of(const Tensor &clip, int64_t t)
{
    return ((const int32_t *)clip.data)[t * clip.stride[0]];
}

static __device__ inline float stat_get(const Tensor &t, int64_t row)
{
    return ((const float *)t.data)[row * t.stride[0]];
}

/* Mean and rstd of a row, in two passes. */
template <int W>
static __device__ inline void row_statistics(const ModulateArgs &m, int64_t t, float *mean,
                                             float *rstd)
{
    const int64_t width = m.x.n[1];
    float sum = 0, square = 0, x[W];
    for (int64_t i = threadIdx.x % 32 * W; i < width; i += 32 * W) {
        row_get<W>(m.x, t, i, x);
#pragma unroll
        for (int e = 0; e < W; e++) sum += x[e];
    }
    *mean = warp_sum(sum) / (float)width;
    for (int64_t i = threadIdx.x % 32 * W; i < width; i += 32 * W) {
        row_get<W>(m.x, t, i, x);
#pragma unroll
        for (int e = 0; e < W; e++) square = fmaf(x[e] - *mean, x[e] - *mean, square);
    }
    *rstd = rsqrtf(warp_sum(square) / (float)width + m.eps);
}

template <int W>
static __global__ void __launch_bounds__(THREADS)
    modulate_kernel(const __grid_constant__ ModulateArgs m)
{
    const int64_t t = row_of_warp(), lane = threadIdx.x % 32;
    if (t >= m.x.n[0]) return;
    const int64_t clip = clip_of(m.clip, t);
    float mean, rstd, x[W], scale[W], shift[W];
    row_statistics<W>(m, t, &mean, &rstd);
    for (int64_t i = lane * W; i < m.x.n[1]; i += 32 * W) {
        row_get<W>(m.x, t, i, x);
        row_get<W>(m.scale, clip, i, scale);
        row_get<W>(m.shift, clip, i, shift);
#pragma unroll
        for (int e = 0; e < W; e++) x[e] = fmaf((x[e] - mean) * rstd, 1 + scale[e], shift[e]);
        row_put<W>(m.y, t, i, x);
    }
    if (lane > 0) return;
    ((float *)m.mean.data)[t * m.mean.stride[0]] = mean;
    ((float *)m.rstd.data)[t * m.rstd.stride[0]] = rstd;
}

/* g = dy (1 + scale) and h = (x - mean) rstd of W elements. */
template <int W>
static __device__ inline void slopes_get(const ModulateArgs &m, int64_t t, int64_t clip, int64_t i,
                                         float mean, float rstd, float g[W], float h[W])
{
    float scale[W];
    row_get<W>(m.dy, t, i, g);
    row_get<W>(m.x, t, i, h);
    row_get<W>(m.scale, clip, i, scale);
#pragma unroll
    for (int e = 0; e < W; e++) {
        g[e] *= 1 + scale[e];
        h[e] = (h[e] - mean) * rstd;
    }
}

template <int W>
static __global__ void __launch_bounds__(THREADS)
    modulate_dx_kernel(const __grid_constant__ ModulateArgs m)
{
    const int64_t t = row_of_warp(), width = m.x.n[1], lane = threadIdx.x % 32;
    if (t >= m.x.n[0]) return;
    const int64_t clip = clip_of(m.clip, t);
    const float mean = stat_get(m.mean, t), rstd = stat_get(m.rstd, t);
    float sum_g = 0, sum_gh = 0, g[W], h[W];
    for (int64_t i = lane * W; i < width; i += 32 * W) {
        slopes_get<W>(m, t, clip, i, mean, rstd, g, h);
#pragma unroll
        for (int e = 0; e < W; e++) {
            sum_g += g[e];
            sum_gh = fmaf(g[e], h[e], sum_gh);
        }
    }
    sum_g = warp_sum(sum_g) / (float)width;
    sum_gh = warp_sum(sum_gh) / (float)width;
    for (int64_t i = lane * W; i < width; i += 32 * W) {
        slopes_get<W>(m, t, clip, i, mean, rstd, g, h);
#pragma unroll
        for (int e = 0; e < W; e++) g[e] = rstd * (g[e] - sum_g - h[e] * sum_gh);
        row_put<W>(m.y, t, i, g);
    }
}

template <int W>
static __global__ void __launch_bounds__(THREADS)
    gate_add_kernel(const __grid_constant__ ModulateArgs m)
{
    const int64_t t = row_of_warp(), lane = threadIdx.x % 32;
    if (t >= m.y.n[0]) return;
    const int64_t clip = clip_of(m.clip, t);
    float x[W], gate[W], residual[W] = {};
    for (int64_t i = lane * W; i < m.y.n[1]; i += 32 * W) {
        row_get<W>(m.x, t, i, x);
        row_get<W>(m.scale, clip, i, gate);
        if (m.has_shift) row_get<W>(m.shift, t, i, residual);
#pragma unroll
        for (int e = 0; e < W; e++) x[e] = fmaf(gate[e], x[e], residual[e]);
        row_put<W>(m.y, t, i, x);
    }
}

/* Rows of 16 bytes at a time, if all operands permit it. */
static bool is_wide(const ModulateArgs &m)
{
    const Tensor *const all[] = {&m.dy, &m.x, &m.scale, &m.shift, &m.y};
    for (const Tensor *t : all)
        if (t->data && !walk_rows_wide(t)) return false;
    return true;
}

#define RUN_ROWS(kernel, m, call)                                                                  \
    do {                                                                                           \
        const unsigned blocks = (unsigned)blocks_of((m).y.n[0], ROWS);                             \
        if (is_wide(m))                                                                            \
            kernel<WALK_WIDE><<<blocks, THREADS, 0, (call)->queue->stream>>>(m);                   \
        else                                                                                       \
            kernel<1><<<blocks, THREADS, 0, (call)->queue->stream>>>(m);                           \
    } while (0)

extern "C" Err cuda_modulate(const Call *call)
{
    ModulateArgs m = {};
    TRY(cuda_begin(call, KERNEL_modulate));
    m.x = call->in[0], m.scale = call->in[1], m.shift = call->in[2], m.clip = call->in[3];
    m.y = call->out[0], m.mean = call->out[1], m.rstd = call->out[2];
    m.eps = (float)call->attr.norm.eps;
    if (tensor_count(&m.y) == 0) return OK;
    RUN_ROWS(modulate_kernel, m, call);
    return cuda_launched(KERNEL_modulate);
}

extern "C" Err cuda_modulate_dx(const Call *call)
{
    ModulateArgs m = {};
    TRY(cuda_begin(call, KERNEL_modulate_dx));
    m.dy = call->in[0], m.x = call->in[1], m.scale = call->in[2], m.clip = call->in[3];
    m.mean = call->in[4], m.rstd = call->in[5], m.y = call->out[0];
    if (tensor_count(&m.y) == 0) return OK;
    RUN_ROWS(modulate_dx_kernel, m, call);
    return cuda_launched(KERNEL_modulate_dx);
}

extern "C" Err cuda_gate_add(const Call *call)
{
    ModulateArgs m = {};
    TRY(cuda_begin(call, KERNEL_gate_add));
    m.x = call->in[0], m.scale = call->in[1], m.clip = call->in[2], m.y = call->out[0];
    m.has_shift = call->n_in > 3;
    if (m.has_shift) m.shift = call->in[3];
    if (tensor_count(&m.y) == 0) return OK;
    RUN_ROWS(gate_add_kernel, m, call);
    return cuda_launched(KERNEL_gate_add);
}

static __global__ void sinusoid_kernel(Tensor time, Tensor y, double rate, double base)
{
    const int64_t b = blockIdx.x, half = y.n[1] / 2;
    const double now = rate * (double)value_get(time.data, time.dtype, b * time.stride[0]);
    for (int64_t i = threadIdx.x; i < half; i += blockDim.x) {
        const double angle = now * pow(base, -(double)i / (double)half);
        put(y, b, i, (float)cos(angle));
        put(y, b, half + i, (float)sin(angle));
    }
}

extern "C" Err cuda_sinusoid(const Call *call)
{
    TRY(cuda_begin(call, KERNEL_sinusoid));
    if (tensor_count(&call->out[0]) == 0) return OK;
    sinusoid_kernel<<<(unsigned)call->out[0].n[0], THREADS, 0, call->queue->stream>>>(
        call->in[0], call->out[0], call->attr.sinusoid.rate, call->attr.sinusoid.base);
    return cuda_launched(KERNEL_sinusoid);
}

typedef struct {
    Tensor x, target, weights, out;
    float keep;
} SquareArgs;

/* One block: the rows have few channels. */
static __global__ void __launch_bounds__(SUM_THREADS)
    square_loss_kernel(const __grid_constant__ SquareArgs s)
{
    const int64_t width = s.x.n[1];
    double sum = 0;
    for (int64_t k = threadIdx.x; k < s.x.n[0] * width; k += SUM_THREADS) {
        const int64_t t = k / width, i = k % width;
        const float weight = value_get(s.weights.data, s.weights.dtype, t * s.weights.stride[0]);
        if (weight == 0) continue;
        const double d = (double)at(s.x, t, i) - (double)at(s.target, t, i);
        sum += (double)weight * d * d;
    }
    sum = group_sum<SUM_THREADS>(sum) / (double)width;
    if (threadIdx.x == 0) value_keep(s.out.data, s.out.dtype, 0, s.keep, (float)sum);
}

extern "C" Err cuda_square_loss(const Call *call)
{
    SquareArgs s = {};
    TRY(cuda_begin(call, KERNEL_square_loss));
    s.x = call->in[0], s.target = call->in[1], s.weights = call->in[2], s.out = call->out[0];
    s.keep = (float)call->number[0];
    square_loss_kernel<<<1, SUM_THREADS, 0, call->queue->stream>>>(s);
    return cuda_launched(KERNEL_square_loss);
}

static __global__ void __launch_bounds__(THREADS)
    square_loss_dx_kernel(const __grid_constant__ SquareArgs s)
{
    const int64_t t = blockIdx.x, width = s.out.n[1];
    const float weight = value_get(s.weights.data, s.weights.dtype, t * s.weights.stride[0]);
    for (int64_t i = threadIdx.x; i < width; i += THREADS)
        put(s.out, t, i,
            weight == 0 ? 0 : 2 * weight / (float)width * (at(s.x, t, i) - at(s.target, t, i)));
}

extern "C" Err cuda_square_loss_dx(const Call *call)
{
    SquareArgs s = {};
    TRY(cuda_begin(call, KERNEL_square_loss_dx));
    s.x = call->in[0], s.target = call->in[1], s.weights = call->in[2], s.out = call->out[0];
    if (tensor_count(&s.out) == 0) return OK;
    square_loss_dx_kernel<<<(unsigned)s.out.n[0], THREADS, 0, call->queue->stream>>>(s);
    return cuda_launched(KERNEL_square_loss_dx);
}
