/* amx_tiles.h -- the words of tiles by AMX's instructions: eight tiles of 1 KiB each, and one that
 * multiplies two of them into a third. Palette 1 is loaded as the architecture defines it; what CPUID says
 * of palettes (leaf 0x1D) is hidden by some hypervisors whose machines have them all the same.
 *
 * Whoever includes it defines no more than a body over these words: tiles.h, squares_body.h. */
#include <immintrin.h>
#include <stdint.h>

#define TILE_TARGET __attribute__((target("amx-tile,amx-bf16")))
#define TILES
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, at, step) _tile_loadd(t, at, step)
#define TILE_STREAM(t, at, step) _tile_stream_loadd(t, at, step)
#define TILE_STORE(t, at, step) _tile_stored(t, at, step)
#define TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)

/* The 64 bytes that configure tiles. */
typedef struct {
    uint8_t palette, start_row, none[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} Config;

/* Constant, and so whole in memory: compilers take the instruction to read no more than its first
 * bytes, and would leave out what is stored to the others. */
static const _Alignas(64) Config eight_whole_tiles = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

TILE_TARGET static void tiles_begin(void) { _tile_loadconfig(&eight_whole_tiles); }

/* Tiles in use make every switch of threads save 8 KiB. */
TILE_TARGET static void tiles_end(void) { _tile_release(); }
