/* amx_tiles_emulated.h -- the words of tiles by plain loops, for tests: what AMX's instructions do, on any CPU of
 * AVX-512. */
#include "device/cpu/simd/simd.h"

enum { N = 16 }; /* rows of a tile, and words of a row */

typedef union {
    float f[N][N];
    uint32_t word[N][N];
} Tile;

static void tile_load(Tile *t, const void *at, int64_t step)
{
    for (int i = 0; i < N; i++) memcpy(t->word[i], (const char *)at + i * step, sizeof t->word[i]);
}

static void tile_store(const Tile *t, void *at, int64_t step)
{
    for (int i = 0; i < N; i++) memcpy((char *)at + i * step, t->word[i], sizeof t->word[i]);
}

/* Sums of even and of odd terms from zero; both are then added to c. */
static void tile_dot(Tile *c, const Tile *a, const Tile *b)
{
    for (int i = 0; i < N; i++) {
        V even = {0}, odd = {0};
        for (int w = 0; w < N; w++) {
            const VU x = a->word[i][w] - (VU){0};
            VU y;
            memcpy(&y, b->word[w], sizeof y);
            even += (V)(x << 16) * (V)(y << 16);
            odd += (V)(x & 0xffff0000u) * (V)(y & 0xffff0000u);
        }
        v_store(c->f[i], v_load(c->f[i]) + (even + odd));
    }
}

#define TILE_TARGET
#define TILES Tile tile[8]
#define TILE_ZERO(t) memset(&tile[t], 0, sizeof tile[t])
#define TILE_LOAD(t, at, step) tile_load(&tile[t], at, step)
#define TILE_STREAM TILE_LOAD
#define TILE_STORE(t, at, step) tile_store(&tile[t], at, step)
#define TILE_DOT(c, a, b) tile_dot(&tile[c], &tile[a], &tile[b])

static void tiles_begin(void) {}

static void tiles_end(void) {}
