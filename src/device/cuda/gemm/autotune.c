/* autotune.c -- the table of GEMM shapes: creates an entry, finds its algorithm, launches it. */
#include "device/cuda/gemm/autotune.h"

#include <stdlib.h>
#include <string.h>

Err blas_failed(cublasStatus_t status, const char *call)
{
    return err_fail(ERR_IO, "cuda: %.*s: %s", (int)strcspn(call, "("), call,
                    cublasLtGetStatusString(status));
}

Autotuner *autotuner_open(void) { return calloc(1, sizeof(Autotuner)); }

void autotuner_close(Autotuner *c)
{
    if (c) finalists_close(c);
    for (int i = 0; c && i < c->n; i++) {
        GemmEntry *entry = &c->entry[i];
        if (!entry->desc) continue;
        (void)cublasLtMatmulDescDestroy(entry->desc);
        (void)cublasLtMatrixLayoutDestroy(entry->x);
        (void)cublasLtMatrixLayoutDestroy(entry->y);
        (void)cublasLtMatrixLayoutDestroy(entry->d);
        if (entry->c) (void)cublasLtMatrixLayoutDestroy(entry->c);
    }
    if (c) attention_choice_close(&c->attention);
    if (c) free(c->entry);
    free(c);
}

static cublasLtEpilogue_t epilogue_of(const LtShape *s)
{
    switch ((EpilogueKind)s->epilogue) {
    case EPILOGUE_GELU:
        return s->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case EPILOGUE_DGELU:
        return CUBLASLT_EPILOGUE_DGELU;
    default:
        return s->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

static Err describe_work(GemmEntry *c)
{
    const LtShape *s = &c->shape;
    const cublasOperation_t x = s->x_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t y = s->y_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = epilogue_of(s);
    /* f32 accumulation of unrounded f32 operands: no TF32. */
    BLAS_TRY(cublasLtMatmulDescCreate(&c->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
#define SET(name, value)                                                                           \
    BLAS_TRY(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_##name, &(value),        \
                                            sizeof(value)))
    SET(TRANSA, x);
    SET(TRANSB, y);
    SET(EPILOGUE, epilogue);
    if (s->epilogue) SET(EPILOGUE_AUX_LD, s->aux_ld);
    /* The sums of e4m3 by e4m3, a forward GEMM, stay in the tensor cores; those of gradients are
     * promoted to f32 on the way. */
    const int8_t fast = s->type == E4M3;
    if (dtype_is_fp8((DType)s->type)) SET(FAST_ACCUM, fast);
#undef SET
    return OK;
}

static Err describe(GemmEntry *c)
{
    const LtShape *s = &c->shape;
    const cudaDataType_t x = lt_x_type(s->type), y = lt_type(s->type), out = lt_type(s->out_type);
    const uint64_t rows = (uint64_t)s->rows, columns = (uint64_t)s->columns;
    const uint64_t depth = (uint64_t)s->depth;
    TRY(describe_work(c));
    BLAS_TRY(cublasLtMatrixLayoutCreate(&c->x, x, s->x_transposed ? depth : rows,
                                        s->x_transposed ? rows : depth, s->x_ld));
    BLAS_TRY(cublasLtMatrixLayoutCreate(&c->y, y, s->y_transposed ? columns : depth,
                                        s->y_transposed ? depth : columns, s->y_ld));
    BLAS_TRY(cublasLtMatrixLayoutCreate(&c->d, out, rows, columns, s->d_ld));
    if (s->c_ld) BLAS_TRY(cublasLtMatrixLayoutCreate(&c->c, out, rows, columns, s->c_ld));
    return OK;
}

/* Sets the pointers that the epilogue reads and writes, and those of scales; they are part of the
 * descriptor. */
static Err set_epilogue_pointers(const GemmEntry *c, const LtOperands *operands)
{
    if (c->shape.bias)
        BLAS_TRY(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                &operands->bias, sizeof operands->bias));
    if (c->shape.epilogue)
        BLAS_TRY(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                                &operands->aux, sizeof operands->aux));
    if (!dtype_is_fp8((DType)c->shape.type)) return OK;
    BLAS_TRY(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                            &operands->x_scale, sizeof operands->x_scale));
    BLAS_TRY(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                            &operands->y_scale, sizeof operands->y_scale));
    return OK;
}

