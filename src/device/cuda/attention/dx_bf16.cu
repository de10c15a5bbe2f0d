/* dx_bf16.cu -- the gradient of attention on the tensor cores, from the lse over all keys and delta
 * = dout . o.
 *
 *     p = exp(s - lse)         ds = p (dout v' - delta) scale
 *     dq = ds k                dk = ds' q               dv = p' dout
 *
 * Two sweeps over the same tiles, each with its own p and ds: dq by blocks of queries, dk and dv by
 * blocks of keys. Each sum therefore has one owner and one order: no atomics, the same bits every
 * time. This costs two extra GEMMs of seven. */
#include "device/cuda/attention/attention.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, OWN = 16 * WARPS }; /* OWN: rows that a block owns */

/* The lse of a row times log2(e), subtracted from its scores; infinite for a row without keys, so
 * that it weighs 0. */
static __device__ inline float lse_log2(const Attention &a, int row, int head)
{
    if (row >= a.t) return INFINITY;
    const float lse = ((const float *)a.lse.data)[head_offset(a.lse, row, head)];
    return lse == -INFINITY ? INFINITY : lse * LOG2E;
}

static __device__ inline float delta_of(const Attention &a, int row, int head)
{
    return row < a.t ? a.delta[(int64_t)row * a.h + head] : 0;
}

/* ds of a pair. A weight of 0 may be a pair that is not seen, whose dp may be NaN. */
static __device__ inline float ds_of(float p, float dp, float delta, float scale)
{
    return p == 0 ? 0 : p * (dp - delta) * scale;
}

template <int D, int BN> struct DqShared {
    int4 ranges[OWN];
    bf16 q[OWN * Pitch<D>::N], dout[OWN * Pitch<D>::N];
    bf16 k[2][BN * Pitch<D>::N], v[2][BN * Pitch<D>::N];
};

/* Turns the scores and dout v' of a warp's 16 rows into ds. */
template <int BN>
static __device__ inline void dq_slopes(const Attention &a, float s[BN / 8][4],
                                        const float dp[BN / 8][4], const float lse[2],
                                        const float delta[2])
{
    const float scale = a.scale * LOG2E;
#pragma unroll
    for (int n = 0; n < BN / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float p = exp2_fast(s[n][e] * scale - lse[e / 2]);
            s[n][e] = ds_of(p, dp[n][e], delta[e / 2], a.scale);
        }
}

/* Masks the keys that a row does not see, so that their weight is 0. */
template <int BN>
static __device__ inline void dq_mask(const Attention &a, float s[BN / 8][4], const int4 *ranges,
                                      int key)
{
    const int lane = threadIdx.x % 32;
    const float unseen = a.scale < 0 ? INFINITY : -INFINITY;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int4 r = ranges[8 * half + lane / 4];
#pragma unroll
        for (int n = 0; n < BN / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (!row_sees(r, key + 8 * n + 2 * (lane % 4) + e)) s[n][2 * half + e] = unseen;
    }
}

