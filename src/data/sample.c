/* sample.c -- the rows of one sample.
 *
 *     stream    . . a a a|b b|c c . .          sample of T = 6 in a micro-batch, from row r on
 *     tokens        a a a b b c
 *     targets       a a b b c c
 *     weights       1 1 0 1 0 1                pack: none across a border
 *     positions     0 1 2 0 1 0
 *     ranges    lo  r r r | |  r+5             the first row of the document in this sample
 *               hi  own row + 1                and no less than hi - window
 *
 * A document that began before the sample begins anew with it: what is not in the sample cannot be
 * seen. */
#include "data/dataset.h"

#include <string.h>

static void put_weight(const InputRows *in, int64_t row, int weight)
{
    if (in->weight_type == F64)
        ((double *)in->weights)[row] = weight;
    else
        ((float *)in->weights)[row] = (float)weight;
}

/* The file that holds a place of the stream; empty files hold none. */
static int file_of(const Dataset *d, int64_t at)
{
    int low = 0, high = d->settings.n_paths - 1; /* the last whose first is <= at */
    while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        if (d->first[middle] <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* From the stream, each within the vocabulary. */
static Err copy_ids(const Dataset *d, int64_t at, int64_t n, int32_t *out)
{
    const int64_t end = at + n, vocab = d->settings.vocab;
    for (int f = file_of(d, at); at < end; f++) {
        const Tokens *t = &d->file[f];
        const int64_t stop = d->first[f + 1] < end ? d->first[f + 1] : end;
        for (; at < stop; at++) {
            const int64_t id = tokens_at(t, at - d->first[f]);
            if (id < 0 || id >= vocab) return tokens_bad_id(t, at - d->first[f], vocab);
            *out++ = (int32_t)id;
        }
    }
    return OK;
}

/* The first border in (at, end), or `end`. */
static int64_t next_border(const Dataset *d, int64_t at, int64_t end)
{
    const int f = file_of(d, at);
    const int64_t base = d->first[f], stop = d->first[f + 1] < end ? d->first[f + 1] : end;
    return base + tokens_next_start(&d->file[f], at - base, stop - base);
}

/* Is the token at a border the end-of-text that closes the document before it? */
static bool is_end_of_text(const Dataset *d, int64_t border)
{
    const Tokens *before = &d->file[file_of(d, border - 1)];
    const int f = file_of(d, border);
    return before->start_token >= 0 &&
           tokens_at(&d->file[f], border - d->first[f]) == before->start_token;
}

/* Rows [from, to) of the micro-batch, which see each other and nothing else. */
static void put_document(const InputRows *in, int64_t from, int64_t to, int64_t window)
{
    for (int64_t row = from; row < to; row++) {
        const int64_t hi = row + 1, lo = window > 0 && hi - window > from ? hi - window : from;
        const int32_t range[4] = {(int32_t)lo, (int32_t)hi, 0, 0};
        memcpy(in->ranges + 4 * row, range, sizeof range);
        in->positions[row] = (int32_t)(row - from);
        put_weight(in, row, 1);
    }
}

/* A row past the end of the stream sees itself: no row has an empty softmax. */
static void put_padding(const InputRows *in, int64_t row)
{
    const int32_t range[4] = {(int32_t)row, (int32_t)row + 1, 0, 0};
    memcpy(in->ranges + 4 * row, range, sizeof range);
    in->tokens[row] = in->targets[row] = in->positions[row] = 0;
    put_weight(in, row, 0);
}

Err dataset_fill(const Dataset *d, int64_t sample, int64_t window, const InputRows *in, int64_t row)
{
    const int64_t T = d->settings.seq_len, at = sample * T;
    const int64_t left = d->n_tokens - 1 - at, n = left < T ? left : T; /* rows with a target */
    MUST(sample >= 0 && sample < d->n_samples, "sample %lld of %lld", (long long)sample,
         (long long)d->n_samples);
    MUST(row >= 0 && row + T < INT32_MAX, "row %lld", (long long)row);
    TRY(copy_ids(d, at, n, in->tokens + row));
    TRY(copy_ids(d, at + 1, n, in->targets + row));
    const int64_t shift = row - at; /* from stream to rows */
    for (int64_t from = at, to; from < at + n; from = to) {
        to = d->settings.pack ? next_border(d, from, at + n + 1) : at + n;
        const bool border = to <= at + n && d->settings.pack; /* at + n: a target, no row */
        put_document(in, from + shift, (to < at + n ? to : at + n) + shift, window);
        if (border && !is_end_of_text(d, to)) put_weight(in, to - 1 + shift, 0);
    }
    for (int64_t i = row + n; i < row + T; i++) put_padding(in, i);
    return OK;
}
