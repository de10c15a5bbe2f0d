/* entry.c -- opens the library of NCCL, and makes it the device transport of a comm. */
#include "comm/nccl/channels.h"

static Err find_calls(void *library, const char *name, NcclApi *out)
{
    const char *missing = NULL;
#define NCCL_FIND(what, arguments)                                                                 \
    *(void **)(void *)&out->what = library_symbol(library, "nccl" #what);                          \
    if (!out->what) missing = "nccl" #what;
    NCCL_CALLS(NCCL_FIND)
    NCCL_FIND(GetErrorString, )
    NCCL_FIND(GetLastError, )
#undef NCCL_FIND
    *(void **)(void *)&out->CommMemStats = library_symbol(library, "ncclCommMemStats");
    if (!missing) return OK;
    return err_fail(ERR_CONFIG, "nccl: %s has no %s; NCCL 2.14 or newer is needed", name, missing);
}

static Err open_library(const char *name, NcclLibrary *out)
{
    NcclApi api;
    void *library;
    int version = 0;
    if (!name) name = "libnccl.so.2";
    TRY(library_open("nccl", name, "install NCCL, or name its folder in LD_LIBRARY_PATH",
                     &library));
    TRY(find_calls(library, name, &api));
    if (api.GetVersion(&version) != NCCL_OK || version < NCCL_MIN_VERSION)
        return err_fail(ERR_CONFIG, "nccl: %s is version %d; 2.14.0 (%d) or newer is needed", name,
                        version, NCCL_MIN_VERSION);
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

const NcclEntry sheaf_nccl = {.abi = {{sizeof(Comm), sizeof(Transfer), sizeof(DeviceRuntime)}},
                              .open = open_library,
                              .attach = attach};
