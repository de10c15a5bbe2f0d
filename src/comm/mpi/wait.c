/* wait.c -- waiting for a transfer. A wait receives control messages and advances its own transfer
 * and all others that this rank has begun, since a peer may wait for one of those. MPI cannot wake
 * a rank that sleeps, so it yields between tries, and after a millisecond without progress it
 * sleeps for short times. */
#define _GNU_SOURCE
#include "comm/mpi/mpi_parts.h"

#include <sched.h>
#include <time.h>
#include "base/clock.h"

enum { SPINS = 400 }; /* about 60 us; then a yield, in case a peer needs this core */
static const double YIELD_S = 1e-3, STOPPED_S = 1;
static const long SLEEP_NS = 50 * 1000;

void wait_backoff(double idle_s)
{
    if (idle_s < YIELD_S)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
}

Err wait_over(Comm *c, int slot)
{
    MpiComm *m = c->state;
    const MpiFlight *f = &m->flight[slot];
    double since_s = 0, idle_since_s = 0, seen_s = 0;
    for (int64_t tries = 0;; tries++) {
        bool moved = false;
        TRY(advance(c, slot, &moved));
        if (f->state == FINISHED) return OK;
        TRY(control_receive(c, &moved));
        if (m->world->failed) return ERR_PEER;
        TRY(advance(c, slot, &moved));
        if (f->state == FINISHED) return OK;
        if (m->active > 1) TRY(advance_all(c, &moved));
        if (moved) {
            tries = 0;
            idle_since_s = 0;
            continue;
        }
        if (tries < SPINS && !m->world->oversubscribed) continue;
        const double at_s = now_s();
        if (since_s == 0) since_s = at_s;
        if (seen_s > 0 && at_s - seen_s > STOPPED_S) since_s += at_s - seen_s; /* stopped process */
        seen_s = at_s;
        if (idle_since_s == 0) idle_since_s = at_s;
        wait_backoff(at_s - idle_since_s);
        const bool late = c->set.timeout_s > 0 && at_s - since_s >= c->set.timeout_s;
        if (late || report_departed(c, slot) >= 0) return report_hang(c, slot, at_s - since_s);
    }
}
