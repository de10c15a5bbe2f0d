/* microkernel_fma.c -- fused multiply-adds of f32: ROWS x 2 vectors of sums, a number of a against two vectors
 * of b at each step. */
#include "device/cpu/simd/gemm/microkernel.h"

#if defined(__AVX512F__)
enum { ROWS = 12 }; /* 24 sums, two of b, one of a: 27 of 32 registers */
#else
enum { ROWS = 6 }; /* 12 sums: 15 of 16 */
#endif
enum { COLUMNS = 2 * W };

static void nothing(void) {}

static void multiply(const MicrokernelArgs *m)
{
    const float *a = (const float *)(const void *)m->a, *b = (const float *)(const void *)m->b;
    V sum[ROWS][2];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < 2; j++)
            sum[i][j] = m->add ? v_load(m->c + i * COLUMNS + j * W) : v_set(0);
    for (int64_t left = m->words; left > 0; left -= PREFETCH_DWORDS) {
        if (m->prefetch) prefetch_issue(m->prefetch);
        for (int64_t w = least(left, PREFETCH_DWORDS); w > 0; w--, a += ROWS, b += COLUMNS) {
            const V b0 = v_load(b), b1 = v_load(b + W);
            for (int i = 0; i < ROWS; i++) {
                const V x = v_set(a[i]);
                sum[i][0] += x * b0;
                sum[i][1] += x * b1;
            }
        }
    }
    if (m->end) {
        store_tile(m->end, sum, ROWS);
        return;
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < 2; j++) v_store(m->to + i * COLUMNS + j * W, sum[i][j]);
}

const Microkernel microkernel_fma = {
    .type = F32,
    .rows = ROWS,
    .columns = COLUMNS,
    .group = 1,
    .kc = 384, /* at 16 lanes 48 KiB of b, and 18 KiB of each panel of a that goes by */
    .mc = 132,
    .a_buffer_dwords = 132 * 768, /* with sums, 652 KiB */
    .begin = nothing,
    .end = nothing,
    .multiply = multiply,
    .stores_c = true,
};

const Microkernel *microkernel_for(DType type)
{
#if defined(__AVX512F__)
    const CpuMicrokernel kernel = type == BF16 ? microkernel_in_use() : MICROKERNEL_FMA;
    if (kernel == MICROKERNEL_DOT) return &microkernel_dot;
    if (kernel == MICROKERNEL_AMX) return &microkernel_amx;
    if (kernel == MICROKERNEL_AMX_EMULATED) return &microkernel_amx_emulated;
#else
    (void)type;    /* the others come with AVX-512 */
#endif
    return &microkernel_fma;
}
