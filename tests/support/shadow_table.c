/* shadow_table.c -- the shadow device as device/memory.h has it: what is asked of it goes into queues. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/shadow_memory.h"
#include "support/shadow_parts.h"

static Err put_kernel(KernelId id, const Call *call)
{
    MUST(call->queue, "shadow: kernel %s without a queue", kernel_name(id));
    Op *op = op_new(DO_KERNEL);
    op->kernel = id;
    op->call = *call;
    return put(call->queue, op);
}

static int count_devices(void) { return 2; }

static Err open_context(int ordinal, DeviceContext **out)
{
    DeviceContext *c = calloc(1, sizeof *c);
    if (!c) return err_fail(ERR_NOMEM, "shadow: no memory for a context");
    for (int i = 0; i < N_LANES; i++) {
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

static void close_context(DeviceContext *c)
{
    for (int i = 0; i < N_LANES; i++) run_wait(&c->queue[i], c->queue[i].put);
    pthread_mutex_lock(&shadow_all.lock);
    MUST(!c->more, "shadow: a context is closed, and a queue of it is open");
    c->open = false;
    shadow_all.count.contexts--;
    pthread_mutex_unlock(&shadow_all.lock);
}

static DeviceQueue *queue_of(DeviceContext *c, DeviceLane lane) { return &c->queue[lane]; }

/* Each context is taken for a card of its own: ranks count as on as many. */
static Err identify(int ordinal, uint64_t *out)
{
    *out = 0x5ead0000u + (uint64_t)ordinal;
    return OK;
}

static Err queue_open(DeviceContext *c, DeviceQueue **out)
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

static void queue_close(DeviceQueue *q)
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

static Err native(DeviceQueue *q, void **out)
{
    *out = q;
    return OK;
}

static Err info(DeviceContext *c, DeviceInfo *out)
{
    (void)c;
    *out = (DeviceInfo){
        .name = "shadow", .total_bytes = (size_t)1 << 32, .free_bytes = (size_t)1 << 32};
    return OK;
}

static Err alloc(DeviceContext *c, size_t bytes, void **out)
{
    TRY(graph_forbids(c, "an allocation"));
    pthread_mutex_lock(&shadow_all.lock);
    const Err err = shadow_alloc(bytes, c, out);
    pthread_mutex_unlock(&shadow_all.lock);
    return err;
}

static void release(DeviceContext *c, void *at)
{
    (void)c;
    pthread_mutex_lock(&shadow_all.lock);
    shadow_free(at);
    pthread_mutex_unlock(&shadow_all.lock);
}

static Err alloc_host(DeviceContext *c, size_t bytes, void **out)
{
    (void)c;
    *out = aligned_alloc(64, (bytes + 63) / 64 * 64);
    return *out ? OK : err_fail(ERR_NOMEM, "shadow: no memory for %zu bytes", bytes);
}

static void release_host(DeviceContext *c, void *at)
{
    (void)c;
    free(at);
}

static Err copy(DeviceQueue *q, void *to, const void *from, size_t bytes)
{
    Op *op = op_new(DO_COPY);
    op->to = to;
    op->from = from;
    op->bytes = bytes;
    return put(q, op);
}

static Err set(DeviceQueue *q, void *to, int byte, size_t bytes)
{
    Op *op = op_new(DO_SET);
    op->to = to;
    op->byte = byte;
    op->bytes = bytes;
    return put(q, op);
}

static Err marks_open(DeviceContext *c, int n, DeviceMarks **out)
{
    (void)c;
    *out = calloc(1, sizeof **out + sizeof(double) * (size_t)n);
    if (!*out) return err_fail(ERR_NOMEM, "shadow: no memory for %d marks", n);
    (*out)->n = n;
    return OK;
}

static void marks_close(DeviceMarks *m) { free(m); }

static Err mark(DeviceQueue *q, DeviceMarks *m, int i)
{
    MUST(i >= 0 && i < m->n, "shadow: mark %d of %d", i, m->n);
    Op *op = op_new(DO_MARK);
    op->when = &m->when[i];
    *op->when = 0;
    return put(q, op);
}

static Err marks_read(const DeviceMarks *m, int n, double *seconds)
{
    for (int i = 0; i < n; i++) {
        MUST(m->when[i] > 0, "shadow: mark %d was read before the queue came to it", i);
        seconds[i] = m->when[i] - m->when[0];
    }
    return OK;
}

static Err event_open(DeviceContext *c, DeviceEvent **out)
{
    (void)c;
    *out = calloc(1, sizeof **out);
    return *out ? OK : err_fail(ERR_NOMEM, "shadow: no memory for an event");
}

static void event_close(DeviceEvent *e) { free(e); }

static Err record(DeviceQueue *q, DeviceEvent *e)
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

/* A GPU would not wait at all for what was never recorded: nobody here means that. */
static Err wait_for(DeviceQueue *q, DeviceEvent *e)
{
    pthread_mutex_lock(&shadow_all.lock);
    MUST(e->queue, "shadow: an event is waited for that was never recorded");
    if (q->graph || e->graph) {
        graph_wait(q, e);
    } else {
        Op *op = op_new(DO_WAIT);
        op->queue = e->queue;
        op->number = e->number;
        put_locked(q, op);
    }
    const Err err = graph_wrong(q);
    pthread_mutex_unlock(&shadow_all.lock);
    return err;
}

/* Who looks waits: time passes. */
static Err done(DeviceEvent *e, bool *out)
{
    if (e->queue) TRY(graph_forbids(e->queue->context, "a look at an event"));
    pthread_mutex_lock(&shadow_all.lock);
    *out = !e->queue || run_until(e->queue, e->number);
    pthread_mutex_unlock(&shadow_all.lock);
    return OK;
}

