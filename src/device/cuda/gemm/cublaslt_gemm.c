/* cublaslt_gemm.c -- c = keep c + a b (+ bias), told to cuBLASLt in its own terms, alone or with the sum or
 * the gelu that stands beside it.
 *
 * The library's matrices are column-major. A c whose rows are contiguous is, to it, the transpose:
 *
 *     c' [n, m] = b' [n, k] a' [k, m]           rows of c' are columns of c: a bias goes along them
 *
 * so nothing is ever transposed in memory. bf16 and f32 operands, f32 sums. What a call's views
 * cannot be told (no contiguous dim, mixed types, no depth) goes to gemm.cu; and where the library
 * has no algorithm for the two together, one is launched after the other. */
#include "device/cuda/gemm/cublaslt_gemm.h"

#include <string.h>

/* A matrix as the formula has it: strides down and along. */
typedef struct {
    const Tensor *t;
    int64_t rows, columns, down, along;
} Matrix;

static Matrix matrix_of(const Tensor *t, bool turned)
{
    return (Matrix){t, t->n[turned], t->n[!turned], t->stride[turned], t->stride[!turned]};
}

static Matrix transposed(Matrix m) { return (Matrix){m.t, m.columns, m.rows, m.along, m.down}; }

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Column-major, or its transpose: the step from column to column. A dim of 1 has any stride. */
static bool lies(Matrix m, int64_t *turned, int64_t *step)
{
    if ((m.down == 1 || m.rows == 1) && (m.along >= m.rows || m.columns == 1)) {
        *turned = 0;
        *step = m.columns == 1 ? larger(m.rows, 1) : m.along;
        return true;
    }
    if ((m.along == 1 || m.columns == 1) && (m.down >= m.columns || m.rows == 1)) {
        *turned = 1;
        *step = m.rows == 1 ? larger(m.columns, 1) : m.down;
        return true;
    }
    return false;
}

/* Bytes that a matrix is aligned to, rows included; 16 at most. */
static int64_t alignment(const void *at, int64_t step, int64_t type)
{
    const uintptr_t bits = (uintptr_t)at | (uintptr_t)step * dtype_bytes((DType)type) | 16;
    return (int64_t)(bits & -bits);
}

/* The library multiplies one type by itself, into that type or f32. */
static bool types_fit(const Tensor *a, const Tensor *b, const Tensor *c)
{
    return a->dtype == b->dtype && (c->dtype == F32 || c->dtype == a->dtype);
}

/* a b in the library's terms; false where it has none. *rows: its rows are columns of c. */
static bool shape_of(const Call *call, Shape *s, Operands *with, bool *rows)
{
    const Tensor *c = &call->out[0];
    Matrix d = matrix_of(c, false);
    Matrix x = matrix_of(&call->in[0], call->attr.gemm.ta);
    Matrix y = matrix_of(&call->in[1], call->attr.gemm.tb);
    int64_t turned;
    *s = (Shape){.type = x.t->dtype, .out_type = c->dtype, .adds = call->number[0] != 0};
    if (!types_fit(x.t, y.t, c) || x.columns == 0) return false;
    *rows = (d.along == 1 || d.columns == 1) && (d.down >= d.columns || d.rows == 1);
    if (*rows) {
        const Matrix swap = transposed(x);
        x = transposed(y);
        y = swap;
        d = transposed(d);
    }
    if (!lies(d, &turned, &s->d_step) || turned) return false;
    if (!lies(x, &s->x_turned, &s->x_step) || !lies(y, &s->y_turned, &s->y_step)) return false;
    s->rows = d.rows, s->columns = d.columns, s->depth = x.columns;
    *with = (Operands){.x = x.t->data, .y = y.t->data, .d = c->data};
    with->keep = (float)call->number[0];
    s->x_align = alignment(with->x, s->x_step, s->type);
    s->y_align = alignment(with->y, s->y_step, s->type);
    s->d_align = alignment(with->d, s->d_step, s->out_type);
    return true;
}

static bool add_bias(const Tensor *bias, const Tensor *c, Shape *s, Operands *with)
{
    if (bias->dtype != c->dtype || (bias->stride[0] != 1 && bias->n[0] != 1) ||
        (uintptr_t)bias->data % 16 != 0)
        return false;
    s->bias = 1;
    with->bias = bias->data;
    return true;
}

