/* piece.c -- converts pieces of rows to floats and back; distributes rows of a tensor over a
 * team. */
#include "device/cpu/simd/simd.h"

static float bf16_get(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t bf16_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (f != f) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void floats_of_bf16(const uint16_t *at, int64_t n, float *x)
{
    int64_t i = 0;
    for (; i + W <= n; i += W) v_store(x + i, v_load_bf16(at + i));
    for (; i < n; i++) x[i] = bf16_get(at[i]);
}

/* Stores full pairs of vectors; returns the number of elements stored. */
EACH_FORM int64_t store_pairs(ElementForm form, uint16_t *at, int64_t n, const float *x)
{
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W)
        v_store_pair_as(form, at, i, v_load(x + i), v_load(x + i + W));
    return i;
}

/* The bits of an element do not depend on n: the remainder is rounded by the same code, padded. */
void bf16_of_floats(uint16_t *at, int64_t n, const float *x)
{
    const bool hw = form_of_type(BF16) == AS_BF16_HW;
    uint16_t rest[2 * W];
    float last[2 * W] = {0};
    const int64_t done = hw ? store_pairs(AS_BF16_HW, at, n, x) : store_pairs(AS_BF16, at, n, x);
    if (done == n) return;
    memcpy(last, x + done, (size_t)(n - done) * sizeof *x);
    if (hw)
        (void)store_pairs(AS_BF16_HW, rest, 2 * W, last);
    else
        (void)store_pairs(AS_BF16, rest, 2 * W, last);
    memcpy(at + done, rest, (size_t)(n - done) * sizeof *at);
}

void load_steps(const char *at, DType dtype, int64_t stride, int64_t n, float *x)
{
    const uint16_t *h = (const uint16_t *)(const void *)at;
    const float *f = (const float *)(const void *)at;
    MUST(dtype == F32 || dtype == BF16, "device cpu has f32 and bf16, not %s", dtype_name(dtype));
    if (dtype == BF16)
        for (int64_t i = 0; i < n; i++) x[i] = bf16_get(h[i * stride]);
    else
        for (int64_t i = 0; i < n; i++) x[i] = f[i * stride];
}

void store_steps(char *at, DType dtype, int64_t stride, int64_t n, const float *x)
{
    uint16_t *h = (uint16_t *)(void *)at;
    float *f = (float *)(void *)at;
    MUST(dtype == F32 || dtype == BF16, "device cpu has f32 and bf16, not %s", dtype_name(dtype));
    if (dtype == BF16)
        for (int64_t i = 0; i < n; i++) h[i * stride] = bf16_of(x[i]);
    else
        for (int64_t i = 0; i < n; i++) f[i * stride] = x[i];
}

typedef struct {
    void (*row)(const void *work, int64_t i);
    const void *work;
    int64_t rows, per_tile;
} RowTiles;

static void rows_tile(void *work, int64_t tile)
{
    const RowTiles *r = work;
    const int64_t end = min_i64((tile + 1) * r->per_tile, r->rows);
    for (int64_t i = tile * r->per_tile; i < end; i++) r->row(r->work, i);
}

void run_rows(Team *team, int64_t rows, int64_t length, void (*row)(const void *work, int64_t i),
              const void *work)
{
    if (rows <= 0) return;
    RowTiles r = {row, work, rows, max_i64(TILE_WORK / max_i64(length, 1), 1)};
    team_run(team, blocks_of(rows, r.per_tile), rows_tile, &r);
}
