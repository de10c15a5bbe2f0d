/* assign.cu -- the capacity of experts and their excess, and the rows of choices.
 *
 * assign_rows is a stable counting sort: chunks of choices are counted, each chunk then has a first
 * row for each expert, and a warp numbers the choices of a chunk in their order. */
#include "device/cuda/choices.cuh"

enum { THREADS = 256 };

typedef struct {
    Tensor expert, gate, kept;
    int64_t choices, width, experts, cap;
    bool by_gate;
} LimitArgs;

static __device__ inline int32_t *choice_at(const Tensor &t, int64_t width, int64_t i)
{
    return (int32_t *)t.data + i / width * t.stride[0] + i % width * t.stride[1];
}

static __device__ inline float gate_at(const LimitArgs &a, int64_t i)
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
static __device__ inline int64_t larger_gates(const LimitArgs &a, int e, int64_t i)
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

static __global__ void __launch_bounds__(THREADS) limit_kernel(const __grid_constant__ LimitArgs a)
{
    const int e = (int)blockIdx.x;
    int64_t seen = 0;
    for (int64_t from = 0; from < a.choices; from += THREADS) {
        const int64_t i = from + threadIdx.x;
        const bool mine = i < a.choices && *choice_at(a.expert, a.width, i) == e;
        int all;
        int64_t before = seen + votes_before(mine, &all);
        if (mine && a.by_gate) before = larger_gates(a, e, i);
        if (mine) *choice_at(a.kept, a.width, i) = before < a.cap ? e : -1;
        seen += all;
    }
}

extern "C" Err cuda_limit_choices(const Call *call)
{
    LimitArgs a = {};
    TRY(cuda_begin(call, KERNEL_limit_choices));
    a.expert = call->in[0], a.gate = call->in[1], a.kept = call->out[0];
    a.width = a.expert.n[1], a.choices = a.expert.n[0] * a.width;
    a.experts = call->attr.limit.experts, a.by_gate = call->attr.limit.by_gate;
    a.cap = (int64_t)ceil(call->attr.limit.capacity * (double)a.choices / (double)a.experts);
    limit_kernel<<<(unsigned)a.experts, THREADS, 0, call->queue->stream>>>(a);
    return cuda_launched(KERNEL_limit_choices);
}

/* A warp per expert: the counts of its chunks become the choices before each chunk; the total goes
 * behind all counts. */
static __global__ void __launch_bounds__(CHUNK_LANES)
    sum_chunks_kernel(const __grid_constant__ ChoiceCounts c)
{
    const int e = blockIdx.x, lane = threadIdx.x;
    int before = 0;
    for (int from = 0; from < c.chunks; from += CHUNK_LANES) {
        int32_t *at = c.count + (int64_t)(from + lane) * c.experts + e;
        const int own = from + lane < c.chunks ? *at : 0;
        int sum = own;
#pragma unroll
        for (int step = 1; step < CHUNK_LANES; step *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += other;
        }
        if (from + lane < c.chunks) *at = before + sum - own;
        before += __shfl_sync(0xffffffffu, sum, CHUNK_LANES - 1);
    }
    if (lane == 0) c.count[(int64_t)c.chunks * c.experts + e] = before;
}

/* A block per chunk; shared: int [experts], the next row of each. Block 0 writes the offsets. */
static __global__ void __launch_bounds__(CHUNK_LANES)
    number_kernel(const __grid_constant__ ChoiceCounts c, Tensor at, Tensor offsets)
{
    extern __shared__ int next[];
    const int lane = threadIdx.x;
    const int32_t *before = c.count + (int64_t)blockIdx.x * c.experts;
    const int32_t *total = c.count + (int64_t)c.chunks * c.experts;
    int first = 0;
    for (int from = 0; from < c.experts + 1; from += CHUNK_LANES) {
        const int e = from + lane, own = e < c.experts ? total[e] : 0;
        int sum = own;
#pragma unroll
        for (int step = 1; step < CHUNK_LANES; step *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += other;
        }
        if (e < c.experts && c.chunks > 0) next[e] = first + sum - own + before[e];
        if (e <= c.experts && blockIdx.x == 0)
            ((int32_t *)offsets.data)[e * offsets.stride[0]] = first + sum - own;
        first += __shfl_sync(0xffffffffu, sum, CHUNK_LANES - 1);
    }
    __syncwarp();
    const int64_t choices = c.expert.n[0] * c.expert.n[1];
    for (int i = lane; i < CHUNK; i += CHUNK_LANES) {
        const int64_t own = (int64_t)blockIdx.x * CHUNK + i;
        const int e = choice_get(c.expert, own);
        int all;
        const int ahead = equal_before(e, &all), row = e >= 0 ? next[e] + ahead : -1;
        __syncwarp();
        if (e >= 0 && ahead == 0) next[e] = row + all;
        __syncwarp();
        if (own < choices) ((int32_t *)at.data)[choice_offset(at, own)] = row;
    }
}

extern "C" Err cuda_assign_rows(const Call *call)
{
    ChoiceCounts c;
    const Tensor at = call->out[0], offsets = call->out[1];
    const cudaStream_t stream = call->queue->stream;
    TRY(cuda_begin(call, KERNEL_assign_rows));
    TRY(choice_counts(call, &call->in[0], offsets.n[0] - 1, &c));
    const unsigned blocks = c.chunks > 0 ? (unsigned)c.chunks : 1;
    if (c.experts > 0) sum_chunks_kernel<<<(unsigned)c.experts, CHUNK_LANES, 0, stream>>>(c);
    number_kernel<<<blocks, CHUNK_LANES, (size_t)(c.experts + 1) * sizeof(int), stream>>>(c, at,
                                                                                          offsets);
    return cuda_launched(KERNEL_assign_rows);
}

/* A warp per expert. */
static __global__ void __launch_bounds__(CHUNK_LANES)
    excess_kernel(const __grid_constant__ ChoiceCounts c, Tensor db, float keep)
{
    const int e = (int)blockIdx.x;
    const int64_t choices = c.expert.n[0] * c.expert.n[1], own = count_of(c, e);
    if (threadIdx.x > 0) return;
    const float old = keep == 0 ? 0 : keep * value_get(db.data, db.dtype, e * db.stride[0]);
    const float excess = (float)(own * c.experts - choices);
    value_set(db.data, db.dtype, e * db.stride[0], old + excess);
}

extern "C" Err cuda_expert_excess(const Call *call)
{
    ChoiceCounts c;
    TRY(cuda_begin(call, KERNEL_expert_excess));
    TRY(choice_counts(call, &call->in[0], call->out[0].n[0], &c));
    excess_kernel<<<(unsigned)c.experts, CHUNK_LANES, 0, call->queue->stream>>>(
        c, call->out[0], (float)call->number[0]);
    return cuda_launched(KERNEL_expert_excess);
}
