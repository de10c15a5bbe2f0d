/* attention.c -- calls of attention with the shapes, strides and alignments of a run. */
#include "job/attention.h"

enum { REGION_START = 4096 }; /* any address that is aligned to 64 bytes */

static Tensor tensor_of(const Program *p, int32_t id, int mode)
{
    const ProgTensor *t = &p->tensor[id];
    Tensor x = {.dtype = t->dtype,
                .ndim = t->ndim,
                .data = (char *)(uintptr_t)REGION_START + t->at[mode].offset};
    for (int i = 0; i < t->ndim; i++) x.n[i] = t->dim[i].cap, x.stride[i] = t->stride[i];
    return x;
}

Call instr_call(const Program *p, const Instr *in)
{
    const int mode = in->phase == PHASE_B ? MERGED : SPLIT;
    Call c = {.n_in = in->n_in, .n_out = in->n_out, .attr = in->attr.kernel};
    for (int i = 0; i < in->n_in; i++) c.in[i] = tensor_of(p, in->in[i], mode);
    for (int i = 0; i < in->n_out; i++) {
        c.out[i] = tensor_of(p, in->out[i], mode);
        c.number[i] = in->keep[i] == SLOT_ZERO ? 0 : 1;
    }
    return c;
}

bool job_attention_call(const Job *job, bool backward, Call *out)
{
    const LinkedProgram *lp = &job->linked;
    const OpId op = backward ? OP_attention_dx : OP_attention;
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        if (!l->program) continue;
        const int first = l->program->first[l->action.phase];
        const int end = l->program->first[l->action.phase + 1];
        for (int k = first; k < end; k++) {
            if (l->program->instr[k].op != op) continue;
            *out = instr_call(l->program, &l->program->instr[k]);
            return true;
        }
    }
    return false;
}
