/* shadow.c -- queues of the shadow device: what waits in them, and when it runs. */
#include "support/shadow.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/philox.h"
#include "comm/fold.h"
#include "support/shadow_memory.h"

typedef enum { DO_KERNEL, DO_COPY, DO_SET, DO_RECORD, DO_WAIT, DO_LIST, DO_CLIP, DO_FOLD } Doing;

typedef struct Op {
    struct Op *next;
    Doing what;
    KernelId kernel;
    Call call;
    char *to;
    const char *from;
    size_t bytes;
    int byte;
    DeviceQueue *queue; /* of a wait: runs up to and with its operation `number` */
    int64_t number;
    const DeviceList *list;
    UpdateNumbers numbers;
    DeviceClip clip;
    DeviceFold fold;
    const void *x[DEVICE_FOLD_MOST];
    void *out[DEVICE_FOLD_MOST];
} Op;

struct DeviceQueue {
    DeviceContext *context;
    Op *first, **last;
    int64_t put, ran;
};

struct DeviceContext {
    DeviceContext *next;
    DeviceQueue queue[N_LANES];
    bool open;
};

struct DeviceEvent {
    DeviceQueue *queue; /* NULL: never recorded */
    int64_t number;
};

struct DeviceList {
    SquaresPiece *squares;
    UpdatePiece *update;
    int n;
};

