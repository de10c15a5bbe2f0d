/* simd.h -- shared by the kernels of one instruction set: function names, pieces of rows, tiles.
 *
 *     tensor (f32 or bf16, any strides) --read_piece--> float * --vector loops--> float *
 *         --end_piece--> tensor
 *
 * A piece is a run of at most PIECE elements of a row. If the tensor is f32 and contiguous, the
 * pointer is into the tensor itself and nothing is copied. Else it is a buffer on the stack that
 * stays in L1. So each kernel is written once, for contiguous f32.
 *
 * All files of this folder are compiled once per instruction set, with CPU_SIMD defined as its
 * name: CPU_NAME(gemm) is cpu_avx512_gemm and so on. Tiles follow from shapes alone, and the order
 * within a tile is fixed. So results depend on the instruction set, never on the number of
 * threads. */
#ifndef DEVICE_CPU_SIMD_SIMD_H
#define DEVICE_CPU_SIMD_SIMD_H

#include "device/cpu/simd/vec.h"
#include "device/cpu/microkernels.h"
#include "device/ref/ref.h" /* RowRef, extents of rows, blocks */

#ifndef CPU_SIMD
#define CPU_SIMD base
#endif
#define CPU_JOIN_(simd, name) cpu_##simd##_##name
#define CPU_JOIN(simd, name) CPU_JOIN_(simd, name)
#define CPU_NAME(name) CPU_JOIN(CPU_SIMD, name)

#define KERNEL(id) Err CPU_NAME(id)(const Call *call);
#include "device/kernels.def"
#undef KERNEL

/* Elements of a piece; elements of a tile of streaming work, about 10 us. */
enum { PIECE = 1024, TILE_WORK = 32768 };

#define floats_of_bf16 CPU_NAME(floats_of_bf16)
#define bf16_of_floats CPU_NAME(bf16_of_floats)
#define load_steps CPU_NAME(load_steps)
#define store_steps CPU_NAME(store_steps)
#define run_rows CPU_NAME(run_rows)

/* Convert n elements that are contiguous, or `stride` apart. They take no RowRef: a RowRef passed
 * on the stack is loaded wider than it was stored, and such a load waits for all earlier stores. */
void floats_of_bf16(const uint16_t *at, int64_t n, float *x);
void bf16_of_floats(uint16_t *at, int64_t n, const float *x);
void load_steps(const char *at, DType dtype, int64_t stride, int64_t n, float *x);
void store_steps(char *at, DType dtype, int64_t stride, int64_t n, const float *x);

static inline bool piece_is_contiguous(RowRef r, DType type)
{
    return r.dtype == type && r.stride == 1;
}
static inline bool piece_is_plain(RowRef r) { return piece_is_contiguous(r, F32); }

static inline char *piece_at(RowRef r, int64_t from)
{
    return r.at + from * r.stride * (int64_t)dtype_bytes(r.dtype);
}

/* Loads elements [from, from + n) as floats; f32 or bf16 with any stride. */
static inline void load_piece(RowRef r, int64_t from, int64_t n, float *x)
{
    const char *at = piece_at(r, from);
    if (r.dtype == BF16 && r.stride == 1)
        floats_of_bf16((const uint16_t *)(const void *)at, n, x);
    else if (piece_is_plain(r))
        memcpy(x, at, (size_t)n * sizeof *x);
    else
        load_steps(at, r.dtype, r.stride, n, x);
}

static inline void store_piece(RowRef r, int64_t from, int64_t n, const float *x)
{
    char *at = piece_at(r, from);
    if (r.dtype == BF16 && r.stride == 1)
        bf16_of_floats((uint16_t *)(void *)at, n, x);
    else if (piece_is_plain(r))
        memcpy(at, x, (size_t)n * sizeof *x);
    else
        store_steps(at, r.dtype, r.stride, n, x);
}

/* Returns the elements as floats: a pointer into the tensor, or a copy in `buffer`. */
static inline const float *read_piece(RowRef r, int64_t from, int64_t n, float *buffer)
{
    if (piece_is_plain(r)) return (const float *)(void *)r.at + from;
    load_piece(r, from, n, buffer);
    return buffer;
}

