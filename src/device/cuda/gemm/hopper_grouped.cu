/* hopper_grouped.cu -- the ping-pong GEMM over the rows of all experts: one launch, offsets on
 * the device.
 *
 *   out[r] = x[r] w[e]'      out[r] = x[r] w[e]      out[e] = w' x, summed over the rows of e
 *
 * with a swiglu, or its gradient, in the epilogue.
 *
 * As pingpong.cu, this file is compiled for sm_90a. The grid covers the SMs, whatever the offsets
 * are; hopper_grouped.cuh has the tiles. */
#include "device/cuda/gemm/hopper_grouped.cuh"

#include <cudaTypedefs.h>
#include "device/cuda/tensor_map.h"
#include "device/cuda/value.cuh"

template <GroupedKind KIND>
static __device__ inline void produce(const PingpongShared &r, const GroupedTilesArgs &args,
                                      const int *start)
{
    const int warp = threadIdx.x / 32 % 4;
    if (threadIdx.x % 32 != 0) return;
    if (warp == 0) load_operands<KIND>(r, args, start);
    if (warp == 1 && (KIND == GROUPED_DSWIGLU || (KIND != GROUPED_GRAD && args.keep != 0)))
        load_old<KIND>(r, args, start);
    if (warp == 2 && KIND != GROUPED_GRAD) store_out<KIND>(r, args, start);
}

template <GroupedKind KIND>
static __device__ inline void consume(const PingpongShared &r, const GroupedTilesArgs &args,
                                      const int *start)
{
    const int n = tiles_of<KIND>(args, start), group = threadIdx.x / WARPGROUP;
    int expert = 0, steps = 0, before = 0; /* before: depth steps of the tiles before j */
#pragma unroll 1
    for (int j = 0; j < n; j++, before += steps) {
        const GroupedTile t = tile_of<KIND>(args, start, j, &expert);
        steps = steps_of<KIND>(args, t);
        if (j % 2 != group) continue;
        float d[HALVES][PART];
        if (KIND == GROUPED_GRAD && steps == 0)
#pragma unroll
            for (int i = 0; i < HALVES * PART; i++) d[i / PART][i % PART] = 0;
        if (j > 0) mbarrier_wait(r.mma_order + 8 * group, (j - 1) / 2 & 1);
        mma_tile<KIND>(r, steps, Ring<STAGES>(before), d);
        if (KIND == GROUPED_GRAD) {
            epilogue_grad(args, t, d);
            continue;
        }
        if (j > 0) mbarrier_wait(r.epilogue_order + 8 * group, (j - 1) / 2 & 1);
        epilogue_rows<KIND>(r, args.keep, j, d);
    }
}

template <GroupedKind KIND>
static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(PINGPONG_THREADS, 1)
    grouped_kernel(const __grid_constant__ GroupedTilesArgs args)
{
    extern __shared__ char raw[];
    const PingpongShared r = shared_layout(shared_at(raw));
    int *start = (int *)(raw + (r.epilogue_order + 16 - shared_at(raw)));
    if (threadIdx.x == 0) shared_init(r);
    find_starts(args, start);
    __syncthreads();
    cluster_sync();
    if (threadIdx.x / WARPGROUP == 2) {
        setmaxnreg_dec<24>();
        produce<KIND>(r, args, start);
    } else {
        setmaxnreg_inc<240>();
        consume<KIND>(r, args, start);
    }
    cluster_sync(); /* the other block may still arrive at barriers of this one */
}

typedef void (*GroupedKernel)(GroupedTilesArgs);

static const GroupedKernel kernel_of[N_GROUPED] = {
    grouped_kernel<GROUPED_FORWARD>, grouped_kernel<GROUPED_BACK>, grouped_kernel<GROUPED_SWIGLU>,
    grouped_kernel<GROUPED_DSWIGLU>, grouped_kernel<GROUPED_GRAD>};

