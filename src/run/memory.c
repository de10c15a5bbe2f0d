/* memory.c -- a rank's arenas, on the host or on its device, and copies between the two. */
#include <stdlib.h>
#include <string.h>

#include "run/rank_parts.h"

static const char *const arena_name[N_ARENAS] = {"state", "step",    "work",
                                                 "host",  "session", "kernels"};

/* Smaller arenas would waste much of their last huge page of 2 MiB. */
enum { HUGE_FROM_BYTES = 16 << 20 };

size_t memory_arena_bytes(const Rank *r, int i)
{
    const RankSettings *s = &r->settings;
    size_t bytes = s->program->bytes[i];
    if (s->set && !s->state_of) bytes = program_set_own_bytes(s->set, 0, (ArenaId)i);
    return bytes ? bytes : ARENA_ALIGN;
}

/* On a device the step arena has one more line, for StepScalars, if linking did not count it. */
static size_t scalars_bytes(const Rank *r)
{
    return r->settings.program->device_scalars == NO_BASE ? ARENA_ALIGN : 0;
}

static Err open_arena(Rank *r, int i)
{
    const size_t bytes = memory_arena_bytes(r, i);
    void *base;
    if (!r->runtime) {
        TRY(arena_open(&r->arena[i], arena_name[i], bytes));
        if (bytes >= HUGE_FROM_BYTES) arena_prefer_huge(&r->arena[i]);
        TRY(arena_push(&r->arena[i], bytes, &base));
    } else if (i == ARENA_HOST) {
        TRY(r->runtime->alloc_host(r->context, bytes, &base));
    } else {
        TRY(r->runtime->alloc(r->context, bytes + (i == ARENA_STEP ? scalars_bytes(r) : 0), &base));
    }
    r->base[i] = base;
    return OK;
}

/* The rank's number in its set. One that joins an owner without a set is the second. */
static int rank_number(const Rank *r)
{
    return r->settings.set ? r->settings.number : r->settings.state_of ? 1 : 0;
}

/* Checks that the rank fits its owner, and that its program is the one of its number. */
static Err check_set(const Rank *r)
{
    const RankSettings *s = &r->settings;
    const ProgramSet pair = {2, {s->state_of ? s->state_of->settings.program : NULL, s->program}};
    MUST(!s->set || s->set->program[s->number] == s->program, "program %d of a set", s->number);
    MUST(!s->set || (s->number == 0) == !s->state_of, "program %d and its owner", s->number);
    if (s->set) return program_set_check(s->set);
    return s->state_of ? program_set_check(&pair) : OK;
}

/* True if the rank uses the owner's arena: always for state and session; for work and host, which
 * keep nothing between steps, and kernels, if it is large enough, as in a set. */
static bool shares(const Rank *r, int i)
{
    const Rank *of = r->settings.state_of;
    if (!of || i == ARENA_STEP) return false;
    return i == ARENA_STATE || i == ARENA_SESSION ||
           memory_arena_bytes(of, i) >= r->settings.program->bytes[i];
}

/* Registers the arenas and, as one more, the mailbox, which transfers of scalars use. Each program
 * of a set has its own numbers, so that all may use one comm. */
static Err register_arenas(Rank *r)
{
    Comm *c = r->settings.comm;
    const CommDevice device = {r->runtime, r->context};
    if (!c) return OK;
    r->first_arena = rank_number(r) * (N_ARENAS + 1);
    for (int i = 0; i < N_ARENAS; i++) {
        const int id = r->first_arena + i;
        const size_t bytes = memory_arena_bytes(r, i);
        TRY(r->runtime ? comm_register_device(c, id, r->base[i], bytes, device)
                       : comm_register(c, id, r->base[i], bytes));
    }
    return comm_register(c, r->first_arena + N_ARENAS, r->mailbox.base, mailbox_bytes(r));
}