/* Returns where to write elements: in the tensor, or `buffer`, which end_piece stores to the
 * tensor. */
static inline float *write_piece(RowRef r, int64_t from, float *buffer)
{
    return piece_is_plain(r) ? (float *)(void *)r.at + from : buffer;
}

static inline void end_piece(RowRef r, int64_t from, int64_t n, const float *buffer)
{
    if (!piece_is_plain(r)) store_piece(r, from, n, buffer);
}

/* Prefetches elements into L1. A kernel that reads a row and then computes leaves memory idle in
 * between; and the hardware prefetcher cannot predict rows that ids select. */
static inline void prefetch_piece(RowRef r, int64_t from, int64_t n)
{
    enum { LINE = 64 };
    const char *at = piece_at(r, from), *end = at + n * (int64_t)dtype_bytes(r.dtype);
    for (; r.stride == 1 && at < end; at += LINE) __builtin_prefetch(at, 0, 3);
}

/* row = keep * row + g; with keep == 0 the row is not read. */
static inline void keep_piece(RowRef r, int64_t from, int64_t n, float keep, const float *g)
{
    if (keep == 0) { /* the old content may be NaN */
        store_piece(r, from, n, g);
        return;
    }
    _Alignas(64) float buffer[PIECE];
    for (int64_t done = 0; done < n; done += PIECE) {
        const int64_t part = min_i64(n - done, PIECE);
        const float *old = read_piece(r, from + done, part, buffer);
        float *sum = write_piece(r, from + done, buffer);
        for (int64_t i = 0; i < part; i += W)
            v_store_to(sum + i, part - i,
                       keep * v_load_to(old + i, part - i) + v_load_to(g + done + i, part - i));
        end_piece(r, from + done, part, buffer);
    }
}

/* The storage of a piece in memory, and the way it is rounded. */
typedef enum {
    AS_F32,
    AS_BF16,
    AS_BF16_HW, /* bf16, rounded by an instruction of AVX512-BF16 */
    AS_OTHER    /* not contiguous, or another type */
} ElementForm;

static inline ElementForm form_of_type(DType type)
{
    if (type != BF16) return type == F32 ? AS_F32 : AS_OTHER;
    return W == 16 && microkernel_rounds_bf16() ? AS_BF16_HW : AS_BF16;
}

static inline ElementForm form_of(RowRef r)
{
    return r.stride == 1 ? form_of_type(r.dtype) : AS_OTHER;
}

/* For functions that are inlined once per form, so that the form is a constant in each. */
#define EACH_FORM static inline __attribute__((always_inline))

/* Loads the vector of elements i .. i + W. */
EACH_FORM V v_load_as(ElementForm form, const void *at, int64_t i)
{
    return form == AS_F32 ? v_load((const float *)at + i) : v_load_bf16((const uint16_t *)at + i);
}

EACH_FORM void v_store_pair_as(ElementForm form, void *at, int64_t i, V a, V b)
{
    if (form == AS_BF16_HW) {
        v_store_bf16_pair_hw((uint16_t *)at + i, a, b);
    } else if (form == AS_BF16) {
        v_store_bf16_pair((uint16_t *)at + i, a, b);
    } else {
        v_store((float *)at + i, a);
        v_store((float *)at + i + W, b);
    }
}

/* An element of a tensor of statistics, usually one per row: f32 without the generic path. */
static inline float stat_get(const Tensor *t, int64_t index)
{
    if (t->dtype == F32 && t->ndim == 1) return ((const float *)t->data)[index * t->stride[0]];
    return (float)tensor_get(t, index);
}

static inline void stat_set(const Tensor *t, int64_t index, float x)
{
    if (t->dtype == F32 && t->ndim == 1)
        ((float *)t->data)[index * t->stride[0]] = x;
    else
        tensor_set(t, index, (double)x);
}

/* Runs `row(work, i)` for i in [0, rows), with about TILE_WORK elements per tile. */
void run_rows(Team *team, int64_t rows, int64_t length, void (*row)(const void *work, int64_t i),
              const void *work);

#endif