template <int D, int BN>
static __global__ void __launch_bounds__(THREADS) dq_kernel(const __grid_constant__ Attention a)
{
    extern __shared__ __align__(16) char shared[];
    typedef DqShared<D, BN> R;
    R &smem = *(R *)shared;
    const int row = (gridDim.x - 1 - blockIdx.x) * OWN, head = blockIdx.y, lane = threadIdx.x % 32;
    const int source = key_head_of(a, head), mine = threadIdx.x / 32 * 16;
    const BlockHull u = a.hull[row / HULL_ROWS];
    const int end = max(u.any[1], u.any[3]);
    int key = hull_next_tile<BN>(u, min(u.any[0], u.any[2]) / BN * BN, end), stage = 0;
    float sum[1][D / 8][4] = {}, lse[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        lse[half] = lse_log2(a, row + mine + 8 * half + lane / 4, head);
        delta[half] = delta_of(a, row + mine + 8 * half + lane / 4, head);
    }
    for (int i = threadIdx.x; i < OWN; i += THREADS) smem.ranges[i] = row_ranges(a, row + i);
    tile_load<D, OWN, THREADS>(a, a.q, row, head, smem.q);
    tile_load<D, OWN, THREADS>(a, a.dout, row, head, smem.dout);
    if (key < end) keys_load<D, BN, THREADS>(a, key, source, smem, 0);
    copies_commit();
    while (key < end) {
        const int next = hull_next_tile<BN>(u, key + BN, end);
        if (next < end) keys_load<D, BN, THREADS>(a, next, source, smem, stage ^ 1);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        const bool full = hull_full(u, key, key + BN);
        if (!full) clear_unseen<D, OWN, BN>(smem.k[stage], smem.ranges, key);
        float s[1][BN / 8][4] = {}, dp[1][BN / 8][4] = {};
        uint32_t ds[1][BN / 16][4];
        multiply_rows<D, BN, 1>(s, smem.q, mine, smem.k[stage]);
        multiply_rows<D, BN, 1>(dp, smem.dout, mine, smem.v[stage]);
        if (!full) dq_mask<BN>(a, s[0], smem.ranges + mine, key);
        dq_slopes<BN>(a, s[0], dp[0], lse, delta);
        weights_pack<BN>(s[0], ds[0]);
        multiply_weights<D, BN, D, 1>(sum, ds, smem.k[stage], 0);
        __syncthreads();
        key = next;
        stage ^= 1;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = row + mine + 8 * half + lane / 4;
        if (t >= a.t) continue;
        const int64_t at = head_offset(a.dq, t, head);
#pragma unroll
        for (int c = 0; c < D / 8; c++)
            pair_keep(a.dq, at, 8 * c + 2 * (lane % 4), a.keep[0], sum[0][c][2 * half],
                      sum[0][c][2 * half + 1]);
    }
}

/* Shared memory: the owned keys, and two stages of BM queries with their ranges, lse and delta. */
template <int D, int BM> struct DkvShared {
    int4 ranges[2][BM];
    float lse[2][BM], delta[2][BM];
    uint32_t seen[WARPS]; /* one bit per tile of queries that sees a key of this block */
    bf16 k[OWN * Pitch<D>::N], v[OWN * Pitch<D>::N];
    bf16 q[2][BM * Pitch<D>::N], dout[2][BM * Pitch<D>::N];
};

template <int D, int BM>
static __device__ inline void queries_load(const Attention &a, DkvShared<D, BM> &smem, int stage,
                                           int row, int head)
{
    tile_load<D, BM, THREADS>(a, a.q, row, head, smem.q[stage]);
    tile_load<D, BM, THREADS>(a, a.dout, row, head, smem.dout[stage]);
    for (int i = threadIdx.x; i < BM; i += THREADS) {
        smem.ranges[stage][i] = row_ranges(a, row + i);
        smem.lse[stage][i] = lse_log2(a, row + i, head);
        smem.delta[stage][i] = delta_of(a, row + i, head);
    }
}

/* Sets the rows of queries that see none of [key, key + OWN) to 0; they may hold anything. */
template <int D, int BM>
static __device__ inline void clear_unseeing(DkvShared<D, BM> &smem, int stage, int key)
{
    if (threadIdx.x < BM && !row_sees_any(smem.ranges[stage][threadIdx.x], key, key + OWN)) {
        tile_clear_row<D>(smem.q[stage], threadIdx.x);
        tile_clear_row<D>(smem.dout[stage], threadIdx.x);
    }
    __syncthreads();
}

