/* experts.cu -- rows of tokens to the rows of their experts, and back; the gate of a shared
 * expert. */
#include "device/cuda/value.cuh"

enum { THREADS = 256, MAX_LEVELS = 11 };

static __device__ inline int32_t *choice_at(const Tensor &t, int64_t token, int64_t k)
{
    return (int32_t *)t.data + token * t.stride[0] + k * t.stride[1];
}

typedef struct {
    Tensor x, at, gate, y, dgate; /* gate: data NULL if there is none */
    int64_t width;
} PermuteArgs;

static __device__ inline float gate_of(const PermuteArgs &p, int64_t t, int64_t k)
{
    if (!p.gate.data) return 1;
    return value_get(p.gate.data, p.gate.dtype, t * p.gate.stride[0] + k * p.gate.stride[1]);
}

static __device__ inline float row_get(const Tensor &t, int64_t row, int64_t i)
{
    return value_get(t.data, t.dtype, row * t.stride[0] + i * t.stride[1]);
}

static __global__ void __launch_bounds__(THREADS)
    permute_kernel(const __grid_constant__ PermuteArgs p)
{
    const int64_t t = blockIdx.x;
    for (int64_t i = threadIdx.x; i < p.width; i += THREADS) {
        const float x = row_get(p.x, t, i);
        for (int64_t k = 0; k < p.at.n[1]; k++) {
            const int32_t row = *choice_at(p.at, t, k);
            if (row >= 0)
                value_set(p.y.data, p.y.dtype, row * p.y.stride[0] + i * p.y.stride[1],
                          gate_of(p, t, k) * x);
        }
    }
}

extern "C" Err cuda_permute(const Call *call)
{
    PermuteArgs p = {};
    TRY(cuda_begin(call, KERNEL_permute));
    p.x = call->in[0], p.at = call->in[1], p.y = call->out[0], p.width = p.x.n[1];
    if (call->n_in > 2) p.gate = call->in[2];
    if (tensor_count(&p.x) == 0) return OK;
    permute_kernel<<<(unsigned)p.x.n[0], THREADS, 0, call->queue->stream>>>(p);
    return cuda_launched(KERNEL_permute);
}

/* Pairwise over choices, as on device ref: sum[level] waits for its pair. */
static __global__ void __launch_bounds__(THREADS)
    unpermute_kernel(const __grid_constant__ PermuteArgs p)
{
    const int64_t t = blockIdx.x, choices = p.at.n[1];
    for (int64_t i = threadIdx.x; i < p.width; i += THREADS) {
        float sum[MAX_LEVELS];
        for (int64_t k = 0; k < choices; k++) {
            const int32_t row = *choice_at(p.at, t, k);
            float x = row < 0 ? 0 : gate_of(p, t, k) * row_get(p.y, row, i);
            int level = 0;
            for (; k >> level & 1; level++) x += sum[level];
            sum[level] = x;
        }
        float all = 0;
        for (int level = 0; level < MAX_LEVELS; level++)
            if (choices >> level & 1) all += sum[level];
        value_set(p.x.data, p.x.dtype, t * p.x.stride[0] + i * p.x.stride[1], all);
    }
}

extern "C" Err cuda_unpermute(const Call *call)
{
    PermuteArgs p = {};
    TRY(cuda_begin(call, KERNEL_unpermute));
    p.at = call->in[0], p.y = call->in[1], p.x = call->out[0], p.width = p.x.n[1];
    if (call->n_in > 2) p.gate = call->in[2];
    if (tensor_count(&p.x) == 0) return OK;
    unpermute_kernel<<<(unsigned)p.x.n[0], THREADS, 0, call->queue->stream>>>(p);
    return cuda_launched(KERNEL_unpermute);
}

