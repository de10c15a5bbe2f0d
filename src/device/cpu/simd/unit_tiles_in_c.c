/* unit_tiles_in_c.c -- tiles by plain loops, for tests: what AMX's instructions do, on any CPU. */
#if defined(__AVX512F__)

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

static float half_of(uint32_t word, int which)
{
    const uint32_t bits = which ? word & 0xffff0000u : word << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Sums of even and of odd terms from zero; both are then added to c. */
static void tile_dot(Tile *c, const Tile *a, const Tile *b)
{
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            float sum[2] = {0, 0};
            for (int w = 0; w < N; w++)
                for (int h = 0; h < 2; h++)
                    sum[h] = fmaf(half_of(a->word[i][w], h), half_of(b->word[w][j], h), sum[h]);
            c->f[i][j] += sum[0] + sum[1];
        }
}

#define TILE_TARGET
#define TILES Tile tile[8]
#define TILE_ZERO(t) memset(&tile[t], 0, sizeof tile[t])
#define TILE_LOAD(t, at, step) tile_load(&tile[t], at, step)
#define TILE_STREAM TILE_LOAD
#define TILE_STORE(t, at, step) tile_store(&tile[t], at, step)
#define TILE_DOT(c, a, b) tile_dot(&tile[c], &tile[a], &tile[b])
#include "device/cpu/simd/tiles.h"

static void nothing(void) {}

const Unit unit_tiles_in_c = TILE_UNIT(nothing, nothing);

#else
typedef int no_tiles_in_c; /* they come with AVX-512 */
#endif