Err gemm_entry_launch(DeviceQueue *q, const GemmEntry *c, const LtOperands *operands)
{
    const float one = 1;
    void *scratch;
    TRY(cuda_scratch(q, BLAS_SCRATCH, &scratch));
    TRY(set_epilogue_pointers(c, operands));
    BLAS_TRY(cublasLtMatmul(q->context->blas, c->desc, &one, operands->x, c->x, operands->y, c->y,
                            &operands->keep, c->c ? operands->c : operands->d, c_layout_of(c),
                            operands->d, c->d, &c->algo, scratch, BLAS_SCRATCH, q->stream));
    return OK;
}

/* A GEMM that accumulates into d takes the measured algorithm of its twin, the same GEMM that
 * overwrites d, if that can run it. All micro-batches of a step but the first accumulate. */
static void follow_twin(DeviceContext *context, GemmEntry *c)
{
    LtShape shape = c->shape;
    Candidates candidates = {.n = 0};
    if (!shape.accumulates || shape.c_ld) return;
    shape.accumulates = 0;
    const GemmEntry *twin = autotuner_lookup(context->autotuner, &shape);
    if (twin && twin->possible) candidates_check(context, c, &twin->algo, &candidates);
    if (candidates.n == 0) return;
    c->algo = candidates.algo[0];
    c->known = c->possible = c->follows_twin = true;
}

/* Finds an algorithm for a shape that has none yet. */
static Err find_algo(DeviceQueue *q, GemmEntry *c, const LtOperands *operands)
{
    const bool measuring = q->context->autotuner->measuring;
    Candidates candidates = {.n = 0};
    /* only a fusion is to be chosen, no algorithm */
    if (!epilogue_in_cublaslt(c->shape.epilogue)) {
        c->known = c->possible = true;
        return OK;
    }
    TRY(set_epilogue_pointers(c, operands));
    if (measuring) follow_twin(q->context, c);
    if (c->known) return OK;
    TRY(candidates_suggested(q, c, measuring ? MAX_CANDIDATES : 1, &candidates));
    c->known = true;
    c->possible = candidates.n > 0;
    if (candidates.n > 0) c->algo = candidates.algo[0];
    return candidates.n > 0 && measuring ? gemm_entry_tune(q, c, operands, &candidates) : OK;
}

static Err add_entry(Autotuner *all, const LtShape *shape, GemmEntry **out)
{
    if (all->n == all->cap) {
        const int cap = all->cap ? 2 * all->cap : 64;
        GemmEntry *more = realloc(all->entry, sizeof *more * (size_t)cap);
        if (!more) return err_fail(ERR_NOMEM, "cuda: no memory for %d GEMM shapes", cap);
        all->entry = more;
        all->cap = cap;
    }
    *out = &all->entry[all->n++];
    memset(*out, 0, sizeof **out);
    (*out)->shape = *shape;
    return OK;
}

GemmEntry *autotuner_lookup(Autotuner *all, const LtShape *shape)
{
    for (int i = 0; i < all->n; i++)
        if (memcmp(&all->entry[i].shape, shape, sizeof *shape) == 0) return &all->entry[i];
    return NULL;
}

Err autotuner_put(Autotuner *all, const LtShape *shape, GemmFusion fusion,
                  const cublasLtMatmulAlgo_t *algo)
{
    GemmEntry *c = autotuner_lookup(all, shape);
    if (!c) TRY(add_entry(all, shape, &c));
    finalists_drop(c);
    c->follows_twin = false;
    c->algo = *algo;
    c->fusion = fusion;
    c->known = c->possible = true;
    return OK;
}

Err autotuner_find(DeviceQueue *q, const LtShape *shape, const LtOperands *operands,
                   GemmEntry **out)
{
    Autotuner *all = q->context->autotuner;
    GemmEntry *c = autotuner_lookup(all, shape);
    if (!c) TRY(add_entry(all, shape, &c));
    if (!c->desc) TRY(describe(c));
    if (!c->known) TRY(find_algo(q, c, operands));
    *out = c;
    return OK;
}

void cuda_autotune_measure(DeviceContext *c, bool on)
{
    Autotuner *all = c->autotuner;
    if (all->measuring && !on) finalists_settle(all);
    for (int i = 0; i < all->n && all->measuring && !on; i++)
        if (all->entry[i].follows_twin) follow_twin(c, &all->entry[i]);
    all->measuring = on;
    c->epoch++;
}
