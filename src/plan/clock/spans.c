/* spans.c -- reports the events of a play: work, waits, transfers. */
#include "plan/clock/parts.h"

void clock_watch(StepClock *c, const ClockWatch *watch) { c->watch = watch; }

int clock_ranks(const StepClock *c) { return c->n_tapes; }

int clock_rank(const StepClock *c, int i, int *stands_for)
{
    *stands_for = 0;
    for (int r = 0; r < c->in->mesh->world; r++) *stands_for += c->tape_of[r] == i;
    return c->tape[i].rank;
}

static ClockSpan span_of(const TapePlayer *p, const ClockEvent *e)
{
    return (ClockSpan){.rank = p->tape->rank,
                       .time = (TimeKind)e->time,
                       .action = p->tape->action[e->at],
                       .channel = -1};
}

static Err report(const StepClock *c, const ClockSpan *s)
{
    return s->end_s > s->start_s ? c->watch->span(c->watch->context, s) : OK;
}

/* A kernel that has just ended; before it, the queue waited for its launch. */
Err clock_span_work(const StepClock *c, const TapePlayer *p, const ClockEvent *e, double late_s)
{
    const double start = p->now_s - clock_seconds(c, p, e);
    if (!c->watch) return OK;
    ClockSpan s = span_of(p, e), late = s;
    s.op = (int)c->price[e->price].work.op;
    s.start_s = start;
    s.end_s = p->now_s;
    late.kind = SPAN_WAIT;
    late.time = TIME_HOST;
    late.start_s = start - late_s;
    late.end_s = start;
    TRY(report(c, &late));
    return report(c, &s);
}

/* A wait that has just ended, and its transfer. */
Err clock_span_wait(const StepClock *c, const TapePlayer *p, const ClockEvent *e, double from_s)
{
    const ClockChannel *k = &c->channel[e->channel];
    const ClockFlight *f = &k->flight[e->number];
    if (!c->watch) return OK;
    ClockSpan s = span_of(p, e);
    s.kind = SPAN_WAIT;
    s.channel = e->channel;
    s.purpose = k->purpose;
    s.members = k->group.n;
    s.start_s = from_s;
    s.end_s = p->now_s;
    TRY(report(c, &s));
    s.kind = SPAN_TRANSFER;
    s.transfer = f->kind;
    s.bytes = f->bytes;
    s.start_s = f->end_s > 0 ? f->start_s : p->now_s - f->seconds; /* 0: carried out here */
    s.end_s = f->end_s > 0 ? f->end_s : p->now_s;
    return report(c, &s);
}
