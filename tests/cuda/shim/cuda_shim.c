/* cuda_shim.c -- memory, streams, events, graphs and launches of the shim. */
#define _GNU_SOURCE
#include "cuda/shim/cuda_shim.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_BLOCKS = 4096, MAX_FUNCTIONS = 2048, STATIC_SHARED = 48 << 10, SMS = 132 };

typedef struct {
    char *at;
    size_t bytes;
    bool host;
} Block;

typedef struct {
    const void *host;
    int shared; /* dynamic shared memory that it may have */
} Function;

static struct {
    pthread_mutex_t lock;
    int capability;
    Block block[MAX_BLOCKS];
    Function function[MAX_FUNCTIONS];
    int n_functions;
    ShimCount count;
} shim = {.lock = PTHREAD_MUTEX_INITIALIZER, .capability = 90};

void shim_set_capability(int capability) { shim.capability = capability; }

ShimCount shim_count(void)
{
    pthread_mutex_lock(&shim.lock);
    const ShimCount count = shim.count;
    pthread_mutex_unlock(&shim.lock);
    return count;
}

static cudaError_t refuse(const char *what, long long a, long long b)
{
    pthread_mutex_lock(&shim.lock);
    if (shim.count.refused++ == 0)
        snprintf(shim.count.why, sizeof shim.count.why, "%s: %lld, %lld", what, a, b);
    pthread_mutex_unlock(&shim.lock);
    return cudaErrorInvalidValue;
}

/* ---- memory ---- */

static cudaError_t take(void **out, size_t bytes, bool host)
{
    void *at = mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return cudaErrorMemoryAllocation;
    pthread_mutex_lock(&shim.lock);
    int i = 0;
    while (i < MAX_BLOCKS - 1 && shim.block[i].at) i++;
    shim.block[i] = (Block){at, bytes, host};
    *(host ? &shim.count.host_allocations : &shim.count.allocations) += 1;
    *(host ? &shim.count.host_bytes : &shim.count.bytes) += (int64_t)bytes;
    pthread_mutex_unlock(&shim.lock);
    *out = at;
    return cudaSuccess;
}

static cudaError_t drop(void *at)
{
    if (!at) return cudaSuccess;
    pthread_mutex_lock(&shim.lock);
    int i = 0;
    while (i < MAX_BLOCKS && shim.block[i].at != at) i++;
    const Block b = i < MAX_BLOCKS ? shim.block[i] : (Block){0};
    if (b.at) *(b.host ? &shim.count.host_bytes : &shim.count.bytes) -= (int64_t)b.bytes;
    if (b.at) shim.block[i].at = NULL;
    pthread_mutex_unlock(&shim.lock);
    if (!b.at) return refuse("free of memory that is not allocated", 0, 0);
    munmap(b.at, b.bytes + 1);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes) { return take(out, bytes, false); }
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    return take(out, bytes, true);
}
cudaError_t cudaFree(void *at) { return drop(at); }
cudaError_t cudaFreeHost(void *at) { return drop(at); }
cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    *left = *total = (size_t)80 << 30;
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    (void)stream;
    memmove(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}
cudaError_t cudaMemsetAsync(void *at, int byte, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    memset(at, byte, bytes);
    return cudaSuccess;
}

/* ---- the card ---- */

static int opt_in_shared(void)
{
    return shim.capability == 90 ? 227 << 10 : shim.capability == 80 ? 163 << 10 : 99 << 10;
}

cudaError_t cudaGetDeviceCount(int *n) { return *n = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int *n) { return *n = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int n) { return n == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr what, int ordinal)
{
    (void)ordinal;
    *out = what == cudaDevAttrMultiProcessorCount                ? SMS
           : what == cudaDevAttrComputeCapabilityMajor           ? shim.capability / 10
           : what == cudaDevAttrComputeCapabilityMinor           ? shim.capability % 10
           : what == cudaDevAttrMaxSharedMemoryPerBlockOptin     ? opt_in_shared()
           : what == cudaDevAttrMaxSharedMemoryPerBlock          ? STATIC_SHARED
           : what == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? opt_in_shared() + 1024
                                                                 : 0;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int ordinal)
{
    (void)ordinal;
    *out = (struct cudaDeviceProp){0};
    snprintf(out->name, sizeof out->name, "shim");
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b)
{
    (void)a;
    (void)b;
    return *can = 0, cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)peer;
    (void)flags;
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t e) { return e == cudaSuccess ? "success" : "error"; }
const char *cudaGetErrorString(cudaError_t e) { return cudaGetErrorName(e); }

/* ---- streams, events, graphs ---- */

static int something; /* what handles point to */

cudaError_t cudaDeviceGetStreamPriorityRange(int *low, int *high)
{
    *low = 0;
    *high = -1;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    (void)flags;
    (void)priority;
    *out = (cudaStream_t)(void *)&something;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    *out = (cudaEvent_t)(void *)&something;
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    return cudaEventCreate(out);
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    (void)a;
    (void)b;
    return *ms = 0.1f, cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    (void)stream;
    *out = (cudaGraph_t)(void *)&something;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
                                          unsigned long long flags)
{
    (void)graph;
    (void)flags;
    *out = (cudaGraphExec_t)(void *)&something;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    (void)graph;
    (void)stream;
    pthread_mutex_lock(&shim.lock);
    shim.count.graphs++;
    pthread_mutex_unlock(&shim.lock);
    return cudaSuccess;
}
#define DONE1(name, A)                                                                             \
    cudaError_t name(A a)                                                                          \
    {                                                                                              \
        (void)a;                                                                                   \
        return cudaSuccess;                                                                        \
    }
