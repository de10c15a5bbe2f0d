/* fp8_gemm.cu -- c = keep c + a b sa sb (+ bias) by cuBLASLt, for operands of 8 bits with one scale
 * each.
 *
 * Tensor cores of Hopper read operands of 8 bits along k only: to cuBLASLt, whose matrices are
 * column-major, the first is transposed and the second is not. With rows of c as its columns,
 *
 *     c' [n, m] = b' [n, k] a' [k, m]        b is to be [n, k], a [m, k], as stored
 *
 * an operand that is stored the other way is transposed into the scratch of the queue first: w for
 * d.x, and both operands of d.w. */
#include "device/cuda/gemm/fp8_gemm.h"

#include "base/math.h"
#include "device/cuda/gemm/autotune.h"
#include "device/cuda/value.cuh"

enum { SIDE = 32, STEP = 8, ALIGN = 16 };

static __global__ void __launch_bounds__(SIDE *STEP)
    transpose_kernel(const uint8_t *from, int64_t ld, int64_t rows, int64_t columns, uint8_t *to)
{
    __shared__ uint8_t tile[SIDE][SIDE + 4];
    const int64_t across = (columns + SIDE - 1) / SIDE;
    const int64_t row = blockIdx.x / across * SIDE, column = blockIdx.x % across * SIDE;
    for (int i = threadIdx.y; i < SIDE; i += STEP)
        if (row + i < rows && column + threadIdx.x < columns)
            tile[i][threadIdx.x] = from[(row + i) * ld + column + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.y; i < SIDE; i += STEP)
        if (column + i < columns && row + threadIdx.x < rows)
            to[(column + i) * rows + row + threadIdx.x] = tile[threadIdx.x][i];
}

/* An operand whose rows are the rows or columns of c, with k along them. */
typedef struct {
    const Tensor *t;
    bool turned; /* as stored, k runs down */
    int64_t rows, k;
    const void *data;
    int64_t ld;
} AlongK;

static bool is_aligned(const void *at, int64_t ld, int64_t bytes)
{
    return (uintptr_t)at % ALIGN == 0 && ld * bytes % ALIGN == 0;
}

/* False if cuBLASLt cannot read it. */
static bool along_k(const Tensor *t, bool k_first, AlongK *out)
{
    *out = (AlongK){t, k_first, t->n[k_first], t->n[!k_first], t->data, t->stride[0]};
    return t->stride[1] == 1 && out->k % ALIGN == 0 && out->rows % ALIGN == 0 &&
           is_aligned(t->data, t->stride[0], 1);
}

static Err turn(const Call *call, AlongK *o, char *scratch)
{
    if (!o->turned) return OK;
    const int64_t tiles = blocks_of(o->k, SIDE) * blocks_of(o->rows, SIDE);
    transpose_kernel<<<(unsigned)tiles, dim3(SIDE, STEP), 0, call->queue->stream>>>(
        (const uint8_t *)o->data, o->ld, o->k, o->rows, (uint8_t *)scratch);
    o->data = scratch;
    o->ld = o->k;
    return cuda_launched(KERNEL_scaled_gemm);
}

static cudaDataType_t fp8_type(DType t) { return t == E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2; }

/* The descriptors of one launch. */
typedef struct {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t x, y, d;
    cublasLtMatmulPreference_t limit;
} Fp8Matmul;

static void matmul_close(Fp8Matmul *m)
{
    if (m->limit) (void)cublasLtMatmulPreferenceDestroy(m->limit);
    if (m->d) (void)cublasLtMatrixLayoutDestroy(m->d);
    if (m->y) (void)cublasLtMatrixLayoutDestroy(m->y);
    if (m->x) (void)cublasLtMatrixLayoutDestroy(m->x);
    if (m->desc) (void)cublasLtMatmulDescDestroy(m->desc);
}

