/* choices.c -- one algorithm per shape of product: found, measured, kept. */
#include "device/cuda/choices.h"

#include <stdlib.h>
#include <string.h>

enum { CANDIDATES = 24, REPEATS = 3 };
#define MARGIN 0.98f /* less than that is noise: a card that warms up slows down */

static Err blas_failed(cublasStatus_t status, const char *call)
{
    return err_fail(ERR_IO, "cuda: %.*s: %s", (int)strcspn(call, "("), call,
                    cublasLtGetStatusString(status));
}

#define BLAS_TRY(call)                                                                             \
    do {                                                                                           \
        cublasStatus_t status_ = (call);                                                           \
        if (status_ != CUBLAS_STATUS_SUCCESS) return blas_failed(status_, #call);                  \
    } while (0)

static cudaDataType_t type_of(int64_t dtype) { return dtype == BF16 ? CUDA_R_16BF : CUDA_R_32F; }

Choices *choices_open(void) { return calloc(1, sizeof(Choices)); }

void choices_close(Choices *c)
{
    for (int i = 0; c && i < c->n; i++) {
        if (!c->choice[i].desc) continue;
        (void)cublasLtMatmulDescDestroy(c->choice[i].desc);
        (void)cublasLtMatrixLayoutDestroy(c->choice[i].x);
        (void)cublasLtMatrixLayoutDestroy(c->choice[i].y);
        (void)cublasLtMatrixLayoutDestroy(c->choice[i].d);
    }
    if (c) free(c->choice);
    free(c);
}

void cuda_choices_measure(DeviceContext *c, bool on) { c->choices->measure = on; }

static Err describe(Choice *c)
{
    const Shape *s = &c->shape;
    const cublasOperation_t x = s->x_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t y = s->y_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
    /* f32 sums of products that are not rounded first: no TF32. */
    BLAS_TRY(cublasLtMatmulDescCreate(&c->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    BLAS_TRY(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_TRANSA, &x, sizeof x));
    BLAS_TRY(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_TRANSB, &y, sizeof y));
    if (s->bias)
        BLAS_TRY(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias,
                                                sizeof bias));
    BLAS_TRY(cublasLtMatrixLayoutCreate(&c->x, type_of(s->type),
                                        (uint64_t)(s->x_turned ? s->depth : s->rows),
                                        (uint64_t)(s->x_turned ? s->rows : s->depth), s->x_step));
    BLAS_TRY(cublasLtMatrixLayoutCreate(
        &c->y, type_of(s->type), (uint64_t)(s->y_turned ? s->columns : s->depth),
        (uint64_t)(s->y_turned ? s->depth : s->columns), s->y_step));
    BLAS_TRY(cublasLtMatrixLayoutCreate(&c->d, type_of(s->out_type), (uint64_t)s->rows,
                                        (uint64_t)s->columns, s->d_step));
    return OK;
}

static Err set_bias(const Choice *c, const Operands *with)
{
    if (c->shape.bias)
        BLAS_TRY(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                &with->bias, sizeof with->bias));
    return OK;
}

Err choice_run(DeviceQueue *q, const Choice *c, const Operands *with)
{
    const float one = 1;
    void *scratch;
    TRY(cuda_scratch(q, BLAS_SCRATCH, &scratch));
    TRY(set_bias(c, with));
    BLAS_TRY(cublasLtMatmul(q->context->blas, c->desc, &one, with->x, c->x, with->y, c->y,
                            &with->keep, with->d, c->d, with->d, c->d, &c->algo, scratch,
                            BLAS_SCRATCH, q->stream));
    return OK;
}

/* Milliseconds, the least of some; a huge number where the algorithm does not run. */
static float time_of(DeviceQueue *q, const Choice *c, const Operands *with, cudaEvent_t event[2])
{
    float least = 1e30f;
    for (int i = 0; i <= REPEATS; i++) { /* the first one warms up */
        float ms = 1e30f;
        (void)cudaEventRecord(event[0], q->stream);
        if (choice_run(q, c, with) != OK) return 1e30f;
        (void)cudaEventRecord(event[1], q->stream);
        if (cudaEventSynchronize(event[1]) != cudaSuccess) return 1e30f;
        (void)cudaEventElapsedTime(&ms, event[0], event[1]);
        if (i > 0 && ms < least) least = ms;
    }
    return least;
}

/* The fastest candidate. What is kept in d must not be added to over and over: it is timed on a
 * copy's worth of other memory, and where there is none, the first suggestion stays. */
