/* pingpong.cu -- products that have a gelu or swiglu's gradient beside them, by two groups of warps in turn:
 * one multiplies while the other computes these and stores. cuBLASLt's kernels do one after the other.
 *
 *   u = x w' + bias, h = gelu(u)           dx = (dy w) gelu'(u), and the sums of dx over tokens
 *   dgate = (dy w) up silu'(gate), dup = (dy w) silu(gate)
 *
 * This file alone is compiled for sm_90a, whose instructions are in hopper.cuh. */
#include "device/cuda/column_fold.cuh"
#include "device/cuda/gemm/pingpong_epilogue.cuh"

#include <cudaTypedefs.h>

template <Point POINT>
static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(RELAY_THREADS, 1)
    relay_kernel(const __grid_constant__ RelayWork work)
{
    constexpr bool turned = POINT != POINT_GELU;
    extern __shared__ char raw[];
    const Room r = room_of(shared_at(raw));
    const int group = threadIdx.x / GROUP, warp = threadIdx.x / 32 % 4;
    if (threadIdx.x == 0) room_open(r);
    __syncthreads();
    cluster_sync();
    if (group == 2) {
        registers_less<24>();
        if (threadIdx.x % 32 == 0 && warp == 0) copy_steps<turned>(r, work);
        if (threadIdx.x % 32 == 0 && warp == 1 && turned) load_pieces<POINT>(r, work);
        if (threadIdx.x % 32 == 0 && warp == 2) store_pieces<POINT>(r, work);
    } else {
        registers_more<240>();
        const int n = tiles_of(work);
#pragma unroll 1
        for (int j = group; j < n; j += 2) {
            const Tile tile = tile_of(work, j);
            float d[HALVES][PART];
            if (j > 0) barrier_wait(r.turn + 8 * group, (j - 1) / 2 & 1);
            multiply_tile<turned>(r, work, j, d);
            if (j > 0) barrier_wait(r.end + 8 * group, (j - 1) / 2 & 1);
            finish_tile<POINT>(r, work, j, tile, d);
        }
    }
    cluster_sync(); /* the other block may still arrive at barriers of this one */
}

/* The driver's function that describes matrices to the copy engine, or NULL. */
static void *find_encode()
{
    cudaDriverEntryPointQueryResult found;
    void *encode = NULL;
#if CUDART_VERSION >= 12050
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode,
                                                                12000, cudaEnableDefault, &found);
#else /* the same, of the version that this is built with */
    const cudaError_t status =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &found);
#endif
    if (status == cudaSuccess && found == cudaDriverEntryPointSuccess) return encode;
    (void)cudaGetLastError();
    return NULL;
}

typedef void (*RelayKernel)(RelayWork);

static RelayKernel kernel_of(Point point)
{
    if (point == POINT_GELU) return relay_kernel<POINT_GELU>;
    return point == POINT_DGELU ? relay_kernel<POINT_DGELU> : relay_kernel<POINT_DSWIGLU>;
}

extern "C" Err relay_open(DeviceContext *c)
{
    c->encode = c->capability == 90 ? find_encode() : NULL;
    if (!c->encode) return OK;
    for (int i = POINT_GELU; i <= POINT_DSWIGLU; i++)
        CUDA_TRY(cudaFuncSetAttribute(kernel_of((Point)i),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, RELAY_BYTES));
    return OK;
}

/* bf16, rows contiguous, each where a box may begin. */
static bool boxes_fit(const Tensor *t)
{
    return t->dtype == BF16 && t->ndim == 2 && t->n[0] > 0 && t->n[1] > 0 &&
           t->n[0] < INT32_MAX / 2 && t->n[1] < INT32_MAX / 2 && t->stride[1] == 1 &&
           t->stride[0] >= t->n[1] && t->stride[0] % 8 == 0 && (uintptr_t)t->data % 16 == 0;
}

extern "C" bool relay_fits(const DeviceContext *c, const Relay *r)
{
    return c->encode && boxes_fit(&r->x) && boxes_fit(&r->w) && boxes_fit(&r->out[0]) &&
           boxes_fit(&r->aux[0]) &&
           (r->point != POINT_DSWIGLU || (boxes_fit(&r->out[1]) && boxes_fit(&r->aux[1]))) &&
           (!r->bias.data || (r->bias.dtype == BF16 && r->bias.stride[0] == 1));
}

typedef struct {
    int across, down;
} Box;

static Err map_of(const DeviceContext *c, const Tensor *t, Box box, CUtensorMap *out)
{
    const cuuint64_t extent[] = {(cuuint64_t)t->n[1], (cuuint64_t)t->n[0]};
    const cuuint64_t stride[] = {(cuuint64_t)t->stride[0] * 2};
    const cuuint32_t size[] = {(cuuint32_t)box.across, (cuuint32_t)box.down}, step[] = {1, 1};
    const CUresult status = ((PFN_cuTensorMapEncodeTiled_v12000)c->encode)(
        out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, t->data, extent, stride, size, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status == CUDA_SUCCESS) return OK;
    return err_fail(ERR_IO, "cuda: cuTensorMapEncodeTiled: error %d for a matrix of %lld x %lld",
                    (int)status, (long long)t->n[0], (long long)t->n[1]);
}

static Err work_of(DeviceQueue *q, const Relay *r, RelayWork *work)
{
    const bool turned = r->point != POINT_GELU, two = r->point == POINT_DSWIGLU;
    const Box piece = {SIDE, (int)(two ? +Pieces<POINT_DSWIGLU>::ROWS : +Pieces<POINT_GELU>::ROWS)};
    const int64_t tokens = r->out[0].n[0], width = r->out[0].n[1];
    void *scratch = NULL;
    TRY(map_of(q->context, &r->w, turned ? Box{SIDE, DEPTH} : Box{DEPTH, FEATURES}, &work->w));
    TRY(map_of(q->context, &r->x, Box{DEPTH, TOKENS / 2}, &work->x));
    for (int i = 0; i < (two ? 2 : 1); i++) {
        TRY(map_of(q->context, &r->out[i], piece, &work->out[i]));
        TRY(map_of(q->context, &r->aux[i], piece, &work->aux[i]));
    }
    work->across = (int)blocks_of(width, 2 * FEATURES);
    const int64_t rows = blocks_of(tokens, TOKENS);
    work->pairs = (int)(rows * work->across);
    work->steps = (int)blocks_of(r->x.n[1], DEPTH);
    work->width = (int)width;
    work->bias = (const __nv_bfloat16 *)r->bias.data;
    if (r->sums.data) TRY(cuda_scratch(q, sizeof(float) * (size_t)(rows * width), &scratch));
    work->part = (float *)scratch;
    return OK;
}

extern "C" Err relay_run(DeviceQueue *q, const Relay *r)
{
    RelayWork work;
    TRY(work_of(q, r, &work));
    const int blocks = 2 * work.pairs < q->context->sms ? 2 * work.pairs : q->context->sms / 2 * 2;
    kernel_of(r->point)<<<blocks, RELAY_THREADS, RELAY_BYTES, q->stream>>>(work);
    CUDA_TRY(cudaGetLastError());
    if (!work.part) return OK;
    const int rows = work.pairs / work.across;
    return column_fold({work.part, rows, 1, work.width, {r->sums}, {r->keep}}, q);
}
