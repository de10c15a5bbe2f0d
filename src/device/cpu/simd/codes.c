/* codes.c -- coded weights: parts of master weights are rounded, scaled and stored as codes, a tile
 * of TILE_WORK elements at a time. Within a tile, elements of one cell are next to each other in
 * runs. A cell may have runs in several tiles: its maximum is atomic, and has no order. */
#include "base/fp8.h"
#include "device/codes.h"

#include <math.h>
#include "device/cpu/simd/simd.h"

/* The elements [from, from + n) of x, as programs would read them; n <= PIECE. */
static const float *weights_at(const Call *call, int64_t from, int64_t n, float *buffer)
{
    uint16_t narrow[PIECE];
    const float *x = (const float *)call->in[0].data + from;
    if (call->attr.codes.from != BF16) return x;
    bf16_of_floats(narrow, n, x);
    floats_of_bf16(narrow, n, buffer);
    return buffer;
}

static void keep_largest(float *cell, float most)
{
    uint32_t *at = (uint32_t *)(void *)cell, old = __atomic_load_n(at, __ATOMIC_RELAXED);
    const uint32_t bits = fp8_bits_of(most); /* not negative: bits are in the order of values */
    while (old < bits &&
           !__atomic_compare_exchange_n(at, &old, bits, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static float largest_of(const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++) {
        const float size = fabsf(x[i]);
        most = size > most ? size : most; /* false for NaN */
    }
    return most;
}

static void amax_tile(void *work, int64_t tile)
{
    const Call *call = work;
    float buffer[PIECE], *m = call->out[0].data;
    const int64_t end = min_i64((tile + 1) * TILE_WORK, call->in[0].n[0]);
    for (int64_t i = tile * TILE_WORK, n; i < end; i += n) {
        n = codes_run(&call->attr, i, min_i64(end - i, PIECE));
        keep_largest(&m[codes_cell(&call->attr, i)], largest_of(weights_at(call, i, n, buffer), n));
    }
}

static void codes_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const DType type = call->attr.codes.type;
    const Fp8Format format = fp8_format(type);
    const float *m = call->in[1].data;
    uint8_t *y = call->out[0].data;
    float buffer[PIECE];
    const int64_t end = min_i64((tile + 1) * TILE_WORK, call->in[0].n[0]);
    for (int64_t i = tile * TILE_WORK, n; i < end; i += n) {
        n = codes_run(&call->attr, i, min_i64(end - i, PIECE));
        const float inverse = fp8_scale(type, m[codes_cell(&call->attr, i)]).inverse;
        const float *x = weights_at(call, i, n, buffer);
        for (int64_t k = 0; k < n; k++) y[i + k] = fp8_round(format, x[k] * inverse);
    }
}

static Err run_tiles(const Call *call, void (*tile)(void *work, int64_t tile))
{
    const int64_t tiles = blocks_of(call->in[0].n[0], TILE_WORK);
    if (tiles > 0) team_run(call->team, tiles, tile, (void *)call);
    return OK;
}

Err CPU_NAME(weight_amax)(const Call *call) { return run_tiles(call, amax_tile); }
Err CPU_NAME(weight_codes)(const Call *call) { return run_tiles(call, codes_tile); }
Err CPU_NAME(weight_scales)(const Call *call) { return ref_weight_scales(call); }

enum { SIDE = 32 }; /* a square of codes that stays in L1, read along rows and written along rows */

static void turn_rows(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *x = &call->in[0], *z = &call->out[0];
    const uint8_t *from = x->data;
    uint8_t *to = z->data;
    const int64_t first = tile * SIDE, end = min_i64(first + SIDE, z->n[0]);
    for (int64_t at = 0; at < z->n[1]; at += SIDE)
        for (int64_t i = first; i < end; i++)
            for (int64_t j = at; j < min_i64(at + SIDE, z->n[1]); j++)
                to[i * z->stride[0] + j * z->stride[1]] = from[j * x->stride[0] + i * x->stride[1]];
}

Err CPU_NAME(turn)(const Call *call)
{
    const int64_t tiles = blocks_of(call->out[0].n[0], SIDE);
    if (tiles > 0 && call->out[0].n[1] > 0) team_run(call->team, tiles, turn_rows, (void *)call);
    return OK;
}
