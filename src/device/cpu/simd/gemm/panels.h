/* panels.h -- products of any f32 and bf16 matrices by our own units: packed, blocked, over a team. */
#ifndef DEVICE_CPU_SIMD_GEMM_PANELS_H
#define DEVICE_CPU_SIMD_GEMM_PANELS_H

#include "device/cpu/cpu.h"
#include "device/cpu/simd/gemm/microkernel.h"

#define panels_gemm CPU_NAME(panels_gemm)
#define panels_finish CPU_NAME(panels_finish)
#define panels_bias CPU_NAME(panels_bias)
#define stores_multiply CPU_NAME(stores_multiply)
#define stores_end CPU_NAME(stores_end)
#define gemm_with CPU_NAME(gemm_with)

/* Part of c. */
typedef struct {
    int64_t row, m, column, n;
} Box;

/* What is done beside a product, to the tiles of c as they come: nothing, where all is NULL. */
typedef struct {
    const Tensor *addend; /* the product is added to this, in place of what c holds; may be c */
    const Call *call; /* for `then`, which runs on a tile of c that is stored, while it is near */
    void (*then)(const Call *call, Box tile, Team *team);
    const Tensor
        *near[MAX_EPILOGUE_OPERANDS]; /* what it reads and writes beside c, of c's shape; or NULL */
    GemmPart part;                    /* of the product alone: what takes how long */
} Beside;

/* As kernels.def has gemm, and what is beside it. An element of c is the same whatever stands next to
 * it. */
Err panels_gemm(const Call *call, const Microkernel *kernel, const Beside *beside);
Err CPU_NAME(gemm_part)(const Call *call, GemmPart part);
/* b packed for products of its type, all of it: see DevicePrepack. */
size_t CPU_NAME(prepacked_bytes)(DType type, int64_t k, int64_t n);
Err CPU_NAME(prepack)(const Call *call);
/* The same by whatever suits the product: gemm.c. */
Err gemm_with(const Call *call, const Beside *beside);

enum { MAX_COLUMNS = 64, MAX_SUMS = 32 * 32 }; /* of a tile */

/* A tile of sums that are whole, [m][step], and where they go: panels_finish.c. */
typedef struct {
    const Call *call;
    const Tensor *old; /* what is kept: c, or another of its shape */
    const Beside *beside;
    Box box;
    const float *sum;
    int64_t step;
    float bias[MAX_COLUMNS]; /* of the box's columns */
} Finish;

/* Fills in the bias of these columns; zeros where there is none. */
void panels_bias(Finish *f, Box box);
/* c = keep * old + sum + bias for some rows of the tile. */
void panels_finish(const Finish *f, int64_t row, int64_t rows);

/* Tiles of sums on their way to c, of one thread: panels_store.c. */
typedef struct {
    const Microkernel *kernel;
    Finish tile[2];     /* one that is stored while the other is multiplied */
    int now;            /* the other */
    int64_t left, each; /* rows that are to be stored; of them at each step */
    _Alignas(64) float sum[2][MAX_SUMS];
} Stores;

/* Where it is said how the next sums go to c, all but `sum`. */
static inline Finish *stores_next(Stores *s) { return &s->tile[s->now]; }
/* Multiplies. Sums that are then whole go to c as stores_next has it, now or while the next ones are
 * multiplied; others go to m->c. */
void stores_multiply(Stores *s, MicrokernelArgs *m, bool whole);
/* What is still on its way. */
void stores_end(Stores *s);

#endif