static struct {
    pthread_mutex_t lock;
    DeviceContext *contexts; /* closed ones too: events of theirs may still be waited for */
    Random random;
    uint64_t drawn;
    ShadowPace pace;
    ShadowCount count;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

void shadow_set(uint64_t seed, ShadowPace pace)
{
    pthread_mutex_lock(&all.lock);
    all.random = random_named(seed, "shadow");
    all.drawn = 0;
    all.pace = pace;
    all.count.ran = all.count.late = 0;
    pthread_mutex_unlock(&all.lock);
}

ShadowCount shadow_count(void)
{
    pthread_mutex_lock(&all.lock);
    ShadowCount count = all.count;
    count.bytes = shadow_bytes();
    pthread_mutex_unlock(&all.lock);
    return count;
}

/* ---- what operations do, under the lock, at the addresses that only they know ---- */

static Tensor real(Tensor t)
{
    t.data = shadow_real(t.data);
    return t;
}

static Err run_kernel(KernelId id, const Call *call)
{
    Call c = *call;
    c.queue = NULL;
    c.team = NULL;
    for (int i = 0; i < c.n_in; i++) c.in[i] = real(c.in[i]);
    for (int i = 0; i < c.n_out; i++) c.out[i] = real(c.out[i]);
    return device_ref.kernel[id](&c);
}

static Tensor flat(const void *data, DType dtype, int64_t n)
{
    return (Tensor){(void *)(uintptr_t)data, dtype, 1, {n}, {1}};
}

static Err run_squares(const DeviceList *l)
{
    for (int i = 0; i < l->n; i++) {
        const SquaresPiece *p = &l->squares[i];
        Call c = {.n_in = 1, .n_out = 1, .number = {p->keep}};
        c.in[0] = flat(p->x, p->dtype, p->n);
        c.out[0] = flat(p->sum, F64, 1);
        TRY(run_kernel(KERNEL_sum_squares, &c));
    }
    return OK;
}

static Err run_update(const DeviceList *l, const UpdateNumbers *u)
{
    const double factor = *(const double *)shadow_real((void *)(uintptr_t)u->factor);
    for (int i = 0; i < l->n && !isnan(factor); i++) {
        const UpdatePiece *p = &l->update[i];
        Call c = {.n_in = 1, .n_out = p->m ? 3 : 1, .number = {u->lr, factor, u->bias1, u->bias2}};
        c.in[0] = flat(p->grad, p->grad_type, p->n);
        c.out[0] = flat(p->master, F32, p->n);
        if (p->m) {
            c.out[1] = flat(p->m, F32, p->n);
            c.out[2] = flat(p->v, F32, p->n);
            c.attr.adamw.beta1 = u->beta1;
            c.attr.adamw.beta2 = u->beta2;
            c.attr.adamw.eps = u->eps;
            c.attr.adamw.decay = p->decay;
        } else {
            c.attr.sgd.decay = p->decay;
        }
        TRY(run_kernel(p->m ? KERNEL_adamw : KERNEL_sgd, &c));
        if (!p->weight) continue;
        Call cast = {.n_in = 1, .n_out = 1};
        cast.in[0] = c.out[0];
        cast.out[0] = flat(p->weight, BF16, p->n);
        TRY(run_kernel(KERNEL_cast, &cast));
    }
    return OK;
}

static void run_clip(const DeviceClip *c)
{
    const double *sums = shadow_real((void *)(uintptr_t)c->sums);
    const float *loss = shadow_real((void *)(uintptr_t)c->loss);
    double total = 0, *out = shadow_real(c->out);
    bool unfit = false;
    for (int64_t i = 0; i < c->n; i++) total += sums[i];
    for (int64_t i = 0; i < c->n_losses; i++)
        unfit = unfit || !isfinite((double)loss[i * c->loss_stride]);
    const double norm = sqrt(total) * c->mean;
    const bool skips = unfit || !isfinite(norm) || (c->skip > 0 && norm > c->skip);
    const bool clips = c->max_norm > 0 && norm > c->max_norm;
    out[0] = skips ? (double)NAN : clips ? c->mean * (c->max_norm / norm) : c->mean;
    out[1] = norm;
}

static void run_fold(const DeviceFold *f)
{
    const char *x[DEVICE_FOLD_MOST];
    _Alignas(64) char block[FOLD_ELEMENTS * sizeof(double)];
    const size_t each = dtype_bytes(f->dtype);
    for (int i = 0; i < f->n; i++) x[i] = shadow_real((void *)(uintptr_t)f->x[i]);
    const Fold of = {f->dtype, f->max ? REDUCE_MAX : REDUCE_SUM, f->n, x};
    for (int64_t at = 0; at < f->count; at += FOLD_ELEMENTS) {
        const int64_t n = f->count - at < FOLD_ELEMENTS ? f->count - at : FOLD_ELEMENTS;
        fold(&of, at, n, block);
        for (int i = 0; i < f->n_out; i++)
            memcpy((char *)shadow_real(f->out[i]) + (size_t)at * each, block, (size_t)n * each);
    }
}

static void run_until(DeviceQueue *q, int64_t number);

static Err run_op(const Op *op)
{
    switch (op->what) {
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
    case DO_WAIT:
        run_until(op->queue, op->number);
        return OK;
    default:
        return OK;
    }
}

/* A queue that waits for another runs what that has to run first. */
static void run_until(DeviceQueue *q, int64_t number)
{
    while (q->ran < number) {
        Op *op = q->first;
        MUST(op, "shadow: a queue waits for itself");
        q->first = op->next;
        if (!q->first) q->last = &q->first;
        const Err err = run_op(op);
        MUST(err == OK, "shadow: a kernel failed: %s", err_text());
        q->ran++;
        all.count.ran++;
        free(op);
    }
}

/* ---- putting ---- */

static uint64_t draw(void) { return random_bits(&all.random, all.drawn++); }

static void go_on(DeviceQueue *q)
{
    const uint64_t coin = draw();
    if (all.pace == SHADOW_LATEST) return;
    DeviceQueue *other = &q->context->queue[coin / 4 % N_LANES];
    if (coin % 4 == 0) run_until(q, q->put);
    if (coin % 4 == 1) run_until(other, other->put);
}

static Op *op_new(Doing what)
{
    Op *op = calloc(1, sizeof *op);
    MUST(op, "shadow: no memory");
    op->what = what;
    return op;
}

static void put_locked(DeviceQueue *q, Op *op)
{
    MUST(q && q->context->open, "shadow: a queue of a context that is closed");
    *q->last = op;
    q->last = &op->next;
    q->put++;
    if (op->what != DO_RECORD && op->what != DO_WAIT) go_on(q);
    all.count.late += q->ran < q->put;
}

static Err put(DeviceQueue *q, Op *op)
{
    pthread_mutex_lock(&all.lock);
    put_locked(q, op);
    pthread_mutex_unlock(&all.lock);
    return OK;
}

static Err put_kernel(KernelId id, const Call *call)
{
    MUST(call->queue, "shadow: kernel %s without a queue", kernel_name(id));
    Op *op = op_new(DO_KERNEL);
    op->kernel = id;
    op->call = *call;
    return put(call->queue, op);
}

/* ---- the table ---- */

static int count_devices(void) { return 2; }

static Err open_context(int ordinal, DeviceContext **out)
{
    (void)ordinal;
    DeviceContext *c = calloc(1, sizeof *c);
    if (!c) return err_fail(ERR_NOMEM, "shadow: no memory for a context");
    for (int i = 0; i < N_LANES; i++) {
        c->queue[i].context = c;
        c->queue[i].last = &c->queue[i].first;
    }
    c->open = true;
    pthread_mutex_lock(&all.lock);
    c->next = all.contexts;
    all.contexts = c;
    all.count.contexts++;
    pthread_mutex_unlock(&all.lock);
    *out = c;
    return OK;
}

static void close_context(DeviceContext *c)
{
    pthread_mutex_lock(&all.lock);
    for (int i = 0; i < N_LANES; i++) run_until(&c->queue[i], c->queue[i].put);
    c->open = false;
    all.count.contexts--;
    pthread_mutex_unlock(&all.lock);
}

static DeviceQueue *queue_of(DeviceContext *c, DeviceLane lane) { return &c->queue[lane]; }

static Err info(DeviceContext *c, DeviceInfo *out)
{
    (void)c;
    *out = (DeviceInfo){
        .name = "shadow", .total_bytes = (size_t)1 << 32, .free_bytes = (size_t)1 << 32};
    return OK;
}

static Err alloc(DeviceContext *c, size_t bytes, void **out)
{
    (void)c;
    pthread_mutex_lock(&all.lock);
    const Err err = shadow_alloc(bytes, out);
    pthread_mutex_unlock(&all.lock);
    return err;
}

static void release(DeviceContext *c, void *at)
{
    (void)c;
    pthread_mutex_lock(&all.lock);
    shadow_free(at);
    pthread_mutex_unlock(&all.lock);
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

static Err event_open(DeviceContext *c, DeviceEvent **out)
{
    (void)c;
    *out = calloc(1, sizeof **out);
    return *out ? OK : err_fail(ERR_NOMEM, "shadow: no memory for an event");
}

static void event_close(DeviceEvent *e) { free(e); }

static Err record(DeviceQueue *q, DeviceEvent *e)
{
    pthread_mutex_lock(&all.lock);
    put_locked(q, op_new(DO_RECORD));
    *e = (DeviceEvent){q, q->put};
    pthread_mutex_unlock(&all.lock);
    return OK;
}

/* A GPU would not wait at all for what was never recorded: nobody here means that. */
static Err wait_for(DeviceQueue *q, DeviceEvent *e)
{
    Op *op = op_new(DO_WAIT);
    pthread_mutex_lock(&all.lock);
    MUST(e->queue, "shadow: an event is waited for that was never recorded");
    op->queue = e->queue;
    op->number = e->number;
    put_locked(q, op);
    pthread_mutex_unlock(&all.lock);
    return OK;
}

static Err done(DeviceEvent *e, bool *out)
{
    pthread_mutex_lock(&all.lock);
    *out = !e->queue || e->queue->ran >= e->number;
    pthread_mutex_unlock(&all.lock);
    return OK;
}

static Err sync_event(DeviceEvent *e)
{
    pthread_mutex_lock(&all.lock);
    if (e->queue) run_until(e->queue, e->number);
    pthread_mutex_unlock(&all.lock);
    return OK;
}

static Err sync_queue(DeviceQueue *q)
{
    pthread_mutex_lock(&all.lock);
    run_until(q, q->put);
    pthread_mutex_unlock(&all.lock);
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
                                           .squares_open = squares_open,
                                           .squares_run = squares_run,
                                           .update_open = update_open,
                                           .update_run = update_run,
                                           .list_close = list_close,
                                           .clip = clip,
                                           .fold = put_fold,
                                           .deterministic = switched,
                                           .choices_measure = switched,
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
