/* inputs.c -- the rows of each input that the rank holds, and their memory.
 *
 *     rows       0 1 2 3 4 5 6 7 | 8 ...       two sequences of 8, zigzag on cp=2
 *     tokens     0 1         6 7   8 9 14 15   cp 0
 *                    2 3 4 5       10 .. 13    cp 1
 *
 * Slices are cut over cp one by one (compile/context.c), and their rows follow each other.
 *
 * The layouts that `place` gave the inputs decide: programs read a rank's rows, so these are the
 * rows that the loader writes and that live tokens are counted in. */
#include "schedule/link/link_parts.h"

/* The first tensor of a program that is the input, or NULL. */
static const ProgTensor *input_of(const Program *p, Input which)
{
    for (int i = 0; i < p->n_tensors; i++) {
        const ProgTensor *t = &p->tensor[i];
        if (t->at[SPLIT].region == REGION_INPUT && t->index == (int32_t)which && t->view_of == i)
            return t;
    }
    return NULL;
}

unsigned input_axes(const LinkedProgram *lp, Input which)
{
    unsigned axes = 0;
    for (int k = 0; k < lp->programs.n_classes; k++) {
        const ProgTensor *t = input_of(&lp->programs.program[k], which);
        for (int c = 0; t && c < t->layout.n_cuts; c++) axes |= t->layout.cut[c].axes;
    }
    return axes;
}

/* The rows of an input that this rank's program reads. A bounded extent says them, a fixed one has
 * them in its layout. */
static HeldSpans rows_of_tensor(const LinkedProgram *lp, const ProgTensor *t, int64_t extent)
{
    const Dim *d = &t->dim[0];
    const Shape shape = {.ndim = 1, .n = {extent}};
    Layout rows = layout_replicate(t->layout.view);
    if (d->slot != NO_SLOT) return (HeldSpans){d->span, d->n_spans, d->from, d->cap};
    for (int i = 0; i < t->layout.n_cuts; i++)
        if (t->layout.cut[i].dim == 0) rows.cut[rows.n_cuts++] = t->layout.cut[i];
    return holding_of(&rows, lp->mesh, &shape, lp->rank).dim[0];
}

/* The rows of an input that n programs read, counted from the first one; all `extent` of them if
 * none reads it. */
static Err find_read(const LinkedProgram *lp, const Program *program, int n, Input which,
                     int64_t extent, HeldSpans *out)
{
    const ProgTensor *known = NULL;
    *out = held_all(extent);
    for (int k = 0; k < n; k++) {
        const ProgTensor *t = input_of(&program[k], which);
        if (!t) continue;
        if (known && !dim_same(known->dim[0], t->dim[0]))
            return err_fail(ERR_CHECK, "input %s: programs %s and another read other rows of it",
                            input_name(which), program[k].kind);
        known = t;
        *out = rows_of_tensor(lp, t, extent);
    }
    return OK;
}

/* The rows of all slices, one after the other. */
static Err join_rows(const LinkedProgram *lp, const HeldSpans *of_slice, Arena *arena,
                     HeldSpans *out)
{
    Span *span;
    int n = 0;
    int64_t count = 0;
    for (int q = 0; q < lp->slices; q++) n += of_slice[q].n_spans + 1;
    TRY(ARENA_NEW(arena, n, &span));
    n = 0;
    for (int q = 0; q < lp->slices; q++) {
        HeldCursor cursor = {0, 0};
        for (int64_t i = 0; i < of_slice[q].count;) {
            const Span s = held_span_next(&of_slice[q], i, &cursor);
            const int64_t at = lp->slice_at[q];
            i += span_count(s);
            count += span_count(s);
            span[n++] = (Span){at + s.lo, at + s.hi, s.step};
        }
    }
    *out = (HeldSpans){span, n, 0, count};
    return OK;
}

static Err find_rows(const LinkedProgram *lp, Input which, Arena *arena, HeldSpans *out)
{
    const ProgramTable *t = &lp->programs;
    const int64_t extent = model_input(lp->model, which).rows;
    HeldSpans *of_slice;
    bool all = true;
    if (lp->slices == 1 || extent == 0)
        return find_read(lp, t->program, t->n_variants * t->n_classes, which, extent, out);
    TRY(ARENA_NEW(arena, lp->slices, &of_slice));
    for (int q = 0; q < lp->slices; q++) {
        const int64_t rows = lp->slice_at[q + 1] - lp->slice_at[q];
        const Program *program = &t->program[t->variant_of[q] * t->n_classes];
        TRY(find_read(lp, program, t->n_classes, which, rows, &of_slice[q]));
        all = all && of_slice[q].count == rows;
    }
    *out = held_all(extent);
    return all ? OK : join_rows(lp, of_slice, arena, out);
}

Err place_inputs(LinkedProgram *lp, Arena *arena, size_t *at)
{
    const size_t first = *at;
    for (int i = 0; i < N_INPUTS; i++) {
        const InputShape shape = model_input(lp->model, (Input)i);
        TRY(find_rows(lp, (Input)i, arena, &lp->input_rows[i]));
        if (input_info((Input)i)->writer == WRITTEN_BY_SESSION)
            lp->input_rows[i] = held_all(shape.rows);
        const int64_t count = lp->input_rows[i].count * shape.extent;
        lp->input[i] =
            link_take(at, (size_t)count * dtype_bytes(input_dtype((Input)i, lp->model->dtype)));
    }
    lp->input_stride = *at - first;
    *at = first + lp->input_stride * (size_t)lp->micros;
    lp->loss = link_take(at, (size_t)lp->micros * ARENA_ALIGN);
    return OK;
}
