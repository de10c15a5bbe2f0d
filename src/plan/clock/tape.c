/* tape.c -- a linked program as a tape of events, in the order in which run/ executes it.
 *
 *     gather.2            begin
 *     F1.0                work work begin work wait work ...    its instructions
 *     F2.0                wait (gather.2), then its instructions
 *     norm                work, then begin and wait for each exchange of scalars
 *     update.0 update.1   work */
#include "plan/clock/parts.h"

#include <string.h>
#include "ir/pairs.h"

/* A transfer that has been begun. */
typedef struct {
    int32_t channel, number;
    int event, worked; /* its begin on the tape, and the kernels before it */
} BegunTransfer;

typedef struct {
    StepClock *c;
    const LinkedProgram *lp;
    ClockTape *tape;
    Arena *temp;
    BegunTransfer *of_tensor; /* [tensors of the largest program] */
    BegunTransfer *of_action; /* [actions] */
    int32_t *next;            /* [cap_next]: number of the rank's next transfer on each channel */
    int cap_next;
    RankList memo; /* the group that was looked up last, its purpose and channel */
    int memo_purpose, memo_channel;
    int at;        /* position in the list */
    int worked;    /* kernels on the tape */
    bool totalled; /* the exchange of totals is on the tape */
} TapeWriter;

static Err add_event(TapeWriter *w, ClockEvent e)
{
    ClockTape *t = w->tape;
    if (t->n == t->cap) {
        ClockEvent *more;
        t->cap = t->cap ? 2 * t->cap : 4096;
        TRY(ARENA_NEW(w->c->arena, t->cap, &more));
        if (t->n) memcpy(more, t->event, (size_t)t->n * sizeof *more);
        t->event = more;
    }
    w->worked += e.event == EVENT_WORK;
    e.at = w->at;
    t->event[t->n++] = e;
    return OK;
}

static Err add_work(TapeWriter *w, TimeKind time, const CostWork *work)
{
    ClockPrice price;
    ClockEvent e = {.event = EVENT_WORK, .time = (uint8_t)time};
    memset(&price, 0, sizeof price); /* prices are compared by their bytes */
    price.work = *work;
    price.channel = -1;
    TRY(clock_price(w->c, &price, &e.price));
    return add_event(w, e);
}

/* A kernel that reads and writes memory, and does nothing else worth counting. */
static Err add_bytes(TapeWriter *w, TimeKind time, double bytes)
{
    return bytes > 0 ? add_work(w, time, &(CostWork){.op = OP_cast, .bytes = bytes}) : OK;
}

static Err next_number(TapeWriter *w, int channel, int32_t *out)
{
    if (channel >= w->cap_next) {
        int32_t *more;
        const int cap = 2 * channel + 64;
        TRY(ARENA_NEW(w->temp, cap, &more));
        if (w->cap_next) memcpy(more, w->next, (size_t)w->cap_next * sizeof *more);
        w->next = more;
        w->cap_next = cap;
    }
    *out = w->next[channel]++;
    return OK;
}

static Err add_begin(TapeWriter *w, const ClockPrice *price, int channel, BegunTransfer *out)
{
    ClockEvent e = {EVENT_BEGIN, (uint8_t)w->c->channel[channel].time, false, channel, 0, 0, 0};
    TRY(next_number(w, channel, &e.number));
    TRY(clock_price(w->c, price, &e.price));
    *out = (BegunTransfer){channel, e.number, w->tape->n, w->worked};
    return add_event(w, e);
}

/* The transfer is hidden if there is work between its begin and its wait. */
static Err add_wait(TapeWriter *w, BegunTransfer b)
{
    w->tape->event[b.event].hidden = w->worked > b.worked;
    return add_event(w, (ClockEvent){EVENT_WAIT, (uint8_t)w->c->channel[b.channel].time, false,
                                     b.channel, b.number, 0, 0});
}