/* Turns the scores and v dout' of a warp's 16 keys into p and ds, transposed: rows are keys. */
template <int D, int BM>
static __device__ inline void dkv_slopes(const Attention &a, const DkvShared<D, BM> &smem,
                                         int stage, float s[BM / 8][4], float dp[BM / 8][4])
{
    const int lane = threadIdx.x % 32;
    const float scale = a.scale * LOG2E;
#pragma unroll
    for (int n = 0; n < BM / 8; n++) {
        const int i = 8 * n + 2 * (lane % 4);
        const float2 lse = *(const float2 *)&smem.lse[stage][i];
        const float2 delta = *(const float2 *)&smem.delta[stage][i];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float p = exp2_fast(s[n][e] * scale - (e % 2 ? lse.y : lse.x));
            dp[n][e] = ds_of(p, dp[n][e], e % 2 ? delta.y : delta.x, a.scale);
            s[n][e] = p;
        }
    }
}

template <int D, int BM>
static __device__ inline void dkv_mask(const Attention &a, const DkvShared<D, BM> &smem, int stage,
                                       float s[BM / 8][4], int key)
{
    const int lane = threadIdx.x % 32;
    const float unseen = a.scale < 0 ? INFINITY : -INFINITY;
#pragma unroll
    for (int n = 0; n < BM / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int4 r = smem.ranges[stage][8 * n + 2 * (lane % 4) + e % 2];
            if (!row_sees(r, key + e / 2 * 8 + lane / 4)) s[n][e] = unseen;
        }
}

/* Finds, as bits, the tiles of queries [first, first + THREADS) that see a key of this block. */
template <int D, int BM>
static __device__ inline void find_seen(const Attention &a, DkvShared<D, BM> &smem, int first,
                                        int key)
{
    const int row = (first + threadIdx.x) * BM;
    const bool sees = row < a.t && hull_sees(a.hull[row / HULL_ROWS], key, key + OWN);
    const uint32_t bits = __ballot_sync(0xffffffffu, sees);
    __syncthreads(); /* the previous bits have been read */
    if (threadIdx.x % 32 == 0) smem.seen[threadIdx.x / 32] = bits;
    __syncthreads();
}

/* The first tile from `tile` on whose bit is set, or THREADS. */
static __device__ inline int next_seen(const uint32_t seen[WARPS], int tile)
{
    while (tile < THREADS) {
        const uint32_t left = seen[tile / 32] >> (tile % 32);
        if (left) return tile + __ffs(left) - 1;
        tile = tile / 32 * 32 + 32;
    }
    return THREADS;
}

