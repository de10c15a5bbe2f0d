/* microkernel_store.h -- the store of a full micro-tile of C from registers:
 *
 *     c = keep * addend + sum + bias, in the type of C
 *
 * Writing the sums to memory and reading them back takes three times as long: 5% of a bf16 GEMM
 * with k = 384. store.c has the same formula for tiles at an edge and for columns that are not
 * contiguous. */
#ifndef DEVICE_CPU_SIMD_GEMM_MICROKERNEL_STORE_H
#define DEVICE_CPU_SIMD_GEMM_MICROKERNEL_STORE_H

#include "device/cpu/simd/simd.h"

typedef struct {
    int rows;
    DType type; /* of C and of the addend: F32 or BF16 */
    char *c;
    const char *addend;
    int64_t c_step, addend_step; /* bytes between rows */
    float keep;                  /* 0: the addend may be NaN and is not read */
    const float *bias;           /* of the tile's columns */
} MicrokernelStore;

#define STORE_INLINE static inline __attribute__((always_inline))

STORE_INLINE V load_addend(const char *row, DType type, int half)
{
    return type == F32 ? v_load((const float *)(const void *)row + half * W)
                       : v_load_bf16((const uint16_t *)(const void *)row + half * W);
}

STORE_INLINE void store_rows(const MicrokernelStore *s, DType type, bool keeps, const V (*sum)[2],
                             int rows)
{
    const V bias[2] = {v_load(s->bias), v_load(s->bias + W)};
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        V x[2] = {sum[i][0] + bias[0], sum[i][1] + bias[1]};
        char *const c = s->c + i * s->c_step;
        for (int j = 0; keeps && j < 2; j++)
            x[j] += s->keep * load_addend(s->addend + i * s->addend_step, type, j);
        if (type == BF16) {
            v_store_bf16_pair((uint16_t *)(void *)c, x[0], x[1]);
        } else {
            v_store((float *)(void *)c, x[0]);
            v_store((float *)(void *)c + W, x[1]);
        }
    }
}

/* Stores `rows` rows of 2 W sums. Type and keep are constants in each branch, so the loop has
 * none. */
STORE_INLINE void store_tile(const MicrokernelStore *s, const V (*sum)[2], int rows)
{
    if (s->type == F32 && s->keep == 0)
        store_rows(s, F32, false, sum, rows);
    else if (s->type == F32)
        store_rows(s, F32, true, sum, rows);
    else if (s->keep == 0)
        store_rows(s, BF16, false, sum, rows);
    else
        store_rows(s, BF16, true, sum, rows);
}

#endif
