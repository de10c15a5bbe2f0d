/* pdl.cuh -- programmatic dependent launch (PDL), sm_90 and newer: a kernel starts before the
 * previous one ends.
 *
 * Its blocks take the place of finished blocks, set themselves up, and wait on the GPU.
 *
 *     previous   ======= pdl_trigger ==============|
 *     next                    launch .. pdl_wait   | reads, writes
 *
 * Before pdl_wait a kernel accesses only its own shared memory. If the previous kernel never calls
 * pdl_trigger, the next one may start when all of its blocks have ended. */
#ifndef DEVICE_CUDA_PDL_CUH
#define DEVICE_CUDA_PDL_CUH

#include "device/cuda/cuda.h"

/* Waits until the previous kernels are done and their writes are visible. */
static __device__ inline void pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

static __device__ inline void pdl_trigger()
{
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

typedef struct {
    dim3 grid, block;
    size_t bytes; /* of dynamic shared memory */
} LaunchShape;

/* Local. Launches a kernel that calls pdl_wait before any access to device memory. */
template <class Work>
static Err pdl_launch(void (*kernel)(Work), const LaunchShape &s, const DeviceQueue *q,
                      const Work &work)
{
    cudaLaunchAttribute pdl = {};
    cudaLaunchConfig_t config = {};
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = s.grid;
    config.blockDim = s.block;
    config.dynamicSmemBytes = s.bytes;
    config.stream = q->stream;
    config.attrs = &pdl;
    config.numAttrs = q->context->capability >= 90 ? 1 : 0;
    CUDA_TRY(cudaLaunchKernelEx(&config, kernel, work));
    return OK;
}

#endif
