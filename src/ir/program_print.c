/* program_print.c -- a program as text: instructions by phase, each with its queue, its shapes, and
 * the scope of what it makes.
 *
 *   F   0  %3 attn.in [24,32] scratch+0, %4 [24] frame-w+0 = rmsnorm %0 %1
 */
#include "ir/program.h"

#include "base/text.h"

static void print_out(Text *t, const Program *p, int32_t id, int mode)
{
    const ProgTensor *x = &p->tensor[id];
    const Place at = x->at[mode];
    text_add(t, "%%%d%s%s [", id, x->name[0] ? " " : "", x->name);
    for (int i = 0; i < x->ndim; i++)
        text_add(t, "%s%s%lld", i ? "," : "",
                 x->dim[i].slot == NO_SLOT ? "" : "<=", (long long)x->dim[i].cap);
    text_add(t, "] %s", region_name(at.region));
    if (at.region < N_OWN_REGIONS) text_add(t, "+%zu", at.offset);
    if (x->view_of != id) text_add(t, " in %%%d", x->view_of);
}

static void print_instr(Text *t, const Program *p, int index)
{
    const Instr *i = &p->instr[index];
    const int mode = i->phase == PHASE_B ? MERGED : SPLIT;
    text_add(t, "  %s%s %3d  ", phase_name(i->phase), i->again ? "'" : " ",
             index - p->first[i->phase]);
    for (int k = 0; k < i->n_out; k++) {
        text_add(t, k ? ", " : "");
        print_out(t, p, i->out[k], mode);
    }
    text_add(t, " %s %s", i->n_out && i->keep[0] != SLOT_ZERO ? "+=" : "=", op_info(i->op)->name);
    for (int k = 0; k < i->n_in; k++) text_add(t, " %%%d", i->in[k]);
    if (i->queue != QUEUE_COMPUTE) text_add(t, " on %s", queue_name(i->queue));
    text_add(t, "\n");
}

static void print_given(Text *t, const Program *p)
{
    for (int v = 0; v < p->n_tensors; v++) {
        const ProgTensor *x = &p->tensor[v];
        if (x->at[SPLIT].region < N_OWN_REGIONS || x->view_of != v) continue;
        bool read = false;
        for (int i = 0; i < p->n_instr; i++)
            for (int k = 0; k < p->instr[i].n_in; k++)
                read = read || p->tensor[p->instr[i].in[k]].view_of == v;
        if (!read) continue;
        text_add(t, "  in     ");
        print_out(t, p, v, SPLIT);
        text_add(t, "\n");
    }
}

Err program_print(const Program *p, Arena *arena, const char **out)
{
    Text t = text_in(arena);
    char a[24], b[24];
    print_given(&t, p);
    for (int ph = 0; ph < N_PHASES; ph++) {
        double flops = 0;
        for (int i = p->first[ph]; i < p->first[ph + 1]; i++) {
            print_instr(&t, p, i);
            flops += p->instr[i].flops;
        }
        if (p->first[ph] == p->first[ph + 1]) continue;
        text_add(&t, "  %s      %d instructions, %s flops, scratch %s\n", phase_name((Phase)ph),
                 p->first[ph + 1] - p->first[ph], text_count(flops, a),
                 text_bytes((int64_t)p->scratch_bytes[ph], b));
    }
    return text_done(&t, out);
}
