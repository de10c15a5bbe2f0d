/* tokens.c -- embedding lookup, its gradient, and copies: of all rows, or of rows to indexed
 * places.
 *
 * The table may be a shard of the vocabulary: rows base .. base + v. The lookup writes zeros for
 * ids of other shards, so the sum over all shards is the whole lookup.
 *
 * The gradient builds one linked list of tokens per table entry, once per call:
 *
 *     head[entry] -> token -> next[token] -> .. -> NONE         in token order */
#include "device/cpu/simd/simd.h"

#include <stddef.h>
#include "device/cpu/workspace.h"
#include "device/row_spans.h"

/* Copies bytes, not floats: preserves integers and NaN payloads. */
static void copy_bytes(RowRef x, RowRef y, int64_t n)
{
    const size_t bytes = dtype_bytes(y.dtype);
    if (x.stride == 1 && y.stride == 1) {
        memcpy(y.at, x.at, (size_t)n * bytes);
        return;
    }
    const int64_t from = x.stride * (int64_t)bytes, to = y.stride * (int64_t)bytes;
    for (int64_t i = 0; i < n; i++) memcpy(y.at + i * to, x.at + i * from, bytes);
}

enum { PREFETCH_TOKENS = 2 }; /* tokens between a lookup and its prefetch */

/* The table row of a token; at == NULL: the id belongs to another shard. */
static RowRef row_of_id(const Call *call, int64_t t)
{
    const Tensor *w = &call->in[1];
    const int64_t id = int_at(&call->in[0], t) - call->attr.vocab.base;
    return id >= 0 && id < w->n[0] ? tensor_row(w, id) : (RowRef){.at = NULL};
}

static void look_up(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *y = &call->out[0];
    const RowRef to = tensor_row(y, t), from = row_of_id(call, t);
    const RowRef soon = t + PREFETCH_TOKENS < y->n[0] ? row_of_id(call, t + PREFETCH_TOKENS) : from;
    if (soon.at) prefetch_piece(soon, 0, y->n[1]);
    if (from.at && from.dtype == to.dtype) {
        copy_bytes(from, to, y->n[1]);
        return;
    }
    for (int64_t at = 0; at < y->n[1]; at += PIECE) {
        _Alignas(64) float x[PIECE] = {0};
        const int64_t n = min_i64(y->n[1] - at, PIECE);
        if (from.at) load_piece(from, at, n, x);
        store_piece(to, at, n, x);
    }
}

Err CPU_NAME(embedding)(const Call *call)
{
    const Tensor *y = &call->out[0];
    run_rows(call->team, y->n[0], y->n[1], look_up, call);
    return OK;
}

/* A tile is ENTRIES entries by PIECE columns, or by fewer columns where a small vocabulary makes
 * few tiles. */
enum { ENTRIES = 256, SMALL_VOCAB_TILES = 32, SMALL_VOCAB_COLUMNS = 256, NONE = -1 };

typedef struct {
    const Call *call;
    int32_t *head, *next; /* [entries], [tokens] */
    int64_t columns, column_tiles;
} EmbeddingGrad;

static void list_tokens(const Call *call, EmbeddingGrad *f)
{
    const int64_t entries = call->out[0].n[0];
    memset(f->head, 0xff, (size_t)entries * sizeof *f->head); /* NONE */
    for (int64_t t = call->in[0].n[0] - 1; t >= 0; t--) {
        const int64_t entry = int_at(&call->in[1], t) - call->attr.vocab.base;
        if (entry < 0 || entry >= entries) continue;
        f->next[t] = f->head[entry];
        f->head[entry] = (int32_t)t;
    }
}

