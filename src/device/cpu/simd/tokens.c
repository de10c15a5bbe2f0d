/* tokens.c -- rows of a table by id, the sum of gradients back into those rows, and copies: of all rows, or
 * of rows to places that an index tells.
 *
 * The table may be a part of the vocabulary: rows base .. base + v. Ids of other parts are zeros
 * here, so the parts add up to the whole. */
#include "device/cpu/simd/simd.h"

static void look_up(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *w = &call->in[1], *y = &call->out[0];
    const int64_t id = int_at(&call->in[0], t) - call->attr.vocab.base;
    const bool here = id >= 0 && id < w->n[0];
    const Row to = tensor_row(y, t);
    float buffer[2][PIECE];
    for (int64_t from = 0; from < y->n[1]; from += PIECE) {
        const int64_t n = least(y->n[1] - from, PIECE);
        float *at = write_piece(to, from, buffer[1]);
        if (here)
            memcpy(at, read_piece(tensor_row(w, id), from, n, buffer[0]), (size_t)n * sizeof *at);
        else
            memset(at, 0, (size_t)n * sizeof *at);
        end_piece(to, from, n, at);
    }
}

Err CPU_NAME(embedding)(const Call *call)
{
    const Tensor *y = &call->out[0];
    run_rows(call->team, y->n[0], y->n[1], look_up, call);
    return OK;
}

/* Of a tile: entries of the vocabulary, and columns, so that a small vocabulary has tiles too. */
enum { ENTRIES = 256, COLUMNS = 256 };

/* Some columns of row `entry` of dw take the sum, in token order, of the rows of dy that have its
 * id. No token before `first` has it; first == tokens says that none has. */
static void fold_entry(const Call *call, int64_t entry, int64_t first, int64_t column)
{
    const Tensor *dy = &call->in[0], *ids = &call->in[1], *dw = &call->out[0];
    const int64_t n = least(dw->n[1] - column, COLUMNS);
    const int64_t id = entry + call->attr.vocab.base;
    float sum[COLUMNS] = {0}, buffer[COLUMNS];
    for (int64_t t = first; t < dy->n[0]; t++) {
        if (int_at(ids, t) != id) continue;
        const float *x = read_piece(tensor_row(dy, t), column, n, buffer);
        for (int64_t i = 0; i < n; i += W)
            v_store_to(sum + i, n - i, v_load_to(sum + i, n - i) + v_load_to(x + i, n - i));
    }
    keep_piece(tensor_row(dw, entry), column, n, (float)call->number[0], sum);
}

/* A scan of the ids for the tile, and one for each entry that occurs; none for those that do not.
 */
static void embedding_dw_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *ids = &call->in[1], *dw = &call->out[0];
    const int64_t across = blocks_of(dw->n[1], COLUMNS), column = tile % across * COLUMNS;
    const int64_t entry = tile / across * ENTRIES, n = least(dw->n[0] - entry, ENTRIES);
    const int64_t tokens = call->in[0].n[0], base = call->attr.vocab.base + entry;
    bool done[ENTRIES] = {false};
    for (int64_t t = 0; t < tokens; t++) {
        const int64_t i = int_at(ids, t) - base;
        if (i < 0 || i >= n || done[i]) continue;
        done[i] = true;
        fold_entry(call, entry + i, t, column);
    }
    for (int64_t i = 0; i < n; i++)
        if (!done[i] && call->number[0] != 1) fold_entry(call, entry + i, tokens, column);
}

Err CPU_NAME(embedding_dw)(const Call *call)
{
    const Tensor *dw = &call->out[0];
    ref_tiles(call, blocks_of(dw->n[0], ENTRIES) * blocks_of(dw->n[1], COLUMNS), embedding_dw_tile);
    return OK;
}

/* Bytes as they are: integers and NaN payloads too, so not by way of floats. */
static void copy_bytes(Row x, Row y, int64_t n)
{
    const size_t bytes = dtype_bytes(y.dtype);
    if (x.stride == 1 && y.stride == 1) {
        memcpy(y.at, x.at, (size_t)n * bytes);
        return;
    }
    const int64_t from = x.stride * (int64_t)bytes, to = y.stride * (int64_t)bytes;
    for (int64_t i = 0; i < n; i++) memcpy(y.at + i * to, x.at + i * from, bytes);
}

static void copy_row(const void *work, int64_t row)
{
    const Call *call = work;
    const Tensor *y = &call->out[0];
    copy_bytes(tensor_row(&call->in[0], row), tensor_row(y, row), row_length(y));
}

Err CPU_NAME(copy)(const Call *call)
{
    const Tensor *y = &call->out[0];
    if (row_length(y) > 0) run_rows(call->team, row_count(y), row_length(y), copy_row, call);
    return OK;
}

/* Rows of x, each one of x[t,..]'s, in order; the row of y that it belongs to starts at at[t]. */
static void put_row_at(const void *work, int64_t row)
{
    const Call *call = work;
    const Tensor *x = &call->in[0], *y = &call->out[0];
    const int64_t each = row_count(x) / x->n[0], t = row / each;
    const int64_t to = int_at(&call->in[1], t) * each + row % each;
    copy_bytes(tensor_row(x, row), tensor_row(y, to), row_length(y));
}

Err CPU_NAME(put_rows_at)(const Call *call)
{
    const Tensor *x = &call->in[0];
    if (row_count(x) > 0 && row_length(x) > 0)
        run_rows(call->team, row_count(x), row_length(x), put_row_at, call);
    return OK;
}
