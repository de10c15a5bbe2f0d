/* ref.h -- the parts shared by the files of the reference device: rows in, doubles inside, rows
 * out.
 *
 *     tensor (f64, f32, bf16; any strides) --row_load--> double[REF_CHUNK] on the stack
 *         --plain loops--> double[REF_CHUNK] --row_store, row_keep--> tensor
 *
 * All arithmetic is f64 and is rounded once, to the stored type. So the device is an oracle in f32
 * too, each kernel is written once for all types, and no inner loop branches on a type. No kernel
 * allocates; each has a tile of fixed size on its stack.
 *
 * Tiles depend on shapes alone, and one tile computes each sum, in index order. */
#ifndef DEVICE_REF_REF_H
#define DEVICE_REF_REF_H

#include <stdint.h>
#include "base/math.h"
#include "device/device.h"

enum { REF_CHUNK = 256 };

/* Elements along one dim of a tensor; element i is at[i * stride]. */
typedef struct {
    char *at;
    DType dtype;
    int64_t stride;
} RowRef;

/* n <= REF_CHUNK elements, from index `from` on. */
void row_load(RowRef r, int64_t from, int64_t n, double *x);
void row_store(RowRef r, int64_t from, int64_t n, const double *x);
/* row = keep * row + g, where g is rounded to the row's type first. After several calls the sum is
 * then the fold of the values that each call alone would have stored. keep == 0 reads nothing. */
void row_keep(RowRef r, int64_t from, int64_t n, double keep, const double *g);

/* The element at row-major index `index`, of any floating type. */
double tensor_get(const Tensor *t, int64_t index);
void tensor_set(const Tensor *t, int64_t index, double x);

/* The offset, in elements, of row-major index `index` of the first `dims` dims. */
static inline int64_t tensor_offset(const Tensor *t, int dims, int64_t index)
{
    int64_t offset = 0;
    for (int d = dims - 1; d > 0; d--) {
        offset += index % t->n[d] * t->stride[d];
        index /= t->n[d];
    }
    if (dims > 0) offset += index * t->stride[0];
    return offset;
}

static inline RowRef row_at(const Tensor *t, int64_t offset, int64_t stride)
{
    return (RowRef){(char *)t->data + offset * (int64_t)dtype_bytes(t->dtype), t->dtype, stride};
}

/* RowRef `index` along the last dim; a tensor without dims is one row of one element. */
static inline RowRef tensor_row(const Tensor *t, int64_t index)
{
    if (t->ndim == 0) return row_at(t, 0, 1);
    return row_at(t, tensor_offset(t, t->ndim - 1, index), t->stride[t->ndim - 1]);
}

static inline int64_t row_length(const Tensor *t) { return t->ndim == 0 ? 1 : t->n[t->ndim - 1]; }

static inline int64_t row_count(const Tensor *t)
{
    int64_t rows = 1;
    for (int d = 0; d < t->ndim - 1; d++) rows *= t->n[d];
    return rows;
}

/* Element i of a list of i32. */
static inline int64_t int_at(const Tensor *t, int64_t i)
{
    return ((const int32_t *)t->data)[i * t->stride[0]];
}

/* The scale of element (row, column), as stored, of an operand in 8 bits: s is [1], or one for each
 * block of elements. */
double fp8_scale_at(const Tensor *s, const int32_t block[2], int64_t row, int64_t column);

/* The number of blocks of `size` that cover n. */
static inline int64_t blocks_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* Runs the tiles of a call over its team; `run` gets the call, which no tile may change. */
static inline void ref_tiles(const Call *call, int64_t n_tiles,
                             void (*run)(void *call, int64_t tile))
{
    if (n_tiles > 0) team_run(call->team, n_tiles, run, (void *)call);
}

#define KERNEL(id) Err ref_##id(const Call *call);
#include "device/kernels.def"
#undef KERNEL

#endif
