/* inputs.c -- the host's view of a micro-batch's inputs: the rows that the rank holds. */
#include "run/rank_parts.h"

#include <string.h>

Tensor rank_input(Rank *r, int micro, Input which)
{
    const LinkedProgram *lp = r->settings.program;
    const int64_t extent = model_input(lp->model, which).extent;
    Tensor t = {.dtype = input_dtype(which, lp->model->dtype), .ndim = extent > 1 ? 2 : 1};
    t.data = mailbox_at(r, lp->input[which] + (size_t)micro * lp->input_stride);
    t.n[0] = lp->input_rows[which].count;
    t.n[1] = extent;
    t.stride[0] = extent;
    t.stride[1] = 1;
    return t;
}

/* The address of a row of an input; NULL if it is on another rank. */
static void *row_at(Rank *r, int micro, Input which, int64_t row)
{
    const int64_t at = held_find(&r->settings.program->input_rows[which], row);
    const Tensor t = rank_input(r, micro, which);
    if (at < 0) return NULL;
    return (char *)t.data + (size_t)(at * t.stride[0]) * dtype_bytes(t.dtype);
}

static void put_int(Rank *r, int micro, Input which, int64_t row, int32_t x)
{
    void *at = row_at(r, micro, which, row);
    if (at) memcpy(at, &x, sizeof x);
}

void rank_put_weight(Rank *r, int micro, int64_t row, double weight)
{
    const float narrow = (float)weight;
    void *at = row_at(r, micro, INPUT_WEIGHTS, row);
    const bool wide = dtype_wide(r->settings.program->model->dtype) == F64;
    if (at && wide) memcpy(at, &weight, sizeof weight);
    if (at && !wide) memcpy(at, &narrow, sizeof narrow);
}

void rank_put_row(Rank *r, int micro, int64_t row, const InputRow *in)
{
    void *ranges = row_at(r, micro, INPUT_RANGES, row);
    if (ranges) memcpy(ranges, in->range, sizeof in->range);
    put_int(r, micro, INPUT_TOKENS, row, in->token);
    put_int(r, micro, INPUT_TARGETS, row, in->target);
    put_int(r, micro, INPUT_POSITIONS, row, in->position);
    rank_put_weight(r, micro, row, in->weight);
}

void rank_set_rows(Rank *r, int micro, int64_t rows)
{
    MUST(rows >= 0 && rows <= r->settings.program->model->rows, "%lld rows", (long long)rows);
    r->live_rows[micro] = rows;
}
