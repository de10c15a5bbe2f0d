/* entry.c -- finds NCCL, and gives a comm its mover. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "comm/nccl/channels.h"

static Err find_calls(void *object, const char *name, NcclApi *out)
{
    const char *missing = NULL;
#define NCCL_FIND(what, arguments)                                                                 \
    *(void **)(void *)&out->what = dlsym(object, "nccl" #what);                                    \
    if (!out->what) missing = "nccl" #what;
    NCCL_CALLS(NCCL_FIND)
    NCCL_FIND(GetErrorString, )
    NCCL_FIND(GetLastError, )
#undef NCCL_FIND
    if (!missing) return OK;
    return err_fail(ERR_CONFIG, "nccl: %s has no %s; NCCL 2.14 or newer has", name, missing);
}

static Err open_library(const char *name, NcclLibrary *out)
{
    NcclApi api;
    int version = 0;
    if (!name) name = "libnccl.so.2";
    void *object = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        return err_fail(ERR_CONFIG,
                        "nccl: %s does not open: %s; install NCCL, or name its folder in "
                        "LD_LIBRARY_PATH",
                        name, dlerror());
    TRY(find_calls(object, name, &api));
    if (api.GetVersion(&version) != NCCL_OK || version < NCCL_MIN_VERSION)
        return err_fail(ERR_CONFIG, "nccl: %s is version %d; 2.14.0 (%d) is the first that does",
                        name, version, NCCL_MIN_VERSION);
    *out = (NcclLibrary){&sheaf_nccl, version, api};
    return OK;
}

static Err attach(const NcclLibrary *l, Comm *c)
{
    NcclState *n;
    TRY(ARENA_NEW(c->arena, 1, &n));
    TRY(ARENA_NEW(c->arena, c->set.in_flight, &n->ready));
    n->api = l->api;
    comm_set_transport(c, &nccl_transport, n);
    return OK;
}

const NcclEntry sheaf_nccl = {.comm_bytes = sizeof(Comm),
                              .transfer_bytes = sizeof(Transfer),
                              .memory_bytes = sizeof(DeviceRuntime),
                              .open = open_library,
                              .attach = attach};
