/* autotune.c -- one algorithm per shape of product: found, kept, run. */
#include "device/cuda/gemm/autotune.h"

#include <stdlib.h>
#include <string.h>

Err blas_failed(cublasStatus_t status, const char *call)
{
    return err_fail(ERR_IO, "cuda: %.*s: %s", (int)strcspn(call, "("), call,
                    cublasLtGetStatusString(status));
}

Choices *choices_open(void) { return calloc(1, sizeof(Choices)); }

void choices_close(Choices *c)
{
    if (c) trials_close(c);
    for (int i = 0; c && i < c->n; i++) {
        Choice *choice = &c->choice[i];
        if (!choice->desc) continue;
        (void)cublasLtMatmulDescDestroy(choice->desc);
        (void)cublasLtMatrixLayoutDestroy(choice->x);
        (void)cublasLtMatrixLayoutDestroy(choice->y);
        (void)cublasLtMatrixLayoutDestroy(choice->d);
        if (choice->c) (void)cublasLtMatrixLayoutDestroy(choice->c);
    }
    if (c) free(c->choice);
    free(c);
}

static cublasLtEpilogue_t epilogue_of(const Shape *s)
{
    switch ((Point)s->point) {
    case POINT_GELU:
        return s->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case POINT_DGELU:
        return CUBLASLT_EPILOGUE_DGELU;
    default:
        return s->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

static Err describe_work(Choice *c)
{
    const Shape *s = &c->shape;
    const cublasOperation_t x = s->x_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t y = s->y_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = epilogue_of(s);
    /* f32 sums of products that are not rounded first: no TF32. */
    BLAS_TRY(cublasLtMatmulDescCreate(&c->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
#define SET(name, value)                                                                           \
    BLAS_TRY(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_##name, &(value),        \
                                            sizeof(value)))
    SET(TRANSA, x);
    SET(TRANSB, y);
    SET(EPILOGUE, epilogue);
    if (s->point) SET(EPILOGUE_AUX_LD, s->aux_step);
#undef SET
    return OK;
}

static Err describe(Choice *c)
{
    const Shape *s = &c->shape;
    const cudaDataType_t in = type_of(s->type), out = type_of(s->out_type);
    const uint64_t rows = (uint64_t)s->rows, columns = (uint64_t)s->columns;
    const uint64_t depth = (uint64_t)s->depth;
    TRY(describe_work(c));
    BLAS_TRY(cublasLtMatrixLayoutCreate(&c->x, in, s->x_turned ? depth : rows,
                                        s->x_turned ? rows : depth, s->x_step));
    BLAS_TRY(cublasLtMatrixLayoutCreate(&c->y, in, s->y_turned ? columns : depth,
                                        s->y_turned ? depth : columns, s->y_step));
    BLAS_TRY(cublasLtMatrixLayoutCreate(&c->d, out, rows, columns, s->d_step));
    if (s->c_step) BLAS_TRY(cublasLtMatrixLayoutCreate(&c->c, out, rows, columns, s->c_step));
    return OK;
}

/* What an epilogue reads and writes. */
static Err set_beside(const Choice *c, const Operands *with)
{
    if (c->shape.bias)
        BLAS_TRY(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                &with->bias, sizeof with->bias));
    if (c->shape.point)
        BLAS_TRY(cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                                &with->aux, sizeof with->aux));
    return OK;
}

Err choice_run(DeviceQueue *q, const Choice *c, const Operands *with)
{
    const float one = 1;
    void *scratch;
    TRY(cuda_scratch(q, BLAS_SCRATCH, &scratch));
    TRY(set_beside(c, with));
    BLAS_TRY(cublasLtMatmul(q->context->blas, c->desc, &one, with->x, c->x, with->y, c->y,
                            &with->keep, c->c ? with->c : with->d, added_of(c), with->d, c->d,
                            &c->algo, scratch, BLAS_SCRATCH, q->stream));
    return OK;
}

/* A product that adds to what d holds, as all micro-batches of a step but the first do, is run as the
 * one that does not, if that was measured and can be. */
static void follow(DeviceContext *context, Choice *c)
{
    Shape shape = c->shape;
    Field field = {.n = 0};
    if (!shape.adds || shape.c_step) return;
    shape.adds = 0;
    const Choice *twin = choices_known(context->choices, &shape);
    if (twin && twin->possible) field_try(context, c, &twin->algo, &field);
    if (field.n == 0) return;
    c->algo = field.algo[0];
    c->known = c->possible = c->follows = true;
}

/* An algorithm for a shape that has none yet. */
static Err choose(DeviceQueue *q, Choice *c, const Operands *with)
{
    const bool measure = q->context->choices->measure;
    Field field = {.n = 0};
    if (!point_in_library(c->shape.point)) { /* it has a way, not an algorithm */
        c->known = c->possible = true;
        return OK;
    }
    TRY(set_beside(c, with));
    if (measure) follow(q->context, c);
    if (c->known) return OK;
    TRY(field_suggested(q, c, measure ? MAX_FIELD : 1, &field));
    c->known = true;
    c->possible = field.n > 0;
    if (field.n > 0) c->algo = field.algo[0];
    return field.n > 0 && measure ? choice_measure(q, c, with, &field) : OK;
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

Err choices_put(Choices *all, const Shape *shape, Way way, const cublasLtMatmulAlgo_t *algo)
{
    Choice *c = choices_known(all, shape);
    if (!c) TRY(add_choice(all, shape, &c));
    trial_drop(c);
    c->follows = false;
    c->algo = *algo;
    c->way = way;
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

void cuda_autotune_measure(DeviceContext *c, bool on)
{
    Choices *all = c->choices;
    if (all->measure && !on) trials_end(all);
    for (int i = 0; i < all->n && all->measure && !on; i++)
        if (all->choice[i].follows) follow(c, &all->choice[i]);
    all->measure = on;
    c->epoch++;
}