/* C channels of dk and dv from `part` on; two blocks share a wide head. */
template <int D, int BM, int C>
static __global__ void __launch_bounds__(THREADS) dkv_kernel(const __grid_constant__ Attention a)
{
    extern __shared__ __align__(16) char shared[];
    typedef DkvShared<D, BM> R;
    R &smem = *(R *)shared;
    const int key = blockIdx.x * OWN, source = blockIdx.y, part = blockIdx.z * C;
    const int mine = threadIdx.x / 32 * 16, lane = threadIdx.x % 32, tiles = (a.t + BM - 1) / BM;
    const int2 readers = key_readers_of(a, source);
    float dk[1][C / 8][4] = {}, dv[1][C / 8][4] = {};

    tile_load<D, OWN, THREADS>(a, a.k, key, source, smem.k);
    tile_load<D, OWN, THREADS>(a, a.v, key, source, smem.v);
    copies_commit();
    for (int first = 0; first < tiles; first += THREADS) {
        find_seen(a, smem, first, key);
        for (int head = readers.x; head < readers.y; head++) {
            int tile = next_seen(smem.seen, 0), stage = 0;
            if (tile < THREADS) queries_load(a, smem, 0, (first + tile) * BM, head);
            copies_commit();
            while (tile < THREADS) {
                const int next = next_seen(smem.seen, tile + 1), row = (first + tile) * BM;
                if (next < THREADS) queries_load(a, smem, stage ^ 1, (first + next) * BM, head);
                copies_commit();
                copies_wait<1>();
                __syncthreads();
                const bool full = hull_full(a.hull[row / HULL_ROWS], key, key + OWN);
                if (!full) clear_unseeing(smem, stage, key);
                float s[1][BM / 8][4] = {}, dp[1][BM / 8][4] = {};
                uint32_t w[1][BM / 16][4];
                multiply_rows<D, BM, 1>(s, smem.k, mine, smem.q[stage]);
                multiply_rows<D, BM, 1>(dp, smem.v, mine, smem.dout[stage]);
                if (!full) dkv_mask(a, smem, stage, s[0], key + mine);
                dkv_slopes(a, smem, stage, s[0], dp[0]);
                weights_pack<BM>(s[0], w[0]);
                multiply_weights<D, BM, C, 1>(dv, w, smem.dout[stage], part);
                weights_pack<BM>(dp[0], w[0]);
                multiply_weights<D, BM, C, 1>(dk, w, smem.q[stage], part);
                __syncthreads();
                tile = next;
                stage ^= 1;
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int j = key + mine + 8 * half + lane / 4;
        if (j >= a.k.n[0]) continue;
        const int64_t at_k = head_offset(a.dk, j, source), at_v = head_offset(a.dv, j, source);
#pragma unroll
        for (int c = 0; c < C / 8; c++) {
            const int channel = part + 8 * c + 2 * (lane % 4);
            pair_keep(a.dk, at_k, channel, a.keep[1], dk[0][c][2 * half], dk[0][c][2 * half + 1]);
            pair_keep(a.dv, at_v, channel, a.keep[2], dv[0][c][2 * half], dv[0][c][2 * half + 1]);
        }
    }
}

/* BN: keys per tile. Heads of more than 80 channels have smaller tiles on GPUs with 99 KiB of
 * shared memory (sm_86, sm_89). */
template <int D, int BN> static Err launch_dq(const Call *call, const Attention &a)
{
    const size_t bytes = sizeof(DqShared<D, BN>);
    const dim3 blocks((unsigned)blocks_of(a.t, OWN), (unsigned)a.h);
    TRY(cuda_shared(call, KERNEL_attention_dx, (const void *)dq_kernel<D, BN>, bytes));
    if (a.t > 0 && a.h > 0) dq_kernel<D, BN><<<blocks, THREADS, bytes, call->queue->stream>>>(a);
    return cuda_launched(KERNEL_attention_dx);
}

/* BM: queries per tile; C: channels of a block. */
template <int D, int BM, int C> static Err launch_dkv(const Call *call, const Attention &a)
{
    const size_t bytes = sizeof(DkvShared<D, BM>);
    const dim3 blocks((unsigned)blocks_of(a.k.n[0], OWN), (unsigned)a.g, D / C);
    TRY(cuda_shared(call, KERNEL_attention_dx, (const void *)dkv_kernel<D, BM, C>, bytes));
    if (a.k.n[0] > 0 && a.g > 0)
        dkv_kernel<D, BM, C><<<blocks, THREADS, bytes, call->queue->stream>>>(a);
    return cuda_launched(KERNEL_attention_dx);
}

Err attention_dq_bf16(const Call *call, const Attention &a)
{
    if (a.c <= 64) return launch_dq<64, 64>(call, a);
    if (a.c <= 80) return launch_dq<80, 64>(call, a);
    if (a.c > 128) return launch_dq<256, 32>(call, a);
    return cuda_shared_fits(call, sizeof(DqShared<128, 64>)) ? launch_dq<128, 64>(call, a)
                                                             : launch_dq<128, 32>(call, a);
}

Err attention_dx_bf16(const Call *call, const Attention &a)
{
    TRY(attention_dq_bf16(call, a));
    if (a.c <= 64) return launch_dkv<64, 32, 64>(call, a);
    if (a.c <= 80) return launch_dkv<80, 64, 80>(call, a);
    if (a.c > 128) return launch_dkv<256, 32, 128>(call, a);
    return cuda_shared_fits(call, sizeof(DkvShared<128, 64>)) ? launch_dkv<128, 64, 128>(call, a)
                                                              : launch_dkv<128, 32, 128>(call, a);
}
