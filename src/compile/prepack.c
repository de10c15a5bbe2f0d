/* prepack.c -- weights that products read in an order of the device's own, made once a step.
 *
 *   before:  %7 = linear %5 %w         x W^T, in every micro-batch: the device arranges w each time
 *            %9 = linear_dx %8 %w      dy W
 *   after:   %7 = linear %5 %w as #0   arranged: #0  %w for x W^T
 *            %9 = linear_dx %8 %w as #1          #1  %w for dy W
 *
 * (as #0: Instr.arranged, which is not printed: what is computed is the same.)
 * Linking gives each of them a place in the step's memory, where it is read often enough, and says which
 * RUN makes it: the first that reads it. Bits stay what they were. */
#include <string.h>

#include "compile/compile.h"

/* Does the product read a whole parameter, or a part of one, as its b? */
static bool reads_weight(const Program *p, const Instr *in)
{
    if (!kernel_is_gemm(op_info(in->op)->kernel)) return false;
    const ProgTensor *a = &p->tensor[in->in[0]], *b = &p->tensor[in->in[1]];
    return b->at[SPLIT].region == REGION_PARAM && b->ndim == 2 && a->dtype == b->dtype;
}

/* The same bytes, seen the same way? */
static bool same_view(const ProgTensor *a, const ProgTensor *b)
{
    bool same = a->index == b->index && a->at[SPLIT].offset == b->at[SPLIT].offset &&
                a->dtype == b->dtype && a->ndim == b->ndim;
    for (int i = 0; same && i < a->ndim; i++)
        same = a->stride[i] == b->stride[i] && dim_same(a->dim[i], b->dim[i]);
    return same;
}

/* Its number among those arranged; a new one where it is not yet. */
static int prepacked_of(const Program *p, const Instr *in, PrepackedWeight *list, int *n)
{
    const bool tb = in->attr.kernel.gemm.tb;
    for (int i = 0; i < *n; i++)
        if (list[i].tb == tb && same_view(&p->tensor[list[i].tensor], &p->tensor[in->in[1]]))
            return i;
    list[*n] = (PrepackedWeight){.tensor = in->in[1], .tb = tb};
    return (*n)++;
}

Err prepack(const DevicePrepack *device, Arena *arena, Program *p)
{
    Instr *instr;
    PrepackedWeight *list;
    int n = 0;
    TRY(ARENA_NEW(arena, p->n_instr + 1, &instr));
    TRY(ARENA_NEW(arena, p->n_instr + 1, &list));
    memcpy(instr, p->instr, (size_t)p->n_instr * sizeof *instr);
    for (int i = 0; i < p->n_instr; i++)
        if (reads_weight(p, &instr[i]))
            instr[i].prepacked = 1 + prepacked_of(p, &instr[i], list, &n);
    if (n > MAX_PREPACKED)
        return err_fail(ERR_CONFIG,
                        "unit %s has %d weights in the order of products, at most %d are possible; "
                        "set parallel.prepack=false",
                        p->kind, n, MAX_PREPACKED);
    for (int i = 0; i < n; i++) {
        const ProgTensor *w = &p->tensor[list[i].tensor];
        list[i].bytes = device->bytes(w->dtype, w->dim[list[i].tb].cap, w->dim[!list[i].tb].cap);
    }
    p->instr = instr;
    p->prepacked = list;
    p->n_prepacked = n;
    return OK;
}
