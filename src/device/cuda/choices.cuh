/* choices.cuh -- how many choices each expert has, chunk by chunk: a warp counts a chunk of 1,024
 * choices. Counts are integers, exact in any order. */
#ifndef DEVICE_CUDA_CHOICES_CUH
#define DEVICE_CUDA_CHOICES_CUH

#include "device/cuda/value.cuh"

enum { CHUNK = CHOICE_CHUNK, CHUNK_LANES = 32 };

/* Experts e of the choices [t,k]; -1: of none. */
typedef struct {
    Tensor expert;
    int experts;
    int chunks;
    int32_t *count; /* [chunks, experts], then [experts] for the caller */
} ChoiceCounts;

static __device__ inline int64_t choice_offset(const Tensor &t, int64_t i)
{
    const int64_t k = t.n[1];
    const int64_t row = i <= UINT32_MAX ? (uint32_t)i / (uint32_t)k : i / k;
    return row * t.stride[0] + (i - row * k) * t.stride[1];
}

static __device__ inline int choice_get(const Tensor &t, int64_t i)
{
    return i < t.n[0] * t.n[1] ? ((const int32_t *)t.data)[choice_offset(t, i)] : -1;
}

/* The lanes before this one that have its expert; *all: all lanes that have it. */
static __device__ inline int equal_before(int expert, int *all)
{
    const unsigned same = __match_any_sync(0xffffffffu, expert);
    *all = __popc(same);
    return __popc(same & ((1u << threadIdx.x % CHUNK_LANES) - 1));
}

/* A block of one warp per chunk; shared: int [experts]. */
static __global__ void __launch_bounds__(CHUNK_LANES)
    chunk_counts_kernel(const __grid_constant__ ChoiceCounts c)
{
    extern __shared__ int seen[];
    const int64_t first = (int64_t)blockIdx.x * CHUNK;
    for (int e = threadIdx.x; e < c.experts; e += CHUNK_LANES) seen[e] = 0;
    __syncwarp();
#pragma unroll 4
    for (int i = threadIdx.x; i < CHUNK; i += CHUNK_LANES) {
        const int e = choice_get(c.expert, first + i);
        if (e >= 0) atomicAdd(&seen[e], 1);
    }
    __syncwarp();
    for (int e = threadIdx.x; e < c.experts; e += CHUNK_LANES)
        c.count[(int64_t)blockIdx.x * c.experts + e] = seen[e];
}

/* Counts the choices of all chunks, into scratch of the queue. */
static inline Err choice_counts(const Call *call, const Tensor *expert, int64_t experts,
                                ChoiceCounts *c)
{
    void *at;
    c->expert = *expert;
    c->experts = (int)experts;
    c->chunks = (int)blocks_of(expert->n[0] * expert->n[1], CHUNK);
    TRY(cuda_scratch(call->queue, scratch_choices(expert->n[0] * expert->n[1], experts), &at));
    c->count = (int32_t *)at;
    if (c->chunks > 0)
        chunk_counts_kernel<<<(unsigned)c->chunks, CHUNK_LANES, (size_t)experts * sizeof(int),
                              call->queue->stream>>>(*c);
    return OK;
}

/* The choices of expert e in all chunks; a warp. */
static __device__ inline int count_of(const ChoiceCounts &c, int e)
{
    int sum = 0;
    for (int i = threadIdx.x % CHUNK_LANES; i < c.chunks; i += CHUNK_LANES)
        sum += c.count[(int64_t)i * c.experts + e];
    return warp_sum(sum);
}

#endif