static Err sync_event(DeviceEvent *e)
{
    if (e->queue) TRY(graph_forbids(e->queue->context, "a wait for an event"));
    if (e->queue) run_wait(e->queue, e->number);
    return OK;
}

static Err sync_queue(DeviceQueue *q)
{
    TRY(graph_forbids(q->context, "a wait for a queue"));
    pthread_mutex_lock(&shadow_all.lock);
    const int64_t put_so_far = q->put;
    pthread_mutex_unlock(&shadow_all.lock);
    run_wait(q, put_so_far);
    return OK;
}

static Err list_open(const void *piece, size_t bytes, int n, void **copied, DeviceList **out)
{
    DeviceList *l = calloc(1, sizeof *l);
    *copied = malloc(bytes * (size_t)n + 1);
    MUST(l && *copied, "shadow: no memory");
    memcpy(*copied, piece, bytes * (size_t)n);
    l->n = n;
    *out = l;
    return OK;
}

static Err squares_open(DeviceContext *c, const SquaresPiece *piece, int n, DeviceList **out)
{
    void *copied;
    (void)c;
    TRY(list_open(piece, sizeof *piece, n, &copied, out));
    (*out)->squares = copied;
    return OK;
}

static Err update_open(DeviceContext *c, const UpdatePiece *piece, int n, DeviceList **out)
{
    void *copied;
    (void)c;
    TRY(list_open(piece, sizeof *piece, n, &copied, out));
    (*out)->update = copied;
    return OK;
}

static Err squares_run(DeviceQueue *q, const DeviceList *l)
{
    Op *op = op_new(DO_LIST);
    op->list = l;
    return put(q, op);
}

static Err update_run(DeviceQueue *q, const DeviceList *l, const UpdateNumbers *numbers)
{
    Op *op = op_new(DO_LIST);
    op->list = l;
    op->numbers = *numbers;
    return put(q, op);
}

static void list_close(DeviceList *l)
{
    free(l->squares);
    free(l->update);
    free(l);
}

static Err clip(DeviceQueue *q, const DeviceClip *c)
{
    Op *op = op_new(DO_CLIP);
    op->clip = *c;
    return put(q, op);
}

static Err put_fold(DeviceQueue *q, const DeviceFold *f)
{
    Op *op = op_new(DO_FOLD);
    op->fold = *f;
    memcpy(op->x, f->x, sizeof *f->x * (size_t)f->n);
    memcpy(op->out, f->out, sizeof *f->out * (size_t)f->n_out);
    op->fold.x = op->x;
    op->fold.out = op->out;
    return put(q, op);
}

static int open_products;

void shadow_opens(int products) { open_products = products; }

static int choices_left(const DeviceContext *c)
{
    (void)c;
    return open_products;
}

static void switched(DeviceContext *c, bool on)
{
    (void)c;
    (void)on;
}

/* It has nothing to choose; the file says that much. */
static const char choices_text[] = "shadow products\n";

static Err choices_save(DeviceContext *c, const char *path)
{
    (void)c;
    FILE *f = fopen(path, "w");
    if (!f) return err_fail(ERR_IO, "%s: cannot be written", path);
    fputs(choices_text, f);
    fclose(f);
    return OK;
}

static Err choices_load(DeviceContext *c, const char *path)
{
    char text[64] = "";
    (void)c;
    FILE *f = fopen(path, "r");
    if (!f) return err_fail(ERR_IO, "%s: cannot be read", path);
    const bool same = fgets(text, sizeof text, f) && strcmp(text, choices_text) == 0;
    fclose(f);
    return same ? OK : err_fail(ERR_CONFIG, "%s: it is of another device", path);
}

static const DeviceMemory shadow_memory = {.count = count_devices,
                                           .open = open_context,
                                           .close = close_context,
                                           .queue = queue_of,
                                           .info = info,
                                           .identify = identify,
                                           .queue_open = queue_open,
                                           .queue_close = queue_close,
                                           .native = native,
                                           .alloc = alloc,
                                           .free = release,
                                           .alloc_host = alloc_host,
                                           .free_host = release_host,
                                           .copy = copy,
                                           .set = set,
                                           .event_open = event_open,
                                           .event_close = event_close,
                                           .record = record,
                                           .wait = wait_for,
                                           .done = done,
                                           .sync_event = sync_event,
                                           .sync = sync_queue,
                                           .marks_open = marks_open,
                                           .marks_close = marks_close,
                                           .mark = mark,
                                           .marks_read = marks_read,
                                           .squares_open = squares_open,
                                           .squares_run = squares_run,
                                           .update_open = update_open,
                                           .update_run = update_run,
                                           .list_close = list_close,
                                           .clip = clip,
                                           .fold = put_fold,
                                           .capture_begin = capture_begin,
                                           .capture_end = capture_end,
                                           .graph_run = graph_run,
                                           .graph_fits = graph_fits,
                                           .graph_close = graph_close,
                                           .deterministic = switched,
                                           .choices_measure = switched,
                                           .choices_left = choices_left,
                                           .choices_save = choices_save,
                                           .choices_load = choices_load};

#define KERNEL(id)                                                                                 \
    static Err shadow_##id(const Call *call) { return put_kernel(KERNEL_##id, call); }
#include "device/kernels.def"
#undef KERNEL

const Device device_shadow = {
    .name = "shadow",
    .kernel =
        {
#define KERNEL(id) [KERNEL_##id] = shadow_##id,
#include "device/kernels.def"
#undef KERNEL
        },
    .memory = &shadow_memory,
};
