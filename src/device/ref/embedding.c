/* embedding.c -- rows of a table by id, and the sum of gradients into those rows.
 *
 * The table may be a part of the vocabulary: rows base .. base + v. Ids of other parts give zeros,
 * so that the sum over the parts is the whole. */
#include "device/ref/ref.h"

#include <stdbool.h>
#include <string.h>

enum { TOKENS = 16, ENTRIES = 256 }; /* of a tile: tokens looked up; entries of the vocabulary */

static void look_up(const Call *call, int64_t t)
{
    const Tensor *w = &call->in[1], *y = &call->out[0];
    const int64_t id = int_at(&call->in[0], t) - call->attr.vocab.base;
    const bool here = id >= 0 && id < w->n[0];
    double x[REF_CHUNK] = {0};
    for (int64_t from = 0; from < y->n[1]; from += REF_CHUNK) {
        const int64_t n = min_i64(y->n[1] - from, REF_CHUNK);
        if (here) row_load(tensor_row(w, id), from, n, x);
        row_store(tensor_row(y, t), from, n, x);
    }
}

static void embedding_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const int64_t end = min_i64((tile + 1) * TOKENS, call->out[0].n[0]);
    for (int64_t t = tile * TOKENS; t < end; t++) look_up(call, t);
}

Err ref_embedding(const Call *call)
{
    ref_tiles(call, blocks_of(call->out[0].n[0], TOKENS), embedding_tile);
    return OK;
}

/* Adds, in token order, the rows of dy that have the id of row `entry` of dw. No token before
 * `first` has it; first == tokens: no token has it. */
static void fold_entry(const Call *call, int64_t entry, int64_t first)
{
    const Tensor *dy = &call->in[0], *ids = &call->in[1], *dw = &call->out[0];
    const int64_t id = entry + call->attr.vocab.base;
    double x[REF_CHUNK];
    for (int64_t from = 0; from < dw->n[1]; from += REF_CHUNK) {
        const int64_t n = min_i64(dw->n[1] - from, REF_CHUNK);
        double sum[REF_CHUNK] = {0};
        for (int64_t t = first; t < dy->n[0]; t++) {
            if (int_at(ids, t) != id) continue;
            row_load(tensor_row(dy, t), from, n, x);
            for (int64_t i = 0; i < n; i++) sum[i] += x[i];
        }
        row_keep(tensor_row(dw, entry), from, n, call->number[0], sum);
    }
}

/* O(tokens) for each entry that occurs, and no scan for those that do not. */
static void embedding_dw_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *ids = &call->in[1], *dw = &call->out[0];
    const int64_t entry = tile * ENTRIES, n = min_i64(dw->n[0] - entry, ENTRIES);
    const int64_t tokens = call->in[0].n[0];
    bool done[ENTRIES] = {false};
    for (int64_t t = 0; t < tokens; t++) {
        const int64_t i = int_at(ids, t) - call->attr.vocab.base - entry;
        if (i < 0 || i >= n || done[i]) continue;
        done[i] = true;
        fold_entry(call, entry + i, t);
    }
    for (int64_t i = 0; i < n; i++)
        if (!done[i] && call->number[0] != 1) fold_entry(call, entry + i, tokens);
}

Err ref_embedding_dw(const Call *call)
{
    ref_tiles(call, blocks_of(call->out[0].n[0], ENTRIES), embedding_dw_tile);
    return OK;
}
