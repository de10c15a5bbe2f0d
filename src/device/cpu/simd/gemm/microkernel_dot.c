/* microkernel_dot.c -- AVX512-BF16: a lane adds the products of two pairs of bf16 to its sum of f32. The
 * instruction takes numbers below 2^-126 for zero. */
#include "device/cpu/simd/gemm/microkernel.h"

#if defined(__AVX512F__)

enum { ROWS = 12, COLUMNS = 2 * W };

static void nothing(void) {}

__attribute__((target("avx512bf16"))) static void multiply(const MicrokernelArgs *m)
{
    const uint32_t *a = m->a, *b = m->b;
    __m512 sum[ROWS][2];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < 2; j++)
            sum[i][j] = m->add ? _mm512_load_ps(m->c + i * COLUMNS + j * W) : _mm512_setzero_ps();
    for (int64_t left = m->words; left > 0; left -= PREFETCH_DWORDS) {
        if (m->prefetch) prefetch_issue(m->prefetch);
        for (int64_t w = least(left, PREFETCH_DWORDS); w > 0; w--, a += ROWS, b += COLUMNS) {
            const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b);
            const __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + W);
            for (int i = 0; i < ROWS; i++) {
                const __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[i]);
                sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, b0);
                sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, b1);
            }
        }
    }
    if (m->end) {
        store_tile(m->end, (const V(*)[2])sum, ROWS);
        return;
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < 2; j++) _mm512_store_ps(m->to + i * COLUMNS + j * W, sum[i][j]);
}

const Microkernel microkernel_dot = {
    .type = BF16,
    .rows = ROWS,
    .columns = COLUMNS,
    .group = 1,
    .kc = 384,
    .mc = 132,
    .a_buffer_dwords = 132 * 768,
    .begin = nothing,
    .end = nothing,
    .multiply = multiply,
    .stores_c = true,
};

#endif
