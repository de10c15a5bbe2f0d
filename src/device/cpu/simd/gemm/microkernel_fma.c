/* microkernel_fma.c -- fused multiply-adds in f32: MR x 2 vectors of sums. Each step along k
 * multiplies every broadcast element of A by two vectors of B. */
#include "device/cpu/simd/gemm/microkernel.h"

#if defined(__AVX512F__)
enum { MR = 12 }; /* 24 sums, two vectors of B, one of A: 27 of 32 registers */
#else
enum { MR = 6 }; /* 12 sums: 15 of 16 registers */
#endif
enum { NR = 2 * W };

static void nothing(void) {}

static void multiply(const MicrokernelArgs *m)
{
    const float *a = (const float *)(const void *)m->a, *b = (const float *)(const void *)m->b;
    V sum[MR][2];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < 2; j++) sum[i][j] = m->add ? v_load(m->c + i * NR + j * W) : v_set(0);
    for (int64_t left = m->dwords; left > 0; left -= PREFETCH_DWORDS) {
        if (m->prefetch) prefetch_issue(m->prefetch);
        for (int64_t k = min_i64(left, PREFETCH_DWORDS); k > 0; k--, a += MR, b += NR) {
            const V b0 = v_load(b), b1 = v_load(b + W);
            for (int i = 0; i < MR; i++) {
                const V x = v_set(a[i]);
                sum[i][0] += x * b0;
                sum[i][1] += x * b1;
            }
        }
    }
    if (m->store) {
        store_tile(m->store, sum, MR);
        return;
    }
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < 2; j++) v_store(m->to + i * NR + j * W, sum[i][j]);
}

const Microkernel microkernel_fma = {
    .type = F32,
    .mr = MR,
    .nr = NR,
    .k_group = 1,
    .kc = 384, /* with 16 lanes: 48 KiB of B, and 18 KiB of each panel of A that streams by */
    .mc = 132,
    .a_buffer_dwords = 132 * 768, /* 652 KiB together with the partial sums */
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
    (void)type;  /* the other micro-kernels need AVX-512 */
#endif
    return &microkernel_fma;
}