#define DONE2(name, A, B)                                                                          \
    cudaError_t name(A a, B b)                                                                     \
    {                                                                                              \
        (void)a;                                                                                   \
        (void)b;                                                                                   \
        return cudaSuccess;                                                                        \
    }
DONE1(cudaStreamDestroy, cudaStream_t)
DONE1(cudaStreamSynchronize, cudaStream_t)
DONE1(cudaEventDestroy, cudaEvent_t)
DONE1(cudaEventQuery, cudaEvent_t)
DONE1(cudaEventSynchronize, cudaEvent_t)
DONE1(cudaGraphDestroy, cudaGraph_t)
DONE1(cudaGraphExecDestroy, cudaGraphExec_t)
DONE2(cudaEventRecord, cudaEvent_t, cudaStream_t)
DONE2(cudaGraphUpload, cudaGraphExec_t, cudaStream_t)
DONE2(cudaStreamBeginCapture, cudaStream_t, enum cudaStreamCaptureMode)
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    return cudaSuccess;
}

/* ---- launches ---- */

static Function *function_of(const void *host)
{
    pthread_mutex_lock(&shim.lock);
    int i = 0;
    while (i < shim.n_functions && shim.function[i].host != host) i++;
    if (i == shim.n_functions && i < MAX_FUNCTIONS - 1)
        shim.function[shim.n_functions++] = (Function){host, STATIC_SHARED};
    pthread_mutex_unlock(&shim.lock);
    return &shim.function[i];
}

static cudaError_t launch(const void *host, dim3 grid, dim3 block, size_t shared)
{
    const long long threads = (long long)block.x * block.y * block.z;
    pthread_mutex_lock(&shim.lock);
    shim.count.launches++;
    pthread_mutex_unlock(&shim.lock);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
        grid.z > 65535)
        return refuse("a grid of x, and y", grid.x, grid.y);
    if (threads == 0 || threads > 1024) return refuse("threads of a block", threads, grid.x);
    if (shared > (size_t)function_of(host)->shared)
        return refuse("dynamic shared memory, and the limit of the kernel", (long long)shared,
                      function_of(host)->shared);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute what, int value)
{
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value > opt_in_shared()) return refuse("shared memory of a block", value, opt_in_shared());
    function_of(host)->shared = value > STATIC_SHARED ? value : STATIC_SHARED;
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *host)
{
    (void)host;
    *out = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024,
                                       .ptxVersion = shim.capability,
                                       .binaryVersion = shim.capability};
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *host,
                                                                   int threads, size_t shared,
                                                                   unsigned flags)
{
    (void)host;
    (void)threads;
    (void)shared;
    (void)flags;
    return *n = 2, cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **args)
{
    (void)args;
    return launch(host, c->gridDim, c->blockDim, c->dynamicSmemBytes);
}

/* What nvcc's launch syntax calls. */
static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
} pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
    (void)stream;
    pushed.grid = grid, pushed.block = block, pushed.shared = shared;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared;
    *(void **)stream = NULL;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(const void **out, const void *host);
cudaError_t __cudaGetKernel(const void **out, const void *host)
{
    *out = host;
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream);
cudaError_t __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream)
{
    (void)args;
    (void)stream;
    return launch(kernel, grid, block, shared);
}
cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream)
{
    return __cudaLaunchKernel(host, grid, block, args, shared, stream);
}
void **__cudaRegisterFatBinary(void *binary);
void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;
    (void)binary;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle);
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int limit, void *a, void *b, void *c, void *d, int *e);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int limit, void *a, void *b, void *c, void *d, int *e)
{
    (void)handle, (void)host, (void)device, (void)name, (void)limit;
    (void)a, (void)b, (void)c, (void)d, (void)e;
}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int a,
                       size_t bytes, int b, int c);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int a,
                       size_t bytes, int b, int c)
{
    (void)handle, (void)host, (void)device, (void)name, (void)a, (void)bytes, (void)b, (void)c;
}

/* ---- TMA: the driver's rules for a descriptor without interleave, with a swizzle of 128 bytes
 * ---- */

static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *at,
                       const cuuint64_t *extent, const cuuint64_t *stride, const cuuint32_t *box,
                       const cuuint32_t *step, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                       CUtensorMapFloatOOBfill fill)
{
    const size_t each = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32    ? 4
                        : type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? 2
                                                                   : 1;
    bool right = (uintptr_t)at % 16 == 0 && rank >= 1 && rank <= 5;
    (void)step, (void)interleave, (void)l2, (void)fill;
    memset(map, 0, sizeof *map);
    for (cuuint32_t i = 0; i < rank; i++) {
        right = right && extent[i] > 0 && extent[i] <= (cuuint64_t)1 << 32;
        right = right && box[i] > 0 && box[i] <= 256;
        if (i > 0) right = right && stride[i - 1] % 16 == 0 && stride[i - 1] < (cuuint64_t)1 << 40;
    }
    right = right && box[0] * each % 16 == 0;
    if (swizzle == CU_TENSOR_MAP_SWIZZLE_128B) right = right && box[0] * each <= 128;
    if (right) return CUDA_SUCCESS;
    (void)refuse("a TMA descriptor of x, and y", (long long)extent[0], (long long)extent[1]);
    return CUDA_ERROR_INVALID_VALUE;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    (void)name, (void)version, (void)flags;
    *out = (void *)(uintptr_t)encode;
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
