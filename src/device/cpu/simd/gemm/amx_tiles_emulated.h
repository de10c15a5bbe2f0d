/* amx_tiles_emulated.h -- the TILE_ macros by loops, for tests: the semantics of the AMX
 * instructions on any CPU with AVX-512. */
#include "device/cpu/simd/simd.h"

enum { N = 16 }; /* rows of a tile, and dwords of a row */

typedef union {
    float f[N][N];
    uint32_t dword[N][N];
} EmulatedTile;

static void tile_load(EmulatedTile *t, const void *at, int64_t step)
{
    for (int i = 0; i < N; i++)
        memcpy(t->dword[i], (const char *)at + i * step, sizeof t->dword[i]);
}

static void tile_store(const EmulatedTile *t, void *at, int64_t step)
{
    for (int i = 0; i < N; i++) memcpy((char *)at + i * step, t->dword[i], sizeof t->dword[i]);
}

/* As the hardware adds: the sums of even and of odd elements start from zero, then both go to c. */
static void tile_dot(EmulatedTile *c, const EmulatedTile *a, const EmulatedTile *b)
{
    for (int i = 0; i < N; i++) {
        V even = {0}, odd = {0};
        for (int k = 0; k < N; k++) {
            const VU x = a->dword[i][k] - (VU){0};
            VU y;
            memcpy(&y, b->dword[k], sizeof y);
            even += (V)(x << 16) * (V)(y << 16);
            odd += (V)(x & 0xffff0000u) * (V)(y & 0xffff0000u);
        }
        v_store(c->f[i], v_load(c->f[i]) + (even + odd));
    }
}

#define TILE_TARGET
#define TILE_REGISTERS EmulatedTile tile[8]
#define TILE_ZERO(t) memset(&tile[t], 0, sizeof tile[t])
#define TILE_LOAD(t, at, step) tile_load(&tile[t], at, step)
#define TILE_STREAM TILE_LOAD
#define TILE_STORE(t, at, step) tile_store(&tile[t], at, step)
#define TILE_DOT(c, a, b) tile_dot(&tile[c], &tile[a], &tile[b])

static void amx_tiles_begin(void) {}

static void amx_tiles_end(void) {}
