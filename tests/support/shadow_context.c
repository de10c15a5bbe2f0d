/* shadow_context.c -- contexts of the shadow device, with their queues and allocations. */
#include <stdlib.h>

#include "support/shadow_memory.h"
#include "support/shadow_slots.h"

int shadow_devices(void) { return 2; }

Err shadow_open(int ordinal, DeviceContext **out)
{
    DeviceContext *c = calloc(1, sizeof *c);
    if (!c) return err_fail(ERR_NOMEM, "shadow: no memory for a context");
    for (int i = 0; i < N_DEVICE_QUEUES; i++) {
        c->queue[i].context = c;
        c->queue[i].last = &c->queue[i].first;
    }
    c->open = true;
    c->ordinal = ordinal;
    pthread_mutex_lock(&shadow_all.lock);
    c->next = shadow_all.contexts;
    shadow_all.contexts = c;
    shadow_all.count.contexts++;
    pthread_mutex_unlock(&shadow_all.lock);
    *out = c;
    return OK;
}

void shadow_close(DeviceContext *c)
{
    for (int i = 0; i < N_DEVICE_QUEUES; i++) run_wait(&c->queue[i], c->queue[i].put);
    pthread_mutex_lock(&shadow_all.lock);
    MUST(!c->more, "shadow: a context is closed, and a queue of it is open");
    c->open = false;
    shadow_all.count.contexts--;
    pthread_mutex_unlock(&shadow_all.lock);
}

DeviceQueue *shadow_queue(DeviceContext *c, Queue queue) { return &c->queue[queue]; }

/* Each ordinal counts as a GPU of its own. */
Err shadow_identify(int ordinal, uint64_t *out)
{
    *out = 0x5ead0000u + (uint64_t)ordinal;
    return OK;
}

Err shadow_queue_open(DeviceContext *c, DeviceQueue **out)
{
    DeviceQueue *q = calloc(1, sizeof *q);
    if (!q) return err_fail(ERR_NOMEM, "shadow: no memory for a queue");
    q->context = c;
    q->last = &q->first;
    pthread_mutex_lock(&shadow_all.lock);
    q->more = c->more;
    c->more = q;
    pthread_mutex_unlock(&shadow_all.lock);
    *out = q;
    return OK;
}

void shadow_queue_close(DeviceQueue *q)
{
    run_wait(q, q->put);
    pthread_mutex_lock(&shadow_all.lock);
    DeviceQueue **at = &q->context->more;
    while (*at != q) at = &(*at)->more;
    *at = q->more;
    q->more = q->context->gone;
    q->context->gone = q;
    pthread_mutex_unlock(&shadow_all.lock);
}

Err shadow_native(DeviceQueue *q, void **out)
{
    *out = q;
    return OK;
}

Err shadow_info(DeviceContext *c, DeviceInfo *out)
{
    (void)c;
    *out = (DeviceInfo){
        .name = "shadow", .total_bytes = (size_t)1 << 32, .free_bytes = (size_t)1 << 32};
    return OK;
}

Err shadow_alloc_in(DeviceContext *c, size_t bytes, void **out)
{
    TRY(graph_forbids(c, "an allocation"));
    pthread_mutex_lock(&shadow_all.lock);
    const Err err = shadow_alloc(bytes, c, out);
    pthread_mutex_unlock(&shadow_all.lock);
    return err;
}

void shadow_free_in(DeviceContext *c, void *at)
{
    (void)c;
    pthread_mutex_lock(&shadow_all.lock);
    shadow_free(at);
    pthread_mutex_unlock(&shadow_all.lock);
}

Err shadow_alloc_host(DeviceContext *c, size_t bytes, void **out)
{
    (void)c;
    *out = aligned_alloc(64, (bytes + 63) / 64 * 64);
    return *out ? OK : err_fail(ERR_NOMEM, "shadow: no memory for %zu bytes", bytes);
}

void shadow_free_host(DeviceContext *c, void *at)
{
    (void)c;
    free(at);
}
