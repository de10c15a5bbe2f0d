/* cublaslt_gemm.c -- c = keep c + a b (+ bias) by cuBLASLt, with an addend or a gelu in its
 * epilogue.
 *
 * cuBLASLt's matrices are column-major. To cuBLASLt, a c with contiguous rows is its transpose:
 *
 *     c' [n, m] = b' [n, k] a' [k, m]           rows of c' are columns of c: a bias runs along them
 *
 * so nothing is transposed in memory. Operands are bf16 or f32, accumulation is f32. A call that
 * cuBLASLt cannot express (no contiguous dim, mixed types, depth 0) goes to strided_gemm.cu. If
 * cuBLASLt has no algorithm for a GEMM with its epilogue, the two are launched one after the
 * other. */
#include "device/cuda/gemm/cublaslt_gemm.h"

#include <string.h>
#include "base/math.h"

/* A matrix in the formula's orientation: strides from row to row and from column to column. */
typedef struct {
    const Tensor *t;
    int64_t rows, columns, down, along;
} MatrixView;

static MatrixView matrix_of(const Tensor *t, bool transposed)
{
    return (MatrixView){t, t->n[transposed], t->n[!transposed], t->stride[transposed],
                        t->stride[!transposed]};
}

static MatrixView transpose(MatrixView m)
{
    return (MatrixView){m.t, m.columns, m.rows, m.along, m.down};
}

/* Leading dimension of a column-major or transposed matrix; false if it is neither. A dim of 1 has
 * any stride. */
static bool leading_dim(MatrixView m, int64_t *transposed, int64_t *ld)
{
    if ((m.down == 1 || m.rows == 1) && (m.along >= m.rows || m.columns == 1)) {
        *transposed = 0;
        *ld = m.columns == 1 ? max_i64(m.rows, 1) : m.along;
        return true;
    }
    if ((m.along == 1 || m.columns == 1) && (m.down >= m.columns || m.rows == 1)) {
        *transposed = 1;
        *ld = m.rows == 1 ? max_i64(m.columns, 1) : m.down;
        return true;
    }
    return false;
}

/* Bytes to which all columns of a matrix are aligned, at most 16. */
static int64_t alignment(const void *at, int64_t ld, int64_t type)
{
    const uintptr_t bits = (uintptr_t)at | (uintptr_t)ld * dtype_bytes((DType)type) | 16;
    return (int64_t)(bits & -bits);
}

/* cuBLASLt multiplies operands of one type, into that type or f32. */
static bool types_fit(const Tensor *a, const Tensor *b, const Tensor *c)
{
    return a->dtype == b->dtype && (c->dtype == F32 || c->dtype == a->dtype);
}

/* Describes a b; false if cuBLASLt cannot express it. *rows: cuBLASLt's rows are columns of c. */
static bool describe_gemm(const Call *call, LtShape *s, LtOperands *operands, bool *rows)
{
    const Tensor *c = &call->out[0];
    MatrixView d = matrix_of(c, false);
    MatrixView x = matrix_of(&call->in[0], call->attr.gemm.ta);
    MatrixView y = matrix_of(&call->in[1], call->attr.gemm.tb);
    int64_t transposed;
    *s = (LtShape){.type = x.t->dtype, .out_type = c->dtype, .accumulates = call->number[0] != 0};
    if (!types_fit(x.t, y.t, c) || x.columns == 0) return false;
    *rows = (d.along == 1 || d.columns == 1) && (d.down >= d.columns || d.rows == 1);
    if (*rows) {
        const MatrixView swap = transpose(x);
        x = transpose(y);
        y = swap;
        d = transpose(d);
    }
    if (!leading_dim(d, &transposed, &s->d_ld) || transposed) return false;
    if (!leading_dim(x, &s->x_transposed, &s->x_ld) || !leading_dim(y, &s->y_transposed, &s->y_ld))
        return false;
    s->rows = d.rows, s->columns = d.columns, s->depth = x.columns;
    *operands = (LtOperands){.x = x.t->data, .y = y.t->data, .d = c->data};
    operands->keep = (float)call->number[0];
    s->x_align = alignment(operands->x, s->x_ld, s->type);
    s->y_align = alignment(operands->y, s->y_ld, s->type);
    s->d_align = alignment(operands->d, s->d_ld, s->out_type);
    return true;
}

static bool add_bias(const Tensor *bias, const Tensor *c, LtShape *s, LtOperands *operands)
{
    if (bias->dtype != c->dtype || (bias->stride[0] != 1 && bias->n[0] != 1) ||
        (uintptr_t)bias->data % 16 != 0)
        return false;
    s->bias = 1;
    operands->bias = bias->data;
    return true;
}

