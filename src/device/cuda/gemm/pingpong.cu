/* pingpong.cu -- warp-specialized ping-pong GEMM with a gelu, gelu gradient or swiglu gradient
 * epilogue.
 *
 *   u = x w' + bias, h = gelu(u)           dx = (dy w) gelu'(u), and the sums of dx over tokens
 *   dgate = (dy w) up silu'(gate), dup = (dy w) silu(gate)
 *
 * One warpgroup multiplies while the other runs the epilogue and stores; cuBLASLt's kernels do
 * these one after the other. This file alone is compiled for sm_90a, whose instructions are in
 * hopper.cuh. */
#include "device/cuda/column_fold.cuh"
#include "device/cuda/gemm/pingpong_epilogue.cuh"

#include <cudaTypedefs.h>

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

/* The driver's function that encodes TMA descriptors, or NULL. */
static void *find_encode()
{
    cudaDriverEntryPointQueryResult found;
    void *encode = NULL;
#if CUDART_VERSION >= 12050
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode,
                                                                12000, cudaEnableDefault, &found);
#else /* the same call, for the version of this build */
    const cudaError_t status =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &found);
#endif
    if (status == cudaSuccess && found == cudaDriverEntryPointSuccess) return encode;
    (void)cudaGetLastError();
    return NULL;
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
    c->encode_tensor_map = c->capability == 90 ? find_encode() : NULL;
    if (!c->encode_tensor_map) return OK;
    for (int i = EPILOGUE_GELU; i <= EPILOGUE_DSWIGLU; i++)
        CUDA_TRY(cudaFuncSetAttribute(kernel_of((EpilogueKind)i),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, PINGPONG_BYTES));
    return OK;
}

/* True if TMA can read and write the matrix: bf16, contiguous rows, each aligned to 16 bytes. */
static bool tma_fits(const Tensor *t)
{
    return t->dtype == BF16 && t->ndim == 2 && t->n[0] > 0 && t->n[1] > 0 &&
           t->n[0] < INT32_MAX / 2 && t->n[1] < INT32_MAX / 2 && t->stride[1] == 1 &&
           t->stride[0] >= t->n[1] && t->stride[0] % 8 == 0 && (uintptr_t)t->data % 16 == 0;
}

extern "C" bool pingpong_fits(const DeviceContext *c, const PingpongGemm *r)
{
    return c->encode_tensor_map && tma_fits(&r->x) && tma_fits(&r->w) && tma_fits(&r->out[0]) &&
           tma_fits(&r->aux[0]) &&
           (r->kind != EPILOGUE_DSWIGLU || (tma_fits(&r->out[1]) && tma_fits(&r->aux[1]))) &&
           (!r->bias.data || (r->bias.dtype == BF16 && r->bias.stride[0] == 1));
}

typedef struct {
    int across, down;
} TmaBox;

static Err tensor_map_of(const DeviceContext *c, const Tensor *t, TmaBox box, CUtensorMap *out)
{
    const cuuint64_t extent[] = {(cuuint64_t)t->n[1], (cuuint64_t)t->n[0]};
    const cuuint64_t stride[] = {(cuuint64_t)t->stride[0] * 2};
    const cuuint32_t size[] = {(cuuint32_t)box.across, (cuuint32_t)box.down}, step[] = {1, 1};
    const CUresult status = ((PFN_cuTensorMapEncodeTiled_v12000)c->encode_tensor_map)(
        out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, t->data, extent, stride, size, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status == CUDA_SUCCESS) return OK;
    return err_fail(ERR_IO, "cuda: cuTensorMapEncodeTiled: error %d for a matrix of %lld x %lld",
                    (int)status, (long long)t->n[0], (long long)t->n[1]);
}

static Err args_of(DeviceQueue *q, const PingpongGemm *r, PingpongArgs *args)
{
    const bool transposed = r->kind != EPILOGUE_GELU, two = r->kind == EPILOGUE_DSWIGLU;
    const TmaBox piece = {
        SIDE, (int)(two ? +Pieces<EPILOGUE_DSWIGLU>::ROWS : +Pieces<EPILOGUE_GELU>::ROWS)};
    const int64_t tokens = r->out[0].n[0], width = r->out[0].n[1];
    void *scratch = NULL;
    TRY(tensor_map_of(q->context, &r->w, transposed ? TmaBox{SIDE, DEPTH} : TmaBox{DEPTH, FEATURES},
                      &args->w));
    TRY(tensor_map_of(q->context, &r->x, TmaBox{DEPTH, TOKENS / 2}, &args->x));
    for (int i = 0; i < (two ? 2 : 1); i++) {
        TRY(tensor_map_of(q->context, &r->out[i], piece, &args->out[i]));
        TRY(tensor_map_of(q->context, &r->aux[i], piece, &args->aux[i]));
    }
    args->across = (int)blocks_of(width, 2 * FEATURES);
    const int64_t rows = blocks_of(tokens, TOKENS);
    args->pairs = (int)(rows * args->across);
    args->steps = (int)blocks_of(r->x.n[1], DEPTH);
    args->width = (int)width;
    args->bias = (const __nv_bfloat16 *)r->bias.data;
    if (r->sums.data) TRY(cuda_scratch(q, sizeof(float) * (size_t)(rows * width), &scratch));
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
