/* execute.c -- runs a phase of a program: each instruction becomes one call of a kernel.
 *
 * A tensor's address is the base of its region, from the linked action, plus its offset, from the
 * program. Extents that vary between steps are read from their slots. */
#include "run/rank_parts.h"

#include "run/transfer.h"

/* Context of the instructions of a RUN, or of a sub-program that it calls: where tensors are. */
typedef struct {
    Rank *r;
    const LinkedAction *l;
    const Program *p;
    const Call *call; /* of a sub-program: its arguments; NULL in a RUN */
    char *region;     /* of a sub-program: its scratch memory */
    int32_t round;    /* of a body that further rounds run: from 1; else 0 */
} InstrContext;

static int64_t live_extent(const Rank *r, const Dim *d)
{
    return d->slot == NO_SLOT ? d->cap : dim_live(d, (int64_t)r->slot[d->slot]);
}

static char *weight_base(const InstrContext *s, const ProgTensor *t)
{
    const LinkedProgram *lp = s->r->settings.program;
    const int param = lp->model->unit[s->l->action.unit].param[t->index];
    const int pack = lp->model->param[param].pack;
    const PackAddress *p = pack_address(s->l->pack, s->l->n_packs, pack);
    MUST(p, "unit %d: the pack of %s is not gathered", s->l->action.unit, t->name);
    return s->r->base[p->at.arena] + p->at.offset +
           (size_t)lp->param_at[param] * dtype_bytes(lp->model->pack[pack].type.use);
}

static char *scale_base(const InstrContext *s, const ProgTensor *t)
{
    const LinkedProgram *lp = s->r->settings.program;
    const int param = lp->model->unit[s->l->action.unit].param[t->index];
    return s->r->base[ARENA_STEP] + lp->scales_at + (size_t)lp->scale_at[param] * sizeof(float);
}

static char *grad_base(const InstrContext *s, const ProgTensor *t)
{
    const LinkedProgram *lp = s->r->settings.program;
    const int unit = s->l->action.unit, param = lp->model->unit[unit].param[t->index];
    const int pack = lp->model->param[param].pack;
    const PackAddress *own = pack_address(s->l->grads, s->l->n_grads, pack);
    const Address at = own ? own->at : s->l->tied_grads;
    const int64_t element = own ? lp->param_at[param] : linked_tied_grad(lp, unit, t->index);
    return s->r->base[at.arena] + at.offset +
           (size_t)element * dtype_bytes(lp->model->pack[pack].type.wide);
}

/* The rank's rows of an input that are of earlier slices. */
static int64_t rows_before_slice(const InstrContext *s, Input which)
{
    const LinkedProgram *lp = s->r->settings.program;
    const int64_t start = lp->slice_at[s->l->action.slice];
    return start == 0 ? 0 : held_below(&lp->input_rows[which], start);
}

static char *region_base(const InstrContext *s, const ProgTensor *t, Region region)
{
    const LinkedProgram *lp = s->r->settings.program;
    const size_t micro = (size_t)s->l->action.micro;
    switch (region) {
    case REGION_PARAM:
        return weight_base(s, t);
    case REGION_SCALE:
        return scale_base(s, t);
    case REGION_DPARAM:
        return grad_base(s, t);
    case REGION_INPUT:
        return s->r->base[ARENA_STEP] + lp->input[t->index] + micro * lp->input_stride +
               (size_t)(rows_before_slice(s, (Input)t->index) * t->stride[0]) *
                   dtype_bytes(t->dtype);
    case REGION_LOSS:
        return s->r->base[ARENA_STEP] + lp->loss + micro * ARENA_ALIGN;
    case REGION_STAT:
        return s->r->base[ARENA_STEP] + lp->unit[s->l->action.unit].stats +
               micro * linked_stat_bytes(lp);
    case REGION_SESSION:
        return s->r->base[ARENA_SESSION] + lp->unit[s->l->action.unit].session;
    case REGION_ARG: /* inputs first, then outputs */
        return t->index < s->call->n_in ? s->call->in[t->index].data
                                        : s->call->out[t->index - s->call->n_in].data;
    case REGION_HOST:
        return s->r->base[ARENA_HOST] + s->l->base[region];
    case REGION_SCRATCH:
        if (s->region) return s->region;
        return s->r->base[ARENA_WORK] + s->l->base[region];
    default:
        return s->r->base[ARENA_WORK] + s->l->base[region];
    }
}

