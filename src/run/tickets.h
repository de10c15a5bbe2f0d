/* tickets.h -- one table of everything that a rank has in flight: begun, and not yet waited for.
 *
 *     number                begun by                              waited for by
 *     0 .. n - 1            the action at this position           a later position, in `wait`
 *     n + t                 an instruction that writes tensor t   OP_wait of t, in the same RUN
 *     n + tensors + t       the same in a bound sub-program, or   OP_wait of t, in the same call
 *                           in a body of further rounds
 *
 * A number is in flight at most once, so it is the index of its ticket. A copy on a device holds
 * one event of a pool until its wait. */
#ifndef RUN_TICKETS_H
#define RUN_TICKETS_H

#include "comm/comm.h"
#include "device/runtime.h"
#include "ir/program.h"

typedef struct Rank Rank;

enum { MAX_COPIES = 32 };

typedef enum {
    TICKET_NONE,     /* not in flight */
    TICKET_TRANSFER, /* of the comm */
    TICKET_COPY,     /* in a copy queue of the device */
    TICKET_DEFERRED  /* a copy that runs at its wait; see RankSettings.late */
} TicketKind;

typedef struct {
    TicketKind kind;
    union {
        Ticket transfer;
        DeviceEvent *copied;   /* recorded behind the copy */
        const Instr *deferred; /* the copy */
    };
} InFlight;

typedef struct {
    InFlight *at;                   /* [cap] by number */
    int cap, n;                     /* n: tickets in flight */
    int first_tensor, first_sub;    /* numbers of tensor 0 of a RUN, of a sub-program */
    DeviceEvent *event[MAX_COPIES]; /* the first n_events are free */
    int n_events;
} TicketTable;

/* Local. Tickets for the actions and programs of the rank's list. */
Err tickets_open(Rank *r);
void tickets_close(Rank *r);
/* Local, between steps. Adds tickets for a sub-program of so many tensors. */
Err tickets_reserve(Rank *r, int tensors);

/* Collective over the transfer's group. Begins a transfer. */
Err tickets_begin_transfer(Rank *r, int number, const Transfer *t);
/* Local. Begins a copy in a queue of the device, behind the work in the compute queue. */
Err tickets_begin_copy(Rank *r, int number, Queue queue, const Call *c);
/* Local. Defers a copy to its wait. */
void tickets_defer(Rank *r, int number, const Instr *copy);
/* Local. Waits: the host for a transfer, the compute queue for a copy. *deferred: a copy for the
 * caller to run now, else NULL. A number that is not in flight needs no wait. */
Err tickets_wait(Rank *r, int number, const Instr **deferred);
/* Local. Forgets all tickets and frees their events, after a capture that was dropped. */
void tickets_clear(Rank *r);

#endif