extern "C" Err hopper_grouped_open(DeviceContext *c)
{
    for (int i = 0; c->encode_tensor_map && i < N_GROUPED; i++)
        CUDA_TRY(cudaFuncSetAttribute(kernel_of[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      GROUPED_BYTES));
    return OK;
}

/* True if TMA can read the tensor, or there is none. */
static bool tma_fits(const Tensor *t)
{
    return !t->data || (t->dtype == BF16 && tensor_map_fits(t));
}

static bool grad_fits(const Tensor *t)
{
    return t->dtype == F32 && t->stride[2] == 1 && t->n[2] % 8 == 0 && t->stride[0] % 2 == 0 &&
           t->stride[1] % 2 == 0 && (uintptr_t)t->data % 8 == 0;
}

extern "C" bool hopper_grouped_fits(const DeviceContext *c, const ExpertGemm *g)
{
    bool fits = c->encode_tensor_map && g->offsets.n[0] - 1 <= MAX_GROUPS;
    for (int i = 0; i < 2; i++)
        fits = fits && tma_fits(&g->w[i]) && tma_fits(&g->x[i]) && tma_fits(&g->aux[i]);
    if (g->kind == GROUPED_GRAD) return fits && grad_fits(&g->out[0]);
    for (int i = 0; i < 3; i++) fits = fits && tma_fits(&g->out[i]);
    return fits && (!g->w[1].data || g->w[1].n[1] == g->w[0].n[1]);
}

/* Ragged boxes (hopper_grouped.cuh) of 64 columns and `box` rows of a matrix. */
static Err ragged_map_of(const DeviceContext *c, const Tensor *t, int box, CUtensorMap *out)
{
    const cuuint64_t row = 2 * (cuuint64_t)t->stride[0], most = 0x7fff0000;
    const cuuint64_t extent[] = {(cuuint64_t)t->n[1], RAGGED, most, most};
    const cuuint64_t stride[] = {row, row, ((cuuint64_t)1 << 34) - row};
    const cuuint32_t size[] = {SIDE, (cuuint32_t)box, 1, 1}, step[] = {1, 1, 1, 1};
    const CUresult status = ((PFN_cuTensorMapEncodeTiled_v12000)c->encode_tensor_map)(
        out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, t->data, extent, stride, size, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status == CUDA_SUCCESS) return OK;
    return err_fail(ERR_IO, "cuda: cuTensorMapEncodeTiled: error %d for ragged rows of %lld",
                    (int)status, (long long)t->n[1]);
}

static Err grad_maps(const DeviceContext *c, const ExpertGemm *g, GroupedTilesArgs *args)
{
    args->grad = g->out[0];
    args->down = (int)blocks_of(g->out[0].n[2], TOKENS);
    TRY(ragged_map_of(c, &g->w[0], DEPTH, &args->w[0]));
    return ragged_map_of(c, &g->x[0], GRAD_ROWS, &args->x[0]);
}

static Err row_maps(const DeviceContext *c, const ExpertGemm *g, GroupedTilesArgs *args)
{
    const bool wide = g->kind == GROUPED_FORWARD, two = g->kind == GROUPED_DSWIGLU;
    const int w_box[] = {1, wide ? +FEATURES : +SIDE, DEPTH}, x_box[] = {TOKENS / 2, DEPTH};
    const int rows = two ? +GroupedShape<GROUPED_DSWIGLU>::ROWS : +SIDE;
    args->steps = (int)blocks_of(g->x[0].n[1], DEPTH);
    args->sources = g->x[1].data ? 2 : 1;
    for (int i = 0; i < 2; i++) {
        if (g->w[i].data) TRY(tensor_map_of(c, &g->w[i], w_box, &args->w[i]));
        if (g->x[i].data) TRY(tensor_map_of(c, &g->x[i], x_box, &args->x[i]));
        if (g->aux[i].data) TRY(ragged_map_of(c, &g->aux[i], rows, &args->aux[i]));
    }
    for (int i = 0; i < 3; i++)
        if (g->out[i].data) TRY(ragged_map_of(c, &g->out[i], rows, &args->out[i]));
    return OK;
}

extern "C" Err hopper_grouped_run(DeviceQueue *q, const ExpertGemm *g)
{
    const bool grad = g->kind == GROUPED_GRAD;
    const int width = g->kind == GROUPED_SWIGLU ? +SIDE : +FEATURES;
    const int sms = q->context->sms / 2 * 2;
    GroupedTilesArgs args = {};
    args.offsets = (const int32_t *)g->offsets.data;
    args.stride = (int)g->offsets.stride[0];
    args.experts = (int)g->offsets.n[0] - 1;
    args.across = (int)blocks_of(g->out[0].n[1], 2 * width);
    args.keep = g->keep;
    TRY(grad ? grad_maps(q->context, g, &args) : row_maps(q->context, g, &args));
    const int64_t most =
        grad ? (int64_t)args.experts * args.down : blocks_of(g->x[0].n[0], TOKENS) + args.experts;
    const int64_t blocks = 2 * most * args.across;
    kernel_of[g->kind]<<<(unsigned)(blocks < sms ? blocks : sms), PINGPONG_THREADS, GROUPED_BYTES,
                         q->stream>>>(args);
    CUDA_TRY(cudaGetLastError());
    return OK;
}
