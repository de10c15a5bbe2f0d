/* modulate.cu -- rows by the vectors of their clip (device/ref/modulate.c has the formulas), the
 * features of a time, and the squared error of rows.
 *
 * A block per row; sums over the tokens of a clip: a block per clip and 32 columns, whose warps
 * take rows in turn and are added in order. */
#include "device/cuda/value.cuh"

enum { THREADS = 256, SUM_THREADS = 1024, WARPS = THREADS / 32 };

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

static __device__ inline int64_t clip_of(const Tensor &clip, int64_t t)
{
    return ((const int32_t *)clip.data)[t * clip.stride[0]];
}

static __device__ inline float stat_get(const Tensor &t, int64_t row)
{
    return ((const float *)t.data)[row * t.stride[0]];
}

static __global__ void __launch_bounds__(THREADS)
    modulate_kernel(const __grid_constant__ ModulateArgs m)
{
    const int64_t t = blockIdx.x, width = m.x.n[1], clip = clip_of(m.clip, t);
    float sum = 0, square = 0;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) sum += at(m.x, t, i);
    const float mean = group_sum<THREADS>(sum) / (float)width;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        const float d = at(m.x, t, i) - mean;
        square = fmaf(d, d, square);
    }
    const float rstd = rsqrtf(group_sum<THREADS>(square) / (float)width + m.eps);
    for (int64_t i = threadIdx.x; i < width; i += THREADS)
        put(m.y, t, i,
            fmaf((at(m.x, t, i) - mean) * rstd, 1 + at(m.scale, clip, i), at(m.shift, clip, i)));
    if (threadIdx.x > 0) return;
    ((float *)m.mean.data)[t * m.mean.stride[0]] = mean;
    ((float *)m.rstd.data)[t * m.rstd.stride[0]] = rstd;
}

extern "C" Err cuda_modulate(const Call *call)
{
    ModulateArgs m = {};
    TRY(cuda_begin(call, KERNEL_modulate));
    m.x = call->in[0], m.scale = call->in[1], m.shift = call->in[2], m.clip = call->in[3];
    m.y = call->out[0], m.mean = call->out[1], m.rstd = call->out[2];
    m.eps = (float)call->attr.norm.eps;
    if (tensor_count(&m.y) == 0) return OK;
    modulate_kernel<<<(unsigned)m.y.n[0], THREADS, 0, call->queue->stream>>>(m);
    return cuda_launched(KERNEL_modulate);
}

static __global__ void __launch_bounds__(THREADS)
    modulate_dx_kernel(const __grid_constant__ ModulateArgs m)
{
    const int64_t t = blockIdx.x, width = m.x.n[1], clip = clip_of(m.clip, t);
    const float mean = stat_get(m.mean, t), rstd = stat_get(m.rstd, t);
    float sum_g = 0, sum_gh = 0;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        const float g = at(m.dy, t, i) * (1 + at(m.scale, clip, i));
        sum_g += g;
        sum_gh = fmaf(g, (at(m.x, t, i) - mean) * rstd, sum_gh);
    }
    sum_g = group_sum<THREADS>(sum_g) / (float)width;
    sum_gh = group_sum<THREADS>(sum_gh) / (float)width;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        const float g = at(m.dy, t, i) * (1 + at(m.scale, clip, i));
        const float h = (at(m.x, t, i) - mean) * rstd;
        put(m.y, t, i, rstd * (g - sum_g - h * sum_gh));
    }
}

extern "C" Err cuda_modulate_dx(const Call *call)
{
    ModulateArgs m = {};
    TRY(cuda_begin(call, KERNEL_modulate_dx));
    m.dy = call->in[0], m.x = call->in[1], m.scale = call->in[2], m.clip = call->in[3];
    m.mean = call->in[4], m.rstd = call->in[5], m.y = call->out[0];
    if (tensor_count(&m.y) == 0) return OK;
    modulate_dx_kernel<<<(unsigned)m.y.n[0], THREADS, 0, call->queue->stream>>>(m);
    return cuda_launched(KERNEL_modulate_dx);
}

