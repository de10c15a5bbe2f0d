/* delay.c -- emulation of a slower network: a transfer does not complete before its due time.
 *
 *     rank 0   begin                             start = the later of: the last member's begin, the
 *     rank 1        begin                                due time of the transfer before it
 *                     |--- moved ---|..... asleep .....|
 *                                   ^ comm_wait        ^ due = start + delay_s + bytes / delay_Bps
 *
 * With delay_noticed the start is the first call of this rank's comm that finds the transfer begun
 * by all, as on networks whose protocol runs inside of calls: a rank that computes and never polls
 * starts it when it waits.
 *
 * A link carries the transfers of a channel one after another, as the clock (plan/clock/clock.h)
 * has it. Time spent in other work counts, and sleeping takes no core. So a step with delays shows
 * which transfers overlap with computation. Bytes are moved as without delays: results are the
 * same. */
#define _POSIX_C_SOURCE 200809L
#include "comm/backend.h"

#include <math.h>
#include <time.h>
#include "base/clock.h"

/* Longest sleeps: short while transfers of this rank move, since a peer may wait for one of them;
 * long while none does, but bounded to detect failures of other ranks. */
static const double BUSY_SLEEP_S = 100e-6, IDLE_SLEEP_S = 10e-3;

Err delay_check(const CommSettings *set)
{
    if (set->delay_s >= 0 && set->delay_Bps >= 0 && isfinite(set->delay_s)) return OK;
    return err_fail(ERR_CONFIG,
                    "comm: a delay of %g s and %g bytes/s; neither may be negative, and 0 is off",
                    set->delay_s, set->delay_Bps);
}

double delay_of(const CommSettings *set, const Record *r)
{
    const bool alone = r->n_ranks == 1 || (r->kind == COMM_SEND && r->sent_bytes == 0) ||
                       (r->kind == COMM_RECV && r->peer == set->rank);
    if (alone || (set->delay_s == 0 && set->delay_Bps == 0)) return 0;
    /* Ranks that send nothing (a receive, a leaf of a broadcast) count the bytes that arrive. */
    const double bytes = (double)(r->sent_bytes ? r->sent_bytes : r->bytes);
    return set->delay_s + (set->delay_Bps > 0 ? bytes / set->delay_Bps : 0);
}

/* The first transfer of the channel, up to p, that has a delay and no due time. */
static PendingTransfer *first_undue(Comm *c, PendingTransfer *p)
{
    PendingTransfer *first = NULL;
    for (int i = 0; i < c->set.in_flight; i++) {
        PendingTransfer *q = &c->pending[i];
        if (!q->busy || q->channel != p->channel || q->sequence > p->sequence) continue;
        if (q->delay_s == 0 || q->due_s > 0) continue;
        if (!first || q->sequence < first->sequence) first = q;
    }
    return first;
}

/* All members have begun p, and so everything before it on its channel. */
static void set_due(Comm *c, PendingTransfer *p)
{
    for (PendingTransfer *q; (q = first_undue(c, p));) {
        const double begun = q->progress == POSTED ? p->begun_s : q->begun_s;
        q->due_s = fmax(begun, q->channel->due_s) + q->delay_s;
        q->channel->due_s = q->due_s;
    }
}

static bool any_moves(const Comm *c)
{
    for (int i = 0; i < c->set.in_flight; i++)
        if (c->pending[i].busy && c->pending[i].progress != DONE) return true;
    return false;
}

Err delay_wait(Comm *c, PendingTransfer *p)
{
    set_due(c, p);
    while (p->due_s > 0) {
        const double left_s = p->due_s - (now_s() - c->opened_s);
        if (left_s <= 0) break;
        const double sleep_s = fmin(left_s, any_moves(c) ? BUSY_SLEEP_S : IDLE_SLEEP_S);
        const struct timespec pause = {0, (long)(sleep_s * 1e9) + 1};
        nanosleep(&pause, NULL);
        TRY(comm_poll(c));
    }
    return OK;
}