/* The channel of a transfer; a send and its receive are on that of the two ranks, in this order. */
static Err channel_of(TapeWriter *w, const Transfer *t, int *out)
{
    const int32_t pair[] = {t->kind == COMM_RECV ? t->from.rank : w->lp->rank,
                            t->kind == COMM_RECV ? w->lp->rank : t->to.rank};
    if (t->kind == COMM_SEND || t->kind == COMM_RECV)
        return clock_channel(w->c, (RankList){2, pair}, t->purpose, out);
    if (w->memo.rank != t->group.rank || w->memo.n != t->group.n || w->memo_purpose != t->purpose)
        TRY(clock_channel(w->c, t->group, t->purpose, &w->memo_channel));
    w->memo = t->group;
    w->memo_purpose = t->purpose;
    *out = w->memo_channel;
    return OK;
}

/* The larger one of a member's two buffers, as cost_transfer_seconds reads it. */
static double whole_bytes(const Transfer *t)
{
    const Ref *whole = t->kind == COMM_ALL_GATHER || t->kind == COMM_RECV ? &t->to : &t->from;
    return (double)whole->count * (double)dtype_bytes(whole->dtype);
}

/* True for an all-to-all in which each member sends to one other at most: a step of a ring, which
 * takes the time of a send. */
static bool is_shift(const Transfer *t)
{
    int peers = 0;
    if (t->kind != COMM_ALL_TO_ALL || !t->from_counts || t->group.n <= 2) return false;
    for (int i = 0; i < t->group.n; i++) peers += t->from_counts[i] > 0;
    return peers <= 1;
}

static Err begin_transfer(TapeWriter *w, const Transfer *t, BegunTransfer *out)
{
    ClockPrice price;
    memset(&price, 0, sizeof price);
    price.kind = is_shift(t) ? COMM_SEND : t->kind;
    price.bytes = whole_bytes(t);
    if (w->c->in->send_parts > 1 && (t->kind == COMM_SEND || t->kind == COMM_RECV))
        price.bytes /= w->c->in->send_parts;
    TRY(channel_of(w, t, &price.channel));
    return add_begin(w, &price, price.channel, out);
}

static Err do_transfer(TapeWriter *w, const Transfer *t)
{
    BegunTransfer b;
    TRY(begin_transfer(w, t, &b));
    return add_wait(w, b);
}

static Err begin_copy(TapeWriter *w, const Instr *i, const CostWork *work)
{
    const int32_t me = w->lp->rank;
    ClockPrice price;
    int channel;
    memset(&price, 0, sizeof price);
    price.work = *work;
    price.channel = -1;
    TRY(clock_channel(w->c, (RankList){1, &me}, i->queue == QUEUE_D2H ? PURPOSE_D2H : PURPOSE_H2D,
                      &channel));
    return add_begin(w, &price, channel, &w->of_tensor[i->out[0]]);
}

static Err add_instr(TapeWriter *w, const LinkedAction *l, const Instr *i)
{
    static const TimeKind time[N_WORK_CLASSES] = {[WORK_GEMM] = TIME_GEMM,
                                                  [WORK_ATTENTION] = TIME_ATTENTION,
                                                  [WORK_POINTWISE] = TIME_POINTWISE};
    const Program *p = l->program;
    if (i->op == OP_wait) return add_wait(w, w->of_tensor[i->in[0]]);
    if (op_transfers(i->op)) {
        const Transfer t = instr_transfer(p, i);
        return begin_transfer(w, &t, &w->of_tensor[i->out[0]]);
    }
    if (op_info(i->op)->class == CLASS_VIEW || op_loops(i->op)) return OK; /* no further rounds */
    CostWork work = cost_instr_work(p, i);
    if (op_attends(i->op)) work.heavy = linked_flops(w->lp, l, p, i);
    if (!i->recomputed)
        w->c->model_flops += op_attends(i->op) ? work.heavy : cost_model_flops(p, i);
    if (i->queue == QUEUE_D2H || i->queue == QUEUE_H2D) return begin_copy(w, i, &work);
    return add_work(w, time[cost_class(i->op)], &work);
}

/* Weights are read once and written once as panels. */
static Err add_prepacks(TapeWriter *w, const LinkedAction *l)
{
    double bytes = 0;
    for (uint64_t left = l->prepacks; left; left &= left - 1)
        bytes += 2.0 * (double)l->program->prepacked[__builtin_ctzll(left)].bytes;
    return add_bytes(w, TIME_POINTWISE, bytes);
}