/* Adds the gradients of an entry's tokens, in token order, for one tile's columns. */
static void grad_entry(const EmbeddingGrad *f, int64_t entry, int64_t column)
{
    const Tensor *dy = &f->call->in[0], *dw = &f->call->out[0];
    const int64_t n = min_i64(dw->n[1] - column, f->columns);
    _Alignas(64) float sum[PIECE] = {0}, buffer[PIECE];
    for (int64_t t = f->head[entry]; t != NONE; t = f->next[t]) {
        const float *x = read_piece(tensor_row(dy, t), column, n, buffer);
        for (int64_t i = 0; i < n; i += W)
            v_store_to(sum + i, n - i, v_load_to(sum + i, n - i) + v_load_to(x + i, n - i));
    }
    keep_piece(tensor_row(dw, entry), column, n, (float)f->call->number[0], sum);
}

/* Prefetches the columns of the entry and of its first token. */
static void prefetch_entry(const EmbeddingGrad *f, int64_t entry, int64_t column)
{
    const Tensor *dy = &f->call->in[0], *dw = &f->call->out[0];
    const int64_t n = min_i64(dw->n[1] - column, f->columns);
    prefetch_piece(tensor_row(dw, entry), column, n);
    prefetch_piece(tensor_row(dy, f->head[entry]), column, n);
}

/* With keep = 1, entries without tokens are unchanged and skipped. */
static void grad_tile(void *work, int64_t tile)
{
    const EmbeddingGrad *f = work;
    const int64_t column = tile % f->column_tiles * f->columns,
                  first = tile / f->column_tiles * ENTRIES;
    const int64_t end = min_i64(first + ENTRIES, f->call->out[0].n[0]);
    const bool all = f->call->number[0] != 1;
    int64_t before = NONE;
    for (int64_t entry = first; entry < end; entry++) {
        if (f->head[entry] == NONE && !all) continue;
        if (f->head[entry] != NONE) prefetch_entry(f, entry, column);
        if (before != NONE) grad_entry(f, before, column);
        before = entry;
    }
    if (before != NONE) grad_entry(f, before, column);
}

Err CPU_NAME(embedding_dw)(const Call *call)
{
    const Tensor *dw = &call->out[0];
    const int64_t tokens = call->in[0].n[0], tiles = blocks_of(dw->n[0], ENTRIES);
    EmbeddingGrad f = {.call = call,
                       .columns = tiles < SMALL_VOCAB_TILES ? SMALL_VOCAB_COLUMNS : PIECE};
    Workspace *space;
    if (tiles == 0 || dw->n[1] == 0) return OK;
    TRY(workspace_take((size_t)(dw->n[0] + tokens) * sizeof *f.head, "lists of tokens", &space));
    f.head = space->at;
    f.next = f.head + dw->n[0];
    f.column_tiles = blocks_of(dw->n[1], f.columns);
    list_tokens(call, &f);
    team_run(call->team, tiles * f.column_tiles, grad_tile, &f);
    workspace_give(space);
    return OK;
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

/* Copies row `row` of x, which belongs to x[t,..], to the row of y that at[t] selects, if any. */
static void put_row_at(const void *work, int64_t row)
{
    const Call *call = work;
    const Tensor *x = &call->in[0], *y = &call->out[0];
    const int64_t each = row_count(x) / x->n[0], t = row / each;
    const int64_t at = int_at(&call->in[1], t), to = at * each + row % each;
    if (at < 0) return;
    copy_bytes(tensor_row(x, row), tensor_row(y, to), row_length(y));
}

Err CPU_NAME(put_rows_at)(const Call *call)
{
    const Tensor *x = &call->in[0];
    if (row_count(x) > 0 && row_length(x) > 0)
        run_rows(call->team, row_count(x), row_length(x), put_row_at, call);
    return OK;
}

/* Ranges are a few integers per token. */
Err CPU_NAME(local_ranges)(const Call *call)
{
    const Tensor *x = &call->in[0], *y = &call->out[0];
    for (int64_t t = 0; t < y->n[0]; t++)
        for (int64_t i = 0; i < y->n[1]; i++) {
            const int32_t *from = (const int32_t *)x->data + t * x->stride[0] + i * x->stride[1];
            int32_t *to = (int32_t *)y->data + t * y->stride[0] + i * y->stride[1];
            *to = (int32_t)row_spans_below(call->attr.rows.span, call->attr.rows.n, *from);
        }
    return OK;
}
