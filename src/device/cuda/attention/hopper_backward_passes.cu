/* hopper_backward_passes.cu -- the passes around the backward kernel of sm_90a.
 *
 *     rows      lse and delta by head, key ranges and hulls of the tiles of queries; clears dq
 *     columns   for each tile of keys: which tiles of queries see it; the order of the tiles
 *     kernel    hopper_backward.cu
 *     finish    the sums of dq to dq
 *
 * The sums of dq are added in any order. In deterministic mode dq comes from the generic kernel. */
#include "device/cuda/attention/hopper_backward.h"
#include "device/cuda/attention/hopper_backward_group.cuh"
#include "device/cuda/attention/hopper_backward_rows.cuh"
#include "device/cuda/pdl.cuh"

extern "C" {
#include "device/cuda/tensor_map.h"
#include "device/heads.h"
}

enum { CACHE_BYTES = 24 << 20 };

/* ---- columns ---- */

/* Bits of word i of a tile of keys that lie in [from, from + n), relative to the tile. */
static __device__ inline uint32_t range_bits(int from, int n, int i)
{
    const int lo = max(from - 32 * i, 0), hi = min(from + n - 32 * i, 32);
    return lo < hi ? (hi == 32 ? ~0u : (1u << hi) - 1) & ~((1u << lo) - 1) : 0;
}

/* Sets the bits of the keys of a tile that rows of the tiles of queries see. */
template <int BM>
static __device__ inline void keys_seen(const BackwardArgs &args, int key, const KeyColumn &c,
                                        uint32_t (&seen)[KEYS / 32])
{
    for (int tile = c.first; tile <= c.last; tile++) {
        if (!hull_sees(args.hull[tile], key, key + KEYS)) continue;
        if (threadIdx.x < BM) {
            const int4 r = args.range[tile * BM + threadIdx.x];
#pragma unroll
            for (int i = 0; i < KEYS / 32; i++) {
                const uint32_t bits = range_bits(r.x - key, r.y, i) | range_bits(r.z - key, r.w, i);
                if (bits) atomicOr(&seen[i], bits);
            }
        }
        __syncthreads();
        const bool all = (seen[0] & seen[1] & seen[2] & seen[3]) == ~0u;
        __syncthreads();
        if (all) return;
    }
}

/* Orders the tiles of keys by falling number of tiles of queries, and sets the section of heads: so
 * many that the longest column is no more than a section's share of a block. The last block. */
static __device__ inline void order_columns(const BackwardArgs &args)
{
    __shared__ int longest, total;
    if (threadIdx.x == 0) longest = total = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < args.key_tiles; i += THREADS) {
        const int count = __ldcg(&args.column[i].count);
        int place = 0;
        for (int j = 0; j < args.key_tiles; j++) {
            const int other = __ldcg(&args.column[j].count);
            place += other > count || (other == count && j < i);
        }
        args.order[place] = i;
        atomicMax(&longest, count);
        atomicAdd(&total, count);
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    const int balanced = total ? (int)((int64_t)longest * args.blocks / total) : 1;
    *args.items_of = {0, max(min(max(args.cache_heads, balanced), args.a.g), 1)};
}

/* A block has a tile of keys. */
template <int BM>
static __global__ void __launch_bounds__(THREADS)
    columns_kernel(const __grid_constant__ BackwardArgs args)
{
    __shared__ int first, last, count, full;
    __shared__ uint32_t seen[KEYS / 32];
    __shared__ bool final;
    const int key = blockIdx.x * KEYS;
    pdl_wait();
    if (threadIdx.x == 0) first = INT_MAX, last = -1, count = full = 0;
    if (threadIdx.x < KEYS / 32) /* keys past the end are 0 in shared memory */
        seen[threadIdx.x] = range_bits(max(args.a.s - key, 0), KEYS, threadIdx.x);
    __syncthreads();
    for (int i = threadIdx.x; i < args.query_tiles; i += THREADS) {
        const BlockHull u = args.hull[i];
        if (!hull_sees(u, key, key + KEYS)) continue;
        atomicMin(&first, i);
        atomicMax(&last, i);
        atomicAdd(&count, 1);
        if (hull_full(u, key, key + KEYS)) full = 1;
    }
    __syncthreads();
    const KeyColumn c = {count ? first : 0, last, count, 0};
    if (!full) keys_seen<BM>(args, key, c, seen);
    if (threadIdx.x == 0) {
        const bool all = full || (seen[0] & seen[1] & seen[2] & seen[3]) == ~0u;
        args.column[blockIdx.x] = {c.first, c.last, c.count, all};
        args.seen[blockIdx.x] = make_uint4(seen[0], seen[1], seen[2], seen[3]);
        __threadfence();
        final = atomicAdd(args.ticket, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!final) return;
    __threadfence();
    order_columns(args);
    if (threadIdx.x == 0) *args.ticket = 0;
}

/* ---- finish ---- */

/* A block has a tile of queries of one head; each half has one part, as the warpgroups left it. */
template <class B>
static __global__ void __launch_bounds__(THREADS)
    finish_kernel(const __grid_constant__ BackwardArgs args)
{
    const int tile = blockIdx.x / args.a.h, head = blockIdx.x % args.a.h;
    const int part = threadIdx.x / GROUP_THREADS;
    const int64_t at = (int64_t)head * args.query_tiles + tile;
    const float4 *from =
        (const float4 *)(args.sum + (2 * at + part) * DQ_PART) + threadIdx.x % GROUP_THREADS;
    float d[32];
    pdl_wait();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float4 x = __ldcs(from + GROUP_THREADS * i);
        d[4 * i] = x.x, d[4 * i + 1] = x.y, d[4 * i + 2] = x.z, d[4 * i + 3] = x.w;
    }
    const int row = tile * B::BM + (B::DS_BOXES > 1 ? 64 * part : 0);
    sums_store(d, args.a.dq, row, head, B::DS_BOXES > 1 ? 0 : 64 * part, args.a.scale,
               args.a.keep[0]);
}

