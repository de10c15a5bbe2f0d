/* shadow_events.c -- events, which queues and the host wait for, and timestamps. Waits of the host
 * advance queues; during a capture they are refused. */
#include <stdlib.h>

#include "support/shadow_slots.h"

Err shadow_timestamps_open(DeviceContext *c, int n, DeviceTimestamps **out)
{
    (void)c;
    *out = calloc(1, sizeof **out + sizeof(double) * (size_t)n);
    if (!*out) return err_fail(ERR_NOMEM, "shadow: no memory for %d timestamps", n);
    (*out)->n = n;
    return OK;
}

void shadow_timestamps_close(DeviceTimestamps *m) { free(m); }

Err shadow_timestamp(DeviceQueue *q, DeviceTimestamps *m, int i)
{
    MUST(i >= 0 && i < m->n, "shadow: timestamp %d of %d", i, m->n);
    ShadowOp *op = op_new(DO_TIMESTAMP);
    op->when = &m->when[i];
    *op->when = 0;
    return put(q, op);
}

Err shadow_timestamps_read(const DeviceTimestamps *m, int n, double *seconds)
{
    for (int i = 0; i < n; i++) {
        MUST(m->when[i] > 0, "shadow: timestamp %d was read before the queue reached it", i);
        seconds[i] = m->when[i] - m->when[0];
    }
    return OK;
}

Err shadow_event_open(DeviceContext *c, DeviceEvent **out)
{
    (void)c;
    *out = calloc(1, sizeof **out);
    return *out ? OK : err_fail(ERR_NOMEM, "shadow: no memory for an event");
}

void shadow_event_close(DeviceEvent *e) { free(e); }

Err shadow_record(DeviceQueue *q, DeviceEvent *e)
{
    pthread_mutex_lock(&shadow_all.lock);
    if (q->graph) {
        graph_record(q, e);
    } else {
        put_locked(q, op_new(DO_RECORD));
        *e = (DeviceEvent){.queue = q, .number = q->put};
    }
    pthread_mutex_unlock(&shadow_all.lock);
    return OK;
}

/* A GPU does not wait for an event that was never recorded; here that is always a bug. */
Err shadow_wait(DeviceQueue *q, DeviceEvent *e)
{
    pthread_mutex_lock(&shadow_all.lock);
    MUST(e->queue, "shadow: an event is waited for that was never recorded");
    if (q->graph || e->graph) {
        graph_wait(q, e);
    } else {
        ShadowOp *op = op_new(DO_WAIT);
        op->queue = e->queue;
        op->number = e->number;
        put_locked(q, op);
    }
    const Err err = graph_error(q);
    pthread_mutex_unlock(&shadow_all.lock);
    return err;
}

/* Polling an event advances its queue, as time would. */
Err shadow_done(DeviceEvent *e, bool *out)
{
    if (e->queue) TRY(graph_forbids(e->queue->context, "a look at an event"));
    pthread_mutex_lock(&shadow_all.lock);
    *out = !e->queue || run_until(e->queue, e->number);
    pthread_mutex_unlock(&shadow_all.lock);
    return OK;
}

Err shadow_sync_event(DeviceEvent *e)
{
    if (e->queue) TRY(graph_forbids(e->queue->context, "a wait for an event"));
    if (e->queue) run_wait(e->queue, e->number);
    return OK;
}

Err shadow_sync(DeviceQueue *q)
{
    TRY(graph_forbids(q->context, "a wait for a queue"));
    pthread_mutex_lock(&shadow_all.lock);
    const int64_t put_so_far = q->put;
    pthread_mutex_unlock(&shadow_all.lock);
    run_wait(q, put_so_far);
    return OK;
}
