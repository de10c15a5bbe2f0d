/* bf16.cu -- o = softmax(scale q k') v over the keys that each row sees, on the tensor cores.
 *
 * A block holds BM queries of one head in shared memory and loops over the tiles of BN keys that
 * its hull sees. The next tile is prefetched while this one is multiplied. A warp has 16 M rows. A
 * row carries (max, sum, o) of an online softmax: when a tile raises the max, sum and o are
 * rescaled by exp2(old - new). Scores are multiplied by log2(e): lse = ln(2) (max + log2(sum)). A
 * call that carries on from other blocks of keys starts at the max that makes up their lse. */
#include "device/cuda/attention/attention.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS };

#define LN2 0.69314718055994530942f

template <int D, int M, int BN> struct AttentionShared {
    enum { BM = 16 * M * WARPS };
    int4 ranges[BM];
    bf16 q[BM * Pitch<D>::N];
    bf16 k[2][BN * Pitch<D>::N], v[2][BN * Pitch<D>::N];
};

/* State of a warp's rows over the tiles. A thread has rows lane / 4 and 8 + lane / 4 of each 16. */
template <int D, int M> struct SoftmaxRows {
    float o[M][D / 8][4];
    float row_max[M][2], sum[M][2];
};

/* Turns scores into weights and rescales the rows to the new maximum. row_max is of scores before
 * the scale, which is not negative. */
template <int D, int M, int BN>
static __device__ inline void weigh(SoftmaxRows<D, M> &w, float s[M][BN / 8][4], float scale,
                                    const int4 *ranges, int key, bool full)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float row_max = w.row_max[m][half], sum = 0;
            if (!full) {
                const int4 r = ranges[16 * m + 8 * half + lane / 4];
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (!row_sees(r, key + 8 * n + 2 * (lane % 4) + e))
                            s[m][n][2 * half + e] = -INFINITY;
            }
#pragma unroll
            for (int n = 0; n < BN / 8; n++)
                row_max = fmaxf(row_max, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffu, row_max, 1));
            row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffu, row_max, 2));
            const float base = row_max == -INFINITY ? 0 : row_max * scale;
            const float shrink = exp2_fast(w.row_max[m][half] * scale - base);
#pragma unroll
            for (int n = 0; n < BN / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float *x = &s[m][n][2 * half + e];
                    *x = exp2_fast(*x * scale - base);
                    sum += *x;
                }
            w.row_max[m][half] = row_max;
            w.sum[m][half] = w.sum[m][half] * shrink + sum;
#pragma unroll
            for (int c = 0; c < D / 8; c++)
#pragma unroll
                for (int e = 0; e < 2; e++) w.o[m][c][2 * half + e] *= shrink;
        }
}

/* No key so far, or those of the calls before. The sum of a row is that of the shares of its four
 * threads; it makes up for the rounding of max. */
template <int D, int M>
static __device__ inline void open_rows(const Attention &a, SoftmaxRows<D, M> &w, int row, int head)
{
    const float scale = fabsf(a.scale) * LOG2E;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = row + 16 * m + 8 * half + lane / 4;
            w.row_max[m][half] = -INFINITY;
            if (!a.carry || t >= a.t) continue;
            const float lse = ((const float *)a.lse.data)[head_offset(a.lse, t, head)];
            if (lse == -INFINITY) continue;
            const float row_max = lse / fabsf(a.scale);
            const float sum = exp2f(fmaf(lse, LOG2E, -(row_max * scale)));
            const int64_t at = head_offset(a.o, t, head);
            w.row_max[m][half] = row_max;
            w.sum[m][half] = lane % 4 == 0 ? sum : 0;
#pragma unroll
            for (int c = 0; c < D / 8; c++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int channel = 8 * c + 2 * (lane % 4) + e;
                    if (channel < a.c)
                        w.o[m][c][2 * half + e] =
                            sum * value_get(a.o.data, a.o.dtype, at + channel * a.o.stride[2]);
                }
        }
}

