/* nccl.h -- GPU memory between ranks by NCCL.
 *
 * sheaf-nccl.so is a plugin (base/plugin.h). It opens the library of NCCL, libnccl.so.2, along the
 * loader's search path (LD_LIBRARY_PATH, the system's folders).
 *
 *     NcclLibrary nccl;
 *     if (nccl_open(NULL, NULL, &nccl) != OK) puts(err_text());       why it cannot be used
 *     TRY(comm_join(world, &arena, &settings, &comm));                any backend
 *     TRY(nccl_attach(&nccl, comm));                                  NCCL moves device memory
 *     TRY(comm_prepare(comm, transfers, n));                          all groups, on all ranks
 *
 * The backend of the comm still matches the members and moves host memory; NCCL moves GPU memory
 * (drawing in comm/nccl/channels.h). NCCL chooses the order of its sums and may round bf16 at each
 * addition. Its results agree with those of other transports within that error, not to the bit. */
#ifndef COMM_NCCL_H
#define COMM_NCCL_H

#include "comm/comm.h"
#include "comm/nccl/api.h"

/* A plain value that may be copied and dropped: shared objects stay open. */
typedef struct NcclLibrary {
    const struct NcclEntry *entry;
    int version; /* in NCCL's own encoding: 22809 is 2.28.9 */
    NcclApi api;
} NcclLibrary;

enum { NCCL_VERSION_BYTES = 32, NCCL_TEXT_BYTES = 512 };

/* Local. Opens the plugin (path NULL: next to the executable) and NCCL (library NULL:
 * libnccl.so.2). ERR_CONFIG names what is missing. */
Err nccl_open(const char *path, const char *library, NcclLibrary *out);
/* Local. "NCCL 2.28.9" */
const char *nccl_version_text(int version, char text[NCCL_VERSION_BYTES]);
/* Local. True if this version allows two ranks on one GPU. */
bool nccl_shares_gpus(int version);
/* Local. Makes NCCL the device transport of a comm that has begun no transfer yet. */
Err nccl_attach(const NcclLibrary *l, Comm *c);
/* Local. One line for people, in `text`, which is returned: the version, or why there is none. */
const char *nccl_text(const char *path, char text[NCCL_TEXT_BYTES]);

#endif
