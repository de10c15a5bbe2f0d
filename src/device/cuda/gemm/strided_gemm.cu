/* strided_gemm.cu -- GEMMs that cuBLASLt cannot express: any strides, mixed types, depth 0.
 *
 * A block computes a 32 x 32 tile of c from tiles of a and b that are converted to f32 in shared
 * memory. It serves rare views of small tensors; cublaslt_gemm.c runs all other GEMMs. */
#include "device/cuda/value.cuh"

enum { TILE = 32, ROWS = 8 };

typedef struct {
    Tensor a, b, bias, c; /* bias: data NULL if there is none */
    bool ta, tb;
    int64_t k;
    float keep;
} StridedGemmArgs;

static __device__ inline float element(const Tensor &t, bool transposed, int64_t row,
                                       int64_t column)
{
    return value_get(t.data, t.dtype, row * t.stride[transposed] + column * t.stride[!transposed]);
}

static __global__ void __launch_bounds__(TILE *ROWS)
    strided_kernel(const __grid_constant__ StridedGemmArgs p)
{
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    const int64_t row = (int64_t)blockIdx.y * TILE, column = (int64_t)blockIdx.x * TILE;
    const int x = threadIdx.x, y = threadIdx.y;
    const int64_t m = p.c.n[0], n = p.c.n[1];
    float sum[TILE / ROWS] = {};
    for (int64_t from = 0; from < p.k; from += TILE) {
        for (int i = y; i < TILE; i += ROWS) {
            a[i][x] = row + i < m && from + x < p.k ? element(p.a, p.ta, row + i, from + x) : 0;
            b[i][x] =
                from + i < p.k && column + x < n ? element(p.b, p.tb, from + i, column + x) : 0;
        }
        __syncthreads();
        for (int k = 0; k < TILE; k++)
#pragma unroll
            for (int r = 0; r < TILE / ROWS; r++) sum[r] += a[y + r * ROWS][k] * b[k][x];
        __syncthreads();
    }
    if (column + x >= n) return;
    const float bias =
        p.bias.data ? value_get(p.bias.data, p.bias.dtype, (column + x) * p.bias.stride[0]) : 0;
    for (int r = 0; r < TILE / ROWS; r++) {
        const int64_t i = row + y + r * ROWS;
        if (i < m)
            value_keep(p.c.data, p.c.dtype, i * p.c.stride[0] + (column + x) * p.c.stride[1],
                       p.keep, sum[r] + bias);
    }
}

static Err launch(const Call *call, int64_t k)
{
    StridedGemmArgs p = {};
    p.a = call->in[0], p.b = call->in[1], p.c = call->out[0];
    if (call->n_in > 2) p.bias = call->in[2];
    p.ta = call->attr.gemm.ta, p.tb = call->attr.gemm.tb;
    p.k = k;
    p.keep = (float)call->number[0];
    const int64_t down = blocks_of(p.c.n[0], TILE);
    if (down > 65535)
        return err_fail(
            ERR_CONFIG,
            "cuda: a GEMM of %lld rows whose operands have no contiguous dim or mixed types; "
            "the limit is %d rows, use a smaller batch.micro",
            (long long)p.c.n[0], 65535 * TILE);
    const dim3 grid((unsigned)blocks_of(p.c.n[1], TILE), (unsigned)down);
    strided_kernel<<<grid, dim3(TILE, ROWS), 0, call->queue->stream>>>(p);
    return cuda_launched(KERNEL_gemm);
}

extern "C" Err cuda_gemm_strided(const Call *call)
{
    return launch(call, call->in[0].n[!call->attr.gemm.ta]);
}

extern "C" Err cuda_gemm_start(const Call *call) { return launch(call, 0); }
