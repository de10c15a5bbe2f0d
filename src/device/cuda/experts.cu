/* experts.cu -- swiglu of the rows of experts, and the gate of a shared expert.
 *
 * A thread has W adjacent elements of a row: 8 if all rows are contiguous and aligned, else 1. */
#include "device/cuda/value.cuh"

enum { THREADS = 256 };

static __device__ inline float row_get(const Tensor &t, int64_t row, int64_t i)
{
    return value_get(t.data, t.dtype, row * t.stride[0] + i * t.stride[1]);
}

template <int W>
static __device__ inline void row_floats(const Tensor &t, int64_t row, int64_t i, float *x)
{
    piece_floats<W>(piece_load<W>(t.data, t.dtype, row * t.stride[0] + i * t.stride[1]), t.dtype,
                    x);
}

template <int W>
static __device__ inline void row_store(const Tensor &t, int64_t row, int64_t i, const float *x)
{
    piece_store<W>(t.data, t.dtype, row * t.stride[0] + i * t.stride[1], x);
}

typedef struct {
    Tensor dy, gate, up, offsets, out[2]; /* forward: no dy, one out */
} SwigluArgs;

/* The row and first element of the thread; false if the row is not of an expert. */
template <int W>
static __device__ inline bool find_elements(const SwigluArgs &s, int64_t *row, int64_t *from)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, pieces = s.gate.n[1] / W;
    *row = i <= UINT32_MAX ? (uint32_t)i / (uint32_t)pieces : i / pieces;
    *from = (i - *row * pieces) * W;
    return *row < ((const int32_t *)s.offsets.data)[(s.offsets.n[0] - 1) * s.offsets.stride[0]];
}

template <int W>
static __global__ void __launch_bounds__(THREADS)
    grouped_swiglu_kernel(const __grid_constant__ SwigluArgs s)
{
    int64_t row, i;
    float gate[W], up[W];
    if (!find_elements<W>(s, &row, &i)) return;
    row_floats<W>(s.gate, row, i, gate);
    row_floats<W>(s.up, row, i, up);
#pragma unroll
    for (int e = 0; e < W; e++) up[e] *= gate[e] / (1 + __expf(-gate[e]));
    row_store<W>(s.out[0], row, i, up);
}

template <int W>
static __global__ void __launch_bounds__(THREADS)
    grouped_swiglu_dx_kernel(const __grid_constant__ SwigluArgs s)
{
    int64_t row, i;
    float dy[W], gate[W], up[W];
    if (!find_elements<W>(s, &row, &i)) return;
    row_floats<W>(s.dy, row, i, dy);
    row_floats<W>(s.gate, row, i, gate);
    row_floats<W>(s.up, row, i, up);
#pragma unroll
    for (int e = 0; e < W; e++) {
        const float g = gate[e], x = 1 / (1 + __expf(-g));
        gate[e] = dy[e] * up[e] * x * (1 + g * (1 - x));
        up[e] = dy[e] * g * x;
    }
    row_store<W>(s.out[0], row, i, gate);
    row_store<W>(s.out[1], row, i, up);
}

static unsigned swiglu_blocks(const SwigluArgs *s, bool wide)
{
    return (unsigned)blocks_of(tensor_count(&s->gate) / (wide ? +WIDE_PIECE : 1), THREADS);
}

extern "C" Err cuda_grouped_swiglu(const Call *call)
{
    SwigluArgs s = {};
    TRY(cuda_begin(call, KERNEL_grouped_swiglu));
    s.gate = call->in[0], s.up = call->in[1], s.offsets = call->in[2], s.out[0] = call->out[0];
    if (tensor_count(&s.gate) == 0) return OK;
    const bool wide = wide_rows(&s.gate) && wide_rows(&s.up) && wide_rows(&s.out[0]);
    (wide ? grouped_swiglu_kernel<WIDE_PIECE>
          : grouped_swiglu_kernel<1>)<<<swiglu_blocks(&s, wide), THREADS, 0, call->queue->stream>>>(
        s);
    return cuda_launched(KERNEL_grouped_swiglu);
}

extern "C" Err cuda_grouped_swiglu_dx(const Call *call)
{
    SwigluArgs s = {};
    TRY(cuda_begin(call, KERNEL_grouped_swiglu_dx));
    s.dy = call->in[0], s.gate = call->in[1], s.up = call->in[2], s.offsets = call->in[3];
    s.out[0] = call->out[0], s.out[1] = call->out[1];
    if (tensor_count(&s.gate) == 0) return OK;
    const bool wide = wide_rows(&s.dy) && wide_rows(&s.gate) && wide_rows(&s.up) &&
                      wide_rows(&s.out[0]) && wide_rows(&s.out[1]);
    (wide ? grouped_swiglu_dx_kernel<WIDE_PIECE>
          : grouped_swiglu_dx_kernel<
                1>)<<<swiglu_blocks(&s, wide), THREADS, 0, call->queue->stream>>>(s);
    return cuda_launched(KERNEL_grouped_swiglu_dx);
}

typedef struct {
    Tensor dy, x, s, y, ds; /* forward: no dy, no ds */
} GateArgs;

static __global__ void __launch_bounds__(THREADS)
    sigmoid_gate_kernel(const __grid_constant__ GateArgs g)
{
    const int64_t t = blockIdx.x;
    const float gate = 1 / (1 + expf(-row_get(g.s, t, 0)));
    float sum = 0;
    for (int64_t i = threadIdx.x; i < g.x.n[1]; i += THREADS) {
        const float x = row_get(g.x, t, i), dy = g.dy.data ? row_get(g.dy, t, i) : x;
        sum += dy * x;
        value_set(g.y.data, g.y.dtype, t * g.y.stride[0] + i * g.y.stride[1], gate * dy);
    }
    if (!g.ds.data) return;
    sum = group_sum<THREADS>(sum);
    if (threadIdx.x == 0)
        value_set(g.ds.data, g.ds.dtype, t * g.ds.stride[0], sum * gate * (1 - gate));
}

static Err launch_gate(const Call *call, const GateArgs *g, KernelId id)
{
    TRY(cuda_begin(call, id));
    if (tensor_count(&g->x) == 0) return OK;
    sigmoid_gate_kernel<<<(unsigned)g->x.n[0], THREADS, 0, call->queue->stream>>>(*g);
    return cuda_launched(id);
}

extern "C" Err cuda_sigmoid_gate(const Call *call)
{
    GateArgs g = {};
    g.x = call->in[0], g.s = call->in[1], g.y = call->out[0];
    return launch_gate(call, &g, KERNEL_sigmoid_gate);
}

extern "C" Err cuda_sigmoid_gate_dx(const Call *call)
{
    GateArgs g = {};
    g.dy = call->in[0], g.x = call->in[1], g.s = call->in[2];
    g.y = call->out[0], g.ds = call->out[1];
    return launch_gate(call, &g, KERNEL_sigmoid_gate_dx);
}
