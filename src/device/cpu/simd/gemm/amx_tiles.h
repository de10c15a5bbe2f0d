/* amx_tiles.h -- the TILE_ macros by AMX instructions: eight tile registers of 1 KiB each, and one
 * instruction that multiplies two of them into a third.
 *
 * The configuration is palette 1 as the architecture defines it. CPUID leaf 0x1D, which describes
 * the palettes, is not read: some hypervisors hide it although AMX works.
 *
 * The including file adds only a body over these macros: microkernel_amx_body.h or
 * amx_gemm_body.h. */
#include <immintrin.h>
#include <stdint.h>

#define TILE_TARGET __attribute__((target("amx-tile,amx-bf16")))
#define TILE_REGISTERS
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, at, step) _tile_loadd(t, at, step)
#define TILE_STREAM(t, at, step) _tile_stream_loadd(t, at, step)
#define TILE_STORE(t, at, step) _tile_stored(t, at, step)
#define TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)

/* The 64-byte operand of LDTILECFG. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} AmxTileConfig;

/* A constant object, so all 64 bytes are in memory: compilers assume that the instruction reads
 * only the first bytes, and would drop stores to the others. */
static const _Alignas(64) AmxTileConfig eight_full_tiles = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

TILE_TARGET static void amx_tiles_begin(void) { _tile_loadconfig(&eight_full_tiles); }

/* Releases the tiles: while they are in use, every context switch saves 8 KiB. */
TILE_TARGET static void amx_tiles_end(void) { _tile_release(); }
