/* prepack.c -- weights in the packed format of the device's GEMMs, made once a step.
 *
 *   before:  %7 = linear %5 %w         x W^T, in every micro-batch: the device packs w each time
 *            %9 = linear_dx %8 %w      dy W
 *   after:   %7 = linear %5 %w as #0   prepacked: #0  %w for x W^T
 *            %9 = linear_dx %8 %w as #1           #1  %w for dy W
 *
 * (as #0: Instr.prepacked, which is not printed, since the result is the same.) Linking gives each
 * of them an address in the step's memory, if it is read often enough, and names the RUN that packs
 * it: the first that reads it. The bits of the results do not change. */
#include <string.h>

#include "compile/compile.h"

/* True if the instruction is a GEMM whose b is a parameter, or a part of one. */
static bool reads_weight(const Program *p, const Instr *in)
{
    if (!kernel_is_gemm(op_info(in->op)->kernel)) return false;
    const ProgTensor *a = &p->tensor[in->in[0]], *b = &p->tensor[in->in[1]];
    return b->at[SPLIT].region == REGION_PARAM && b->ndim == 2 && a->dtype == b->dtype;
}

/* True if both are the same bytes with the same strides. */
static bool same_view(const ProgTensor *a, const ProgTensor *b)
{
    bool same = a->index == b->index && a->at[SPLIT].offset == b->at[SPLIT].offset &&
                a->dtype == b->dtype && a->ndim == b->ndim;
    for (int i = 0; same && i < a->ndim; i++)
        same = a->stride[i] == b->stride[i] && dim_same(a->dim[i], b->dim[i]);
    return same;
}

/* Its index among the prepacked weights; appends a new one if there is none. */
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
                        "unit %s has %d prepacked weights, at most %d are possible; "
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
