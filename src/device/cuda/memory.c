/* memory.c -- allocations, copies and events of a context: thin, with faults in words. */
#include <stdlib.h>

#include "device/cuda/context.h"

static Err use(const DeviceContext *c)
{
    CUDA_TRY(cudaSetDevice(c->ordinal));
    return OK;
}

static DeviceQueue *queue_of(DeviceContext *c, DeviceLane lane) { return &c->queue[lane]; }

static Err alloc(DeviceContext *c, size_t bytes, void **out)
{
    size_t left = 0, total = 0;
    TRY(use(c));
    const cudaError_t status = cudaMalloc(out, bytes);
    if (status != cudaErrorMemoryAllocation) {
        CUDA_TRY(status);
        return OK;
    }
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&left, &total);
    return err_fail(ERR_NOMEM,
                    "cuda: %zu bytes on GPU %d, which has %zu free of %zu; take a smaller "
                    "batch.micro, parallel.recompute, or more ranks",
                    bytes, c->ordinal, left, total);
}

static void release(DeviceContext *c, void *at)
{
    if (use(c) == OK) (void)cudaFree(at);
}

static Err alloc_host(DeviceContext *c, size_t bytes, void **out)
{
    TRY(use(c));
    CUDA_TRY(cudaHostAlloc(out, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    return OK;
}

static void release_host(DeviceContext *c, void *at)
{
    if (use(c) == OK) (void)cudaFreeHost(at);
}

static Err copy(DeviceQueue *q, void *to, const void *from, size_t bytes)
{
    TRY(use(q->context));
    if (bytes > 0) CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, q->stream));
    return OK;
}

static Err set(DeviceQueue *q, void *to, int byte, size_t bytes)
{
    TRY(use(q->context));
    if (bytes > 0) CUDA_TRY(cudaMemsetAsync(to, byte, bytes, q->stream));
    return OK;
}

static Err event_open(DeviceContext *c, DeviceEvent **out)
{
    TRY(use(c));
    DeviceEvent *e = malloc(sizeof *e);
    if (!e) return err_fail(ERR_NOMEM, "cuda: no memory for an event");
    e->ordinal = c->ordinal;
    const cudaError_t status = cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming);
    if (status != cudaSuccess) {
        free(e);
        return cuda_failed(status, "cudaEventCreateWithFlags");
    }
    *out = e;
    return OK;
}

static void event_close(DeviceEvent *e)
{
    (void)cudaEventDestroy(e->event);
    free(e);
}

static Err record(DeviceQueue *q, DeviceEvent *e)
{
    TRY(use(q->context));
    CUDA_TRY(cudaEventRecord(e->event, q->stream));
    return OK;
}

static Err wait_for(DeviceQueue *q, DeviceEvent *e)
{
    TRY(use(q->context));
    CUDA_TRY(cudaStreamWaitEvent(q->stream, e->event, 0));
    return OK;
}

static Err done(DeviceEvent *e, bool *out)
{
    const cudaError_t status = cudaEventQuery(e->event);
    *out = status == cudaSuccess;
    return *out || status == cudaErrorNotReady ? OK : cuda_failed(status, "cudaEventQuery");
}

static Err sync_event(DeviceEvent *e)
{
    CUDA_TRY(cudaEventSynchronize(e->event));
    return OK;
}

static Err sync_queue(DeviceQueue *q)
{
    TRY(use(q->context));
    CUDA_TRY(cudaStreamSynchronize(q->stream));
    return OK;
}

static void deterministic(DeviceContext *c, bool on)
{
    c->any_order = !on;
    c->epoch++;
}

const DeviceMemory cuda_memory = {
    .count = cuda_count,
    .open = cuda_open,
    .close = cuda_close,
    .queue = queue_of,
    .info = cuda_info,
    .identify = cuda_identify,
    .queue_open = cuda_queue_open,
    .queue_close = cuda_queue_close,
    .native = cuda_native,
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
    .marks_open = cuda_marks_open,
    .marks_close = cuda_marks_close,
    .mark = cuda_mark,
    .marks_read = cuda_marks_read,
    .squares_open = cuda_squares_open,
    .squares_run = cuda_squares_run,
    .update_open = cuda_update_open,
    .update_run = cuda_update_run,
    .list_close = cuda_list_close,
    .clip = cuda_clip,
    .fold = cuda_fold,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_run = cuda_graph_run,
    .graph_fits = cuda_graph_fits,
    .graph_close = cuda_graph_close,
    .deterministic = deterministic,
    .choices_measure = cuda_choices_measure,
    .choices_left = cuda_choices_left,
    .choices_save = cuda_choices_save,
    .choices_load = cuda_choices_load,
};