static Err add_run(TapeWriter *w, const LinkedAction *l)
{
    const Program *p = l->program;
    TRY(add_prepacks(w, l));
    for (int i = p->first[l->action.phase]; i < p->first[l->action.phase + 1]; i++)
        TRY(add_instr(w, l, &p->instr[i]));
    return OK;
}

/* A transfer that is waited for at once, or a kernel: to += from, to = from. */
static Err add_step(TapeWriter *w, const LinkedStep *s)
{
    const double bytes = (double)s->t.to.count * (double)dtype_bytes(s->t.to.dtype);
    if (s->kind == STEP_TRANSFER) return do_transfer(w, &s->t);
    if (s->t.to.arena == ARENA_HOST || s->t.from.arena == ARENA_HOST)
        return add_work(w, TIME_HOST, &(CostWork){.op = OP_copy_out, .bytes = bytes});
    return add_bytes(w, TIME_POINTWISE, (s->kind == STEP_ADD ? 3 : 2) * bytes);
}

static Err add_steps(TapeWriter *w, const LinkedAction *l, int first, int end)
{
    for (int s = first; s < end && s < l->n_steps; s++) TRY(add_step(w, &l->step[s]));
    return OK;
}

static Err end_steps(TapeWriter *w, int at)
{
    const LinkedAction *l = &w->lp->list[at];
    if (l->begun == l->n_steps) return OK;
    TRY(add_wait(w, w->of_action[at]));
    return add_steps(w, l, l->begun + 1, l->n_steps);
}

static Err begin_steps(TapeWriter *w, int at)
{
    const LinkedAction *l = &w->lp->list[at];
    TRY(add_steps(w, l, 0, l->begun));
    if (l->begun < l->n_steps) TRY(begin_transfer(w, &l->step[l->begun].t, &w->of_action[at]));
    return l->end == at ? end_steps(w, at) : OK;
}

static Err add_scalar(TapeWriter *w, int which)
{
    const ScalarCells *s = &w->lp->scalar[which];
    if (which == TOTALS && w->totalled) return OK;
    w->totalled = true;
    if (s->group.n == 1) return OK;
    Transfer t = s->t;
    t.purpose = PURPOSE_SCALAR;
    return do_transfer(w, &t);
}

static double home_elements(const LinkedProgram *lp, int pack)
{
    const PackMemory *p = &lp->pack[pack];
    return p->stage == lp->stage ? (double)p->counts[p->me] : 0;
}

/* Reads the gradients of the pack's home. */
double clock_norm_bytes(const LinkedProgram *lp, int pack)
{
    return (double)dtype_bytes(lp->model->pack[pack].type.wide) * home_elements(lp, pack);
}

/* Work on state, which a step touches once: it comes from memory unless all of it is in cache. */
CostWork clock_state_work(const LinkedProgram *lp, double bytes)
{
    double all = 0;
    for (int p = 0; p < lp->model->n_packs; p++) all += clock_update_bytes(lp, p);
    return (CostWork){.op = OP_cast, .bytes = bytes, .among = all};
}

static Err add_state(TapeWriter *w, double bytes)
{
    const CostWork work = clock_state_work(w->lp, bytes);
    return bytes > 0 ? add_work(w, TIME_UPDATE, &work) : OK;
}

static Err add_squares(TapeWriter *w, int pack)
{
    return add_state(w, clock_norm_bytes(w->lp, pack));
}

/* Reads the gradients of the homes, then exchanges sums of squares. */
static Err add_norm(TapeWriter *w)
{
    for (int p = 0; p < w->lp->model->n_packs; p++) TRY(add_squares(w, p));
    for (int i = 0; i < N_SCALARS; i++) TRY(add_scalar(w, i));
    return OK;
}

/* Reads the gradient, reads and writes master weights and moments, writes the weights unless they
 * are coded. */
double clock_update_bytes(const LinkedProgram *lp, int pack)
{
    const DType narrow = lp->model->pack[pack].type.use, wide = lp->model->pack[pack].type.wide;
    const bool coded = pack_is_coded(&lp->model->pack[pack]);
    const double each = (3.0 + 2.0 * lp->n_moments) * (double)dtype_bytes(wide) +
                        (narrow == wide || coded ? 0 : (double)dtype_bytes(narrow));
    return each * home_elements(lp, pack);
}

