/* amx_gemm_body.h -- GEMM by sub-tiles, over the TILE_ macros of amx_tiles.h or
 * amx_tiles_emulated.h.
 *
 *                 b: 6  7         a sub-tile of terms is 32 deep: four tiles are loaded, and each
 *            a: 4    0  1         is used for two tile multiplications; the sums of a sub-tile of c
 *               5    2  3         stay in tiles 0 to 3 */
#include "device/cpu/simd/attention/amx_gemm.h"

enum { TILE_ROWS = 16, TILE_BYTES = 64 };

static bool is_visible(const SubtileMask *s, int row, int column, int term)
{
    return s->visible >> (row * s->row + column * s->column + term * s->term) & 1;
}

static bool any_is_visible(const AmxGemmArgs *p, int row, int column)
{
    bool any = false;
    for (int k = 0; k < p->terms; k++) any |= is_visible(&p->mask, row, column, k);
    return any;
}

/* Computes one sub-tile of c. Skipping masked terms changes no bit: their weights are 0. */
TILE_TARGET static void subtile(const AmxGemmArgs *p, int row, int column)
{
    const char *const a = (const char *)p->a + row * SUBTILE * p->a_step;
    const char *const b = (const char *)p->b + column * 2 * TILE_BYTES;
    char *const c = (char *)p->c + row * SUBTILE * p->c_step + column * 2 * TILE_BYTES;
    char *const below = c + TILE_ROWS * p->c_step;
    TILE_REGISTERS;
    if (p->add) {
        TILE_LOAD(0, c, p->c_step);
        TILE_LOAD(1, c + TILE_BYTES, p->c_step);
        TILE_LOAD(2, below, p->c_step);
        TILE_LOAD(3, below + TILE_BYTES, p->c_step);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int k = 0; k < p->terms; k++) {
        if (!is_visible(&p->mask, row, column, k)) continue;
        const char *const from = a + k * TILE_BYTES, *const by = b + k * TILE_ROWS * p->b_step;
        TILE_LOAD(4, from, p->a_step);
        TILE_LOAD(6, by, p->b_step);
        TILE_LOAD(7, by + TILE_BYTES, p->b_step);
        TILE_DOT(0, 4, 6);
        TILE_LOAD(5, from + TILE_ROWS * p->a_step, p->a_step);
        TILE_DOT(1, 4, 7);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
        prefetch_step(p->prefetch);
        if (p->background) p->background(p->work);
    }
    TILE_STORE(0, c, p->c_step);
    TILE_STORE(1, c + TILE_BYTES, p->c_step);
    TILE_STORE(2, below, p->c_step);
    TILE_STORE(3, below + TILE_BYTES, p->c_step);
}

TILE_TARGET static void multiply(const AmxGemmArgs *p)
{
    for (int i = 0; i < p->rows; i++)
        for (int j = 0; j < p->columns; j++)
            if (any_is_visible(p, i, j)) subtile(p, i, j);
}
