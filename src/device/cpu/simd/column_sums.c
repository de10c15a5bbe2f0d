/* column_sums.c -- sums over all rows: the gradient of a bias.
 *
 *     rows 0 ..      one thread reads a chunk of rows in memory order;
 *     rows 64 ..     its sums are one row of `part`
 *     ...
 *     part           the chunks' sums, added in order
 *
 * The number of chunks follows from the shape alone: as many as `part` can hold. Long sums stay
 * accurate because a chunk is short and there are few chunks. */
#include "device/cpu/simd/simd.h"

#include <stddef.h>

/* A stripe is usually a whole row: memory is faster with long sequential reads. The number of
 * chunks is a multiple of SHARES where possible, so teams of 2, 4 or 8 threads have equal
 * shares. */
enum { PARTS = 32768, CHUNK_ROWS = 64, STRIPE = 4096, SHARES = 8 };

typedef struct {
    const Call *call;
    int64_t rows, width;
    int64_t stripes, chunks, per_chunk; /* stripes: of STRIPE columns */
    float part[PARTS];                  /* [chunks, width] where chunks > 1 */
} ColumnSums;

/* Adds four rows of n columns, so that the sums are read and written once per four rows. */
EACH_FORM void add_four(ElementForm form, const void *const r[4], int64_t n, float *sum)
{
    const void *const a = r[0], *const b = r[1], *const c = r[2], *const d = r[3];
    for (int64_t i = 0; i < n; i += W) {
        const V ab = v_load_as(form, a, i) + v_load_as(form, b, i);
        const V cd = v_load_as(form, c, i) + v_load_as(form, d, i);
        v_store(sum + i, v_load(sum + i) + (ab + cd));
    }
}

/* Sums rows [first, end) of the stripe that begins at column `from`. Reads contiguous rows of full
 * vectors in place, others by way of floats; missing rows of the last four are zeros. sum: padded
 * to full vectors. */
static void sum_chunk(const Tensor *x, int64_t first, int64_t end, int64_t from, float *sum)
{
    static const float zeros[STRIPE];
    const int64_t n = min_i64(row_length(x) - from, STRIPE);
    _Alignas(64) float buffer[4][STRIPE];
    memset(sum, 0, (size_t)(blocks_of(n, W) * W) * sizeof *sum);
    for (int64_t row = first; row < end; row += 4) {
        const RowRef r = tensor_row(x, row);
        const bool direct = form_of(r) != AS_OTHER && row + 4 <= end && n % W == 0;
        const void *at[4];
        for (int k = 0; k < 4 && direct; k++) at[k] = piece_at(tensor_row(x, row + k), from);
        for (int k = 0; k < 4 && !direct; k++) {
            at[k] = row + k < end ? buffer[k] : zeros;
            if (row + k < end) load_piece(tensor_row(x, row + k), from, n, buffer[k]);
            memset(buffer[k] + n, 0, (size_t)(blocks_of(n, W) * W - n) * sizeof **buffer);
        }
        if (direct && r.dtype == BF16)
            add_four(AS_BF16, at, n, sum);
        else
            add_four(AS_F32, at, n, sum);
    }
}

static void sum_rows_tile(void *work, int64_t tile)
{
    ColumnSums *s = work;
    const int64_t chunk = tile / s->stripes, from = tile % s->stripes * STRIPE;
    const int64_t first = chunk * s->per_chunk, end = min_i64(first + s->per_chunk, s->rows);
    const int64_t n = min_i64(s->width - from, STRIPE);
    _Alignas(64) float sum[STRIPE];
    sum_chunk(&s->call->in[0], first, end, from, sum);
    if (s->chunks > 1)
        memcpy(s->part + chunk * s->width + from, sum, sizeof *sum * (size_t)n);
    else
        keep_piece(tensor_row(&s->call->out[0], 0), from, n, (float)s->call->number[0], sum);
}

static void add_chunks(const ColumnSums *s, int64_t from)
{
    const int64_t n = min_i64(s->width - from, STRIPE);
    float sum[STRIPE];
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t chunk = 0; chunk < s->chunks; chunk++) {
        const float *part = s->part + chunk * s->width + from;
        for (int64_t i = 0; i < n; i += W)
            v_store_to(sum + i, n - i, v_load_to(sum + i, n - i) + v_load_to(part + i, n - i));
    }
    keep_piece(tensor_row(&s->call->out[0], 0), from, n, (float)s->call->number[0], sum);
}

Err CPU_NAME(sum_rows)(const Call *call)
{
    ColumnSums s; /* not initialized: it is large */
    s.call = call;
    s.rows = call->in[0].n[0];
    s.width = call->out[0].n[0];
    if (s.width == 0) return OK;
    s.stripes = blocks_of(s.width, STRIPE);
    const int64_t capacity = max_i64(PARTS / s.width, 1);
    const int64_t chunks = capacity < SHARES ? capacity : capacity / SHARES * SHARES;
    s.per_chunk = max_i64(blocks_of(s.rows, chunks), CHUNK_ROWS);
    s.chunks = max_i64(blocks_of(s.rows, s.per_chunk), 1);
    team_run(call->team, s.stripes * s.chunks, sum_rows_tile, &s);
    for (int64_t from = 0; s.chunks > 1 && from < s.width; from += STRIPE) add_chunks(&s, from);
    return OK;
}