static Err measure(DeviceQueue *q, Choice *c, const Operands *with,
                   const cublasLtMatmulHeuristicResult_t *candidate, int n)
{
    const Shape *s = &c->shape;
    Operands timed = *with;
    cudaEvent_t event[2];
    float least = 1e30f;
    int best = 0;
    if (s->adds && cudaMalloc(&timed.d, (size_t)(s->columns * s->d_step) *
                                            dtype_bytes((DType)s->out_type)) != cudaSuccess) {
        (void)cudaGetLastError();
        return OK;
    }
    CUDA_TRY(cudaEventCreate(&event[0]));
    CUDA_TRY(cudaEventCreate(&event[1]));
    for (int i = 0; i < n; i++) {
        c->algo = candidate[i].algo;
        const float ms = time_of(q, c, &timed, event);
        if (ms < least * (i > 0 ? MARGIN : 1)) least = ms, best = i;
    }
    c->algo = candidate[best].algo;
    (void)cudaEventDestroy(event[0]);
    (void)cudaEventDestroy(event[1]);
    if (s->adds) CUDA_TRY(cudaFree(timed.d));
    return OK;
}

static Err ask(DeviceQueue *q, Choice *c, cublasLtMatmulHeuristicResult_t *candidate, int *n)
{
    const size_t scratch = BLAS_SCRATCH;
    const uint32_t x = (uint32_t)c->shape.x_align, y = (uint32_t)c->shape.y_align;
    const uint32_t d = (uint32_t)c->shape.d_align;
    cublasLtMatmulPreference_t wish;
    BLAS_TRY(cublasLtMatmulPreferenceCreate(&wish));
#define WISH(name, value)                                                                          \
    (void)cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_##name, &(value),        \
                                               sizeof(value))
    WISH(MAX_WORKSPACE_BYTES, scratch);
    WISH(MIN_ALIGNMENT_A_BYTES, x);
    WISH(MIN_ALIGNMENT_B_BYTES, y);
    WISH(MIN_ALIGNMENT_C_BYTES, d);
    WISH(MIN_ALIGNMENT_D_BYTES, d);
#undef WISH
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        q->context->blas, c->desc, c->x, c->y, c->d, c->d, wish, *n, candidate, n);
    (void)cublasLtMatmulPreferenceDestroy(wish);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED)
        *n = 0;
    else
        BLAS_TRY(status);
    return OK;
}

/* An algorithm for a shape that has none yet. */
static Err choose(DeviceQueue *q, Choice *c, const Operands *with)
{
    cublasLtMatmulHeuristicResult_t candidate[CANDIDATES];
    int n = q->context->choices->measure ? CANDIDATES : 1;
    TRY(set_bias(c, with));
    TRY(ask(q, c, candidate, &n));
    c->known = true;
    c->possible = n > 0;
    if (n > 0) c->algo = candidate[0].algo;
    return n > 1 ? measure(q, c, with, candidate, n) : OK;
}

static Err add_choice(Choices *all, const Shape *shape, Choice **out)
{
    if (all->n == all->room) {
        const int room = all->room ? 2 * all->room : 64;
        Choice *more = realloc(all->choice, sizeof *more * (size_t)room);
        if (!more) return err_fail(ERR_NOMEM, "cuda: no memory for %d shapes of products", room);
        all->choice = more;
        all->room = room;
    }
    *out = &all->choice[all->n++];
    memset(*out, 0, sizeof **out);
    (*out)->shape = *shape;
    return OK;
}

Choice *choices_known(Choices *all, const Shape *shape)
{
    for (int i = 0; i < all->n; i++)
        if (memcmp(&all->choice[i].shape, shape, sizeof *shape) == 0) return &all->choice[i];
    return NULL;
}

Err choices_put(Choices *all, const Shape *shape, const cublasLtMatmulAlgo_t *algo)
{
    Choice *c = choices_known(all, shape);
    if (!c) TRY(add_choice(all, shape, &c));
    c->algo = *algo;
    c->known = c->possible = true;
    return OK;
}

Err choices_find(DeviceQueue *q, const Shape *shape, const Operands *with, Choice **out)
{
    Choices *all = q->context->choices;
    Choice *c = choices_known(all, shape);
    if (!c) TRY(add_choice(all, shape, &c));
    if (!c->desc) TRY(describe(c));
    if (!c->known) TRY(choose(q, c, with));
    *out = c;
    return OK;
}
