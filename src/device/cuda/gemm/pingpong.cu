/* pingpong.cu -- warp-specialized ping-pong GEMM with a gelu, gelu gradient or swiglu gradient
 * epilogue.
 *
 *   u = x w' + bias, h = gelu(u)           dx = (dy w) gelu'(u), and the sums of dx over tokens
 *   dgate = (dy w) up silu'(gate), dup = (dy w) silu(gate)
 *
 * One warpgroup multiplies while the other runs the epilogue and stores; cuBLASLt's kernels do
 * these one after the other. Compiled for sm_90a alone, whose instructions are in
 * hopper.cuh and wgmma.cuh. */
#include "device/cuda/column_fold.cuh"
#include "device/cuda/gemm/pingpong_epilogue.cuh"
#include "device/cuda/tensor_map.h"

template <EpilogueKind KIND>
static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(PINGPONG_THREADS, 1)
    pingpong_kernel(const __grid_constant__ PingpongArgs args)
{
    constexpr bool transposed = KIND != EPILOGUE_GELU;
    extern __shared__ char raw[];
    const PingpongShared r = shared_layout(shared_at(raw));
    const int group = threadIdx.x / WARPGROUP, warp = threadIdx.x / 32 % 4;
    if (threadIdx.x == 0) shared_init(r);
    __syncthreads();
    cluster_sync();
    if (group == 2) {
        setmaxnreg_dec<24>();
        if (threadIdx.x % 32 == 0 && warp == 0) load_operands<transposed>(r, args);
        if (threadIdx.x % 32 == 0 && warp == 1 && transposed) load_aux<KIND>(r, args);
        if (threadIdx.x % 32 == 0 && warp == 2) store_out<KIND>(r, args);
    } else {
        setmaxnreg_inc<240>();
        const int n = tiles_of(args);
#pragma unroll 1
        for (int j = group; j < n; j += 2) {
            const PingpongTile tile = tile_of(args, j);
            float d[HALVES][PART];
            if (j > 0) mbarrier_wait(r.mma_order + 8 * group, (j - 1) / 2 & 1);
            mma_tile<transposed>(r, args, j, d);
            if (j > 0) mbarrier_wait(r.epilogue_order + 8 * group, (j - 1) / 2 & 1);
            epilogue_tile<KIND>(r, args, j, tile, d);
        }
    }
    cluster_sync(); /* the other block may still arrive at barriers of this one */
}

typedef void (*PingpongKernel)(PingpongArgs);

static PingpongKernel kernel_of(EpilogueKind kind)
{
    if (kind == EPILOGUE_GELU) return pingpong_kernel<EPILOGUE_GELU>;
    return kind == EPILOGUE_DGELU ? pingpong_kernel<EPILOGUE_DGELU>
                                  : pingpong_kernel<EPILOGUE_DSWIGLU>;
}

extern "C" Err pingpong_open(DeviceContext *c)
{
    if (!c->encode_tensor_map) return OK;
    for (int i = EPILOGUE_GELU; i <= EPILOGUE_DSWIGLU; i++)
        CUDA_TRY(cudaFuncSetAttribute(kernel_of((EpilogueKind)i),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, PINGPONG_BYTES));
    return OK;
}

static bool tma_fits(const Tensor *t)
{
    return t->dtype == BF16 && t->ndim == 2 && tensor_map_fits(t);
}

extern "C" bool pingpong_fits(const DeviceContext *c, const PingpongGemm *r)
{
    return c->encode_tensor_map && tma_fits(&r->x) && tma_fits(&r->w) && tma_fits(&r->out[0]) &&
           tma_fits(&r->aux[0]) &&
           (r->kind != EPILOGUE_DSWIGLU || (tma_fits(&r->out[1]) && tma_fits(&r->aux[1]))) &&
           (!r->bias.data || (r->bias.dtype == BF16 && r->bias.stride[0] == 1));
}

static Err args_of(DeviceQueue *q, const PingpongGemm *r, PingpongArgs *args)
{
    const bool transposed = r->kind != EPILOGUE_GELU, two = r->kind == EPILOGUE_DSWIGLU;
    const int rows = two ? +Pieces<EPILOGUE_DSWIGLU>::ROWS : +Pieces<EPILOGUE_GELU>::ROWS;
    const int w_box[] = {transposed ? +DEPTH : +FEATURES, transposed ? +SIDE : +DEPTH};
    const int x_box[] = {TOKENS / 2, DEPTH}, piece[] = {rows, SIDE};
    const int64_t tokens = r->out[0].n[0], width = r->out[0].n[1];
    void *scratch = NULL;
    TRY(tensor_map_of(q->context, &r->w, w_box, &args->w));
    TRY(tensor_map_of(q->context, &r->x, x_box, &args->x));
    for (int i = 0; i < (two ? 2 : 1); i++) {
        TRY(tensor_map_of(q->context, &r->out[i], piece, &args->out[i]));
        TRY(tensor_map_of(q->context, &r->aux[i], piece, &args->aux[i]));
    }
    args->across = (int)blocks_of(width, 2 * FEATURES);
    const int64_t down = blocks_of(tokens, TOKENS);
    args->pairs = (int)(down * args->across);
    args->steps = (int)blocks_of(r->x.n[1], DEPTH);
    args->width = (int)width;
    args->bias = (const __nv_bfloat16 *)r->bias.data;
    if (r->sums.data) TRY(cuda_scratch(q, scratch_columns(1, down, width), &scratch));
    args->part = (float *)scratch;
    return OK;
}

extern "C" Err pingpong_run(DeviceQueue *q, const PingpongGemm *r)
{
    PingpongArgs args;
    TRY(args_of(q, r, &args));
    const int blocks = 2 * args.pairs < q->context->sms ? 2 * args.pairs : q->context->sms / 2 * 2;
    kernel_of(r->kind)<<<blocks, PINGPONG_THREADS, PINGPONG_BYTES, q->stream>>>(args);
    CUDA_TRY(cudaGetLastError());
    if (!args.part) return OK;
    const int rows = args.pairs / args.across;
    return column_fold({args.part, rows, 1, args.width, {r->sums}, {r->keep}}, q);
}