/* ---- host ---- */

static bool tma_reads(const Tensor *x)
{
    return x->dtype == BF16 && x->n[0] > 0 && x->n[1] > 0 && tensor_map_fits(x);
}

extern "C" bool hopper_backward_fits(const Call *call)
{
    const Tensor *q = &call->in[0], *k = &call->in[1];
    return call->queue->context->encode_tensor_map && call->attr.attention.scale != 0 &&
           (q->n[2] == 64 || q->n[2] == 128) && tma_reads(q) && tma_reads(k) &&
           tma_reads(&call->in[2]) && tma_reads(&call->in[4]) &&
           blocks_of(q->n[0], 64) * q->n[1] < INT_MAX / 4 &&
           blocks_of(k->n[0], KEYS) * k->n[1] < INT_MAX / 4;
}

/* Bytes of scratch, taken one after the other. */
typedef struct {
    char *base;
    size_t bytes;
} ScratchPlan;

template <class T> static void place(ScratchPlan *l, int64_t n, T **out)
{
    *out = (T *)(l->base + l->bytes);
    l->bytes += backward_array(n, sizeof(T));
}

/* As scratch_backward counts them. */
static void place_all(BackwardArgs *args, int rows, bool sum, char *base)
{
    static_assert(sizeof(int4) == 16 && sizeof(KeyColumn) == 16 && sizeof(ItemOrder) == 8, "");
    ScratchPlan l = {base, 0};
    const int64_t tiles = args->query_tiles, sums = tiles * args->a.h;
    if (sum) place(&l, sums * 2 * DQ_PART, &args->sum);
    place(&l, sums * 2 * rows, &args->row);
    place(&l, tiles * rows, &args->range);
    place(&l, tiles, &args->hull);
    place(&l, args->key_tiles, &args->column);
    place(&l, args->key_tiles, &args->seen);
    place(&l, args->key_tiles, &args->order);
    place(&l, 1, &args->items_of);
}

template <class B> static Err maps_of(const Call *call, BackwardArgs *args)
{
    const DeviceContext *c = call->queue->context;
    const int queries[] = {B::BM, 1, 64}, keys[] = {KEYS, 1, 64};
    TRY(tensor_map_of(c, &call->in[0], queries, &args->q));
    TRY(tensor_map_of(c, &call->in[4], queries, &args->dout));
    TRY(tensor_map_of(c, &call->in[1], keys, &args->k));
    return tensor_map_of(c, &call->in[2], keys, &args->v);
}

template <class B> static Err backward_run(const Call *call, BackwardArgs *args)
{
    const bool sum = call->queue->context->any_order;
    Attention &a = args->a;
    void *scratch;
    args->query_tiles = (int)blocks_of(a.t, B::BM);
    args->key_tiles = (int)blocks_of(a.k.n[0], KEYS);
    args->items = args->key_tiles * a.g;
    args->blocks = min(args->items, call->queue->context->sms);
    args->cache_heads = (int)(CACHE_BYTES / (8ll * a.c * a.t * a.group));
    args->ticket = call->queue->ticket;
    TRY(maps_of<B>(call, args));
    TRY(cuda_scratch(call->queue, scratch_backward(a.t, a.k.n[0], a.h, B::BM, sum), &scratch));
    place_all(args, B::BM, sum, (char *)scratch);
    const cudaStream_t stream = call->queue->stream;
    const unsigned tiles = (unsigned)(args->query_tiles * a.h);
    if (a.o.ndim == 2)
        rows_kernel<B, DELTA_GIVEN><<<tiles, THREADS, 0, stream>>>(*args);
    else if (tma_reads(&a.o))
        rows_kernel<B, DELTA_WORDS><<<tiles, THREADS, 0, stream>>>(*args);
    else
        rows_kernel<B, DELTA_ANY><<<tiles, THREADS, 0, stream>>>(*args);
    const LaunchShape columns = {dim3((unsigned)args->key_tiles), dim3(THREADS), 0};
    const LaunchShape finish = {dim3(tiles), dim3(THREADS), 0};
    TRY(cuda_launched(KERNEL_attention_dx));
    TRY(pdl_launch(columns_kernel<B::BM>, columns, call->queue, *args));
    TRY(backward_kernel_run(call, *args));
    if (!args->sum) return OK;
    return pdl_launch(finish_kernel<B>, finish, call->queue, *args);
}

extern "C" Err hopper_backward(const Call *call)
{
    BackwardArgs args = {};
    if (!call->queue->context->any_order) {
        Attention a;
        TRY(attention_open(call, KERNEL_attention_dx, true, false, 0, &a));
        TRY(attention_dq_bf16(call, a));
    }
    attention_arguments(call, true, false, &args.a);
    return args.a.c == 64 ? backward_run<Backward<64, 128, true>>(call, &args)
                          : backward_run<Backward<128, 64, true>>(call, &args);
}