static Tensor resolve(const InstrContext *s, int32_t id)
{
    const ProgTensor *t = &s->p->tensor[id];
    const Place at = t->at[s->l->action.phase == PHASE_B ? MERGED : SPLIT];
    Tensor x = {.dtype = t->dtype, .ndim = t->ndim};
    if (at.region == REGION_ARG && t->view_of == id) /* the operand's own strides and extents */
        return t->index < s->call->n_in ? s->call->in[t->index]
                                        : s->call->out[t->index - s->call->n_in];
    MUST(at.region > REGION_DY || s->region || s->l->base[at.region] != NO_BASE ||
             tensor_bytes(t) == 0,
         "unit %d: region %s of %s has no address", s->l->action.unit, region_name(at.region),
         t->name);
    x.data = region_base(s, t, (Region)at.region) + at.offset;
    for (int i = 0; i < t->ndim; i++) {
        x.n[i] = live_extent(s->r, &t->dim[i]);
        MUST(x.n[i] >= 0, "program %s: extent %d of %s is %lld", s->p->kind, i, t->name,
             (long long)x.n[i]);
        x.stride[i] = t->stride[i];
    }
    return x;
}

/* Narrows a tensor over the rank's rows of all slices to those of the current slice. */
static void take_rows(const InstrContext *s, int32_t id, Tensor *whole, int64_t rows)
{
    const int64_t start = dim_live(&s->p->tensor[id].dim[0], (int64_t)s->r->slot[SLOT_START]);
    MUST(rows == 0 || start + rows <= whole->n[0], "program %s: rows %lld to %lld of %lld",
         s->p->kind, (long long)start, (long long)(start + rows), (long long)whole->n[0]);
    whole->data =
        (char *)whole->data + (size_t)(start * whole->stride[0]) * dtype_bytes(whole->dtype);
    whole->n[0] = rows;
}

/* Shows x[a,b,..] as [b,a,..]. */
static void exchange_dims(Tensor *x)
{
    const int64_t n = x->n[0], stride = x->stride[0];
    x->n[0] = x->n[1], x->stride[0] = x->stride[1];
    x->n[1] = n, x->stride[1] = stride;
}

static void fill_call(const InstrContext *s, const Instr *in, Call *c)
{
    *c = (Call){.n_in = in->n_in,
                .n_out = in->n_out,
                .attr = in->attr.kernel,
                .team = s->r->settings.team,
                .queue = s->r->queue};
    for (int i = 0; i < in->n_in; i++) c->in[i] = resolve(s, in->in[i]);
    for (int i = 0; i < in->n_out; i++) {
        c->out[i] = resolve(s, in->out[i]);
        if (op_loops(in->op)) continue; /* no kernel; instructions of the body have numbers */
        c->number[i] = s->r->slot[in->keep[i]];
    }
    if (s->round && op_has_round(in->op)) c->attr.exchange.round = s->round;
    if (in->op == OP_transpose) exchange_dims(&c->in[0]);
    if (in->op == OP_put_rows) take_rows(s, in->out[0], &c->out[0], c->in[0].n[0]);
    if (in->op == OP_get_rows) take_rows(s, in->in[0], &c->in[0], c->out[0].n[0]);
    if (in->prepacked) c->prepacked = prepacked_at(s->r, s->l->action.unit, in->prepacked - 1);
}

static Err run_kernel(const InstrContext *s, const Instr *in, const Call *c)
{
    poll_begin(s->r);
    const Err err = s->r->settings.device->kernel[op_info(in->op)->kernel](c);
    poll_end(s->r);
    return err;
}

static Err run_observed(const InstrContext *s, const Instr *in, const Call *c)
{
    const RankObserver *o = &s->r->settings.observer;
    TRY(run_kernel(s, in, c));
    return o->after ? o->after(o->context, s->r, s->l, in, c) : OK;
}

