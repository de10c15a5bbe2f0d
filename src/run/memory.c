/* memory.c -- where a rank's arenas lie, and what goes to and fro between them and the host. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "run/rank_parts.h"

static const char *const arena_name[N_ARENAS] = {"state", "step", "work", "host", "session"};

/* Of a smaller one much of the last page of 2 MiB would be waste. */
enum { HUGE_FROM_BYTES = 16 << 20 };

static size_t arena_bytes(const Rank *r, int i)
{
    const size_t bytes = r->settings.program->bytes[i];
    return bytes ? bytes : ARENA_ALIGN;
}

/* On the host, or on the device; the step arena there has one more line: the verdict. */
static Err open_arena(Rank *r, int i)
{
    void *base;
    if (!r->runtime) {
        TRY(arena_open(&r->arena[i], arena_name[i], arena_bytes(r, i)));
        if (arena_bytes(r, i) >= HUGE_FROM_BYTES) arena_prefer_huge(&r->arena[i]);
        TRY(arena_push(&r->arena[i], arena_bytes(r, i), &base));
    } else if (i == ARENA_HOST) {
        TRY(r->runtime->alloc_host(r->context, arena_bytes(r, i), &base));
    } else {
        const size_t more = i == ARENA_STEP ? ARENA_ALIGN : 0;
        TRY(r->runtime->alloc(r->context, arena_bytes(r, i) + more, &base));
    }
    r->base[i] = base;
    return OK;
}

bool rank_shares(const LinkedProgram *lp, const LinkedProgram *of, ArenaId a)
{
    switch (a) {
    case ARENA_STATE:
    case ARENA_SESSION:
        return true;
    case ARENA_WORK:
    case ARENA_HOST:
        return lp->bytes[a] <= of->bytes[a];
    default:
        return false;
    }
}

size_t rank_bytes_beside(const LinkedProgram *lp, const LinkedProgram *of, ArenaId a)
{
    return rank_shares(lp, of, a) ? 0 : lp->bytes[a];
}

static size_t desk_bytes(const Rank *r) { return arena_bytes(r, ARENA_STEP) - r->desk_at; }

static Err open_desk(Rank *r)
{
    void *desk;
    r->desk_at = r->settings.program->input[0];
    r->desk = r->base[ARENA_STEP] + r->desk_at;
    if (!r->runtime) return OK;
    TRY(r->runtime->alloc_host(r->context, desk_bytes(r) + ARENA_ALIGN, &desk));
    memset(desk, 0, desk_bytes(r) + ARENA_ALIGN);
    r->desk = desk;
    for (int i = 0; i < MAX_BEGUN + 1; i++) TRY(r->runtime->event_open(r->context, &r->event[i]));
    return OK;
}

/* A rank that shares another's state has numbers of its own, so that both may use one comm. Scalars
 * are told on the desk, which is one more. */
static Err register_arenas(Rank *r)
{
    Comm *c = r->settings.comm;
    const CommDevice device = {r->runtime, r->context};
    if (!c) return OK;
    r->first_arena = r->settings.state_of ? N_ARENAS + 1 : 0;
    for (int i = 0; i < N_ARENAS; i++)
        TRY(r->runtime
                ? comm_register_device(c, r->first_arena + i, r->base[i], arena_bytes(r, i), device)
                : comm_register(c, r->first_arena + i, r->base[i], arena_bytes(r, i)));
    return comm_register(c, r->first_arena + N_ARENAS, r->desk, desk_bytes(r));
}

static Err open_context(Rank *r)
{
    const int n = r->runtime->count();
    if (n == 0) return err_is(ERR_CONFIG, 0); /* count has said why */
    TRY(r->runtime->open(r->settings.ordinal % n, &r->context));
    r->runtime->deterministic(r->context, r->settings.deterministic);
    return OK;
}

Err memory_open(Rank *r)
{
    const Rank *of = r->settings.state_of;
    r->runtime = r->settings.device->runtime;
    if (r->runtime && of) r->context = of->context;
    if (r->runtime && !of) TRY(open_context(r));
    if (r->runtime) r->queue = r->runtime->queue(r->context, QUEUE_COMPUTE);
    for (int i = 0; i < N_ARENAS; i++) {
        r->shared[i] = of && rank_shares(r->settings.program, of->settings.program, (ArenaId)i);
        if (!r->shared[i]) {
            TRY(open_arena(r, i));
            continue;
        }
        MUST((i != ARENA_STATE && i != ARENA_SESSION) ||
                 of->settings.program->bytes[i] == r->settings.program->bytes[i],
             "states differ");
        r->base[i] = of->base[i];
    }
    TRY(open_desk(r));
    return register_arenas(r);
}

static void close_on_device(Rank *r)
{
    const DeviceRuntime *m = r->runtime;
    if (!r->context) return;
    for (int i = 0; i < N_DEVICE_QUEUES; i++) (void)m->sync(m->queue(r->context, (Queue)i));
    capture_close(r);
    lists_close(r);
    timestamps_close(r);
    for (int i = 0; i < MAX_BEGUN + 1; i++)
        if (r->event[i]) m->event_close(r->event[i]);
    for (int i = 0; i < N_ARENAS; i++)
        if (r->base[i] && !r->shared[i])
            (i == ARENA_HOST ? m->free_host : m->free)(r->context, r->base[i]);
    if (r->desk) m->free_host(r->context, r->desk);
    if (r->stage) m->free_host(r->context, r->stage);
    if (!r->settings.state_of) m->close(r->context);
}