/* What is added lies as c does, row by row; it may be c. That is told in the same words, so that the
 * algorithm is the same whether or not the two share bytes. */
static bool add_addend(const Tensor *addend, const Tensor *c, Shape *s, Operands *with)
{
    if (addend->dtype != c->dtype || (addend->stride[1] != 1 && addend->n[1] != 1) ||
        addend->stride[0] < addend->n[1])
        return false;
    s->adds = 1;
    with->keep = 1;
    if (addend->data == c->data && addend->stride[0] != c->stride[0]) return false;
    s->c_step = addend->stride[0];
    s->c_align = alignment(addend->data, s->c_step, s->out_type);
    with->c = addend->data;
    return true;
}

/* The library's gelu is not as exact as f32 is: bf16 alone. */
static bool add_point(const Beside *b, const Tensor *c, Shape *s, Operands *with)
{
    const Tensor *u = b->aux;
    if (c->dtype != BF16 || u->dtype != BF16 || (u->stride[1] != 1 && u->n[1] != 1) ||
        u->stride[0] < u->n[1] || u->stride[0] % 8 != 0 || (uintptr_t)u->data % 16 != 0)
        return false;
    s->point = b->point;
    s->aux_step = u->stride[0];
    with->aux = u->data;
    return true;
}

bool product_as_one(const Call *call, const Beside *b, Shape *shape, Operands *with)
{
    const Tensor *c = &call->out[0];
    bool rows;
    return shape_of(call, shape, with, &rows) && rows &&
           (!b->bias || add_bias(b->bias, c, shape, with)) &&
           (!b->addend || add_addend(b->addend, c, shape, with)) &&
           (!b->point || add_point(b, c, shape, with));
}

/* Runs it as one, if that can be told and done; *done says so. */
static Err run_as_one(const Call *call, const Beside *b, bool *done)
{
    Shape shape;
    Operands with;
    Choice *choice;
    *done = product_as_one(call, b, &shape, &with);
    if (!*done) return OK;
    TRY(choices_find(call->queue, &shape, &with, &choice));
    *done = choice->possible;
    return *done ? choice_use(call->queue, choice, &with) : OK;
}

Err cuda_gemm(const Call *call)
{
    const Tensor *bias = call->n_in > 2 ? &call->in[2] : NULL, *c = &call->out[0];
    Shape shape;
    Operands with;
    Choice *choice;
    bool rows;
    TRY(cuda_begin(call, KERNEL_gemm));
    if (tensor_count(c) == 0) return OK;
    if (!shape_of(call, &shape, &with, &rows)) return cuda_gemm_strided(call);
    /* a bias that no epilogue takes */
    const bool apart = bias && !(rows && add_bias(bias, c, &shape, &with));
    if (apart) {
        shape.adds = 1;
        with.keep = 1;
    }
    TRY(choices_find(call->queue, &shape, &with, &choice));
    if (!choice->possible) return cuda_gemm_strided(call);
    if (apart) TRY(cuda_gemm_start(call));
    return choice_use(call->queue, choice, &with);
}

Call product_of(const Call *call, const Tensor *bias, Tensor c)
{
    Call p = *call;
    p.n_in = 2;
    if (bias) p.in[p.n_in++] = *bias;
    p.out[0] = c;
    p.n_out = 1;
    p.number[0] = 0;
    return p;
}

Call point_of(const Call *call, int n_in, const Tensor *in, Tensor out)
{
    Call p = {.n_in = n_in, .n_out = 1, .out = {out}, .team = call->team, .queue = call->queue};
    memcpy(p.in, in, (size_t)n_in * sizeof *in);
    return p;
}

Err cuda_gemm_add(const Call *call)
{
    const Tensor *addend = &call->in[2], *c = &call->out[0];
    const Beside b = {.bias = call->n_in > 3 ? &call->in[3] : NULL, .addend = addend};
    Call p = product_of(call, b.bias, *c);
    const Call start = point_of(call, 1, addend, *c);
    bool done;
    TRY(cuda_begin(call, KERNEL_gemm_add));
    if (tensor_count(c) == 0) return OK;
    TRY(run_as_one(&p, &b, &done));
    if (done) return OK;
    if (addend->data != c->data) TRY(cuda_copy(&start));
    p.number[0] = 1;
    return cuda_gemm(&p);
}
