/* context.c -- a context: queues, library handles, scratch, and the properties of the GPU. */
#include "device/cuda/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/cuda/attention/cudnn.h"
#include "device/cuda/gemm/hopper_grouped.h"
#include "device/cuda/gemm/pingpong.h"
#include "device/cuda/tensor_map.h"

Err cuda_failed(cudaError_t status, const char *call)
{
    (void)cudaGetLastError(); /* reported here; the next launch must not report it again */
    const bool memory = status == cudaErrorMemoryAllocation;
    return err_fail(memory ? ERR_NOMEM : ERR_IO, "cuda: %.*s: %s (%s)", (int)strcspn(call, "("),
                    call, cudaGetErrorString(status), cudaGetErrorName(status));
}

Err cuda_begin(const Call *call, KernelId id)
{
    MUST(call->queue, "kernel %s of cuda without a queue", kernel_name(id));
    for (int i = 0; i < call->n_in + call->n_out; i++) {
        const Tensor *t = i < call->n_in ? &call->in[i] : &call->out[i - call->n_in];
        if (t->dtype == F64 && id != KERNEL_sum_squares && id != KERNEL_copy)
            return err_fail(ERR_CONFIG,
                            "cuda: kernel %s: tensor %d is f64; a GPU computes f32 and bf16, "
                            "run.device=ref computes f64",
                            kernel_name(id), i);
    }
    CUDA_TRY(cudaSetDevice(call->queue->context->ordinal));
    return OK;
}

Err cuda_launched(KernelId id)
{
    const cudaError_t status = cudaGetLastError();
    return status == cudaSuccess ? OK : cuda_failed(status, kernel_name(id));
}

Err cuda_shared(const Call *call, KernelId id, const void *kernel, size_t bytes)
{
    const DeviceContext *c = call->queue->context;
    if (!cuda_shared_fits(call, bytes))
        return err_fail(ERR_CONFIG,
                        "cuda: %s takes %zu bytes of shared memory at these sizes, a block on GPU "
                        "%d has %d; use run.device=cpu",
                        kernel_name(id), bytes, c->ordinal, c->shared_bytes);
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return OK;
}

Err cuda_scratch(DeviceQueue *q, size_t bytes, void **out)
{
    if (q->lent && bytes > q->scratch_bytes)
        return err_fail(ERR_CHECK,
                        "cuda: a kernel takes %zu bytes of scratch, but the program planned %zu; "
                        "this is a bug of Sheaf",
                        bytes, q->scratch_bytes);
    if (bytes > q->scratch_bytes) {
        CUDA_TRY(cudaStreamSynchronize(q->stream)); /* running kernels may use the old scratch */
        q->context->epoch++;                        /* captured graphs hold its address */
        CUDA_TRY(cudaFree(q->scratch));
        q->scratch = NULL;
        q->scratch_bytes = 0;
        CUDA_TRY(cudaMalloc((void **)&q->scratch, bytes));
        q->scratch_bytes = bytes;
    }
    *out = q->scratch;
    return OK;
}

/* Frees scratch that is the queue's own. */
static void scratch_drop(DeviceQueue *q)
{
    if (!q->lent) (void)cudaFree(q->scratch);
    q->scratch = NULL;
    q->scratch_bytes = 0;
    q->lent = false;
}

Err cuda_lend_scratch(DeviceContext *c, void *at, size_t bytes)
{
    DeviceQueue *q = &c->queue[QUEUE_COMPUTE];
    CUDA_TRY(cudaSetDevice(c->ordinal));
    CUDA_TRY(cudaStreamSynchronize(q->stream)); /* running kernels may use the old scratch */
    scratch_drop(q);
    c->epoch++; /* captured graphs hold its address */
    if (!at) return OK;
    q->scratch = at;
    q->scratch_bytes = bytes;
    q->lent = true;
    return OK;
}

Err cuda_borrow(DeviceContext *c, size_t bytes, void **out)
{
    CUDA_TRY(cudaSetDevice(c->ordinal));
    const cudaError_t status = cudaMalloc(out, bytes);
    if (status == cudaSuccess) return OK;
    *out = NULL;
    if (status != cudaErrorMemoryAllocation) return cuda_failed(status, "cudaMalloc");
    (void)cudaGetLastError();
    return OK;
}

Err cuda_return(void *at)
{
    CUDA_TRY(cudaFree(at));
    return OK;
}

