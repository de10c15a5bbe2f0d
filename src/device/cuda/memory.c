/* memory.c -- allocations, copies and events of a context, and the runtime table of the device. */
#include <stdlib.h>

#include "device/cuda/context.h"

static Err use(const DeviceContext *c)
{
    CUDA_TRY(cudaSetDevice(c->ordinal));
    return OK;
}

static DeviceQueue *queue_of(DeviceContext *c, Queue queue) { return &c->queue[queue]; }

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

static const DeviceLists lists = {
    .squares_shape = {sizeof(SquaresPiece), SQUARES_CHUNK},
    .update_shape = {sizeof(UpdatePiece), UPDATE_CHUNK},
    .squares_open = cuda_squares_open,
    .squares_run = cuda_squares_run,
    .update_open = cuda_update_open,
    .update_run = cuda_update_run,
    .list_close = cuda_list_close,
    .clip = cuda_clip,
};

static const DeviceGraphs graphs = {
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_run = cuda_graph_run,
    .graph_fits = cuda_graph_fits,
    .graph_close = cuda_graph_close,
};

static const DeviceAutotune autotune = {
    .measure = cuda_autotune_measure,
    .left = cuda_autotune_left,
    .save = cuda_autotune_save,
    .load = cuda_autotune_load,
};

const DeviceRuntime cuda_runtime = {
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
    .timestamps_open = cuda_timestamps_open,
    .timestamps_close = cuda_timestamps_close,
    .timestamp = cuda_timestamp,
    .timestamps_read = cuda_timestamps_read,
    .fold = cuda_fold,
    .deterministic = deterministic,
    .scratch = cuda_lend_scratch,
    .attention = cuda_attention_choice,
    .lists = &lists,
    .graphs = &graphs,
    .autotune = &autotune,
};