void memory_close(Rank *r)
{
    if (r->runtime) close_on_device(r);
    for (int i = 0; i < N_ARENAS; i++)
        if (r->arena[i].base) arena_close(&r->arena[i]);
    free(r->logits);
}

Err memory_sync(const Rank *r)
{
    const CommDevice device = {r->runtime, r->context};
    return r->settings.comm ? comm_sync(r->settings.comm, device, r->queue)
                            : r->runtime->sync(r->queue);
}

Err rank_read(const Rank *r, const void *at, size_t bytes, void *to)
{
    if (bytes == 0) return OK;
    if (!r->runtime) {
        memcpy(to, at, bytes);
        return OK;
    }
    TRY(r->runtime->copy(r->queue, to, at, bytes));
    return memory_sync(r);
}

Err rank_write(Rank *r, void *at, size_t bytes, const void *from)
{
    if (bytes == 0) return OK;
    if (!r->runtime) {
        memcpy(at, from, bytes);
        return OK;
    }
    TRY(r->runtime->copy(r->queue, at, from, bytes));
    return memory_sync(r);
}

Err memory_stage(Rank *r, void **out)
{
    if (!r->stage) TRY(r->runtime->alloc_host(r->context, MEMORY_STAGE_BYTES, &r->stage));
    *out = r->stage;
    return OK;
}

Err rank_fill(const Rank *r, void *at, int byte, size_t bytes)
{
    if (r->runtime) return r->runtime->set(r->queue, at, byte, bytes);
    if (bytes > 0) memset(at, byte, bytes);
    return OK;
}

/* Updates of the step before may still be in the queue of computing: its numbers go behind them. */
Err desk_send(Rank *r)
{
    const size_t bytes = r->settings.program->loss - r->desk_at;
    DeviceEvent *sent = r->event[MAX_BEGUN];
    if (!r->runtime) return OK;
    DeviceQueue *q = r->runtime->queue(r->context, QUEUE_H2D);
    TRY(r->runtime->copy(q, r->base[ARENA_STEP] + r->desk_at, r->desk, bytes));
    TRY(r->runtime->record(q, sent));
    TRY(r->runtime->copy(r->queue, &step_verdict(r)->mean, &desk_verdict(r)->mean,
                         sizeof(Verdict) - offsetof(Verdict, mean)));
    return r->runtime->wait(r->queue, sent);
}

Err desk_fetch(Rank *r)
{
    const size_t loss = r->settings.program->loss;
    if (!r->runtime) return OK;
    TRY(r->runtime->copy(r->queue, desk_of(r, loss), r->base[ARENA_STEP] + loss,
                         arena_bytes(r, ARENA_STEP) + ARENA_ALIGN - loss));
    return memory_sync(r);
}

_Static_assert(sizeof(Verdict) <= ARENA_ALIGN, "the verdict is one line");

Verdict *desk_verdict(const Rank *r)
{
    return (Verdict *)(void *)desk_of(r, arena_bytes(r, ARENA_STEP));
}

Verdict *step_verdict(const Rank *r)
{
    return (Verdict *)(void *)(r->base[ARENA_STEP] + arena_bytes(r, ARENA_STEP));
}

Err desk_send_verdict(Rank *r)
{
    return r->runtime->copy(r->queue, step_verdict(r), desk_verdict(r), offsetof(Verdict, mean));
}

static bool is_dense(const Tensor *t)
{
    int64_t step = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->n[i] != 1 && t->stride[i] != step) return false;
        step *= t->n[i];
    }
    return true;
}

/* One that no copy which is begun has. */
static DeviceEvent *free_event(const Rank *r)
{
    for (int i = 0; i < MAX_BEGUN; i++) {
        bool taken = false;
        for (int k = 0; k < r->n_begun; k++) taken = taken || r->begun[k].copied == r->event[i];
        if (!taken) return r->event[i];
    }
    MUST(false, "%d copies are begun", r->n_begun);
    return NULL;
}

Err memory_copy(Rank *r, Queue queue, const Call *c, DeviceEvent **done)
{
    DeviceQueue *q = r->runtime->queue(r->context, queue);
    DeviceEvent *e = free_event(r);
    TRY(r->runtime->record(r->queue, e));
    TRY(r->runtime->wait(q, e));
    Call there = *c;
    there.queue = q;
    const bool dense = is_dense(&c->in[0]) && is_dense(&c->out[0]);
    const size_t bytes = (size_t)tensor_count(&c->in[0]) * dtype_bytes(c->in[0].dtype);
    TRY(dense ? r->runtime->copy(q, c->out[0].data, c->in[0].data, bytes)
              : r->settings.device->kernel[KERNEL_copy](&there));
    TRY(r->runtime->record(q, e));
    *done = e;
    return OK;
}

Err memory_await(const Rank *r, DeviceEvent *done) { return r->runtime->wait(r->queue, done); }