/* Reads the master weights for the largest magnitudes, then for the codes, which it writes. */
static double quantize_bytes(const LinkedProgram *lp, int pack)
{
    const PackTypes type = lp->model->pack[pack].type;
    if (!pack_is_coded(&lp->model->pack[pack])) return 0;
    return (double)(2 * dtype_bytes(type.wide) + dtype_bytes(type.use)) * home_elements(lp, pack);
}

static Err add_update(TapeWriter *w, int pack)
{
    return add_state(w, clock_update_bytes(w->lp, pack));
}

static Err add_codes(TapeWriter *w, int pack) { return add_state(w, quantize_bytes(w->lp, pack)); }

/* Makes the codes of all packs, with the exchange of their scales. */
static Err add_quantize(TapeWriter *w, int at)
{
    for (int p = 0; p < w->lp->model->n_packs; p++) TRY(add_codes(w, p));
    return begin_steps(w, at);
}

static Err add_action(TapeWriter *w, int at)
{
    const LinkedAction *l = &w->lp->list[at];
    if (l->program) return add_run(w, l);
    if (l->action.kind == A_QUANTIZE) return add_quantize(w, at);
    if (l->action.kind == A_NORM) return add_norm(w);
    if (l->action.kind == A_UPDATE) return add_update(w, l->action.unit);
    return begin_steps(w, at);
}

static int most_tensors(const LinkedProgram *lp)
{
    int most = 0;
    for (int i = 0; i < lp->n; i++)
        if (lp->list[i].program && lp->list[i].program->n_tensors > most)
            most = lp->list[i].program->n_tensors;
    return most;
}

static Err open_writer(TapeWriter *w)
{
    TRY(ARENA_NEW(w->temp, most_tensors(w->lp) + 1, &w->of_tensor));
    return ARENA_NEW(w->temp, w->lp->n + 1, &w->of_action);
}

static Err copy_list(TapeWriter *w)
{
    Action *list;
    TRY(ARENA_NEW(w->c->arena, w->lp->n + 1, &list));
    for (int i = 0; i < w->lp->n; i++) list[i] = w->lp->list[i].action;
    list[w->lp->n] = (Action){.kind = N_ACTION_KINDS};
    w->tape->action = list;
    return OK;
}

Err clock_record(StepClock *c, const LinkedProgram *lp, Arena *temp, ClockTape *tape)
{
    TapeWriter w = {.c = c, .lp = lp, .tape = tape, .temp = temp};
    TRY(open_writer(&w));
    TRY(copy_list(&w));
    for (int i = 0; i <= lp->n; i++) {
        w.at = i;
        for (int k = 0; k < lp->list[i].n_waits; k++) TRY(end_steps(&w, lp->list[i].wait[k]));
        if (i < lp->n) TRY(add_action(&w, i));
    }
    return add_scalar(&w, TOTALS);
}

Err clock_record_part(StepClock *c, const LinkedProgram *lp, const ClockPart *part, Arena *temp,
                      ClockTape *tape)
{
    TapeWriter w = {.c = c, .lp = lp, .tape = tape, .temp = temp};
    const LinkedAction *l = &lp->list[part->at];
    LinkedAction run = {.action = part->run};
    TRY(open_writer(&w));
    switch (part->kind) {
    case PART_RUN:
        run.program = linked_program(lp, part->run.unit, part->run.micro, part->run.slice);
        return add_run(&w, &run);
    case PART_PREPACKS:
        return add_prepacks(&w, l);
    case PART_BEFORE:
        return add_steps(&w, l, 0, l->begun);
    case PART_BEGUN:
        return add_steps(&w, l, l->begun, l->begun + 1);
    case PART_AFTER:
        return add_steps(&w, l, l->begun + 1, l->n_steps);
    case PART_NORM:
        return add_squares(&w, part->pack);
    case PART_QUANTIZE:
        return add_codes(&w, part->pack);
    default:
        return add_update(&w, part->pack);
    }
}
