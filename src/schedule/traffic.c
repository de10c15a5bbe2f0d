/* traffic.c -- walks a linked program and counts its transfers. */
#include "schedule/traffic.h"

/* Members are in order, so the first and the last suffice, except for groups that are no box. */
unsigned group_axes(const Mesh *m, RankList group)
{
    int a[MAX_AXES], b[MAX_AXES];
    unsigned axes = 0;
    mesh_coords(m, VIEW_DENSE, group.rank[0], a);
    for (int i = group.n - 1; i > 0; i--) {
        mesh_coords(m, VIEW_DENSE, group.rank[i], b);
        for (int k = 0; k < m->view[VIEW_DENSE].n_axes; k++)
            if (a[k] != b[k]) axes |= 1u << k;
        if (mesh_parts(m, VIEW_DENSE, axes) == group.n) break;
    }
    return axes;
}

/* Rows are sorted by kind, then axes; scalars come last. */
static bool row_before(const TrafficRow *a, const TrafficRow *b)
{
    if (a->scalar != b->scalar) return b->scalar;
    if (a->kind != b->kind) return a->kind < b->kind;
    return a->axes < b->axes;
}

Err traffic_add(Traffic *s, const TrafficRow *row, int64_t times)
{
    int at = 0;
    while (at < s->n && row_before(&s->row[at], row)) at++;
    if (at == s->n || row_before(row, &s->row[at])) {
        if (s->n == MAX_TRAFFIC_ROWS)
            return err_fail(ERR_CHECK, "more than %d kinds of transfers and groups",
                            MAX_TRAFFIC_ROWS);
        for (int i = s->n++; i > at; i--) s->row[i] = s->row[i - 1];
        s->row[at] = (TrafficRow){row->kind, row->scalar, row->axes, 0, 0, 0};
    }
    TrafficRow *to = &s->row[at];
    to->transfers += row->transfers * times;
    to->bytes += row->bytes * (size_t)times;
    to->sent_bytes += row->sent_bytes * (size_t)times;
    return OK;
}

static int64_t elements(const ProgTensor *t)
{
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++) count *= t->dim[i].cap;
    return count;
}

static CommKind comm_kind(OpId op)
{
    switch (op) {
    case OP_all_gather:
        return COMM_ALL_GATHER;
    case OP_reduce_scatter:
        return COMM_REDUCE_SCATTER;
    case OP_all_to_all:
        return COMM_ALL_TO_ALL;
    case OP_send:
        return COMM_SEND;
    case OP_recv:
        return COMM_RECV;
    default:
        return COMM_ALL_REDUCE;
    }
}

Transfer instr_transfer(const Program *p, const Instr *in)
{
    const ProgTensor *to = &p->tensor[in->out[0]], *from = in->n_in ? &p->tensor[in->in[0]] : to;
    const TransferPart *m = &p->move[in->attr.move.index];
    const int peer = op_pairs(in->op) ? m->peer : 0;
    return (Transfer){.kind = comm_kind(in->op),
                      .reduce = m->reduce,
                      .group = m->group,
                      .from = {.rank = peer, .count = elements(from), .dtype = from->dtype},
                      .to = {.rank = peer, .count = elements(to), .dtype = to->dtype},
                      .from_counts = m->from_counts,
                      .to_counts = m->to_counts};
}

size_t body_sent(const Program *body, int rank)
{
    size_t bytes = 0;
    for (int i = 0; i < body->n_instr; i++) {
        if (!op_transfers(body->instr[i].op)) continue;
        const Transfer t = instr_transfer(body, &body->instr[i]);
        if (t.group.n > 1) bytes += transfer_sent(&t, rank);
    }
    return bytes;
}

static size_t phase_round(const Program *p, Phase phase, int rank)
{
    size_t bytes = 0;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++)
        if (op_loops(p->instr[i].op)) bytes += body_sent(instr_body(p, &p->instr[i]), rank);
    return bytes;
}

RoundTraffic linked_rounds(const LinkedProgram *lp)
{
    RoundTraffic t = {{0}};
    for (int i = 0; i < lp->n; i++) {
        const Program *p = lp->list[i].program;
        const Phase phase = (Phase)lp->list[i].action.phase;
        if (!p || !p->n_bodies) continue;
        const size_t bytes = phase_round(p, phase, lp->rank);
        if (bytes > t.sent_bytes[phase]) t.sent_bytes[phase] = bytes;
    }
    return t;
}

static Err visit_phase(const Program *p, Phase phase, int64_t times, TransferVisit *visit,
                       void *context)
{
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
        if (!op_transfers(p->instr[i].op)) continue;
        const Transfer t = instr_transfer(p, &p->instr[i]);
        if (t.group.n > 1) TRY(visit(context, &t, times));
    }
    return OK;
}

static bool has_transfers(const Program *p)
{
    for (int i = 0; i < p->n_instr; i++)
        if (op_transfers(p->instr[i].op)) return true;
    return false;
}

/* Visits the transfers of a program, once for each of its RUNs. */
static Err visit_program(const LinkedProgram *lp, const Program *p, TransferVisit *visit,
                         void *context)
{
    int64_t runs[N_PHASES] = {0};
    if (!has_transfers(p)) return OK;
    for (int i = 0; i < lp->n; i++)
        if (lp->list[i].program == p) runs[lp->list[i].action.phase]++;
    for (int phase = 0; phase < N_PHASES; phase++)
        if (runs[phase] > 0) TRY(visit_phase(p, (Phase)phase, runs[phase], visit, context));
    return OK;
}

static Err visit_programs(const LinkedProgram *lp, TransferVisit *visit, void *context)
{
    const ProgramTable *t = &lp->programs;
    for (int i = 0; i < t->n_variants * t->n_classes; i++)
        TRY(visit_program(lp, &t->program[i], visit, context));
    return OK;
}

/* Visits gathers, reductions and moves, then the exchange of scalars at the end of the step. */
static Err visit_list(const LinkedProgram *lp, TransferVisit *visit, void *context)
{
    bool ends = false;
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        ends = ends || l->action.kind == A_NORM;
        for (int s = 0; s < l->n_steps; s++)
            if (l->step[s].kind == STEP_TRANSFER && l->step[s].t.group.n > 1)
                TRY(visit(context, &l->step[s].t, 1));
    }
    for (int i = 0; i < N_SCALARS; i++)
        if ((ends || i == TOTALS || i == STATS) && lp->scalar[i].group.n > 1)
            TRY(visit(context, &lp->scalar[i].t, 1));
    return OK;
}

Err linked_visit(const LinkedProgram *lp, TransferVisit *visit, void *context)
{
    TRY(visit_programs(lp, visit, context));
    return visit_list(lp, visit, context);
}

typedef struct {
    const LinkedProgram *lp;
    Traffic *sent;
} TrafficCount;

static Err count_transfer(void *context, const Transfer *t, int64_t times)
{
    TrafficCount *c = context;
    const Ref *whole = t->kind == COMM_RECV ? &t->to : &t->from;
    const TrafficRow row = {.kind = t->kind,
                            .scalar = t->scalar,
                            .axes = group_axes(c->lp->mesh, t->group),
                            .transfers = 1,
                            .bytes = (size_t)whole->count * dtype_bytes(whole->dtype),
                            .sent_bytes = transfer_sent(t, c->lp->rank)};
    return traffic_add(c->sent, &row, times);
}

Err linked_traffic(const LinkedProgram *lp, Traffic *out)
{
    Traffic sent = {0};
    TRY(linked_visit(lp, count_transfer, &(TrafficCount){lp, &sent}));
    *out = sent;
    return OK;
}