static int ticket_of(const InstrContext *s, int32_t tensor)
{
    const TicketTable *t = &s->r->tickets;
    return (s->call ? t->first_sub : t->first_tensor) + tensor;
}

/* Copies between device and host memory overlap: a device has queues for them. The host copies at
 * once, or at the wait (settings.late); until then the output is NaN. */
static Err begin_copy(const InstrContext *s, const Instr *in, const Call *c)
{
    Rank *r = s->r;
    const int number = ticket_of(s, in->out[0]);
    if (r->settings.late) {
        TRY(rank_fill(r, c->out[0].data, 0xFF, tensor_bytes(&s->p->tensor[in->out[0]])));
        tickets_defer(r, number, in);
        return OK;
    }
    if (!r->runtime) return run_kernel(s, in, c);
    return tickets_begin_copy(r, number, in->queue == QUEUE_D2H ? QUEUE_D2H : QUEUE_H2D, c);
}

/* All members of the group have the same tag, because they run the same units and micro-batches. */
static TransferInstr transfer_of(const InstrContext *s, const Instr *in, const Call *c)
{
    const int64_t tag = action_tag(&s->l->action, s->p->move[in->attr.move.index].number);
    return (TransferInstr){s->r, s->p, in, c, tag};
}

static Err begin_transfer(const InstrContext *s, const Instr *in, const Call *c)
{
    const TransferInstr t = transfer_of(s, in, c);
    Transfer transfer;
    TRY(transfer_describe(&t, &transfer));
    return tickets_begin_transfer(s->r, ticket_of(s, in->out[0]), &transfer);
}

/* A deferred copy has the same operands now as at its begin: slots do not change within a RUN. */
static Err run_wait(const InstrContext *s, const Instr *in)
{
    const Instr *deferred;
    Call c;
    TRY(tickets_wait(s->r, ticket_of(s, in->in[0]), &deferred));
    if (!deferred) return OK;
    fill_call(s, deferred, &c);
    return run_kernel(s, deferred, &c);
}

static Err run_instr(const InstrContext *s, const Instr *in);

/* Runs the bound sub-program on the operands of the call. Its scratch is the call's last output. */
static Err run_call(const InstrContext *s, const Instr *in, const Call *c)
{
    const Program *sub = s->r->bound[in->attr.call.slot];
    if (!sub)
        return err_fail(ERR_CHECK,
                        "program %s: nothing is bound to call slot %d; bind a sub-program before "
                        "the step, with a bind.%d in its list",
                        s->p->kind, in->attr.call.slot, in->attr.call.slot);
    const InstrContext inner = {s->r, s->l, sub, c, c->out[c->n_out - 1].data, 0};
    for (int i = sub->first[PHASE_F]; i < sub->first[PHASE_F + 1]; i++)
        TRY(run_instr(&inner, &sub->instr[i]));
    return OK;
}

/* Runs the body on the operands, once per round after the first. */
static Err run_rounds(const InstrContext *s, const Instr *in, const Call *c)
{
    const Program *body = instr_body(s->p, in);
    InstrContext inner = {s->r, s->l, body, c, c->out[instr_region(in)].data, 0};
    int64_t rounds;
    TRY(rounds_of(s->r, in, &c->in[ROUNDS_ALL], &rounds));
    for (inner.round = 1; inner.round < rounds; inner.round++) {
        for (int i = 0; i < body->n_instr; i++) {
            jitter_sleep(s->r);
            TRY(run_instr(&inner, &body->instr[i]));
            TRY(poll_now(s->r));
        }
        rounds_record(s->r, s->l, in, body);
    }
    return OK;
}

static Err run_instr(const InstrContext *s, const Instr *in)
{
    Call c;
    if (in->op == OP_wait) return run_wait(s, in);
    fill_call(s, in, &c);
    if (in->op == OP_call) return run_call(s, in, &c);
    if (op_loops(in->op)) return run_rounds(s, in, &c);
    if (in->op == OP_pack) {
        const TransferInstr t = transfer_of(s, in, &c);
        return transfer_pack(&t);
    }
    if (in->queue == QUEUE_COMM) return begin_transfer(s, in, &c);
    if (in->queue != QUEUE_COMPUTE) return begin_copy(s, in, &c);
    return run_observed(s, in, &c);
}