int cuda_count(void)
{
    int n = 0;
    const cudaError_t status = cudaGetDeviceCount(&n);
    if (status == cudaSuccess && n > 0) return n;
    (void)cudaGetLastError();
    const char *why = status == cudaSuccess ? "the driver lists none"
                      : status == cudaErrorInsufficientDriver
                          ? "no NVIDIA driver as new as this CUDA"
                          : cudaGetErrorString(status);
    (void)err_keep("cuda %d.%d: no GPU can be used: %s; the device cpu runs without one",
                   CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100, why);
    return 0;
}

static Err check_capability(int ordinal, int capability)
{
    if (capability >= 80) return OK;
    return err_fail(ERR_CONFIG,
                    "cuda: GPU %d has compute capability %d.%d, but the kernels need 8.0 (A100) "
                    "or newer; use the device cpu",
                    ordinal, capability / 10, capability % 10);
}

/* Lets kernels of this GPU read the memory of other GPUs; ranks of one process reduce across
 * them. */
static Err enable_peer_access(const DeviceContext *c)
{
    const int n = cuda_count();
    for (int i = 0; i < n; i++) {
        int can = 0;
        if (i == c->ordinal) continue;
        CUDA_TRY(cudaDeviceCanAccessPeer(&can, c->ordinal, i));
        const cudaError_t status = can ? cudaDeviceEnablePeerAccess(i, 0) : cudaSuccess;
        if (status == cudaErrorPeerAccessAlreadyEnabled)
            (void)cudaGetLastError();
        else
            CUDA_TRY(status);
    }
    return OK;
}

enum { QUEUE_COUNTERS = 64 };

/* The ticket, and the counts of tiles after it (attention/attention.cuh). */
static Err open_counters(DeviceQueue *q)
{
    const size_t bytes = QUEUE_COUNTERS * sizeof *q->ticket;
    CUDA_TRY(cudaMalloc((void **)&q->ticket, bytes));
    CUDA_TRY(cudaMemsetAsync(q->ticket, 0, bytes, q->stream));
    return OK;
}

static Err open_parts(DeviceContext *c)
{
    int major = 0, minor = 0, low = 0, high = 0;
    CUDA_TRY(cudaSetDevice(c->ordinal));
    CUDA_TRY(cudaDeviceGetAttribute(&c->sms, cudaDevAttrMultiProcessorCount, c->ordinal));
    CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c->ordinal));
    CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, c->ordinal));
    CUDA_TRY(cudaDeviceGetAttribute(&c->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                    c->ordinal));
    c->capability = 10 * major + minor;
    TRY(check_capability(c->ordinal, c->capability));
    TRY(enable_peer_access(c));
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&low, &high));
    for (int i = 0; i < N_DEVICE_QUEUES; i++) {
        c->queue[i].context = c;
        /* Queues that others wait for have priority over compute. */
        CUDA_TRY(cudaStreamCreateWithPriority(&c->queue[i].stream, cudaStreamNonBlocking,
                                              i == QUEUE_COMPUTE ? low : high));
        TRY(open_counters(&c->queue[i]));
    }
    if (cublasLtCreate(&c->blas) != CUBLAS_STATUS_SUCCESS)
        return err_fail(ERR_IO, "cuda: cuBLASLt does not start on GPU %d", c->ordinal);
    tensor_map_open(c);
    TRY(pingpong_open(c));
    TRY(hopper_grouped_open(c));
    c->autotuner = autotuner_open();
    c->cudnn = cudnn_open(c->capability);
    return c->autotuner ? OK : err_fail(ERR_NOMEM, "cuda: no memory for the autotuner");
}

void cuda_close(DeviceContext *c)
{
    (void)cudaSetDevice(c->ordinal);
    for (int i = 0; i < N_DEVICE_QUEUES; i++) {
        if (!c->queue[i].stream) continue;
        (void)cudaStreamSynchronize(c->queue[i].stream);
        scratch_drop(&c->queue[i]);
        (void)cudaFree(c->queue[i].ticket);
        (void)cudaStreamDestroy(c->queue[i].stream);
    }
    if (c->blas) (void)cublasLtDestroy(c->blas);
    autotuner_close(c->autotuner);
    cudnn_close(c->cudnn);
    free(c);
}

