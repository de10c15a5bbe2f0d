/* device_transport.c -- what a comm does around its mover: backend.h has the picture. A failure of either side
 * ends the other: what waits in queues of the device for ranks that will not come is given up, so
 * that the device, and who waits for it, goes on. */
#define _GNU_SOURCE
#include "comm/backend.h"

#include <sched.h>
#include <string.h>
#include <time.h>

/* The host looks at the device so often at first, in case it is nearly done; then it naps. */
static const double AWAKE_S = 1e-3;
static const long NAP_NS = 20 * 1000;

void comm_set_mover(Comm *c, const CommMover *mover, void *state)
{
    MUST(!c->mover && comm_idle(c) == OK, "rank %d: a mover comes too late", c->set.rank);
    c->mover = mover;
    c->mover_state = state;
}

const char *comm_mover_name(const Comm *c) { return c->mover ? c->mover->name : c->table->name; }

Err mover_failed(Comm *c, Err err, bool own)
{
    char text[COMM_TEXT_BYTES];
    if (err == OK || !c->mover || c->aborted) return err;
    c->aborted = true;
    strncpy(text, err_text(), sizeof text - 1);
    text[sizeof text - 1] = '\0';
    if (own && c->table->abort) c->table->abort(c, err, text);
    c->mover->abort(c);
    return own ? err_fail(err, "rank %d: %s", c->set.rank, text) : err_fail(err, "%s", text);
}

void mover_close(Comm *c)
{
    if (!c->mover || !c->device.context) return;
    if (comm_idle(c) != OK) (void)mover_failed(c, ERR_CHECK, false);
    c->mover->forget(c);
}

Err comm_prepare(Comm *c, const Transfer *t, int n)
{
    return c->mover && !c->set.staged ? mover_failed(c, c->mover->prepare(c, t, n), true) : OK;
}

/* Until the event has come, or waiting for it is in vain. */
static Err await(Comm *c, DeviceEvent *e)
{
    const double since_s = comm_now_s();
    for (;;) {
        bool done;
        TRY(c->device.runtime->done(e, &done));
        if (done) return OK;
        TRY(comm_poll(c));
        const double waited_s = comm_now_s() - since_s;
        if (c->set.timeout_s > 0 && waited_s >= c->set.timeout_s)
            TRY(mover_failed(c, c->mover->late(c, waited_s), true));
        if (waited_s < AWAKE_S)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

Err comm_sync(Comm *c, CommDevice device, DeviceQueue *q)
{
    DeviceEvent *e;
    const DeviceRuntime *m = device.runtime;
    if (!c->mover || c->device.context != device.context) return m->sync(q);
    TRY(m->event_open(device.context, &e));
    Err err = m->record(q, e);
    if (err == OK) err = await(c, e);
    m->event_close(e);
    return err;
}
