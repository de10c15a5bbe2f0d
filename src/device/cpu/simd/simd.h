/* simd.h -- what the kernels of one instruction set share: their names, pieces of rows, tiles.
 *
 *     tensor (f32 or bf16, any strides) --read_piece--> float * --vector loops--> float *
 *         --end_piece--> tensor
 *
 * A piece is a run of at most PIECE elements of a row. Where the tensor is f32 and contiguous the
 * pointer is into the tensor itself and nothing is copied; else it is a buffer on the stack that
 * stays in the first cache. So each kernel is written once, on contiguous f32.
 *
 * All files of this folder are compiled once for each instruction set, with CPU_SIMD its name; the
 * functions of one are cpu_avx512_gemm and so on. Tiles follow from shapes alone, and within a
 * tile the order is fixed: results depend on the instruction set, never on the threads. */
#ifndef DEVICE_CPU_SIMD_SIMD_H
#define DEVICE_CPU_SIMD_SIMD_H

#include "device/cpu/simd/vec.h"
#include "device/ref/ref.h" /* Row, extents of rows, blocks */

#ifndef CPU_SIMD
#define CPU_SIMD base
#endif
#define CPU_JOIN_(simd, name) cpu_##simd##_##name
#define CPU_JOIN(simd, name) CPU_JOIN_(simd, name)
#define CPU_NAME(name) CPU_JOIN(CPU_SIMD, name)

#define KERNEL(id) Err CPU_NAME(id)(const Call *call);
#include "device/kernels.def"
#undef KERNEL

/* Elements of a piece; of a tile of streaming work, some 10 us of it. */
enum { PIECE = 1024, TILE_WORK = 32768 };

#define load_piece CPU_NAME(load_piece)
#define store_piece CPU_NAME(store_piece)
#define keep_piece CPU_NAME(keep_piece)
#define run_rows CPU_NAME(run_rows)

/* n elements from the from-th on, as floats; f32 or bf16 with any stride. */
void load_piece(Row r, int64_t from, int64_t n, float *x);
void store_piece(Row r, int64_t from, int64_t n, const float *x);
/* row = keep * row + g; keep == 0 reads nothing of the row. */
void keep_piece(Row r, int64_t from, int64_t n, float keep, const float *g);

static inline bool piece_is_plain(Row r) { return r.dtype == F32 && r.stride == 1; }

/* Where the elements are as floats: in the tensor, or copied to `buffer`. */
static inline const float *read_piece(Row r, int64_t from, int64_t n, float *buffer)
{
    if (piece_is_plain(r)) return (const float *)(void *)r.at + from;
    load_piece(r, from, n, buffer);
    return buffer;
}

/* Where to write elements; end_piece brings them home. */
static inline float *write_piece(Row r, int64_t from, float *buffer)
{
    return piece_is_plain(r) ? (float *)(void *)r.at + from : buffer;
}

static inline void end_piece(Row r, int64_t from, int64_t n, const float *buffer)
{
    if (!piece_is_plain(r)) store_piece(r, from, n, buffer);
}

/* One element of a tensor of statistics: one per row, mostly. */
static inline float stat_get(const Tensor *t, int64_t index)
{
    if (t->dtype == F32 && t->ndim == 1) return ((const float *)t->data)[index * t->stride[0]];
    return (float)tensor_get(t, index);
}

/* Runs `row(work, i)` for i in [0, rows), so many rows a tile that it is worth a thread's while. */
void run_rows(Team *team, int64_t rows, int64_t length, void (*row)(const void *work, int64_t i),
              const void *work);

#endif
