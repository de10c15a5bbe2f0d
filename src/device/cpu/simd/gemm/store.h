/* store.h -- from the f32 sums of a micro-tile to C: c = keep * addend + sum + bias, in the type of
 * C.
 *
 *     microkernel_store.h    full micro-tiles with contiguous columns, directly from registers
 *     store.c                any micro-tile, from sums in L1
 *     store_pipeline.c       chooses; overlaps the store of a tile with the next one (AMX) */
#ifndef DEVICE_CPU_SIMD_GEMM_STORE_H
#define DEVICE_CPU_SIMD_GEMM_STORE_H

#include "device/cpu/simd/gemm/gemm.h"

#define tile_store_rows CPU_NAME(tile_store_rows)
#define tile_store_bias CPU_NAME(tile_store_bias)
#define store_pipeline_multiply CPU_NAME(store_pipeline_multiply)
#define store_pipeline_flush CPU_NAME(store_pipeline_flush)

enum { MAX_NR = 64, MAX_TILE_FLOATS = 32 * 32 }; /* of any micro-kernel */

/* A micro-tile of complete sums and its destination. */
typedef struct {
    const Call *call;
    const Tensor *addend; /* C, or another tensor of its shape */
    const BlockEpilogue *epilogue;
    CBlock block;
    const float *sum; /* [block.m][step] */
    int64_t step;
    float bias[MAX_NR]; /* of the block's columns */
} TileStore;

/* Loads the bias of the block's columns; zeros if the GEMM has none. */
void tile_store_bias(TileStore *s, CBlock block);
/* Stores rows [row, row + rows) of the micro-tile. */
void tile_store_rows(const TileStore *s, int64_t row, int64_t rows);

/* A two-stage pipeline of one thread: multiply a micro-tile, store the one before. */
typedef struct {
    const Microkernel *kernel;
    TileStore tile[2]; /* tile[current] is multiplied, the other one is being stored */
    int current;
    int64_t left, each; /* rows still to store; rows per step along k */
    _Alignas(64) float sum[2][MAX_TILE_FLOATS];
} StorePipeline;

/* The destination of the next sums; the caller fills in all members but `sum`. */
static inline TileStore *store_pipeline_next(StorePipeline *p) { return &p->tile[p->current]; }
/* Runs the micro-kernel. Sums that are complete (`last` block of k) go to C as store_pipeline_next
 * describes, at once or during the next multiplication. Partial sums go to args->c. */
void store_pipeline_multiply(StorePipeline *p, MicrokernelArgs *args, bool last);
/* Stores the rows that are still pending. */
void store_pipeline_flush(StorePipeline *p);

#endif