typedef struct {
    Tensor dy, x, clip, mean, rstd, product, plain; /* mean, plain: data NULL if there is none */
    float keep_product, keep_plain;
} ClipSumArgs;

static __global__ void __launch_bounds__(THREADS)
    clip_sums_kernel(const __grid_constant__ ClipSumArgs s)
{
    const int64_t clip = blockIdx.y, i = (int64_t)blockIdx.x * 32 + threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const bool inside = i < s.product.n[1];
    __shared__ float part[2][WARPS][32];
    float product = 0, plain = 0;
    for (int64_t t = warp; t < s.dy.n[0]; t += WARPS) {
        if (clip_of(s.clip, t) != clip || !inside) continue;
        const float g = at(s.dy, t, i), x = at(s.x, t, i);
        const float h = s.mean.data ? (x - stat_get(s.mean, t)) * stat_get(s.rstd, t) : x;
        product = fmaf(g, h, product);
        plain += g;
    }
    part[0][warp][threadIdx.x % 32] = product;
    part[1][warp][threadIdx.x % 32] = plain;
    __syncthreads();
    if (warp > 0 || !inside) return;
    product = plain = 0;
    for (int w = 0; w < WARPS; w++) {
        product += part[0][w][threadIdx.x];
        plain += part[1][w][threadIdx.x];
    }
    value_keep(s.product.data, s.product.dtype,
               clip * s.product.stride[0] + i * s.product.stride[1], s.keep_product, product);
    if (s.plain.data)
        value_keep(s.plain.data, s.plain.dtype, clip * s.plain.stride[0] + i * s.plain.stride[1],
                   s.keep_plain, plain);
}

static Err clip_sums(const Call *call, const ClipSumArgs &s, KernelId id)
{
    if (tensor_count(&s.product) == 0) return OK;
    const dim3 grid((unsigned)blocks_of(s.product.n[1], 32), (unsigned)s.product.n[0]);
    clip_sums_kernel<<<grid, THREADS, 0, call->queue->stream>>>(s);
    return cuda_launched(id);
}

extern "C" Err cuda_modulate_dw(const Call *call)
{
    ClipSumArgs s = {};
    TRY(cuda_begin(call, KERNEL_modulate_dw));
    s.dy = call->in[0], s.x = call->in[1], s.clip = call->in[2], s.mean = call->in[3];
    s.rstd = call->in[4], s.product = call->out[0], s.plain = call->out[1];
    s.keep_product = (float)call->number[0], s.keep_plain = (float)call->number[1];
    return clip_sums(call, s, KERNEL_modulate_dw);
}

extern "C" Err cuda_gate_add_dw(const Call *call)
{
    ClipSumArgs s = {};
    TRY(cuda_begin(call, KERNEL_gate_add_dw));
    s.dy = call->in[0], s.x = call->in[1], s.clip = call->in[2], s.product = call->out[0];
    s.keep_product = (float)call->number[0];
    return clip_sums(call, s, KERNEL_gate_add_dw);
}

static __global__ void __launch_bounds__(THREADS)
    gate_add_kernel(const __grid_constant__ ModulateArgs m)
{
    const int64_t t = blockIdx.x, clip = clip_of(m.clip, t);
    for (int64_t i = threadIdx.x; i < m.y.n[1]; i += THREADS) {
        const float residual = m.has_shift ? at(m.shift, t, i) : 0;
        put(m.y, t, i, fmaf(at(m.scale, clip, i), at(m.x, t, i), residual));
    }
}

extern "C" Err cuda_gate_add(const Call *call)
{
    ModulateArgs m = {};
    TRY(cuda_begin(call, KERNEL_gate_add));
    m.x = call->in[0], m.scale = call->in[1], m.clip = call->in[2], m.y = call->out[0];
    m.has_shift = call->n_in > 3;
    if (m.has_shift) m.shift = call->in[3];
    if (tensor_count(&m.y) == 0) return OK;
    gate_add_kernel<<<(unsigned)m.y.n[0], THREADS, 0, call->queue->stream>>>(m);
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
