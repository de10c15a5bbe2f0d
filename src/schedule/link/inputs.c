/* inputs.c -- the rows of each input that the rank holds, and their memory.
 *
 *     rows       0 1 2 3 4 5 6 7 | 8 ...       two sequences of 8, zigzag on cp=2
 *     tokens     0 1         6 7   8 9 14 15   cp 0
 *                    2 3 4 5       10 .. 13    cp 1
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

/* Programs of slices read some rows of the micro-batch at a time; its memory has all of them. */
static Err find_rows(const LinkedProgram *lp, Input which, HeldSpans *out)
{
    const ProgTensor *known = NULL;
    *out = held_all(lp->model->rows);
    const int n = lp->programs.n_variants * lp->programs.n_classes;
    for (int k = 0; lp->slices == 1 && k < n; k++) {
        const ProgTensor *t = input_of(&lp->programs.program[k], which);
        if (!t) continue;
        if (known && !dim_same(known->dim[0], t->dim[0]))
            return err_fail(ERR_CHECK, "input %s: programs %s and another read other rows of it",
                            input_name(which), lp->programs.program[k].kind);
        known = t;
        *out = (HeldSpans){t->dim[0].span, t->dim[0].n_spans, t->dim[0].from, t->dim[0].cap};
    }
    return OK;
}

Err place_inputs(LinkedProgram *lp, size_t *at)
{
    const size_t first = *at;
    for (int i = 0; i < N_INPUTS; i++) {
        const bool session = input_info((Input)i)->writer == WRITTEN_BY_SESSION;
        const bool there = !session || lp->model->logit_rows > 0;
        TRY(find_rows(lp, (Input)i, &lp->input_rows[i]));
        if (session) lp->input_rows[i] = held_all(lp->model->rows);
        const size_t bytes =
            (size_t)lp->input_rows[i].count * input_row_bytes((Input)i, lp->model->dtype);
        lp->input[i] = link_take(at, there ? bytes : 0);
    }
    lp->input_stride = *at - first;
    *at = first + lp->input_stride * (size_t)lp->micros;
    lp->loss = link_take(at, (size_t)lp->micros * ARENA_ALIGN);
    return OK;
}