template <int D, int M>
static __device__ inline void store(const Attention &a, SoftmaxRows<D, M> &w, int row, int head)
{
    const float scale = fabsf(a.scale) * LOG2E;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = row + 16 * m + 8 * half + lane / 4;
            float sum = w.sum[m][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (t >= a.t) continue;
            const float share = sum > 0 ? 1 / sum : sum; /* no key: 0; NaN stays */
            const int64_t at = head_offset(a.o, t, head);
#pragma unroll
            for (int c = 0; c < D / 8; c++)
                pair_keep(a.o, at, 8 * c + 2 * (lane % 4), 0, w.o[m][c][2 * half] * share,
                          w.o[m][c][2 * half + 1] * share);
            if (lane % 4 == 0)
                ((float *)a.lse.data)[head_offset(a.lse, t, head)] =
                    sum == 0 ? -INFINITY : LN2 * (w.row_max[m][half] * scale + log2f(sum));
        }
}

/* A negative scale equals the positive one on negated scores. */
template <int M, int BN> static __device__ inline void negate_scores(float s[M][BN / 8][4])
{
#pragma unroll
    for (int i = 0; i < M * BN / 2; i++) (&s[0][0][0])[i] = -(&s[0][0][0])[i];
}

template <int D, int M, int BN>
static __global__ void __launch_bounds__(THREADS)
    attention_kernel(const __grid_constant__ Attention a)
{
    extern __shared__ __align__(16) char shared[];
    typedef AttentionShared<D, M, BN> R;
    R &smem = *(R *)shared;
    const int tile = gridDim.x - 1 - blockIdx.x, row = tile * R::BM; /* longest rows first */
    const int head = blockIdx.y, source = key_head_of(a, head), mine = threadIdx.x / 32 * 16 * M;
    BlockHull u = a.hull[row / HULL_ROWS];
    if (R::BM > HULL_ROWS && row + HULL_ROWS < a.t) u = hull_join(u, a.hull[row / HULL_ROWS + 1]);
    const int end = max(u.any[1], u.any[3]);
    int key = hull_next_tile<BN>(u, min(u.any[0], u.any[2]) / BN * BN, end), stage = 0;
    SoftmaxRows<D, M> w = {};
    open_rows<D, M>(a, w, row + mine, head);

    for (int i = threadIdx.x; i < R::BM; i += THREADS) smem.ranges[i] = row_ranges(a, row + i);
    tile_load<D, R::BM, THREADS>(a, a.q, row, head, smem.q);
    if (key < end) keys_load<D, BN, THREADS>(a, key, source, smem, 0);
    copies_commit();
    while (key < end) {
        const int next = hull_next_tile<BN>(u, key + BN, end);
        if (next < end) keys_load<D, BN, THREADS>(a, next, source, smem, stage ^ 1);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        const bool full = hull_full(u, key, key + BN);
        if (!full) clear_unseen<D, R::BM, BN>(smem.v[stage], smem.ranges, key);
        float s[M][BN / 8][4] = {};
        multiply_rows<D, BN, M>(s, smem.q, mine, smem.k[stage]);
        if (a.scale < 0) negate_scores<M, BN>(s);
        weigh<D, M, BN>(w, s, fabsf(a.scale) * LOG2E, smem.ranges + mine, key, full);
        uint32_t p[M][BN / 16][4];
#pragma unroll
        for (int m = 0; m < M; m++) weights_pack<BN>(s[m], p[m]);
        multiply_weights<D, BN, D, M>(w.o, p, smem.v[stage], 0);
        __syncthreads(); /* the tile after the next overwrites this one */
        key = next;
        stage ^= 1;
    }
    store<D, M>(a, w, row + mine, head);
}

template <int D, int M, int BN> static Err launch(const Call *call, const Attention &a)
{
    typedef AttentionShared<D, M, BN> R;
    TRY(cuda_shared(call, KERNEL_attention, (const void *)attention_kernel<D, M, BN>, sizeof(R)));
    const dim3 grid((unsigned)blocks_of(a.t, R::BM), (unsigned)a.h);
    attention_kernel<D, M, BN><<<grid, THREADS, sizeof(R), call->queue->stream>>>(a);
    return cuda_launched(KERNEL_attention);
}

Err attention_bf16(const Call *call, const Attention &a)
{
    /* M = 2 halves the loads of k and v, but 8 warps per SM are too few: 0.92 ms instead of
     * 0.72. */
    if (a.c <= 64) return launch<64, 1, 64>(call, a);
    if (a.c <= 80) return launch<80, 1, 64>(call, a);
    if (a.c <= 128) return launch<128, 1, 64>(call, a);
    return launch<256, 1, 32>(call, a);
}
