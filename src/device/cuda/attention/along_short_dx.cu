/* along_short_dx.cu -- the gradient of attention along short sequences, from o and lse.
 *
 *     p = exp(s - lse)         ds = p (dout v' - delta) scale         delta = dout . o
 *     dv = p' dout             dk = ds' q               dq = ds k
 *
 * A warp first has 16 keys: p' and ds' are its registers, so dv and dk are its own sums. ds' goes
 * to shared memory, over o and v, which nobody reads any more. Then a warp has 16 queries and sums
 * dq. Each sum has one owner and one order: no atomics. */
#include "device/cuda/attention/along_short.cuh"

template <int D, int WARPS> struct ShortSlopes {
    enum { N = 16 * WARPS, DS = N + 8 }; /* rows; elements from row to row of ds */
    bf16 q[N * Pitch<D>::N], dout[N * Pitch<D>::N], k[N * Pitch<D>::N];
    union {
        struct {
            bf16 o[N * Pitch<D>::N], v[N * Pitch<D>::N];
        };
        bf16 ds[N * DS]; /* [key][query] */
    };
    float lse[N], delta[N];
};

/* Two threads per row: lse in powers of 2, infinite past the last row, so that it weighs 0; and
 * delta. */
template <int D, int WARPS>
static __device__ inline void short_statistics(const ShortAttention &a, const ShortBlock &b,
                                               ShortSlopes<D, WARPS> &smem)
{
    const int row = threadIdx.x / 2;
    float sum = 0;
#pragma unroll
    for (int c = threadIdx.x % 2 * 8; c < D; c += 16) {
        const int at = row * Pitch<D>::N + c;
        float x[8], y[8];
        piece_floats(piece_load<8>(smem.dout, BF16, at), BF16, x);
        piece_floats(piece_load<8>(smem.o, BF16, at), BF16, y);
#pragma unroll
        for (int e = 0; e < 8; e++) sum += x[e] * y[e];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    if (threadIdx.x % 2 != 0) return;
    smem.delta[row] = sum;
    smem.lse[row] = INFINITY;
    if (row < a.t)
        smem.lse[row] =
            LOG2E *
            ((const float *)a.lse.data)[short_offset(a.lse, b, b.head) + row * a.lse.stride[1]];
}

/* x[2][4] = 16 rows of a times 16 rows of b, over the channels. */
template <int D>
static __device__ inline void short_products(float x[2][4], const bf16 *a, int row, const bf16 *b,
                                             int column)
{
#pragma unroll
    for (int c = 0; c < D; c += 16) {
        uint32_t ma[4], mb[4];
        operand_a<D>(ma, a, row, c);
        operand_b_rows<D>(mb, b, column, c);
        multiply_add(x[0], ma, mb[0], mb[1]);
        multiply_add(x[1], ma, mb[2], mb[3]);
    }
}

/* sum[D / 8] += w[16, 16] b[16, D], rows of a tile from `row` on. */
template <int D>
static __device__ inline void short_sum(float sum[D / 8][4], const uint32_t w[4], const bf16 *b,
                                        int row)
{
#pragma unroll
    for (int c = 0; c < D; c += 16) {
        uint32_t m[4];
        operand_b_columns<D>(m, b, row, c);
        multiply_add(sum[c / 8], w, m[0], m[1]);
        multiply_add(sum[c / 8 + 1], w, m[2], m[3]);
    }
}

/* dk and dv of the 16 keys of this warp; ds' of these keys. */
template <int D, int WARPS>
static __device__ inline void short_keys(const ShortAttention &a, ShortSlopes<D, WARPS> &smem,
                                         float dk[D / 8][4], float dv[D / 8][4],
                                         uint32_t ds[WARPS][4])
{
    const int lane = threadIdx.x % 32, mine = threadIdx.x / 32 * 16;
    const float scale = a.scale * LOG2E;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        float s[2][4] = {}, dp[2][4] = {};
        uint32_t p[1][4];
        if (16 * i >= a.t) break;
        short_products<D>(s, smem.k, mine, smem.q, 16 * i);
        short_products<D>(dp, smem.v, mine, smem.dout, 16 * i);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int query = 16 * i + 8 * n + 2 * (lane % 4);
            const float2 lse = *(const float2 *)&smem.lse[query];
            const float2 delta = *(const float2 *)&smem.delta[query];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const bool live = mine + lane / 4 + e / 2 * 8 < a.s;
                const float x = s[n][e] * scale - (e % 2 ? lse.y : lse.x);
                s[n][e] = live ? exp2_fast(x) : 0;
                dp[n][e] = live ? s[n][e] * (dp[n][e] - (e % 2 ? delta.y : delta.x)) * a.scale : 0;
            }
        }
        weights_pack<16>(s, p);
        weights_pack<16>(dp, &ds[i]);
        short_sum<D>(dv, p[0], smem.dout, 16 * i);
        short_sum<D>(dk, ds[i], smem.q, 16 * i);
    }
}