static Err matmul_open(const Call *call, const AlongK *a, const AlongK *b, Fp8Matmul *m)
{
    const Tensor *c = &call->out[0];
    const cublasOperation_t turned = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    const void *sx = call->in[3].data, *sy = call->in[2].data;
    const size_t most = BLAS_SCRATCH;
    BLAS_TRY(cublasLtMatmulDescCreate(&m->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
#define SET(name, value)                                                                           \
    BLAS_TRY(cublasLtMatmulDescSetAttribute(m->desc, CUBLASLT_MATMUL_DESC_##name, &(value),        \
                                            sizeof(value)))
    SET(TRANSA, turned);
    SET(TRANSB, plain);
    SET(A_SCALE_POINTER, sx);
    SET(B_SCALE_POINTER, sy);
    if (call->n_in > 4) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        const cudaDataType_t type = CUDA_R_16BF;
        SET(EPILOGUE, epilogue);
        SET(BIAS_POINTER, call->in[4].data);
        SET(BIAS_DATA_TYPE, type);
    }
#undef SET
    BLAS_TRY(cublasLtMatrixLayoutCreate(&m->x, fp8_type(b->t->dtype), (uint64_t)b->k,
                                        (uint64_t)b->rows, b->ld));
    BLAS_TRY(cublasLtMatrixLayoutCreate(&m->y, fp8_type(a->t->dtype), (uint64_t)a->k,
                                        (uint64_t)a->rows, a->ld));
    BLAS_TRY(cublasLtMatrixLayoutCreate(&m->d, lt_type(c->dtype), (uint64_t)c->n[1],
                                        (uint64_t)c->n[0], c->stride[0]));
    BLAS_TRY(cublasLtMatmulPreferenceCreate(&m->limit));
    BLAS_TRY(cublasLtMatmulPreferenceSetAttribute(
        m->limit, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most));
    return OK;
}

static Err matmul_run(const Call *call, const AlongK *a, const AlongK *b, const Fp8Matmul *m,
                      void *scratch, bool *done)
{
    const float one = 1, keep = (float)call->number[0];
    cublasLtHandle_t blas = call->queue->context->blas;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        blas, m->desc, m->x, m->y, m->d, m->d, m->limit, 1, &found, &n);
    *done = status == CUBLAS_STATUS_SUCCESS && n > 0;
    if (!*done) return OK;
    BLAS_TRY(cublasLtMatmul(blas, m->desc, &one, b->data, m->x, a->data, m->y, &keep,
                            call->out[0].data, m->d, call->out[0].data, m->d, &found.algo, scratch,
                            BLAS_SCRATCH, call->queue->stream));
    return OK;
}

/* cuBLASLt multiplies two operands of e4m3, or one of e5m2 by one of e4m3, into bf16 or f32. */
static bool fits(const Call *call, AlongK *a, AlongK *b)
{
    const Tensor *c = &call->out[0];
    const bool bias = call->n_in > 4;
    if (call->queue->context->capability < 89 || call->attr.gemm.a_block[0] != 0) return false;
    if (!along_k(&call->in[0], call->attr.gemm.ta, a) ||
        !along_k(&call->in[1], !call->attr.gemm.tb, b))
        return false;
    if (a->t->dtype == E5M2 && b->t->dtype == E5M2) return false;
    if (bias && (c->dtype != BF16 || call->in[4].dtype != BF16 || call->in[4].stride[0] != 1 ||
                 (uintptr_t)call->in[4].data % ALIGN != 0))
        return false;
    return (c->dtype == BF16 || c->dtype == F32) && c->stride[1] == 1 &&
           is_aligned(c->data, c->stride[0], (int64_t)dtype_bytes(c->dtype));
}

extern "C" Err fp8_gemm_by_cublaslt(const Call *call, bool *done)
{
    AlongK a, b;
    Fp8Matmul m = {};
    void *scratch;
    *done = false;
    if (!fits(call, &a, &b)) return OK;
    const size_t a_bytes = a.turned ? (size_t)(a.rows * a.k) : 0,
                 b_bytes = b.turned ? (size_t)(b.rows * b.k) : 0;
    TRY(cuda_scratch(call->queue, BLAS_SCRATCH + a_bytes + b_bytes, &scratch));
    TRY(turn(call, &a, (char *)scratch + BLAS_SCRATCH));
    TRY(turn(call, &b, (char *)scratch + BLAS_SCRATCH + a_bytes));
    Err err = matmul_open(call, &a, &b, &m);
    if (err == OK) err = matmul_run(call, &a, &b, &m, scratch, done);
    matmul_close(&m);
    return err;
}
