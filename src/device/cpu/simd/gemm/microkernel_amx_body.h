/* microkernel_amx_body.h -- a product by tiles of 16 rows of 64 bytes, as AMX has them: 2 x 2 tiles of c.
 *
 *                     b0 b1          a step along k is 32 terms: four tiles are loaded, and each
 *                a0   0  1           serves two products
 *                a1   2  3
 *
 * This is written once, over six words, TILE_ZERO, TILE_LOAD, TILE_STREAM (a load that is not to stay
 * in the first cache), TILE_STORE, TILE_DOT and TILES, which are there before it: tiles_amx.h has
 * them by the instructions, tiles_in_c.h by loops that do the same. So all but the instructions is tested
 * on every CPU of AVX-512. TILE_TARGET: what the compiler is told. */
#include "device/cpu/simd/gemm/microkernel.h"

enum { TILE_ROWS = 16, TILE_WORDS = 16, COLUMNS = 32 };

/* c: two tiles side by side in rows of COLUMNS floats; a: [rows][16 words]; b: [words][COLUMNS]. */
enum { C_STEP = COLUMNS * 4, A_STEP = TILE_WORDS * 4, B_STEP = COLUMNS * 4 };

TILE_TARGET static void multiply(const MicrokernelArgs *m)
{
    const uint32_t *a = m->a, *b = m->b;
    const float *const c = m->c;
    float *const to = m->to;
    const int64_t steps = m->words / TILE_WORDS;
    TILES;
    if (m->add) {
        TILE_LOAD(0, c, C_STEP);
        TILE_LOAD(1, c + 16, C_STEP);
        TILE_LOAD(2, c + 16 * COLUMNS, C_STEP);
        TILE_LOAD(3, c + 16 * COLUMNS + 16, C_STEP);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t s = 0; s < steps;
         s++, a += 2 * TILE_ROWS * TILE_WORDS, b += TILE_WORDS * COLUMNS) {
        TILE_LOAD(4, a, A_STEP);
        TILE_STREAM(6, b, B_STEP);
        TILE_STREAM(7, b + 16, B_STEP);
        TILE_DOT(0, 4, 6);
        TILE_LOAD(5, a + TILE_ROWS * TILE_WORDS, A_STEP);
        TILE_DOT(1, 4, 7);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
        if (m->prefetch) prefetch_issue(m->prefetch);
        if (m->meanwhile) m->meanwhile(m->work);
    }
    TILE_STORE(0, to, C_STEP);
    TILE_STORE(1, to + 16, C_STEP);
    TILE_STORE(2, to + 16 * COLUMNS, C_STEP);
    TILE_STORE(3, to + 16 * COLUMNS + 16, C_STEP);
}

/* 256 words: a panel of a, 32 KiB, stays in the first cache while b streams through it. CPUs that have
 * tiles have 2 MiB of second cache: half of it for a strip of a, as b comes from the last cache for each
 * strip again. */
#define AMX_MICROKERNEL(begin_, end_)                                                              \
    {                                                                                              \
        .type = BF16, .rows = 2 * TILE_ROWS, .columns = COLUMNS, .group = TILE_WORDS, .kc = 256,   \
        .mc = 256, .a_buffer_dwords = 256 * 1024, .begin = begin_, .end = end_,                    \
        .multiply = multiply, .a_in_l1 = true, .team_packs_a = true, .meanwhile = true,            \
    }
