/* nccl.c -- finds sheaf-nccl.so, opens it, and hands its functions out. */
#define _GNU_SOURCE
#include "comm/nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
#include "base/beside.h"
#include "comm/nccl/entry.h"

static Err load(const char *path, const NcclEntry **out)
{
    char room[BESIDE_BYTES];
    path = path_beside(path, "sheaf-nccl.so", room);
    if (access(path, R_OK) != 0)
        return err_fail(ERR_CONFIG, "nccl: %s is not there; build again, it comes with sheaf",
                        path);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) return err_fail(ERR_CONFIG, "nccl: %s does not open: %s", path, dlerror());
    const NcclEntry *entry = dlsym(object, NCCL_ENTRY_NAME);
    if (!entry || entry->comm_bytes != sizeof(Comm) || entry->transfer_bytes != sizeof(Transfer) ||
        entry->memory_bytes != sizeof(DeviceRuntime))
        return err_fail(ERR_CONFIG,
                        "nccl: %s was built from other sources than this program; build both again",
                        path);
    *out = entry;
    return OK;
}

Err nccl_open(const char *path, const char *library, NcclLibrary *out)
{
    const NcclEntry *entry;
    TRY(load(path, &entry));
    return entry->open(library, out);
}

const char *nccl_version_text(int version, char text[NCCL_VERSION_BYTES])
{
    snprintf(text, NCCL_VERSION_BYTES, "NCCL %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    return text;
}

bool nccl_shares_gpus(int version) { return version >= NCCL_SHARED_VERSION; }

Err nccl_attach(const NcclLibrary *l, Comm *c) { return l->entry->attach(l, c); }

const char *nccl_text(const char *path)
{
    static _Thread_local char text[512];
    char version[NCCL_VERSION_BYTES];
    NcclLibrary l;
    if (nccl_open(path, NULL, &l) == OK)
        snprintf(text, sizeof text, "nccl: %s, not run on two GPUs yet",
                 nccl_version_text(l.version, version));
    else
        snprintf(text, sizeof text, "%s", err_text());
    return text;
}
