/* entry.h -- the one symbol of sheaf-nccl.so. */
#ifndef COMM_NCCL_ENTRY_H
#define COMM_NCCL_ENTRY_H

#include "base/plugin.h"
#include "comm/backend.h"
#include "comm/nccl.h"

#define NCCL_ENTRY_NAME "sheaf_nccl"

typedef struct NcclEntry {
    PluginAbi abi; /* sizes of Comm, Transfer, DeviceRuntime */
    /* As nccl_open and nccl_attach. */
    Err (*open)(const char *library, NcclLibrary *out);
    Err (*attach)(const NcclLibrary *l, Comm *c);
} NcclEntry;

extern const NcclEntry sheaf_nccl __attribute__((visibility("default")));

#endif
