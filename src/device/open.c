/* open.c -- finds sheaf-cuda.so, opens it, and says what is missing when it cannot be used. */
#define _GNU_SOURCE
#include "device/open.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/beside.h"
#include "device/cuda/entry.h"

static const char *search_path;

void device_cuda_search(const char *path) { search_path = path; }

static Err load(const char *path, const CudaEntry **out)
{
    char room[BESIDE_BYTES];
    path = path_beside(path, "sheaf-cuda.so", room);
    if (access(path, R_OK) != 0)
        return err_fail(ERR_CONFIG,
                        "cuda: %s is not there; build with nvcc (./x build cuda says what it "
                        "misses), or run.device=cpu",
                        path);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        return err_fail(ERR_CONFIG,
                        "cuda: %s does not open: %s; are the CUDA libraries it was built with on "
                        "the library path?",
                        path, dlerror());
    const CudaEntry *entry = dlsym(object, CUDA_ENTRY_NAME);
    if (!entry || entry->call_bytes != sizeof(Call) || entry->device_bytes != sizeof(Device) ||
        entry->runtime_bytes != sizeof(DeviceRuntime))
        return err_fail(ERR_CONFIG,
                        "cuda: %s was built from other sources than this program; build both again",
                        path);
    entry->search(search_path);
    *out = entry;
    return OK;
}

Err device_cuda_open(const char *path, const Device **out)
{
    const CudaEntry *entry;
    TRY(load(path, &entry));
    TRY(device_check(entry->device));
    if (entry->device->runtime->count() == 0) return err_is(ERR_CONFIG, 0); /* count has said why */
    *out = entry->device;
    return OK;
}

const char *device_cuda_text(const char *path)
{
    static _Thread_local char text[512];
    const Device *device;
    DeviceContext *context;
    DeviceInfo info;
    if (device_cuda_open(path, &device) != OK || device->runtime->open(0, &context) != OK) {
        snprintf(text, sizeof text, "%s", err_text());
        return text;
    }
    if (device->runtime->info(context, &info) == OK)
        snprintf(text, sizeof text, "cuda: %d x %s", device->runtime->count(), info.name);
    else
        snprintf(text, sizeof text, "%s", err_text());
    device->runtime->close(context);
    return text;
}
