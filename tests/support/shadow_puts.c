/* shadow_puts.c -- puts operations into queues of the shadow device: kernels, copies, and the
 * optimizer lists of a step's end. shadow_work.c runs them. */
#include <stdlib.h>
#include <string.h>

#include "support/shadow_slots.h"

Err shadow_kernel(KernelId id, const Call *call)
{
    MUST(call->queue, "shadow: kernel %s without a queue", kernel_name(id));
    pthread_mutex_lock(&shadow_all.lock);
    shadow_all.count.loaded_late += !shadow_all.loaded[id] && shadow_all.library_began;
    shadow_all.loaded[id] = true;
    pthread_mutex_unlock(&shadow_all.lock);
    ShadowOp *op = op_new(DO_KERNEL);
    op->kernel = id;
    op->call = *call;
    return put(call->queue, op);
}

Err shadow_copy(DeviceQueue *q, void *to, const void *from, size_t bytes)
{
    ShadowOp *op = op_new(DO_COPY);
    op->to = to;
    op->from = from;
    op->bytes = bytes;
    return put(q, op);
}

Err shadow_fill(DeviceQueue *q, void *to, int byte, size_t bytes)
{
    ShadowOp *op = op_new(DO_SET);
    op->to = to;
    op->byte = byte;
    op->bytes = bytes;
    return put(q, op);
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

Err shadow_squares_open(DeviceContext *c, const SquaresPiece *piece, int n, void *memory,
                        DeviceList **out)
{
    void *copied;
    (void)c;
    (void)memory; /* its lists are in host memory */
    TRY(list_open(piece, sizeof *piece, n, &copied, out));
    (*out)->squares = copied;
    return OK;
}

Err shadow_update_open(DeviceContext *c, const UpdatePiece *piece, int n, void *memory,
                       DeviceList **out)
{
    void *copied;
    (void)c;
    (void)memory; /* its lists are in host memory */
    TRY(list_open(piece, sizeof *piece, n, &copied, out));
    (*out)->update = copied;
    return OK;
}

Err shadow_squares_run(DeviceQueue *q, const DeviceList *l)
{
    ShadowOp *op = op_new(DO_LIST);
    op->list = l;
    return put(q, op);
}

Err shadow_update_run(DeviceQueue *q, const DeviceList *l, const UpdateNumbers *numbers)
{
    ShadowOp *op = op_new(DO_LIST);
    op->list = l;
    op->numbers = *numbers;
    return put(q, op);
}

void shadow_list_close(DeviceList *l)
{
    free(l->squares);
    free(l->update);
    free(l);
}

Err shadow_clip(DeviceQueue *q, const DeviceClip *c)
{
    ShadowOp *op = op_new(DO_CLIP);
    op->clip = *c;
    return put(q, op);
}

Err shadow_put_fold(DeviceQueue *q, const DeviceFold *f)
{
    ShadowOp *op = op_new(DO_FOLD);
    op->fold = *f;
    memcpy(op->x, f->x, sizeof *f->x * (size_t)f->n);
    memcpy(op->out, f->out, sizeof *f->out * (size_t)f->n_out);
    op->fold.x = op->x;
    op->fold.out = op->out;
    return put(q, op);
}
