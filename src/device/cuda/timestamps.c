/* timestamps.c -- timestamps of a stream's progress, by timing events. */
#include <stdlib.h>
#include "device/cuda/cuda.h"

struct DeviceTimestamps {
    int ordinal, n;
    cudaEvent_t event[];
};

void cuda_timestamps_close(DeviceTimestamps *m)
{
    for (int i = 0; m && i < m->n; i++) (void)cudaEventDestroy(m->event[i]);
    free(m);
}

Err cuda_timestamps_open(DeviceContext *c, int n, DeviceTimestamps **out)
{
    CUDA_TRY(cudaSetDevice(c->ordinal));
    DeviceTimestamps *m = calloc(1, sizeof *m + sizeof *m->event * (size_t)n);
    if (!m) return err_fail(ERR_NOMEM, "cuda: no memory for %d timestamps", n);
    m->ordinal = c->ordinal;
    for (; m->n < n; m->n++) {
        const cudaError_t status = cudaEventCreate(&m->event[m->n]);
        if (status == cudaSuccess) continue;
        cuda_timestamps_close(m);
        return cuda_failed(status, "cudaEventCreate");
    }
    *out = m;
    return OK;
}

Err cuda_timestamp(DeviceQueue *q, DeviceTimestamps *m, int i)
{
    MUST(i >= 0 && i < m->n, "timestamp %d of %d", i, m->n);
    CUDA_TRY(cudaSetDevice(m->ordinal));
    CUDA_TRY(cudaEventRecord(m->event[i], q->stream));
    return OK;
}

Err cuda_timestamps_read(const DeviceTimestamps *m, int n, double *seconds)
{
    MUST(n <= m->n, "%d timestamps of %d", n, m->n);
    for (int i = 0; i < n; i++) {
        float ms;
        CUDA_TRY(cudaEventElapsedTime(&ms, m->event[0], m->event[i]));
        seconds[i] = 1e-3 * (double)ms;
    }
    return OK;
}
