/* grouped.cu -- GEMMs over the rows of all experts in one launch; offsets stay on the device.
 *
 * On Hopper bf16 operands that TMA can read are multiplied by hopper_grouped.cu. All others are
 * multiplied here, without tensor cores. The grid covers the most tiles that any offsets can give:
 * rows / TILE + experts. A block finds the expert of its tile by a walk over the offsets; surplus
 * blocks have none and return. */
#include "device/cuda/gemm/hopper_grouped.h"
#include "device/cuda/value.cuh"

enum { TILE = 32, ROWS = 8 };

typedef struct {
    Tensor a, b, offsets, c;
    bool tb;
    float keep;
} GroupedArgs;

static __device__ inline int64_t offset_of(const Tensor &t, int64_t e)
{
    return ((const int32_t *)t.data)[e * t.stride[0]];
}

/* The expert and the first row of a tile; returns false if there are not so many tiles. */
static __device__ inline bool find_tile(const Tensor &offsets, int64_t tile, int64_t *expert,
                                        int64_t *row, int64_t *end)
{
    for (int64_t e = 0; e + 1 < offsets.n[0]; e++) {
        const int64_t from = offset_of(offsets, e), to = offset_of(offsets, e + 1);
        const int64_t tiles = (to - from + TILE - 1) / TILE;
        if (tile < tiles) {
            *expert = e, *row = from + tile * TILE, *end = to;
            return true;
        }
        tile -= tiles;
    }
    return false;
}

static __global__ void __launch_bounds__(TILE *ROWS)
    grouped_kernel(const __grid_constant__ GroupedArgs p)
{
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    const int64_t column = (int64_t)blockIdx.y * TILE, n = p.c.n[1], depth = p.a.n[1];
    const int x = threadIdx.x, y = threadIdx.y;
    int64_t expert, row, end;
    float sum[TILE / ROWS] = {};
    if (!find_tile(p.offsets, blockIdx.x, &expert, &row, &end)) return;
    for (int64_t from = 0; from < depth; from += TILE) {
        for (int i = y; i < TILE; i += ROWS) {
            const int64_t k = from + i, j = column + x;
            a[i][x] = row + i < end && from + x < depth
                          ? value_get(p.a.data, p.a.dtype,
                                      (row + i) * p.a.stride[0] + (from + x) * p.a.stride[1])
                          : 0;
            b[i][x] = k < depth && j < n
                          ? value_get(p.b.data, p.b.dtype,
                                      expert * p.b.stride[0] + k * p.b.stride[p.tb ? 2 : 1] +
                                          j * p.b.stride[p.tb ? 1 : 2])
                          : 0;
        }
        __syncthreads();
        for (int k = 0; k < TILE; k++)
#pragma unroll
            for (int r = 0; r < TILE / ROWS; r++) sum[r] += a[y + r * ROWS][k] * b[k][x];
        __syncthreads();
    }
    if (column + x >= n) return;
    for (int r = 0; r < TILE / ROWS; r++)
        if (row + y + r * ROWS < end)
            value_keep(p.c.data, p.c.dtype,
                       (row + y + r * ROWS) * p.c.stride[0] + (column + x) * p.c.stride[1], p.keep,
                       sum[r]);
}

static GroupedArgs args_of(const Call *call)
{
    GroupedArgs p = {};
    p.a = call->in[0], p.b = call->in[1], p.offsets = call->in[2], p.c = call->out[0];
    p.tb = call->attr.gemm.tb;
    p.keep = (float)call->number[0];
    return p;
}

/* The call as one of the ping-pong kernel. */
static ExpertGemm on_hopper(const Call *call, GroupedKind kind)
{
    const bool grad = kind == GROUPED_GRAD;
    ExpertGemm g = {};
    g.kind = kind;
    g.w[0] = call->in[grad ? 0 : 1], g.x[0] = call->in[grad ? 1 : 0];
    g.offsets = call->in[2], g.out[0] = call->out[0];
    g.keep = (float)call->number[0];
    return g;
}

extern "C" Err cuda_grouped_gemm(const Call *call)
{
    const GroupedArgs p = args_of(call);
    const ExpertGemm g = on_hopper(call, p.tb ? GROUPED_FORWARD : GROUPED_BACK);
    TRY(cuda_begin(call, KERNEL_grouped_gemm));
    if (tensor_count(&p.c) == 0) return OK;
    if (hopper_grouped_fits(call->queue->context, &g)) return hopper_grouped_run(call->queue, &g);
    const dim3 grid((unsigned)(blocks_of(p.c.n[0], TILE) + p.offsets.n[0]),
                    (unsigned)blocks_of(p.c.n[1], TILE));
    grouped_kernel<<<grid, dim3(TILE, ROWS), 0, call->queue->stream>>>(p);
    return cuda_launched(KERNEL_grouped_gemm);
}

/* c[e] = keep c[e] + a^T b over the rows of e. */
static __global__ void __launch_bounds__(TILE *ROWS)
    grouped_dw_kernel(const __grid_constant__ GroupedArgs p)
{
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    const int64_t expert = blockIdx.z, row = (int64_t)blockIdx.y * TILE;
    const int64_t column = (int64_t)blockIdx.x * TILE, m = p.c.n[1], n = p.c.n[2];
    const int64_t first = offset_of(p.offsets, expert), end = offset_of(p.offsets, expert + 1);
    const int x = threadIdx.x, y = threadIdx.y;
    float sum[TILE / ROWS] = {};
    for (int64_t from = first; from < end; from += TILE) {
        for (int i = y; i < TILE; i += ROWS) {
            const bool live = from + i < end;
            a[i][x] = live && row + x < m
                          ? value_get(p.a.data, p.a.dtype,
                                      (from + i) * p.a.stride[0] + (row + x) * p.a.stride[1])
                          : 0;
            b[i][x] = live && column + x < n
                          ? value_get(p.b.data, p.b.dtype,
                                      (from + i) * p.b.stride[0] + (column + x) * p.b.stride[1])
                          : 0;
        }
        __syncthreads();
        for (int k = 0; k < TILE; k++)
#pragma unroll
            for (int r = 0; r < TILE / ROWS; r++) sum[r] += a[k][y + r * ROWS] * b[k][x];
        __syncthreads();
    }
    if (column + x >= n) return;
    for (int r = 0; r < TILE / ROWS; r++)
        if (row + y + r * ROWS < m)
            value_keep(p.c.data, p.c.dtype,
                       expert * p.c.stride[0] + (row + y + r * ROWS) * p.c.stride[1] +
                           (column + x) * p.c.stride[2],
                       p.keep, sum[r]);
}

extern "C" Err cuda_grouped_gemm_dw(const Call *call)
{
    const GroupedArgs p = args_of(call);
    const ExpertGemm g = on_hopper(call, GROUPED_GRAD);
    TRY(cuda_begin(call, KERNEL_grouped_gemm_dw));
    if (tensor_count(&p.c) == 0) return OK;
    if (hopper_grouped_fits(call->queue->context, &g)) return hopper_grouped_run(call->queue, &g);
    const dim3 grid((unsigned)blocks_of(p.c.n[2], TILE), (unsigned)blocks_of(p.c.n[1], TILE),
                    (unsigned)p.c.n[0]);
    grouped_dw_kernel<<<grid, dim3(TILE, ROWS), 0, call->queue->stream>>>(p);
    return cuda_launched(KERNEL_grouped_gemm_dw);
}