/* The addend has the row-major layout of c and may be c itself. Both cases are described alike, so
 * that the algorithm does not depend on whether the two share memory. */
static bool add_addend(const Tensor *addend, const Tensor *c, LtShape *s, LtOperands *operands)
{
    if (addend->dtype != c->dtype || (addend->stride[1] != 1 && addend->n[1] != 1) ||
        addend->stride[0] < addend->n[1])
        return false;
    s->accumulates = 1;
    operands->keep = 1;
    if (addend->data == c->data && addend->stride[0] != c->stride[0]) return false;
    s->c_ld = addend->stride[0];
    s->c_align = alignment(addend->data, s->c_ld, s->out_type);
    operands->c = addend->data;
    return true;
}

/* cuBLASLt's gelu is less exact than f32, so it is used for bf16 only. */
static bool add_activation(const EpilogueOperands *b, const Tensor *c, LtShape *s,
                           LtOperands *operands)
{
    const Tensor *u = b->aux;
    if (c->dtype != BF16 || u->dtype != BF16 || (u->stride[1] != 1 && u->n[1] != 1) ||
        u->stride[0] < u->n[1] || u->stride[0] % 8 != 0 || (uintptr_t)u->data % 16 != 0)
        return false;
    s->epilogue = b->kind;
    s->aux_ld = u->stride[0];
    operands->aux = u->data;
    return true;
}

bool lt_describe(const Call *call, const EpilogueOperands *b, LtShape *shape, LtOperands *operands)
{
    const Tensor *c = &call->out[0];
    bool rows;
    return describe_gemm(call, shape, operands, &rows) && rows &&
           (!b->bias || add_bias(b->bias, c, shape, operands)) &&
           (!b->addend || add_addend(b->addend, c, shape, operands)) &&
           (!b->kind || add_activation(b, c, shape, operands));
}

/* Runs the GEMM with its epilogue if cuBLASLt can; *done is then true. */
static Err run_fused(const Call *call, const EpilogueOperands *b, bool *done)
{
    LtShape shape;
    LtOperands operands;
    GemmEntry *entry;
    *done = lt_describe(call, b, &shape, &operands);
    if (!*done) return OK;
    TRY(autotuner_find(call->queue, &shape, &operands, &entry));
    *done = entry->possible;
    return *done ? gemm_entry_run(call->queue, entry, &operands) : OK;
}

Err cuda_gemm(const Call *call)
{
    const Tensor *bias = call->n_in > 2 ? &call->in[2] : NULL, *c = &call->out[0];
    LtShape shape;
    LtOperands operands;
    GemmEntry *entry;
    bool rows;
    TRY(cuda_begin(call, KERNEL_gemm));
    if (tensor_count(c) == 0) return OK;
    if (!describe_gemm(call, &shape, &operands, &rows)) return cuda_gemm_strided(call);
    /* A bias that no epilogue takes is written to c first, and the GEMM accumulates. */
    const bool bias_first = bias && !(rows && add_bias(bias, c, &shape, &operands));
    if (bias_first) {
        shape.accumulates = 1;
        operands.keep = 1;
    }
    TRY(autotuner_find(call->queue, &shape, &operands, &entry));
    if (!entry->possible) return cuda_gemm_strided(call);
    if (bias_first) TRY(cuda_gemm_start(call));
    return gemm_entry_run(call->queue, entry, &operands);
}

Call gemm_alone(const Call *call, const Tensor *bias, Tensor c)
{
    Call p = *call;
    p.n_in = 2;
    if (bias) p.in[p.n_in++] = *bias;
    p.out[0] = c;
    p.n_out = 1;
    p.number[0] = 0;
    return p;
}

Call pointwise_alone(const Call *call, int n_in, const Tensor *in, Tensor out)
{
    Call p = {.n_in = n_in, .n_out = 1, .out = {out}, .team = call->team, .queue = call->queue};
    memcpy(p.in, in, (size_t)n_in * sizeof *in);
    return p;
}

Err cuda_gemm_add(const Call *call)
{
    const Tensor *addend = &call->in[2], *c = &call->out[0];
    const EpilogueOperands b = {.bias = call->n_in > 3 ? &call->in[3] : NULL, .addend = addend};
    Call p = gemm_alone(call, b.bias, *c);
    const Call start = pointwise_alone(call, 1, addend, *c);
    bool done;
    TRY(cuda_begin(call, KERNEL_gemm_add));
    if (tensor_count(c) == 0) return OK;
    TRY(run_fused(&p, &b, &done));
    if (done) return OK;
    if (addend->data != c->data) TRY(cuda_copy(&start));
    p.number[0] = 1;
    return cuda_gemm(&p);
}