Err cuda_open(int ordinal, DeviceContext **out)
{
    const int n = cuda_count();
    if (n == 0) return err_is(ERR_CONFIG, 0); /* count has reported the reason */
    if (ordinal < 0 || ordinal >= n)
        return err_fail(ERR_CONFIG,
                        "cuda: there is no GPU %d; the %d GPUs here are numbered from 0", ordinal,
                        n);
    DeviceContext *c = calloc(1, sizeof *c);
    if (!c) return err_fail(ERR_NOMEM, "cuda: no memory for a context");
    c->ordinal = ordinal;
    const Err err = open_parts(c);
    if (err != OK) {
        cuda_close(c);
        return err;
    }
    *out = c;
    return OK;
}

/* Dense rates from the datasheets; the first row that is a prefix of the GPU's name applies. */
static const struct {
    const char *name;
    double bf16_flops, f32_flops, memory_Bps;
} cards[] = {{"NVIDIA H200", 989e12, 67e12, 4.8e12},
             {"NVIDIA H100 80GB HBM3", 989e12, 67e12, 3.35e12},
             {"NVIDIA H100 PCIe", 756e12, 51e12, 2.0e12},
             {"NVIDIA A100-SXM4-80GB", 312e12, 19.5e12, 2.039e12},
             {"NVIDIA A100 80GB PCIe", 312e12, 19.5e12, 1.935e12},
             {"NVIDIA A100-SXM4-40GB", 312e12, 19.5e12, 1.555e12}};

Err cuda_info(DeviceContext *c, DeviceInfo *out)
{
    struct cudaDeviceProp card;
    DeviceInfo info = {0};
    CUDA_TRY(cudaSetDevice(c->ordinal));
    CUDA_TRY(cudaGetDeviceProperties(&card, c->ordinal));
    CUDA_TRY(cudaMemGetInfo(&info.free_bytes, &info.total_bytes));
    info.workspace_bytes = c->graph_bytes;
    for (int i = 0; i < N_DEVICE_QUEUES; i++) {
        const DeviceQueue *q = &c->queue[i];
        info.workspace_bytes +=
            QUEUE_COUNTERS * sizeof *q->ticket + (q->lent ? 0 : q->scratch_bytes);
    }
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        if (strncmp(card.name, cards[i].name, strlen(cards[i].name)) != 0) continue;
        info.bf16_flops = cards[i].bf16_flops;
        info.f32_flops = cards[i].f32_flops;
        info.memory_Bps = cards[i].memory_Bps;
        break;
    }
    const size_t blas = cublasLtGetVersion();
    snprintf(info.name, sizeof info.name, "%.48s, sm_%d; GEMMs by cuBLASLt %zu.%zu.%zu; %s",
             card.name, c->capability, blas / 10000, blas / 100 % 100, blas % 100,
             cudnn_text(c->cudnn));
    *out = info;
    return OK;
}

Err cuda_identify(int ordinal, uint64_t *out)
{
    struct cudaDeviceProp card;
    uint64_t halves[2];
    CUDA_TRY(cudaGetDeviceProperties(&card, ordinal % cuda_count()));
    memcpy(halves, card.uuid.bytes, sizeof halves);
    *out = halves[0] * 0x9e3779b97f4a7c15u ^ halves[1];
    return OK;
}

Err cuda_queue_open(DeviceContext *c, DeviceQueue **out)
{
    int low = 0, high = 0;
    CUDA_TRY(cudaSetDevice(c->ordinal));
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&low, &high));
    DeviceQueue *q = calloc(1, sizeof *q);
    if (!q) return err_fail(ERR_NOMEM, "cuda: no memory for a queue");
    q->context = c;
    const cudaError_t status =
        cudaStreamCreateWithPriority(&q->stream, cudaStreamNonBlocking, high);
    if (status != cudaSuccess) {
        free(q);
        return cuda_failed(status, "cudaStreamCreateWithPriority");
    }
    *out = q;
    return OK;
}

void cuda_queue_close(DeviceQueue *q)
{
    (void)cudaSetDevice(q->context->ordinal);
    (void)cudaStreamSynchronize(q->stream);
    scratch_drop(q);
    (void)cudaStreamDestroy(q->stream);
    free(q);
}

Err cuda_native(DeviceQueue *q, void **out)
{
    CUDA_TRY(cudaSetDevice(q->context->ordinal));
    *out = q->stream;
    return OK;
}
