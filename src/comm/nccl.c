/* nccl.c -- the plugin sheaf-nccl.so, and the version of NCCL that it found. */
#include "comm/nccl.h"

#include <stdio.h>
#include "comm/nccl/entry.h"

static const Plugin plugin = {.module = "nccl",
                              .file = "sheaf-nccl.so",
                              .symbol = NCCL_ENTRY_NAME,
                              .abi = {{sizeof(Comm), sizeof(Transfer), sizeof(DeviceRuntime)}},
                              .missing = "build again, it comes with sheaf"};

Err nccl_open(const char *path, const char *library, NcclLibrary *out)
{
    const void *entry;
    TRY(plugin_open(&plugin, path, &entry));
    return ((const NcclEntry *)entry)->open(library, out);
}

const char *nccl_version_text(int version, char text[NCCL_VERSION_BYTES])
{
    snprintf(text, NCCL_VERSION_BYTES, "NCCL %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    return text;
}

bool nccl_shares_gpus(int version) { return version >= NCCL_SHARED_VERSION; }

Err nccl_attach(const NcclLibrary *l, Comm *c) { return l->entry->attach(l, c); }

const char *nccl_text(const char *path, char text[NCCL_TEXT_BYTES])
{
    char version[NCCL_VERSION_BYTES];
    NcclLibrary l;
    if (nccl_open(path, NULL, &l) == OK)
        snprintf(text, NCCL_TEXT_BYTES, "nccl: %s, run on one GPU, not on several yet",
                 nccl_version_text(l.version, version));
    else
        snprintf(text, NCCL_TEXT_BYTES, "%.*s", NCCL_TEXT_BYTES - 1, err_text());
    return text;
}
