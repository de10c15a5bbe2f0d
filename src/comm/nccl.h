/* nccl.h -- memory of GPUs between ranks, by NCCL.
 *
 * sheaf-nccl.so lies beside the program and is opened at run time, and so is the library of NCCL,
 * libnccl.so.2, which it looks for as any program does (LD_LIBRARY_PATH, the system's folders).
 *
 *     NcclLibrary nccl;
 *     if (nccl_open(NULL, NULL, &nccl) != OK) puts(err_text());       why it cannot be used
 *     TRY(mpi_join(world, &arena, &settings, &comm));                 or local_join
 *     TRY(nccl_attach(&nccl, comm));                                  now device memory goes by NCCL
 *     TRY(comm_prepare(comm, transfers, n));                          all groups, by all ranks
 *
 * The comm lets members meet as ever, and moves what is on the host; NCCL moves what is on GPUs
 * (comm/nccl/channels.h has the picture). Its sums are folded in an order of its own, and bf16 may be
 * rounded at each addition: results agree with those of other comms within that, not to the bit. */
#ifndef COMM_NCCL_H
#define COMM_NCCL_H

#include "comm/comm.h"
#include "comm/nccl/api.h"

/* Shared objects stay open: this may be copied, and let go. */
typedef struct NcclLibrary {
    const struct NcclEntry *entry;
    int version; /* as NCCL counts: 22809 is 2.28.9 */
    NcclApi api;
} NcclLibrary;

enum { NCCL_VERSION_BYTES = 32, NCCL_TEXT_BYTES = 512 };

/* Local. Opens the shared object (NULL: beside the running program) and NCCL (NULL: libnccl.so.2).
 * ERR_CONFIG says what is missing. */
Err nccl_open(const char *path, const char *library, NcclLibrary *out);
/* Local. "NCCL 2.28.9" */
const char *nccl_version_text(int version, char text[NCCL_VERSION_BYTES]);
/* Local. May two ranks be on one GPU? */
bool nccl_shares_gpus(int version);
/* Local. Of a comm on which nothing was begun yet. */
Err nccl_attach(const NcclLibrary *l, Comm *c);
/* Local. In one line, for people: the version, or why there is none. */
const char *nccl_text(const char *path, char text[NCCL_TEXT_BYTES]);

#endif