/* Writes ds' of this warp's keys: rows are keys. */
template <int D, int WARPS>
static __device__ inline void short_slopes(const ShortAttention &a, ShortSlopes<D, WARPS> &smem,
                                           const uint32_t ds[WARPS][4])
{
    const int lane = threadIdx.x % 32, mine = threadIdx.x / 32 * 16;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const int key = mine + lane / 4 + part % 2 * 8;
            const int query = 16 * i + part / 2 * 8 + 2 * (lane % 4);
            if (16 * i < a.t)
                *(uint32_t *)&smem.ds[key * ShortSlopes<D, WARPS>::DS + query] = ds[i][part];
        }
}

/* dq of the 16 queries of this warp. */
template <int D, int WARPS>
static __device__ inline void short_queries(const ShortAttention &a,
                                            const ShortSlopes<D, WARPS> &smem, float dq[D / 8][4])
{
    const int lane = threadIdx.x % 32, mine = threadIdx.x / 32 * 16;
#pragma unroll
    for (int key = 0; key < 16 * WARPS; key += 16) {
        uint32_t w[4];
        if (key >= a.s) break;
        matrices_load(w,
                      &smem.ds[(key + lane / 16 * 8 + lane % 8) * ShortSlopes<D, WARPS>::DS + mine +
                               lane / 8 % 2 * 8],
                      true);
        short_sum<D>(dq, w, smem.k, key);
    }
}

template <int D, int WARPS>
static __global__ void __launch_bounds__(32 * WARPS)
    short_dx_kernel(const __grid_constant__ ShortAttention a)
{
    extern __shared__ __align__(16) char shared[];
    ShortSlopes<D, WARPS> &smem = *(ShortSlopes<D, WARPS> *)shared;
    const ShortBlock b = short_block(a);
    const int mine = threadIdx.x / 32 * 16;
    const float one[2] = {1, 1};
    short_load<D, WARPS>(a, a.dout, b, b.head, smem.dout);
    short_load<D, WARPS>(a, a.o, b, b.head, smem.o);
    short_load<D, WARPS>(a, a.q, b, b.head, smem.q);
    short_load<D, WARPS>(a, a.k, b, b.head, smem.k);
    short_load<D, WARPS>(a, a.v, b, b.head, smem.v);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    short_statistics<D, WARPS>(a, b, smem);
    __syncthreads();
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
    uint32_t ds[WARPS][4];
    if (mine < a.s) short_keys<D, WARPS>(a, smem, dk, dv, ds);
    __syncthreads(); /* of all tiles only k is read from now on */
    if (mine < a.s) {
        short_slopes<D, WARPS>(a, smem, ds);
        short_store<D>(a, a.dk, b, b.head, dk, one, smem.q);
        short_store<D>(a, a.dv, b, b.head, dv, one, smem.dout);
    }
    __syncthreads();
    if (mine >= a.t) return;
    float dq[D / 8][4] = {};
    short_queries<D, WARPS>(a, smem, dq);
    short_store<D>(a, a.dq, b, b.head, dq, one, smem.q);
}

template <int D, int WARPS> static Err launch(const Call *call, const ShortAttention &a)
{
    const int bytes = (int)sizeof(ShortSlopes<D, WARPS>);
    CUDA_TRY(cudaFuncSetAttribute(short_dx_kernel<D, WARPS>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    short_dx_kernel<D, WARPS>
        <<<short_blocks(a), 32 * WARPS, (size_t)bytes, call->queue->stream>>>(a);
    return cuda_launched(KERNEL_attention_along_dx);
}

template <int D> static Err launch_rows(const Call *call, const ShortAttention &a)
{
    const int rows = max(a.t, a.s);
    if (rows <= 16) return launch<D, 1>(call, a);
    if (rows <= 32) return launch<D, 2>(call, a);
    if (rows <= 64) return launch<D, 4>(call, a);
    return launch<D, 8>(call, a);
}

extern "C" Err cuda_along_short_dx(const Call *call)
{
    ShortAttention a = short_open(call);
    a.dout = call->in[3], a.lse = call->in[4], a.o = call->in[5];
    a.dq = call->out[0], a.dk = call->out[1], a.dv = call->out[2];
    TRY(cuda_begin(call, KERNEL_attention_along_dx));
    if (a.c <= 32) return launch_rows<32>(call, a);
    if (a.c <= 64) return launch_rows<64>(call, a);
    if (a.c <= 80) return launch_rows<80>(call, a);
    return launch_rows<128>(call, a);
}
