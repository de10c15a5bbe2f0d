/* cuda.h -- host declarations that the files of the CUDA device share; C, and C++ for nvcc.
 *
 *     context   one rank on one GPU: four queues, cuBLASLt, cuDNN, the autotuner
 *       queue   a CUDA stream and its scratch. Kernels of a stream run in order, so each may use
 *               all of the scratch. The caller lends it (DeviceRuntime.scratch), of the bytes that
 *               scratch.h computes; else it grows, after a wait, when a kernel needs more
 *
 * A kernel's file has its formula, its __global__ function and its launcher, cuda_NAME. */
#ifndef DEVICE_CUDA_CUDA_H
#define DEVICE_CUDA_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "device/cuda/scratch.h"
#include "device/runtime.h"

struct DeviceQueue {
    DeviceContext *context;
    cudaStream_t stream;
    char *scratch;
    size_t scratch_bytes;
    bool lent;        /* the scratch is the caller's, and does not grow */
    unsigned *ticket; /* 0 between kernels; finished blocks count up to find the last one */
};

typedef struct Autotuner Autotuner;
typedef struct CudnnPlans CudnnPlans; /* attention/cudnn.h */

struct DeviceContext {
    int ordinal, sms, capability; /* 90: sm_90 */
    int shared_bytes;             /* of shared memory that a block may have: 99 KiB to 227 KiB */
    DeviceQueue queue[N_DEVICE_QUEUES];
    cublasLtHandle_t blas;
    Autotuner *autotuner;
    bool any_order;          /* not deterministic */
    unsigned epoch;          /* counts changes after which captured graphs are invalid */
    size_t graph_bytes;      /* device memory of all graphs */
    void *encode_tensor_map; /* encodes TMA descriptors (tensor_map.h); NULL: not available */
    CudnnPlans *cudnn;       /* NULL if cuDNN is not available */
};

struct DeviceEvent {
    cudaEvent_t event;
    int ordinal;
};

/* Local. Returns ERR_IO, or ERR_NOMEM, with the name of the call. */
Err cuda_failed(cudaError_t status, const char *call);
#define CUDA_TRY(call)                                                                             \
    do {                                                                                           \
        cudaError_t status_ = (call);                                                              \
        if (status_ != cudaSuccess) return cuda_failed(status_, #call);                            \
    } while (0)

/* Local. Makes the call's GPU current in this thread; refuses f64, which `ref` computes. */
Err cuda_begin(const Call *call, KernelId id);
/* Local. Checks that the last launch was accepted. */
Err cuda_launched(KernelId id);
/* Local. Lets a kernel have `bytes` of dynamic shared memory. ERR_CONFIG if the GPU has less. */
Err cuda_shared(const Call *call, KernelId id, const void *kernel, size_t bytes);
static inline bool cuda_shared_fits(const Call *call, size_t bytes)
{
    return bytes <= (size_t)call->queue->context->shared_bytes;
}
/* Local. Scratch of the queue of at least `bytes`, valid until the next kernel in it. ERR_CHECK if
 * it was lent and has less. */
Err cuda_scratch(DeviceQueue *q, size_t bytes, void **out);
/* Local. Memory for a measurement before the first step, which cuda_return frees. *out is NULL if
 * there is none: then nothing is measured. */
Err cuda_borrow(DeviceContext *c, size_t bytes, void **out);
Err cuda_return(void *at);

/* gemm/autotune.c: GEMM shapes of a context and their algorithms. */
Autotuner *autotuner_open(void);
void autotuner_close(Autotuner *c);
void cuda_autotune_measure(DeviceContext *c, bool on);
int cuda_autotune_left(const DeviceContext *c);
Err cuda_autotune_save(DeviceContext *c, const char *path);
Err cuda_autotune_load(DeviceContext *c, const char *path);

/* gemm/strided_gemm.cu: GEMMs that cuBLASLt cannot express: other strides, or mixed types. */
Err cuda_gemm_strided(const Call *call);
/* gemm/strided_gemm.cu: c = keep * c + bias, before a GEMM that accumulates into c. */
Err cuda_gemm_start(const Call *call);

/* pointwise.cu: sets the outputs of a call to 0. */
Err cuda_zero(const Call *call);

/* lists.cu, squares.cu, update.cu */
Err cuda_squares_open(DeviceContext *c, const SquaresPiece *piece, int n, void *memory,
                      DeviceList **out);
Err cuda_squares_run(DeviceQueue *q, const DeviceList *l);
Err cuda_update_open(DeviceContext *c, const UpdatePiece *piece, int n, void *memory,
                     DeviceList **out);
Err cuda_update_run(DeviceQueue *q, const DeviceList *l, const UpdateNumbers *numbers);
void cuda_list_close(DeviceList *l);
Err cuda_clip(DeviceQueue *q, const DeviceClip *clip);

/* timestamps.c */
Err cuda_timestamps_open(DeviceContext *c, int n, DeviceTimestamps **out);
void cuda_timestamps_close(DeviceTimestamps *m);
Err cuda_timestamp(DeviceQueue *q, DeviceTimestamps *m, int i);
Err cuda_timestamps_read(const DeviceTimestamps *m, int n, double *seconds);

/* graph.c */
Err cuda_capture_begin(DeviceQueue *q);
Err cuda_capture_end(DeviceQueue *q, DeviceGraph **out);
Err cuda_graph_run(DeviceQueue *q, DeviceGraph *g);
bool cuda_graph_fits(const DeviceGraph *g);
void cuda_graph_close(DeviceGraph *g);

/* fold.cu */
Err cuda_fold(DeviceQueue *q, const DeviceFold *fold);

extern const DeviceRuntime cuda_runtime;

#define KERNEL(id) Err cuda_##id(const Call *call);
#include "device/kernels.def"
#undef KERNEL

#ifdef __cplusplus
}
#endif

#endif
