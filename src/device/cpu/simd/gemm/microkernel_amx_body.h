/* microkernel_amx_body.h -- the AMX micro-kernel: 2 x 2 tiles of C, each 16 rows of 64 bytes.
 *
 *                     b0 b1          a step along k is 32 bf16: four tiles are loaded, and each is
 *                a0   0  1           used for two tile multiplications
 *                a1   2  3
 *
 * The body is written over macros that the including file defines first: TILE_REGISTERS, TILE_ZERO,
 * TILE_LOAD, TILE_STREAM (a load that does not stay in L1), TILE_STORE, TILE_DOT, and TILE_TARGET,
 * the function attribute. amx_tiles.h defines them by AMX instructions, amx_tiles_emulated.h by
 * equivalent loops. So every CPU with AVX-512 can test all but the instructions themselves. */
#include "device/cpu/simd/gemm/microkernel.h"

enum { TILE_ROWS = 16, TILE_DWORDS = 16, NR = 32 };

/* Bytes between rows. C: two tiles next to each other; A: [mr][16 dwords]; B: [dwords][NR]. */
enum { C_STEP = NR * 4, A_STEP = TILE_DWORDS * 4, B_STEP = NR * 4 };

TILE_TARGET static void multiply(const MicrokernelArgs *m)
{
    const uint32_t *a = m->a, *b = m->b;
    const float *const c = m->c;
    float *const to = m->to;
    const int64_t steps = m->dwords / TILE_DWORDS;
    TILE_REGISTERS;
    if (m->add) {
        TILE_LOAD(0, c, C_STEP);
        TILE_LOAD(1, c + 16, C_STEP);
        TILE_LOAD(2, c + 16 * NR, C_STEP);
        TILE_LOAD(3, c + 16 * NR + 16, C_STEP);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t s = 0; s < steps; s++, a += 2 * TILE_ROWS * TILE_DWORDS, b += TILE_DWORDS * NR) {
        TILE_LOAD(4, a, A_STEP);
        TILE_STREAM(6, b, B_STEP);
        TILE_STREAM(7, b + 16, B_STEP);
        TILE_DOT(0, 4, 6);
        TILE_LOAD(5, a + TILE_ROWS * TILE_DWORDS, A_STEP);
        TILE_DOT(1, 4, 7);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
        if (m->prefetch) prefetch_issue(m->prefetch);
        if (m->background) m->background(m->work);
    }
    TILE_STORE(0, to, C_STEP);
    TILE_STORE(1, to + 16, C_STEP);
    TILE_STORE(2, to + 16 * NR, C_STEP);
    TILE_STORE(3, to + 16 * NR + 16, C_STEP);
}

/* kc: a micro-panel of A, 256 dwords or 32 KiB, stays in L1 while B streams by. CPUs with AMX have
 * 2 MiB of L2. Half of it holds a block of A, because B is read from L3 once per block of A. */
#define AMX_MICROKERNEL(begin_, end_)                                                              \
    {                                                                                              \
        .type = BF16, .mr = 2 * TILE_ROWS, .nr = NR, .k_group = TILE_DWORDS, .kc = 256, .mc = 256, \
        .a_buffer_dwords = 256 * 1024, .begin = begin_, .end = end_, .multiply = multiply,         \
        .a_in_l1 = true, .team_packs_a = true, .overlaps_stores = true,                            \
    }
