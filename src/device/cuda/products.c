/* products.c -- c = keep c + a b (+ bias), told to cuBLASLt in its own terms.
 *
 * The library's matrices are column-major. A c whose rows are contiguous is, to it, the transpose:
 *
 *     c' [n, m] = b' [n, k] a' [k, m]           rows of c' are columns of c: a bias goes along them
 *
 * so nothing is ever transposed in memory. bf16 and f32 operands, f32 sums. What a call's views
 * cannot be told (no contiguous dim, mixed types, no depth) goes to gemm.cu. */
#include <string.h>

#include "device/cuda/choices.h"

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

/* The call in the library's terms; false where it has none. */
static bool shape_of(const Call *call, Shape *out, Operands *with)
{
    const Tensor *c = &call->out[0];
    Matrix d = matrix_of(c, false);
    Matrix x = matrix_of(&call->in[0], call->attr.gemm.ta);
    Matrix y = matrix_of(&call->in[1], call->attr.gemm.tb);
    int64_t turned;
    Shape s = {.type = x.t->dtype, .out_type = c->dtype, .adds = call->number[0] != 0};
    if (!types_fit(x.t, y.t, c) || x.columns == 0) return false;
    const bool rows = (d.along == 1 || d.columns == 1) && (d.down >= d.columns || d.rows == 1);
    if (rows) {
        const Matrix swap = transposed(x);
        x = transposed(y);
        y = swap;
        d = transposed(d);
    }
    if (!lies(d, &turned, &s.d_step) || turned) return false;
    if (!lies(x, &s.x_turned, &s.x_step) || !lies(y, &s.y_turned, &s.y_step)) return false;
    s.rows = d.rows, s.columns = d.columns, s.depth = x.columns;
    *with = (Operands){.x = x.t->data, .y = y.t->data, .d = c->data};
    with->keep = (float)call->number[0];
    s.x_align = alignment(with->x, s.x_step, s.type);
    s.y_align = alignment(with->y, s.y_step, s.type);
    s.d_align = alignment(with->d, s.d_step, s.out_type);
    const Tensor *bias = call->n_in > 2 ? &call->in[2] : NULL;
    if (bias && rows && bias->dtype == c->dtype && (bias->stride[0] == 1 || bias->n[0] == 1) &&
        (uintptr_t)bias->data % 16 == 0) {
        s.bias = 1;
        with->bias = bias->data;
    }
    *out = s;
    return true;
}

Err cuda_gemm(const Call *call)
{
    Shape shape;
    Operands with;
    Choice *choice;
    TRY(cuda_begin(call, KERNEL_gemm));
    if (tensor_count(&call->out[0]) == 0) return OK;
    if (!shape_of(call, &shape, &with)) return cuda_gemm_strided(call);
    const bool apart = call->n_in > 2 && !shape.bias; /* a bias that no epilogue takes */
    if (apart) {
        shape.adds = 1;
        with.keep = 1;
    }
    TRY(choices_find(call->queue, &shape, &with, &choice));
    if (!choice->possible) return cuda_gemm_strided(call);
    if (apart) TRY(cuda_gemm_start(call));
    return choice_run(call->queue, choice, &with);
}
