/* tickets.c -- the table of transfers and copies in flight, and the events of copies. */
#include "run/tickets.h"

#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "run/rank_parts.h"

static Err grow(TicketTable *t, int cap)
{
    InFlight *at = realloc(t->at, (size_t)cap * sizeof *at);
    if (!at) return err_fail(ERR_NOMEM, "no memory for a table of %d tickets", cap);
    memset(at + t->cap, 0, (size_t)(cap - t->cap) * sizeof *at); /* TICKET_NONE */
    t->at = at;
    t->cap = cap;
    return OK;
}

Err tickets_open(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    TicketTable *t = &r->tickets;
    int tensors = 0, inner = 1; /* one more: a table is never empty */
    for (int i = 0; i < lp->n; i++) {
        const Program *p = lp->list[i].program;
        if (p && p->n_tensors > tensors) tensors = p->n_tensors;
        for (int k = 0; p && k < p->n_bodies; k++) inner = max_int(inner, p->body[k]->n_tensors);
    }
    t->first_tensor = lp->n;
    t->first_sub = lp->n + tensors;
    TRY(grow(t, t->first_sub + inner));
    for (; r->runtime && t->n_events < MAX_COPIES; t->n_events++)
        TRY(r->runtime->event_open(r->context, &t->event[t->n_events]));
    return OK;
}

void tickets_close(Rank *r)
{
    TicketTable *t = &r->tickets;
    if (t->at) tickets_clear(r);
    for (int i = 0; i < t->n_events; i++) r->runtime->event_close(t->event[i]);
    free(t->at);
}

Err tickets_reserve(Rank *r, int tensors)
{
    const int cap = r->tickets.first_sub + tensors;
    return cap > r->tickets.cap ? grow(&r->tickets, cap) : OK;
}

static InFlight *issue(TicketTable *t, int number, TicketKind kind)
{
    MUST(number >= 0 && number < t->cap && t->at[number].kind == TICKET_NONE,
         "ticket %d of %d is in flight", number, t->cap);
    t->n++;
    t->at[number].kind = kind;
    return &t->at[number];
}

Err tickets_begin_transfer(Rank *r, int number, const Transfer *transfer)
{
    Ticket ticket;
    TRY(comm_begin(r->settings.comm, transfer, &ticket));
    issue(&r->tickets, number, TICKET_TRANSFER)->transfer = ticket;
    return OK;
}

Err tickets_begin_copy(Rank *r, int number, Queue queue, const Call *c)
{
    TicketTable *t = &r->tickets;
    if (t->n_events == 0)
        return err_fail(ERR_CHECK,
                        "more than %d copies between host and device are in flight in one program; "
                        "offload fewer values",
                        MAX_COPIES);
    DeviceEvent *copied = t->event[t->n_events - 1];
    TRY(memory_copy(r, queue, c, copied));
    t->n_events--;
    issue(t, number, TICKET_COPY)->copied = copied;
    return OK;
}

void tickets_defer(Rank *r, int number, const Instr *copy)
{
    issue(&r->tickets, number, TICKET_DEFERRED)->deferred = copy;
}

Err tickets_wait(Rank *r, int number, const Instr **deferred)
{
    TicketTable *t = &r->tickets;
    const InFlight f = t->at[number];
    *deferred = NULL;
    if (f.kind == TICKET_NONE) return OK;
    t->at[number].kind = TICKET_NONE;
    t->n--;
    switch (f.kind) {
    case TICKET_TRANSFER:
        return comm_wait(r->settings.comm, f.transfer);
    case TICKET_COPY: /* the event may be recorded again: the queue waits for its present state */
        t->event[t->n_events++] = f.copied;
        return r->runtime->wait(r->queue, f.copied);
    default:
        *deferred = f.deferred;
        return OK;
    }
}

void tickets_clear(Rank *r)
{
    TicketTable *t = &r->tickets;
    for (int i = 0; i < t->cap; i++) {
        if (t->at[i].kind == TICKET_COPY) t->event[t->n_events++] = t->at[i].copied;
        t->at[i].kind = TICKET_NONE;
    }
    t->n = 0;
}
