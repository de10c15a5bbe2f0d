/* unit_tiles.c -- AMX: eight tiles of 1 KiB each, and an instruction that multiplies two of them into a
 * third. Palette 1 is loaded as the architecture defines it; what CPUID says of palettes (leaf 0x1D) is
 * hidden by some hypervisors whose machines have them all the same. */
#if defined(__AVX512F__)

#include <immintrin.h>

#define TILE_TARGET __attribute__((target("amx-tile,amx-bf16")))
#define TILES
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, at, step) _tile_loadd(t, at, step)
#define TILE_STORE(t, at, step) _tile_stored(t, at, step)
#define TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)
#include "device/cpu/simd/tiles.h"

/* The 64 bytes that configure tiles. */
typedef struct {
    uint8_t palette, start_row, none[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} Config;

TILE_TARGET static void begin(void)
{
    _Alignas(64) Config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        c.row_bytes[t] = LINE_BYTES;
        c.rows[t] = TILE_ROWS;
    }
    _tile_loadconfig(&c);
}

/* Tiles in use make every switch of threads save 8 KiB. */
TILE_TARGET static void end(void) { _tile_release(); }

const Unit unit_tiles = TILE_UNIT(begin, end);

#else
typedef int no_tiles; /* they come with AVX-512 */
#endif