static __global__ void __launch_bounds__(THREADS)
    dgate_kernel(const __grid_constant__ PermuteArgs p)
{
    const int64_t t = blockIdx.x, k = blockIdx.y;
    const int32_t row = *choice_at(p.at, t, k);
    float sum = 0;
    for (int64_t i = threadIdx.x; row >= 0 && i < p.width; i += THREADS)
        sum += row_get(p.x, t, i) * row_get(p.y, row, i);
    sum = group_sum<THREADS>(sum);
    if (threadIdx.x == 0)
        value_set(p.dgate.data, p.dgate.dtype, t * p.dgate.stride[0] + k * p.dgate.stride[1], sum);
}

extern "C" Err cuda_permute_dgate(const Call *call)
{
    PermuteArgs p = {};
    TRY(cuda_begin(call, KERNEL_permute_dgate));
    p.x = call->in[0], p.at = call->in[1], p.y = call->in[2], p.dgate = call->out[0];
    p.width = p.x.n[1];
    if (tensor_count(&p.dgate) == 0) return OK;
    const dim3 grid((unsigned)p.x.n[0], (unsigned)p.at.n[1]);
    dgate_kernel<<<grid, THREADS, 0, call->queue->stream>>>(p);
    return cuda_launched(KERNEL_permute_dgate);
}

typedef struct {
    Tensor dy, gate, up, offsets, out[2];
} SwigluArgs;

static __device__ inline bool is_live(const SwigluArgs &s, int64_t row)
{
    return row < ((const int32_t *)s.offsets.data)[(s.offsets.n[0] - 1) * s.offsets.stride[0]];
}

static __global__ void __launch_bounds__(THREADS)
    grouped_swiglu_kernel(const __grid_constant__ SwigluArgs s)
{
    const int64_t row = blockIdx.x;
    if (!is_live(s, row)) return;
    for (int64_t i = threadIdx.x; i < s.gate.n[1]; i += THREADS) {
        const float g = row_get(s.gate, row, i), u = row_get(s.up, row, i);
        value_set(s.out[0].data, s.out[0].dtype, row * s.out[0].stride[0] + i * s.out[0].stride[1],
                  g / (1 + __expf(-g)) * u);
    }
}

extern "C" Err cuda_grouped_swiglu(const Call *call)
{
    SwigluArgs s = {};
    TRY(cuda_begin(call, KERNEL_grouped_swiglu));
    s.gate = call->in[0], s.up = call->in[1], s.offsets = call->in[2], s.out[0] = call->out[0];
    if (tensor_count(&s.gate) == 0) return OK;
    grouped_swiglu_kernel<<<(unsigned)s.gate.n[0], THREADS, 0, call->queue->stream>>>(s);
    return cuda_launched(KERNEL_grouped_swiglu);
}

static __global__ void __launch_bounds__(THREADS)
    grouped_swiglu_dx_kernel(const __grid_constant__ SwigluArgs s)
{
    const int64_t row = blockIdx.x;
    if (!is_live(s, row)) return;
    for (int64_t i = threadIdx.x; i < s.gate.n[1]; i += THREADS) {
        const float dy = row_get(s.dy, row, i), g = row_get(s.gate, row, i);
        const float u = row_get(s.up, row, i), x = 1 / (1 + __expf(-g));
        value_set(s.out[0].data, s.out[0].dtype, row * s.out[0].stride[0] + i * s.out[0].stride[1],
                  dy * u * x * (1 + g * (1 - x)));
        value_set(s.out[1].data, s.out[1].dtype, row * s.out[1].stride[0] + i * s.out[1].stride[1],
                  dy * g * x);
    }
}

extern "C" Err cuda_grouped_swiglu_dx(const Call *call)
{
    SwigluArgs s = {};
    TRY(cuda_begin(call, KERNEL_grouped_swiglu_dx));
    s.dy = call->in[0], s.gate = call->in[1], s.up = call->in[2], s.offsets = call->in[3];
    s.out[0] = call->out[0], s.out[1] = call->out[1];
    if (tensor_count(&s.gate) == 0) return OK;
    grouped_swiglu_dx_kernel<<<(unsigned)s.gate.n[0], THREADS, 0, call->queue->stream>>>(s);
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
