/* microkernel_store.h -- the end of a tile of c whose sums are whole and still in registers: c = keep * old + sum +
 * bias, in the type of c. Stored as sums first, and read back, it takes three times as long: a twentieth of a
 * product of 384 terms of bf16.
 *
 * The same formula is in panels_finish.c, for tiles at an edge and for columns that are no neighbours. */
#ifndef DEVICE_CPU_SIMD_GEMM_MICROKERNEL_STORE_H
#define DEVICE_CPU_SIMD_GEMM_MICROKERNEL_STORE_H

#include "device/cpu/simd/simd.h"

typedef struct {
    int rows;
    DType type; /* of c and of old: F32 or BF16 */
    char *c;
    const char *old;
    int64_t c_step, old_step; /* bytes, from row to row */
    float keep;               /* 0: old may be NaN, and is not read */
    const float *bias;        /* of the tile's columns */
} MicrokernelStore;

#define STORE_INLINE static inline __attribute__((always_inline))

STORE_INLINE V load_old(const char *row, DType type, int half)
{
    return type == F32 ? v_load((const float *)(const void *)row + half * W)
                       : v_load_bf16((const uint16_t *)(const void *)row + half * W);
}

STORE_INLINE void store_rows(const MicrokernelStore *e, DType type, bool keeps, const V (*sum)[2],
                             int rows)
{
    const V bias[2] = {v_load(e->bias), v_load(e->bias + W)};
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        V x[2] = {sum[i][0] + bias[0], sum[i][1] + bias[1]};
        char *const c = e->c + i * e->c_step;
        for (int j = 0; keeps && j < 2; j++)
            x[j] += e->keep * load_old(e->old + i * e->old_step, type, j);
        if (type == BF16) {
            v_store_bf16_pair((uint16_t *)(void *)c, x[0], x[1]);
        } else {
            v_store((float *)(void *)c, x[0]);
            v_store((float *)(void *)c + W, x[1]);
        }
    }
}

/* Rows of 2 W sums. */
STORE_INLINE void store_tile(const MicrokernelStore *e, const V (*sum)[2], int rows)
{
    if (e->type == F32 && e->keep == 0)
        store_rows(e, F32, false, sum, rows);
    else if (e->type == F32)
        store_rows(e, F32, true, sum, rows);
    else if (e->keep == 0)
        store_rows(e, BF16, false, sum, rows);
    else
        store_rows(e, BF16, true, sum, rows);
}

#endif