static Err open_context(Rank *r)
{
    const int n = r->runtime->count();
    if (n == 0) return err_is(ERR_CONFIG, 0); /* count has reported the reason */
    TRY(r->runtime->open(r->settings.ordinal % n, &r->context));
    r->runtime->deterministic(r->context, r->settings.deterministic);
    return OK;
}

/* Lends the arena of kernels to the context; `of` takes it back from a rank that closes. Without a
 * plan of it the device allocates scratch as its kernels take it. */
static Err lend_scratch(const Rank *r, const Rank *of)
{
    const bool planned = of && of->settings.program->bytes[ARENA_KERNELS] > 0;
    if (!r->runtime || !r->runtime->scratch || r->shared[ARENA_KERNELS]) return OK;
    if (!planned) return r->runtime->scratch(r->context, NULL, 0);
    return r->runtime->scratch(r->context, of->base[ARENA_KERNELS],
                               memory_arena_bytes(of, ARENA_KERNELS));
}

Err memory_open(Rank *r)
{
    const Rank *of = r->settings.state_of;
    TRY(check_set(r));
    r->runtime = r->settings.device->runtime;
    if (r->runtime && of) r->context = of->context;
    if (r->runtime && !of) TRY(open_context(r));
    if (r->runtime) r->queue = r->runtime->queue(r->context, QUEUE_COMPUTE);
    for (int i = 0; i < N_ARENAS; i++) {
        r->shared[i] = shares(r, i);
        if (!r->shared[i]) {
            TRY(open_arena(r, i));
            continue;
        }
        r->base[i] = of->base[i];
    }
    TRY(lend_scratch(r, r));
    r->mailbox.start = r->settings.program->input[0];
    r->mailbox.base = r->base[ARENA_STEP] + r->mailbox.start;
    if (r->runtime) {
        r->mailbox.base = NULL; /* freed only if it was allocated */
        TRY(mailbox_open(r));
    }
    return register_arenas(r);
}

void memory_drain(Rank *r)
{
    for (int i = 0; r->context && i < N_DEVICE_QUEUES; i++)
        (void)r->runtime->sync(r->runtime->queue(r->context, (Queue)i));
}

static void close_on_device(Rank *r)
{
    const DeviceRuntime *rt = r->runtime;
    mailbox_close(r);
    (void)lend_scratch(r, r->settings.state_of);
    for (int i = 0; i < N_ARENAS; i++)
        if (r->base[i] && !r->shared[i])
            (i == ARENA_HOST ? rt->free_host : rt->free)(r->context, r->base[i]);
    if (r->staging) rt->free_host(r->context, r->staging);
    if (!r->settings.state_of) rt->close(r->context);
}

void memory_close(Rank *r)
{
    if (r->context) close_on_device(r);
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

Err memory_staging(Rank *r, void **out)
{
    if (!r->staging) TRY(r->runtime->alloc_host(r->context, STAGING_BYTES, &r->staging));
    *out = r->staging;
    return OK;
}

Err rank_fill(const Rank *r, void *at, int byte, size_t bytes)
{
    if (r->runtime) return r->runtime->set(r->queue, at, byte, bytes);
    if (bytes > 0) memset(at, byte, bytes);
    return OK;
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

/* Strided tensors need the copy kernel; the copy engine moves contiguous bytes. */
Err memory_copy(Rank *r, Queue queue, const Call *c, DeviceEvent *done)
{
    DeviceQueue *q = r->runtime->queue(r->context, queue);
    TRY(r->runtime->record(r->queue, done));
    TRY(r->runtime->wait(q, done));
    Call there = *c;
    there.queue = q;
    const bool dense = is_dense(&c->in[0]) && is_dense(&c->out[0]);
    const size_t bytes = (size_t)tensor_count(&c->in[0]) * dtype_bytes(c->in[0].dtype);
    TRY(dense ? r->runtime->copy(q, c->out[0].data, c->in[0].data, bytes)
              : r->settings.device->kernel[KERNEL_copy](&there));
    return r->runtime->record(q, done);
}
