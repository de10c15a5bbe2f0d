/* pdl.cuh -- kernels that are launched before the one in front of them is done: from sm_90 on their
 * blocks take the place of blocks that have ended, set themselves up, and wait on the card.
 *
 *     in front   ======= pdl_trigger ==============|
 *     behind                  launch .. pdl_wait | reads, writes
 *
 * Before pdl_wait a kernel touches no memory but its own shared one. A kernel in front that never
 * calls pdl_trigger is one whose next may start when all its blocks have ended. */
#ifndef DEVICE_CUDA_PDL_CUH
#define DEVICE_CUDA_PDL_CUH

#include "device/cuda/cuda.h"

/* Until what was launched before is done, and all can see it. */
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

/* Local. The kernel calls pdl_wait first. */
template <class Work>
static Err pdl_launch(void (*kernel)(Work), const LaunchShape &s, const DeviceQueue *q,
                      const Work &work)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = s.grid;
    config.blockDim = s.block;
    config.dynamicSmemBytes = s.bytes;
    config.stream = q->stream;
    config.attrs = &early;
    config.numAttrs = q->context->capability >= 90 ? 1 : 0;
    CUDA_TRY(cudaLaunchKernelEx(&config, kernel, work));
    return OK;
}

#endif
