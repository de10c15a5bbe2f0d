/* device_transport.c -- calls of the device transport that all transports share (backend.h). A
 * failure of the backend aborts the transport and vice versa: kernels in device queues that wait
 * for missing ranks end, and so does every wait for the device. */
#define _GNU_SOURCE
#include "comm/backend.h"

#include <sched.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"

/* Polls of the host: for YIELD_S it only yields between them, in case the device is nearly done;
 * then it sleeps SLEEP_NS. */
static const double YIELD_S = 1e-3;
static const long SLEEP_NS = 20 * 1000;

void comm_set_transport(Comm *c, const DeviceTransport *transport, void *state)
{
    MUST(!c->transport && comm_idle(c) == OK,
         "rank %d: the device transport is set twice or too late", c->set.rank);
    c->transport = transport;
    c->transport_state = state;
}

const char *comm_transport_name(const Comm *c)
{
    return c->transport ? c->transport->name : c->table->name;
}

void comm_capture(Comm *c, bool on) { c->captures = on; }

void comm_graphs(Comm *c, void (*drop)(void *arg), void *arg)
{
    int at = -1;
    for (int i = 0; i < MAX_GRAPH_OWNERS; i++)
        if (c->graphs[i].arg == arg || (at < 0 && !c->graphs[i].arg)) at = i;
    MUST(at >= 0, "rank %d: more than %d owners of graphs", c->set.rank, MAX_GRAPH_OWNERS);
    c->graphs[at].drop = drop;
    c->graphs[at].arg = drop ? arg : NULL;
}

void comm_launched(Comm *c) { c->graph_at_s = now_s(); }

static void drop_graphs(Comm *c)
{
    for (int i = 0; i < MAX_GRAPH_OWNERS; i++) {
        if (c->graphs[i].arg) c->graphs[i].drop(c->graphs[i].arg);
        c->graphs[i].arg = NULL;
    }
}

static bool among_threads(const Comm *c)
{
    return c->transport && !c->transport_aborted && c->set.ranks > 1 &&
           strcmp(c->table->name, "local") == 0;
}

Err comm_quiet(Comm *c)
{
    if (!among_threads(c) || !c->device.context) return OK;
    if (!c->all) {
        TRY(ARENA_NEW(c->arena, c->set.ranks, &c->all));
        for (int i = 0; i < c->set.ranks; i++) c->all[i] = i;
    }
    TRY(device_transport_failed(c, c->transport->drain(c), true));
    return comm_agree(c, (RankList){c->set.ranks, c->all}, OK);
}

Err device_transport_failed(Comm *c, Err err, bool by_transport)
{
    char text[COMM_TEXT_BYTES];
    if (err == OK || !c->transport || c->transport_aborted) return err;
    c->transport_aborted = true;
    strncpy(text, err_text(), sizeof text - 1);
    text[sizeof text - 1] = '\0';
    if (by_transport && c->table->abort) c->table->abort(c, err, text);
    drop_graphs(c);
    c->transport->abort(c);
    return by_transport ? err_fail(err, "rank %d: %s", c->set.rank, text)
                        : err_fail(err, "%s", text);
}

void device_transport_close(Comm *c)
{
    char text[COMM_TEXT_BYTES];
    if (!c->transport || !c->device.context) return;
    if (comm_unfinished(c, text) && !c->transport_aborted) {
        c->transport_aborted = true;
        drop_graphs(c);
        c->transport->abort(c);
    }
    drop_graphs(c);
    (void)comm_quiet(c); /* a failure of another rank is its own to report */
    c->transport->release(c);
}

CommDeviceUse comm_device_use(const Comm *c)
{
    CommDeviceUse use = {0};
    if (c->transport) c->transport->use(c, &use);
    return use;
}

Err comm_times_open(Comm *c, int n) { return c->transport ? c->transport->times_open(c, n) : OK; }

Err comm_times_begin(Comm *c) { return c->transport ? c->transport->times_begin(c) : OK; }

Err comm_times_end(Comm *c) { return c->transport ? c->transport->times_end(c) : OK; }

bool comm_waits_on_device(const Comm *c) { return c->transport && !c->set.staged; }

Err comm_prepare(Comm *c, const Transfer *t, int n)
{
    return comm_waits_on_device(c)
               ? device_transport_failed(c, c->transport->prepare(c, t, n), true)
               : OK;
}

/* Waits for the event; ends early if a transfer fails or is overdue. */
static Err await(Comm *c, DeviceEvent *e)
{
    const double since_s = now_s();
    for (;;) {
        bool done;
        TRY(c->device.runtime->done(e, &done));
        if (done) return OK;
        TRY(comm_poll(c));
        const double waited_s = now_s() - since_s;
        if (c->set.timeout_s > 0 && waited_s >= c->set.timeout_s)
            TRY(device_transport_failed(c, c->transport->overdue(c, waited_s), true));
        if (waited_s < YIELD_S)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
}

Err comm_sync(Comm *c, CommDevice device, DeviceQueue *q)
{
    DeviceEvent *e;
    const DeviceRuntime *rt = device.runtime;
    if (!c->transport || c->device.context != device.context) return rt->sync(q);
    TRY(rt->event_open(device.context, &e));
    Err err = rt->record(q, e);
    if (err == OK) err = await(c, e);
    if (err == OK) c->graph_at_s = 0; /* it is over */
    rt->event_close(e);
    return err;
}