/* Sets the live rows of the slice, and of the slice with all before it. */
static void set_slice(Rank *r, const Action *a)
{
    const LinkedProgram *lp = r->settings.program;
    const int64_t start = lp->slice_at[a->slice], end = lp->slice_at[a->slice + 1];
    const int64_t live = r->live_rows[a->micro], seen = live < end ? live : end;
    r->slot[SLOT_ROWS] = (double)(seen > start ? seen - start : 0);
    r->slot[SLOT_START] = (double)start;
    r->slot[SLOT_SEEN] = (double)seen;
    r->slot[SLOT_AFTER_FIRST] = a->slice > 0 ? 1.0 : 0.0;
    r->slot[SLOT_BEFORE_LAST] = a->slice < lp->slices - 1 ? 1.0 : 0.0;
}

void execute_begin(Rank *r, const LinkedAction *l, double keep)
{
    set_slice(r, &l->action);
    for (int k = 0; k < MAX_PORTS; k++) r->slot[SLOT_PORT + k] = keep;
}

static Err kernel_alone(const InstrContext *s, const Instr *in)
{
    Call c;
    fill_call(s, in, &c);
    c.prepacked = NULL; /* weights are prepacked within steps only */
    return run_kernel(s, in, &c);
}

Err execute_kernel(Rank *r, const LinkedAction *l, const Instr *in)
{
    return kernel_alone(&(InstrContext){.r = r, .l = l, .p = l->program}, in);
}

static Err run_alone(const InstrContext *s, const Instr *in);

/* A round of the body, without its transfers. */
static Err body_alone(const InstrContext *s, const Instr *in)
{
    Call c;
    const Program *body = instr_body(s->p, in);
    fill_call(s, in, &c);
    const InstrContext inner = {s->r, s->l, body, &c, c.out[instr_region(in)].data, 1};
    for (int i = 0; i < body->n_instr; i++) TRY(run_alone(&inner, &body->instr[i]));
    return OK;
}

static Err run_alone(const InstrContext *s, const Instr *in)
{
    Call c;
    if (in->queue != QUEUE_COMPUTE || in->op == OP_wait || in->op == OP_call) return OK;
    if (op_loops(in->op)) return body_alone(s, in);
    if (in->op != OP_pack) return kernel_alone(s, in);
    fill_call(s, in, &c);
    const TransferInstr t = transfer_of(s, in, &c);
    return transfer_pack(&t);
}

Err execute_alone(Rank *r, const LinkedAction *l, const Instr *in)
{
    return run_alone(&(InstrContext){.r = r, .l = l, .p = l->program}, in);
}

/* Prepacks the weights of the unit that this RUN is the first of the step to read. */
static Err prepack_weights(const InstrContext *s)
{
    if (!s->l->prepacks) return OK;
    const double begin_s = watch_begin(s->r, s->l, TRACE_PREPACK);
    for (uint64_t left = s->l->prepacks; left; left &= left - 1) {
        const int which = __builtin_ctzll(left);
        TRY(prepack_weight(s->r, s->l, which, resolve(s, s->p->prepacked[which].tensor)));
    }
    return watch_end(s->r, s->l, TRACE_PREPACK, begin_s);
}

Err execute_run(Rank *r, const LinkedAction *l)
{
    const Program *p = l->program;
    const Phase phase = (Phase)l->action.phase;
    const InstrContext s = {.r = r, .l = l, .p = p};
    const int in_flight = r->tickets.n; /* of actions */
    TRY(poison_run(r, l));
    set_slice(r, &l->action);
    for (int k = 0; k < MAX_PORTS; k++) r->slot[SLOT_PORT + k] = l->fresh >> k & 1 ? 0.0 : 1.0;
    TRY(prepack_weights(&s));
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
        jitter_sleep(r);
        const double begin_s = watch_begin(r, l, i);
        TRY(run_instr(&s, &p->instr[i]));
        TRY(watch_end(r, l, i, begin_s));
        TRY(poll_now(r));
    }
    MUST(r->tickets.n == in_flight, "program %s: %d copies or transfers are not waited for",
         p->kind, r->tickets.n - in_flight);
    return OK;
}
