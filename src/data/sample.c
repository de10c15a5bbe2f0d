/* sample.c -- writes the rows of one sample.
 *
 *     stream    . . a a a|b b|c c . .          a sample of T = 6; row 0 is its first in the drawing
 *     tokens        a a a b b c
 *     targets       a a b b c c
 *     weights       1 1 0 1 0 1                pack: 0 across a border
 *     positions     0 1 2 0 1 0
 *     ranges    lo  0 0 0 3 3 5                first row of the document, or hi - window if larger
 *               hi  1 2 3 4 5 6                own row + 1
 *
 * A document that began before the sample restarts with it: rows outside of the sample have
 * no keys. */
#include "data/dataset.h"

#include <string.h>
#include "data/map.h"
#include "data/row_walk.h"

static RowWalk walk_rows(const InputRows *in, Input which, int64_t lo, int64_t hi)
{
    return row_walk(in->held ? &in->held[which] : NULL, lo, hi);
}

static void put_weight(const InputRows *in, int64_t at, int weight)
{
    if (in->weight_type == F64)
        ((double *)in->weights)[at] = weight;
    else
        ((float *)in->weights)[at] = (float)weight;
}

/* Returns the file that contains a position of the stream, which is never an empty file. */
static int file_of(const Dataset *d, int64_t at)
{
    int low = 0, high = d->settings.n_paths - 1; /* the last file with first <= at */
    while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        if (d->first[middle] <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Copies the ids of rows [row, row + n) from position `at` of the stream on, and checks each
 * against the vocabulary. */
static Err copy_ids(const Dataset *d, int64_t at, RowWalk w, int64_t row, int32_t *out)
{
    const int64_t vocab = d->settings.vocab;
    int64_t i, held;
    int f = file_of(d, at);
    while (next_row(&w, &i, &held)) {
        const int64_t position = at + held - row;
        while (position >= d->first[f + 1]) f++;
        const int64_t id = tokens_at(&d->file[f], position - d->first[f]);
        if (id < 0 || id >= vocab) return tokens_bad_id(&d->file[f], position - d->first[f], vocab);
        out[i] = (int32_t)id;
    }
    return OK;
}

/* Returns the first document border in (at, end), or `end`. */
static int64_t next_border(const Dataset *d, int64_t at, int64_t end)
{
    const int f = file_of(d, at);
    const int64_t base = d->first[f], stop = d->first[f + 1] < end ? d->first[f + 1] : end;
    return base + tokens_next_start(&d->file[f], at - base, stop - base);
}

/* True if the token at a border is the end-of-text token of the document before it. */
static bool is_end_of_text(const Dataset *d, int64_t border)
{
    const Tokens *before = &d->file[file_of(d, border - 1)];
    const int f = file_of(d, border);
    return before->start_token >= 0 &&
           tokens_at(&d->file[f], border - d->first[f]) == before->start_token;
}

static void put_ranges(const InputRows *in, int64_t at, int64_t lo, int64_t hi)
{
    const int32_t range[4] = {(int32_t)lo, (int32_t)hi, 0, 0};
    memcpy(in->ranges + 4 * at, range, sizeof range);
}

static void put_weights(const InputRows *in, int64_t from, int64_t to, int weight)
{
    int64_t at, row;
    for (RowWalk w = walk_rows(in, INPUT_WEIGHTS, from, to); next_row(&w, &at, &row);)
        put_weight(in, at, weight);
}

/* Rows [from, to) of the micro-batch, one document. */
static void put_document(const InputRows *in, int64_t from, int64_t to, int64_t window)
{
    int64_t at, row;
    for (RowWalk w = walk_rows(in, INPUT_RANGES, from, to); next_row(&w, &at, &row);)
        put_ranges(in, at, window > 0 && row + 1 - window > from ? row + 1 - window : from,
                   row + 1);
    for (RowWalk w = walk_rows(in, INPUT_POSITIONS, from, to); next_row(&w, &at, &row);)
        in->positions[at] = (int32_t)(row - from);
    put_weights(in, from, to, 1);
}

/* Rows [from, to) past the end of the stream. Each attends to itself, since the softmax of an empty
 * range is undefined. */
static void put_padding(const InputRows *in, int64_t from, int64_t to)
{
    int64_t at, row;
    for (RowWalk w = walk_rows(in, INPUT_RANGES, from, to); next_row(&w, &at, &row);)
        put_ranges(in, at, row, row + 1);
    for (RowWalk w = walk_rows(in, INPUT_TOKENS, from, to); next_row(&w, &at, &row);)
        in->tokens[at] = 0;
    for (RowWalk w = walk_rows(in, INPUT_TARGETS, from, to); next_row(&w, &at, &row);)
        in->targets[at] = 0;
    for (RowWalk w = walk_rows(in, INPUT_POSITIONS, from, to); next_row(&w, &at, &row);)
        in->positions[at] = 0;
    put_weights(in, from, to, 0);
}

Err dataset_fill(const Dataset *d, int64_t sample, int64_t window, const InputRows *in, int64_t row)
{
    const int64_t T = d->settings.seq_len, at = sample * T;
    const int64_t left = d->n_tokens - 1 - at, n = left < T ? left : T; /* rows with a target */
    MUST(sample >= 0 && sample < d->n_samples, "sample %lld of %lld", (long long)sample,
         (long long)d->n_samples);
    MUST(row >= 0 && row + T < INT32_MAX, "row %lld", (long long)row);
    TRY(copy_ids(d, at, walk_rows(in, INPUT_TOKENS, row, row + n), row, in->tokens));
    TRY(copy_ids(d, at + 1, walk_rows(in, INPUT_TARGETS, row, row + n), row, in->targets));
    const int64_t shift = row - at; /* from positions in the stream to rows */
    for (int64_t from = at, to; from < at + n; from = to) {
        to = d->settings.pack ? next_border(d, from, at + n + 1) : at + n;
        const bool border = to <= at + n && d->settings.pack; /* at + n is no row */
        put_document(in, from + shift, (to < at + n ? to : at + n) + shift, window);
        if (border && !is_end_of_text(d, to)) put_weights(in, to - 1 + shift, to + shift, 0);
    }
    put_padding(in, row + n, row + T);
    return map_check();
}
