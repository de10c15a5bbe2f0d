/* cuda_workspace.h -- the workspace of device cuda (device/workspace.h). It is part of the program,
 * not of sheaf-cuda.so, so that memory is known on machines without CUDA. */
#ifndef DEVICE_CUDA_WORKSPACE_H
#define DEVICE_CUDA_WORKSPACE_H

#include "device/workspace.h"

extern const DeviceWorkspace cuda_workspace;

#endif
