/* assign.cu -- the capacity of experts and their excess, and the rows of choices.
 *
 * assign_rows is a stable counting sort: a block per expert walks the choices in order. */
#include "device/cuda/value.cuh"

enum { THREADS = 256 };

typedef struct {
    Tensor expert, gate, at, offsets; /* at: kept, of limit_choices */
    int64_t choices, width, experts, cap;
    bool by_gate;
} AssignArgs;

static __device__ inline int32_t *choice_at(const Tensor &t, int64_t width, int64_t i)
{
    return (int32_t *)t.data + i / width * t.stride[0] + i % width * t.stride[1];
}

static __device__ inline float gate_at(const AssignArgs &a, int64_t i)
{
    return value_get(a.gate.data, a.gate.dtype,
                     i / a.width * a.gate.stride[0] + i % a.width * a.gate.stride[1]);
}

/* The votes of the threads before this one in the block; *all: of all threads. */
static __device__ inline int votes_before(bool mine, int *all)
{
    __shared__ int warp_count[THREADS / 32];
    const unsigned votes = __ballot_sync(0xffffffffu, mine);
    const int warp = (int)threadIdx.x / 32;
    int before = __popc(votes & ((1u << threadIdx.x % 32) - 1));
    __syncthreads(); /* the counts of the call before have been read */
    if (threadIdx.x % 32 == 0) warp_count[warp] = __popc(votes);
    __syncthreads();
    *all = 0;
    for (int w = 0; w < THREADS / 32; w++) {
        if (w < warp) before += warp_count[w];
        *all += warp_count[w];
    }
    return before;
}

/* Choices of i's expert with a larger gate, or with the same and an earlier place. */
static __device__ inline int64_t larger_gates(const AssignArgs &a, int e, int64_t i)
{
    const float own = gate_at(a, i);
    int64_t before = 0;
    for (int64_t j = 0; j < a.choices; j++) {
        if (*choice_at(a.expert, a.width, j) != e) continue;
        const float other = gate_at(a, j);
        before += other > own || (other == own && j < i);
    }
    return before;
}

static __global__ void __launch_bounds__(THREADS) limit_kernel(const __grid_constant__ AssignArgs a)
{
    const int e = (int)blockIdx.x;
    int64_t seen = 0;
    for (int64_t from = 0; from < a.choices; from += THREADS) {
        const int64_t i = from + threadIdx.x;
        const bool mine = i < a.choices && *choice_at(a.expert, a.width, i) == e;
        int all;
        int64_t before = seen + votes_before(mine, &all);
        if (mine && a.by_gate) before = larger_gates(a, e, i);
        if (mine) *choice_at(a.at, a.width, i) = before < a.cap ? e : -1;
        seen += all;
    }
}

extern "C" Err cuda_limit_choices(const Call *call)
{
    AssignArgs a = {};
    TRY(cuda_begin(call, KERNEL_limit_choices));
    a.expert = call->in[0], a.gate = call->in[1], a.at = call->out[0];
    a.width = a.expert.n[1], a.choices = a.expert.n[0] * a.width;
    a.experts = call->attr.limit.experts, a.by_gate = call->attr.limit.by_gate;
    a.cap = (int64_t)ceil(call->attr.limit.capacity * (double)a.choices / (double)a.experts);
    limit_kernel<<<(unsigned)a.experts, THREADS, 0, call->queue->stream>>>(a);
    return cuda_launched(KERNEL_limit_choices);
}

/* count[e]: choices of the block's expert. Choices without an expert have no row. */
static __global__ void __launch_bounds__(THREADS)
    count_kernel(const __grid_constant__ AssignArgs a, int32_t *count)
{
    const int e = (int)blockIdx.x;
    int seen = 0, all;
    for (int64_t from = 0; from < a.choices; from += THREADS) {
        const int64_t i = from + threadIdx.x;
        const int32_t own = i < a.choices ? *choice_at(a.expert, a.width, i) : -1;
        votes_before(own == e, &all);
        if (e == 0 && own < 0 && i < a.choices) *choice_at(a.at, a.width, i) = -1;
        seen += all;
    }
    if (threadIdx.x == 0) count[e] = seen;
}

static __global__ void offsets_kernel(const __grid_constant__ AssignArgs a, const int32_t *count)
{
    int32_t next = 0;
    for (int64_t e = 0; e <= a.experts; e++) {
        ((int32_t *)a.offsets.data)[e * a.offsets.stride[0]] = next;
        if (e < a.experts) next += count[e];
    }
}

/* Numbers the choices of the block's expert from its first row on. */
static __global__ void __launch_bounds__(THREADS)
    number_kernel(const __grid_constant__ AssignArgs a)
{
    const int e = (int)blockIdx.x;
    int next = ((const int32_t *)a.offsets.data)[e * a.offsets.stride[0]], all;
    for (int64_t from = 0; from < a.choices; from += THREADS) {
        const int64_t i = from + threadIdx.x;
        const bool mine = i < a.choices && *choice_at(a.expert, a.width, i) == e;
        const int before = votes_before(mine, &all);
        if (mine) *choice_at(a.at, a.width, i) = next + before;
        next += all;
    }
}

extern "C" Err cuda_assign_rows(const Call *call)
{
    AssignArgs a = {};
    int32_t *count;
    TRY(cuda_begin(call, KERNEL_assign_rows));
    a.expert = call->in[0], a.at = call->out[0], a.offsets = call->out[1];
    a.width = a.expert.n[1], a.choices = a.expert.n[0] * a.width, a.experts = a.offsets.n[0] - 1;
    TRY(cuda_scratch(call->queue, (size_t)(a.experts + 1) * sizeof *count, (void **)&count));
    const cudaStream_t stream = call->queue->stream;
    count_kernel<<<(unsigned)a.experts, THREADS, 0, stream>>>(a, count);
    offsets_kernel<<<1, 1, 0, stream>>>(a, count);
    number_kernel<<<(unsigned)a.experts, THREADS, 0, stream>>>(a);
    return cuda_launched(KERNEL_assign_rows);
}

/* A block per expert. */
static __global__ void __launch_bounds__(THREADS)
    excess_kernel(const __grid_constant__ AssignArgs a, Tensor db, float keep)
{
    const int e = (int)blockIdx.x;
    int64_t seen = 0;
    int all;
    for (int64_t from = 0; from < a.choices; from += THREADS) {
        const int64_t i = from + threadIdx.x;
        votes_before(i < a.choices && *choice_at(a.expert, a.width, i) == e, &all);
        seen += all;
    }
    if (threadIdx.x > 0) return;
    const float old = keep == 0 ? 0 : keep * value_get(db.data, db.dtype, e * db.stride[0]);
    const float excess = (float)(seen * a.experts - a.choices);
    value_set(db.data, db.dtype, e * db.stride[0], old + excess);
}

extern "C" Err cuda_expert_excess(const Call *call)
{
    AssignArgs a = {};
    TRY(cuda_begin(call, KERNEL_expert_excess));
    a.expert = call->in[0], a.width = a.expert.n[1], a.choices = a.expert.n[0] * a.width;
    a.experts = call->out[0].n[0];
    excess_kernel<<<(unsigned)a.experts, THREADS, 0, call->queue->stream>>>(
        a, call->out[0], (float)call->number[0]);
    return cuda_launched(KERNEL_expert_excess);
}
