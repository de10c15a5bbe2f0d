/* delay.c -- emulation of a slower network: a transfer does not complete before its due time.
 *
 *     begin                    due = begin + delay_s + bytes / delay_Bps
 *       |-------- moved --------|....... asleep .......|
 *                               ^ comm_wait            ^ returns; after `due`, at once
 *
 * Time spent in other work counts, and sleeping takes no core. So a step with delays shows which
 * transfers overlap with computation. Bytes are moved as without delays: results are the same. */
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

double delay_due_s(const CommSettings *set, const Record *r)
{
    const bool alone = r->n_ranks == 1 || (r->kind == COMM_SEND && r->sent_bytes == 0) ||
                       (r->kind == COMM_RECV && r->peer == set->rank);
    if (alone || (set->delay_s == 0 && set->delay_Bps == 0)) return 0;
    /* Ranks that send nothing (a receive, a leaf of a broadcast) count the bytes that arrive. */
    const double bytes = (double)(r->sent_bytes ? r->sent_bytes : r->bytes);
    return r->posted_s + set->delay_s + (set->delay_Bps > 0 ? bytes / set->delay_Bps : 0);
}

static bool any_moves(const Comm *c)
{
    for (int i = 0; i < c->set.in_flight; i++)
        if (c->pending[i].busy && c->pending[i].progress != DONE) return true;
    return false;
}

Err delay_wait(Comm *c, double due_s)
{
    while (due_s > 0) {
        const double left_s = due_s - (now_s() - c->opened_s);
        if (left_s <= 0) break;
        const double sleep_s = fmin(left_s, any_moves(c) ? BUSY_SLEEP_S : IDLE_SLEEP_S);
        const struct timespec pause = {0, (long)(sleep_s * 1e9) + 1};
        nanosleep(&pause, NULL);
        TRY(comm_poll(c));
    }
    return OK;
}
