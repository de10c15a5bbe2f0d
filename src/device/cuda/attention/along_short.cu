/* along_short.cu -- o = softmax(scale q k') v along short sequences, on the tensor cores.
 *
 * Memory, not arithmetic, limits such calls: q, k and v are read once, o is written once, and the
 * scores of 16 queries stay in the registers of a warp. Blocks are small, so that several share an
 * SM: some load while others multiply. */
#include "device/cuda/attention/along_short.cuh"

#define LN2 0.69314718055994530942f

template <int D, int WARPS> struct ShortTiles {
    bf16 q[16 * WARPS * Pitch<D>::N], k[16 * WARPS * Pitch<D>::N], v[16 * WARPS * Pitch<D>::N];
};

/* Turns a warp's scores into weights; max and sum of the rows of this thread. Scores are in powers
 * of 2. */
template <int N>
static __device__ inline void short_weigh(float s[N / 8][4], int keys, float scale, float max[2],
                                          float sum[2])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float high = -INFINITY, total = 0;
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                const bool live = 8 * n + 2 * (lane % 4) + e % 2 < keys;
                s[n][e] = live ? s[n][e] * scale : -INFINITY;
                high = fmaxf(high, s[n][e]);
            }
        high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
        high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                s[n][e] = exp2_fast(s[n][e] - high);
                total += s[n][e];
            }
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        max[half] = high;
        sum[half] = total + __shfl_xor_sync(0xffffffffu, total, 2);
    }
}

template <int D, int WARPS>
static __global__ void __launch_bounds__(32 * WARPS)
    short_kernel(const __grid_constant__ ShortAttention a)
{
    extern __shared__ __align__(16) char shared[];
    enum { N = 16 * WARPS }; /* queries, keys */
    ShortTiles<D, WARPS> &smem = *(ShortTiles<D, WARPS> *)shared;
    const ShortBlock b = short_block(a);
    const int source = (a.head_at + b.head) / a.group, mine = threadIdx.x / 32 * 16;
    const int lane = threadIdx.x % 32;
    short_load<D, WARPS>(a, a.q, b, b.head, smem.q);
    short_load<D, WARPS>(a, a.k, b, source, smem.k);
    copies_commit();
    short_load<D, WARPS>(a, a.v, b, source, smem.v);
    copies_commit();
    copies_wait<1>();
    __syncthreads();
    float s[N / 8][4] = {}, o[D / 8][4] = {}, max[2], sum[2];
    uint32_t m[4], w[N / 16][4];
    if (mine < a.t) {
#pragma unroll
        for (int k = 0; k < D; k += 16) {
            uint32_t q[4];
            operand_a<D>(q, smem.q, mine, k);
#pragma unroll
            for (int n = 0; n < N; n += 16) {
                if (n >= a.s) continue;
                operand_b_rows<D>(m, smem.k, n, k);
                multiply_add(s[n / 8], q, m[0], m[1]);
                multiply_add(s[n / 8 + 1], q, m[2], m[3]);
            }
        }
        short_weigh<N>(s, a.s, a.scale * LOG2E, max, sum);
        weights_pack<N>(s, w);
    }
    copies_wait<0>();
    __syncthreads();
    if (mine >= a.t) return;
#pragma unroll
    for (int k = 0; k < N; k += 16) {
        if (k >= a.s) continue;
#pragma unroll
        for (int c = 0; c < D; c += 16) {
            operand_b_columns<D>(m, smem.v, k, c);
            multiply_add(o[c / 8], w[k / 16], m[0], m[1]);
            multiply_add(o[c / 8 + 1], w[k / 16], m[2], m[3]);
        }
    }
    const float share[2] = {1 / sum[0], 1 / sum[1]};
    short_store<D>(a, a.o, b, b.head, o, share, smem.q);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = mine + lane / 4 + 8 * half;
        if (lane % 4 == 0 && row < a.t)
            ((float *)a.lse.data)[short_offset(a.lse, b, b.head) + row * a.lse.stride[1]] =
                LN2 * (max[half] + log2f(sum[half]));
    }
}

template <int D, int WARPS> static Err launch(const Call *call, const ShortAttention &a)
{
    const int bytes = (int)sizeof(ShortTiles<D, WARPS>);
    CUDA_TRY(cudaFuncSetAttribute(short_kernel<D, WARPS>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    short_kernel<D, WARPS><<<short_blocks(a), 32 * WARPS, (size_t)bytes, call->queue->stream>>>(a);
    return cuda_launched(KERNEL_attention_along);
}

template <int D> static Err launch_rows(const Call *call, const ShortAttention &a)
{
    const int rows = max(a.t, a.s);
    if (rows <= 16) return launch<D, 1>(call, a);
    if (rows <= 32) return launch<D, 2>(call, a);
    if (rows <= 64) return launch<D, 4>(call, a);
    return launch<D, 8>(call, a);
}

extern "C" Err cuda_along_short(const Call *call)
{
    ShortAttention a = short_open(call);
    a.o = call->out[0], a.lse = call->out[1];
    TRY(cuda_begin(call, KERNEL_attention_along));
    if (a.c <= 32) return launch_rows<32>(call, a);
    if (a.c <= 64) return launch_rows<64>(call, a);
    if (a.c <= 80) return launch_rows<80>(call, a);
    return launch_rows<128>(call, a);
}
