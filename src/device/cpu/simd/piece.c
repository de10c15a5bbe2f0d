/* piece.c -- pieces of rows as floats and back; rows of a tensor over a team. */
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

static void load_bf16(const uint16_t *at, int64_t stride, int64_t n, float *x)
{
    int64_t i = 0;
    for (; stride == 1 && i + W <= n; i += W) v_store(x + i, v_load_bf16(at + i));
    for (; i < n; i++) x[i] = bf16_get(at[i * stride]);
}

static void store_bf16(uint16_t *at, int64_t stride, int64_t n, const float *x)
{
    int64_t i = 0;
    for (; stride == 1 && i + W <= n; i += W) v_store_bf16(at + i, v_load(x + i));
    for (; i < n; i++) at[i * stride] = bf16_of(x[i]);
}

void load_piece(Row r, int64_t from, int64_t n, float *x)
{
    if (r.dtype == BF16) {
        load_bf16((const uint16_t *)(void *)r.at + from * r.stride, r.stride, n, x);
        return;
    }
    MUST(r.dtype == F32, "device cpu has f32 and bf16, not %s", dtype_name(r.dtype));
    const float *at = (const float *)(void *)r.at + from * r.stride;
    if (r.stride == 1)
        memcpy(x, at, (size_t)n * sizeof *x);
    else
        for (int64_t i = 0; i < n; i++) x[i] = at[i * r.stride];
}

void store_piece(Row r, int64_t from, int64_t n, const float *x)
{
    if (r.dtype == BF16) {
        store_bf16((uint16_t *)(void *)r.at + from * r.stride, r.stride, n, x);
        return;
    }
    MUST(r.dtype == F32, "device cpu has f32 and bf16, not %s", dtype_name(r.dtype));
    float *at = (float *)(void *)r.at + from * r.stride;
    if (r.stride == 1)
        memcpy(at, x, (size_t)n * sizeof *x);
    else
        for (int64_t i = 0; i < n; i++) at[i * r.stride] = x[i];
}

void keep_piece(Row r, int64_t from, int64_t n, float keep, const float *g)
{
    if (keep == 0) { /* the old content may be NaN */
        store_piece(r, from, n, g);
        return;
    }
    float buffer[PIECE];
    for (int64_t done = 0; done < n; done += PIECE) {
        const int64_t part = least(n - done, PIECE);
        const float *old = read_piece(r, from + done, part, buffer);
        float *sum = write_piece(r, from + done, buffer);
        for (int64_t i = 0; i < part; i += W)
            v_store_to(sum + i, part - i,
                       keep * v_load_to(old + i, part - i) + v_load_to(g + done + i, part - i));
        end_piece(r, from + done, part, buffer);
    }
}

typedef struct {
    void (*row)(const void *work, int64_t i);
    const void *work;
    int64_t rows, per_tile;
} Rows;

static void rows_tile(void *work, int64_t tile)
{
    const Rows *r = work;
    const int64_t end = least((tile + 1) * r->per_tile, r->rows);
    for (int64_t i = tile * r->per_tile; i < end; i++) r->row(r->work, i);
}

void run_rows(Team *team, int64_t rows, int64_t length, void (*row)(const void *work, int64_t i),
              const void *work)
{
    if (rows <= 0) return;
    Rows r = {row, work, rows, most(TILE_WORK / most(length, 1), 1)};
    team_run(team, blocks_of(rows, r.per_tile), rows_tile, &r);
}
