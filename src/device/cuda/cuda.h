/* cuda.h -- what the files of the CUDA device share on the host's side; C, and C++ for nvcc.
 *
 *     context   one rank on one GPU: four queues, cuBLASLt, the choices of algorithms
 *       queue   a stream, and scratch that the kernels of that stream share: they run in order, so
 *               each may use all of it; it grows by a wait when one needs more
 *
 * A kernel's file has its formula, its __global__ function and its launcher, cuda_NAME. */
#ifndef DEVICE_CUDA_CUDA_H
#define DEVICE_CUDA_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "device/runtime.h"

enum { BLAS_SCRATCH = 32 << 20 }; /* what NVIDIA advises for Hopper */

struct DeviceQueue {
    DeviceContext *context;
    cudaStream_t stream;
    char *scratch;
    size_t scratch_bytes;
    unsigned *ticket; /* 0 between kernels: blocks that are done draw from it, to tell the last */
};

typedef struct Autotuner Autotuner;
typedef struct CudnnPlans CudnnPlans; /* fused.h */

struct DeviceContext {
    int ordinal, sms, capability; /* 90: sm_90 */
    DeviceQueue queue[N_DEVICE_QUEUES];
    cublasLtHandle_t blas;
    Autotuner *autotuner;
    bool any_order;          /* not deterministic */
    unsigned epoch;          /* counts what makes graphs that were captured before no longer fit */
    size_t graph_bytes;      /* of device memory that graphs hold */
    void *encode_tensor_map; /* describes matrices to the copy engine (relay.cu); NULL: not there */
    CudnnPlans *cudnn;       /* cuDNN's, or NULL where it is not there */
};

struct DeviceEvent {
    cudaEvent_t event;
    int ordinal;
};

/* Local. Is ERR_IO with the name of the call, or ERR_NOMEM. */
Err cuda_failed(cudaError_t status, const char *call);
#define CUDA_TRY(call)                                                                             \
    do {                                                                                           \
        cudaError_t status_ = (call);                                                              \
        if (status_ != cudaSuccess) return cuda_failed(status_, #call);                            \
    } while (0)

/* Local. Makes the call's GPU this thread's; refuses f64, which `ref` computes. */
Err cuda_begin(const Call *call, KernelId id);
/* Local. After a launch: was it accepted? */
Err cuda_launched(KernelId id);
/* Local. Scratch of the queue, at least so much, until the next kernel in it. */
Err cuda_scratch(DeviceQueue *q, size_t bytes, void **out);

/* choices.c: the products of a context and their algorithms. */
Autotuner *autotuner_open(void);
void autotuner_close(Autotuner *c);
void cuda_autotune_measure(DeviceContext *c, bool on);
int cuda_autotune_left(const DeviceContext *c);
Err cuda_autotune_save(DeviceContext *c, const char *path);
Err cuda_autotune_load(DeviceContext *c, const char *path);

/* gemm.cu: products that the library cannot be told of: other strides, or mixed types. */
Err cuda_gemm_strided(const Call *call);
/* gemm.cu: c = keep * c + bias, so that the product is only added. */
Err cuda_gemm_start(const Call *call);

/* pointwise.cu: the outputs of a call become 0. */
Err cuda_zero(const Call *call);

/* lists.cu, squares.cu, update.cu */
Err cuda_squares_open(DeviceContext *c, const SquaresPiece *piece, int n, DeviceList **out);
Err cuda_squares_run(DeviceQueue *q, const DeviceList *l);
Err cuda_update_open(DeviceContext *c, const UpdatePiece *piece, int n, DeviceList **out);
Err cuda_update_run(DeviceQueue *q, const DeviceList *l, const UpdateNumbers *numbers);
void cuda_list_close(DeviceList *l);
Err cuda_clip(DeviceQueue *q, const DeviceClip *clip);

/* marks.c */
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
