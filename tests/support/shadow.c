/* shadow.c -- queues of the shadow device: pending operations and the time at which they run. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/shadow_memory.h"
#include "base/clock.h"
#include "support/shadow_parts.h"

ShadowAll shadow_all = {.lock = PTHREAD_MUTEX_INITIALIZER};

void shadow_set(uint64_t seed, ShadowPace pace)
{
    pthread_mutex_lock(&shadow_all.lock);
    shadow_all.random = random_named(seed, "shadow");
    shadow_all.drawn = 0;
    shadow_all.pace = pace;
    shadow_all.count.ran = shadow_all.count.late = 0;
    pthread_mutex_unlock(&shadow_all.lock);
}

ShadowCount shadow_count(void)
{
    pthread_mutex_lock(&shadow_all.lock);
    ShadowCount count = shadow_all.count;
    count.bytes = shadow_bytes();
    pthread_mutex_unlock(&shadow_all.lock);
    return count;
}

/* *over: false if the operation must still wait. */
static Err run_op(const ShadowOp *op, bool *over)
{
    *over = true;
    switch (op->what) {
    case DO_TRY:
        *over = op->try(op->arg);
        return OK;
    case DO_KERNEL:
        return run_kernel(op->kernel, &op->call);
    case DO_COPY:
        memmove(shadow_real(op->to), shadow_real((void *)(uintptr_t)op->from), op->bytes);
        return OK;
    case DO_SET:
        memset(shadow_real(op->to), op->byte, op->bytes);
        return OK;
    case DO_LIST:
        return op->list->squares ? run_squares(op->list) : run_update(op->list, &op->numbers);
    case DO_CLIP:
        run_clip(&op->clip);
        return OK;
    case DO_FOLD:
        run_fold(&op->fold);
        return OK;
    case DO_TIMESTAMP:
        *op->when = now_s();
        return OK;
    case DO_WAIT:
        *over = run_until(op->queue, op->number);
        return OK;
    default:
        return OK;
    }
}

/* A queue that waits for another one runs that one's operations first. */
bool run_until(DeviceQueue *q, int64_t number)
{
    bool over = !q->running;
    while (q->ran < number && over) {
        ShadowOp *op = q->first;
        MUST(op, "shadow: a queue waits for itself");
        q->running = true;
        const Err err = run_op(op, &over);
        q->running = false;
        MUST(err == OK, "shadow: a kernel failed: %s", err_text());
        if (!over) break;
        q->first = op->next;
        if (!q->first) q->last = &q->first;
        q->ran++;
        shadow_all.count.ran++;
        free(op);
    }
    return q->ran >= number;
}

void run_wait(DeviceQueue *q, int64_t number)
{
    for (int64_t i = 0;; i++) {
        pthread_mutex_lock(&shadow_all.lock);
        const bool over = run_until(q, number);
        pthread_mutex_unlock(&shadow_all.lock);
        if (over) return;
        MUST(i < 1000000, "shadow: a queue waits for itself, or for an operation that never runs");
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

void shadow_unload(void)
{
    pthread_mutex_lock(&shadow_all.lock);
    memset(shadow_all.loaded, 0, sizeof shadow_all.loaded);
    shadow_all.library_began = false;
    shadow_all.count.loaded_late = 0;
    pthread_mutex_unlock(&shadow_all.lock);
}

static void library_begins(void)
{
    pthread_mutex_lock(&shadow_all.lock);
    shadow_all.library_began = true;
    pthread_mutex_unlock(&shadow_all.lock);
}

void shadow_put(DeviceQueue *q, ShadowTry *try, void *arg)
{
    library_begins();
    ShadowOp *op = op_new(DO_TRY);
    op->try = try;
    op->arg = arg;
    put(q, op);
}

bool shadow_captures(const DeviceQueue *q)
{
    pthread_mutex_lock(&shadow_all.lock);
    const bool captures = q->graph;
    pthread_mutex_unlock(&shadow_all.lock);
    return captures;
}

void shadow_put_captured(DeviceQueue *q, ShadowTry *try, void (*drop)(void *arg), void *arg)
{
    ShadowOp *op = op_new(DO_TRY);
    op->try = try;
    op->drop = drop;
    op->arg = arg;
    put(q, op);
}

bool shadow_owns(const DeviceQueue *q, const void *at, size_t bytes)
{
    pthread_mutex_lock(&shadow_all.lock);
    const bool owns = shadow_is_of(q->context, at, bytes);
    pthread_mutex_unlock(&shadow_all.lock);
    return owns;
}

void *shadow_at(const void *at) { return shadow_real((void *)(uintptr_t)at); }

void shadow_fold(const DeviceFold *f) { run_fold(f); }

static struct {
    pthread_t thread;
    atomic_bool on;
} runner;

/* Advances one queue of each context at a time, so that queues still run in many orders. */
static void *run_main(void *none)
{
    for (uint64_t turn = 0; atomic_load(&runner.on); turn++) {
        pthread_mutex_lock(&shadow_all.lock);
        for (DeviceContext *c = shadow_all.contexts; c; c = c->next) {
            DeviceQueue *q = &c->queue[turn % N_DEVICE_QUEUES];
            (void)run_until(q, q->put);
            for (q = c->more; q; q = q->more) (void)run_until(q, q->put);
        }
        pthread_mutex_unlock(&shadow_all.lock);
        nanosleep(&(struct timespec){.tv_nsec = 30000}, NULL);
    }
    return none;
}

void shadow_run_async(bool on)
{
    const bool was = atomic_exchange(&runner.on, on);
    if (on && !was)
        MUST(pthread_create(&runner.thread, NULL, run_main, NULL) == 0, "shadow: no thread");
    if (!on && was) pthread_join(runner.thread, NULL);
}

static uint64_t draw(void) { return random_bits(&shadow_all.random, shadow_all.drawn++); }

static void go_on(DeviceQueue *q)
{
    const uint64_t coin = draw();
    if (shadow_all.pace == SHADOW_LATEST) return;
    DeviceQueue *other = &q->context->queue[coin / 4 % N_DEVICE_QUEUES];
    if (coin % 4 == 0) (void)run_until(q, q->put);
    if (coin % 4 == 1) (void)run_until(other, other->put);
}

ShadowOp *op_new(ShadowOpKind what)
{
    ShadowOp *op = calloc(1, sizeof *op);
    MUST(op, "shadow: no memory");
    op->what = what;
    return op;
}

void put_locked(DeviceQueue *q, ShadowOp *op)
{
    MUST(q && q->context->open, "shadow: a queue of a context that is closed");
    if (q->graph) {
        graph_capture_op(q, op);
        return;
    }
    *q->last = op;
    q->last = &op->next;
    q->put++;
    if (op->what != DO_RECORD && op->what != DO_WAIT) go_on(q);
    shadow_all.count.late += q->ran < q->put;
}

Err put(DeviceQueue *q, ShadowOp *op)
{
    pthread_mutex_lock(&shadow_all.lock);
    put_locked(q, op);
    const Err err = graph_error(q);
    pthread_mutex_unlock(&shadow_all.lock);
    return err;
}
