/* graph.c -- a step captured once from the streams as a CUDA graph and launched from then on.
 *
 *     compute  | begin | kernels ..... record e ................ wait f | end
 *     d2h      |                       wait e | copy | record f
 *
 * A stream that waits for an event of the capture joins it until the capturing stream waits for it
 * in turn. Copies that are begun and waited for thus become branches of the graph.
 *
 * The capture mode is thread-local: a call of this thread that a graph cannot repeat (an
 * allocation, a wait of the host) is an error, while other threads, such as a checkpoint writer,
 * are not restricted. Programmatic dependent launches (pdl.cuh) are captured as such. */
#include <stdlib.h>

#include "device/cuda/cuda.h"

struct DeviceGraph {
    DeviceContext *context;
    cudaGraphExec_t exec;
    size_t bytes;   /* device memory, estimated from the free memory before and after */
    unsigned epoch; /* of the context at the time of capture */
};

Err cuda_capture_begin(DeviceQueue *q)
{
    CUDA_TRY(cudaSetDevice(q->context->ordinal));
    CUDA_TRY(cudaStreamBeginCapture(q->stream, cudaStreamCaptureModeThreadLocal));
    return OK;
}

static size_t free_bytes(void)
{
    size_t left = 0, total = 0;
    (void)cudaMemGetInfo(&left, &total);
    return left;
}

/* Instantiates and uploads the graph, so that the first launch is as short as the others and all
 * memory is allocated. */
static Err instantiate(DeviceQueue *q, cudaGraph_t captured, DeviceGraph *g)
{
    const size_t before = free_bytes();
    CUDA_TRY(cudaGraphInstantiateWithFlags(&g->exec, captured, 0));
    CUDA_TRY(cudaGraphUpload(g->exec, q->stream));
    CUDA_TRY(cudaStreamSynchronize(q->stream));
    const size_t after = free_bytes();
    g->bytes = before > after ? before - after : 0;
    q->context->graph_bytes += g->bytes;
    return OK;
}

Err cuda_capture_end(DeviceQueue *q, DeviceGraph **out)
{
    cudaGraph_t captured = NULL;
    CUDA_TRY(cudaSetDevice(q->context->ordinal));
    const cudaError_t status = cudaStreamEndCapture(q->stream, &captured);
    if (status != cudaSuccess) return cuda_failed(status, "cudaStreamEndCapture");
    if (!out) {
        (void)cudaGraphDestroy(captured);
        return OK;
    }
    DeviceGraph *g = calloc(1, sizeof *g);
    Err err = g ? OK : err_fail(ERR_NOMEM, "cuda: no memory for a graph");
    if (g) *g = (DeviceGraph){.context = q->context, .epoch = q->context->epoch};
    if (g) err = instantiate(q, captured, g);
    (void)cudaGraphDestroy(captured);
    if (err == OK)
        *out = g;
    else if (g)
        cuda_graph_close(g);
    return err;
}

Err cuda_graph_run(DeviceQueue *q, DeviceGraph *g)
{
    MUST(cuda_graph_fits(g), "cuda: launch of a graph that is no longer valid");
    CUDA_TRY(cudaSetDevice(q->context->ordinal));
    CUDA_TRY(cudaGraphLaunch(g->exec, q->stream));
    return OK;
}

bool cuda_graph_fits(const DeviceGraph *g) { return g->epoch == g->context->epoch; }

void cuda_graph_close(DeviceGraph *g)
{
    (void)cudaSetDevice(g->context->ordinal);
    if (g->exec) (void)cudaGraphExecDestroy(g->exec);
    g->context->graph_bytes -= g->bytes;
    free(g);
}
