/* microkernel_dot.c -- AVX512-BF16: each lane adds the products of two bf16 pairs to its f32 sum.
 * The instruction treats denormal numbers (below 2^-126) as zero. */
#include "device/cpu/simd/gemm/microkernel.h"

#if defined(__AVX512F__)

enum { MR = 12, NR = 2 * W };

static void nothing(void) {}

__attribute__((target("avx512bf16"))) static void multiply(const MicrokernelArgs *m)
{
    const uint32_t *a = m->a, *b = m->b;
    __m512 sum[MR][2];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < 2; j++)
            sum[i][j] = m->add ? _mm512_load_ps(m->c + i * NR + j * W) : _mm512_setzero_ps();
    for (int64_t left = m->dwords; left > 0; left -= PREFETCH_DWORDS) {
        if (m->prefetch) prefetch_issue(m->prefetch);
        for (int64_t k = min_i64(left, PREFETCH_DWORDS); k > 0; k--, a += MR, b += NR) {
            const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b);
            const __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + W);
            for (int i = 0; i < MR; i++) {
                const __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[i]);
                sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, b0);
                sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, b1);
            }
        }
    }
    if (m->store) {
        store_tile(m->store, (const V(*)[2])sum, MR);
        return;
    }
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < 2; j++) _mm512_store_ps(m->to + i * NR + j * W, sum[i][j]);
}

const Microkernel microkernel_dot = {
    .type = BF16,
    .mr = MR,
    .nr = NR,
    .k_group = 1,
    .kc = 384,
    .mc = 132,
    .a_buffer_dwords = 132 * 768,
    .begin = nothing,
    .end = nothing,
    .multiply = multiply,
    .stores_c = true,
};

#endif
