/* bind.c -- sub-programs that a step binds to the calls of its programs. Prepared for ring
 * attention; only tests call it.
 *
 *     caller    y, region = call a b           the region is scratch of the caller's phase
 *     sub       arg 0: a, arg 1: b, arg 2: y   all its other tensors are in the region
 *
 * Bindings are checked here, before the step; the executor trusts them. */
#include "run/rank_parts.h"

typedef struct {
    const Program *sub, *caller;
    const Instr *call;
    const Model *model;
} Binding;

/* Checks that the sub-program has F alone, and no memory except scratch that fits the region. */
static Err check_room(const Binding *b)
{
    const Program *sub = b->sub;
    if (sub->first[PHASE_F + 1] != sub->n_instr)
        return err_fail(ERR_CONFIG, "sub-program %s has backward phases; a call runs F alone",
                        sub->kind);
    for (int i = 0; i < sub->n_instr; i++)
        if (sub->instr[i].op == OP_call)
            return err_fail(ERR_CONFIG, "sub-program %s calls another; inline the inner call",
                            sub->kind);
    for (int r = REGION_SCRATCH + 1; r < N_OWN_REGIONS; r++)
        if (sub->bytes[r])
            return err_fail(ERR_CONFIG,
                            "sub-program %s has %zu bytes in %s; it may use only its region and "
                            "its arguments",
                            sub->kind, sub->bytes[r], region_name((Region)r));
    if (sub->scratch_bytes[PHASE_F] > (size_t)b->call->attr.call.region_bytes)
        return err_fail(
            ERR_CONFIG,
            "sub-program %s needs a region of %zu bytes, the call in %s leaves it %lld; "
            "bind a smaller one or compile with a larger region",
            sub->kind, sub->scratch_bytes[PHASE_F], b->caller->kind,
            (long long)b->call->attr.call.region_bytes);
    return OK;
}

static bool is_contiguous(const ProgTensor *t)
{
    int64_t step = 1;
    bool dense = true;
    for (int i = t->ndim - 1; i >= 0; i--) {
        dense = dense && (t->dim[i].cap == 1 || t->stride[i] == step);
        step *= t->dim[i].cap;
    }
    return dense;
}

/* The operand of the call for argument `index`, or NULL. The region is no argument. */
static const ProgTensor *operand(const Binding *b, int32_t index)
{
    const Instr *c = b->call;
    if (index < 0 || index >= c->n_in + c->n_out - 1) return NULL;
    return &b->caller->tensor[index < c->n_in ? c->in[index] : c->out[index - c->n_in]];
}

/* Inputs have memory if a graph of the model declares them. */
static Err check_input(const Binding *b, const ProgTensor *t)
{
    if (model_input(b->model, (Input)t->index).rows > 0) return OK;
    return err_fail(ERR_CONFIG,
                    "sub-program %s reads the input %s, which no unit of the model declares; "
                    "declare it in %s",
                    b->sub->kind, input_info((Input)t->index)->name, b->caller->kind);
}

static Err check_argument(const Binding *b, int32_t id)
{
    const ProgTensor *t = &b->sub->tensor[id], *o = operand(b, t->index);
    if (t->at[SPLIT].region == REGION_INPUT) return check_input(b, t);
    if (t->at[SPLIT].region != REGION_ARG) return OK;
    if (!o)
        return err_fail(ERR_CONFIG, "sub-program %s: argument %d: the call in %s passes 0 to %d",
                        b->sub->kind, t->index, b->caller->kind,
                        b->call->n_in + b->call->n_out - 2);
    if (t->view_of != id) {
        if (is_contiguous(o)) return OK;
        return err_fail(ERR_CONFIG,
                        "sub-program %s: argument %d is read through a view, but the call in %s "
                        "passes a strided part; copy it first",
                        b->sub->kind, t->index, b->caller->kind);
    }
    bool same = t->dtype == o->dtype && t->ndim == o->ndim;
    for (int i = 0; same && i < t->ndim; i++) same = dim_same(t->dim[i], o->dim[i]);
    if (!same)
        return err_fail(ERR_CONFIG,
                        "sub-program %s: argument %d differs in type or shape from the operand "
                        "of the call in %s",
                        b->sub->kind, t->index, b->caller->kind);
    return OK;
}

static Err check_binding(const Binding *b)
{
    TRY(check_room(b));
    for (int t = 0; t < b->sub->n_tensors; t++) TRY(check_argument(b, t));
    for (int i = 0; i < b->sub->n_instr; i++)
        for (int k = 0; k < b->sub->instr[i].n_out; k++) {
            const ProgTensor *t = &b->sub->tensor[b->sub->instr[i].out[k]];
            if (t->at[SPLIT].region == REGION_ARG && t->index < b->call->n_in)
                return err_fail(ERR_CONFIG,
                                "sub-program %s writes argument %d, which is an input of the call "
                                "in %s",
                                b->sub->kind, t->index, b->caller->kind);
        }
    return OK;
}

Err rank_bind(Rank *r, int slot, const Program *sub)
{
    const LinkedProgram *lp = r->settings.program;
    if (slot < 0 || slot >= MAX_CALLS)
        return err_fail(ERR_CONFIG, "call slot %d: there are slots 0 to %d", slot, MAX_CALLS - 1);
    for (int k = 0; k < lp->programs.n_classes * lp->programs.n_variants; k++) {
        const Program *p = &lp->programs.program[k];
        for (int i = 0; i < p->n_instr; i++) {
            const Instr *in = &p->instr[i];
            if (in->op != OP_call || in->attr.call.slot != slot) continue;
            TRY(check_binding(&(Binding){sub, p, in, lp->model}));
        }
    }
    TRY(tickets_reserve(r, sub->n_tensors));
    r->pending[slot] = sub;
    return OK;
}

static Err check_slot(int slot, const char *where)
{
    if (slot >= 0 && slot < MAX_CALLS) return OK;
    return err_fail(ERR_CONFIG, "%s: call slot %d: there are slots 0 to %d", where, slot,
                    MAX_CALLS - 1);
}

Err bind_check(const LinkedProgram *lp)
{
    for (int i = 0; i < lp->n; i++)
        if (lp->list[i].action.kind == A_BIND)
            TRY(check_slot(lp->list[i].action.unit, "a BIND of the list"));
    for (int k = 0; k < lp->programs.n_classes * lp->programs.n_variants; k++) {
        const Program *p = &lp->programs.program[k];
        for (int i = 0; i < p->n_instr; i++)
            if (p->instr[i].op == OP_call) TRY(check_slot(p->instr[i].attr.call.slot, p->kind));
    }
    return OK;
}
