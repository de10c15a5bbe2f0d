/* api.h -- declarations of the NCCL functions in use. They are declared here so that building needs
 * neither nccl.h nor CUDA; libnccl.so.2 is opened at run time. Numbers and layouts are those of
 * NCCL since 2.14; tests/nccl/abi.c compares them with nccl.h if it is installed. */
#ifndef COMM_NCCL_API_H
#define COMM_NCCL_API_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

typedef struct NcclComm NcclComm;

typedef struct {
    char bytes[128];
} NcclId;

typedef enum {
    NCCL_OK = 0,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7
} NcclResult;

typedef enum {
    NCCL_U8 = 1, /* FP8, whose values are moved, never summed */
    NCCL_I32 = 2,
    NCCL_I64 = 4,
    NCCL_F32 = 7,
    NCCL_F64 = 8,
    NCCL_BF16 = 9
} NcclType;
typedef enum { NCCL_SUM = 0, NCCL_MAX = 2 } NcclOp;

/* ncclConfig_t as of 2.14, and with the members from cga_size on as of 2.17. Its size and version
 * show NCCL which members are absent. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
    int cga_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
} NcclConfig;
enum { NCCL_CONFIG_VERSION = 21400, NCCL_CONFIG_SHARED = 21700, NCCL_CONFIG_BYTES = 24 };
enum { NCCL_MIN_VERSION = 21400, NCCL_SHARED_VERSION = 23000 };
enum { NCCL_UNSET = INT_MIN };
#define NCCL_CONFIG_MAGIC 0xcafebeefu

/* NCCL_CALL(what, arguments): the function ncclWHAT. The last argument is its CUDA stream, if it
 * has one. */
#define NCCL_CALLS(NCCL_CALL)                                                                      \
    NCCL_CALL(GetVersion, (int *version))                                                          \
    NCCL_CALL(GetUniqueId, (NcclId * id))                                                          \
    NCCL_CALL(CommInitRankConfig,                                                                  \
              (NcclComm * *comm, int n, NcclId id, int rank, NcclConfig *config))                  \
    NCCL_CALL(CommFinalize, (NcclComm * comm))                                                     \
    NCCL_CALL(CommDestroy, (NcclComm * comm))                                                      \
    NCCL_CALL(CommAbort, (NcclComm * comm))                                                        \
    NCCL_CALL(CommGetAsyncError, (NcclComm * comm, NcclResult * out))                              \
    NCCL_CALL(GroupStart, (void))                                                                  \
    NCCL_CALL(GroupEnd, (void))                                                                    \
    NCCL_CALL(AllReduce, (const void *from, void *to, size_t count, NcclType type, NcclOp op,      \
                          NcclComm *comm, void *stream))                                           \
    NCCL_CALL(AllGather, (const void *from, void *to, size_t count, NcclType type, NcclComm *comm, \
                          void *stream))                                                           \
    NCCL_CALL(ReduceScatter, (const void *from, void *to, size_t count, NcclType type, NcclOp op,  \
                              NcclComm *comm, void *stream))                                       \
    NCCL_CALL(Broadcast, (const void *from, void *to, size_t count, NcclType type, int root,       \
                          NcclComm *comm, void *stream))                                           \
    NCCL_CALL(Reduce, (const void *from, void *to, size_t count, NcclType type, NcclOp op,         \
                       int root, NcclComm *comm, void *stream))                                    \
    NCCL_CALL(Send, (const void *from, size_t count, NcclType type, int peer, NcclComm *comm,      \
                     void *stream))                                                                \
    NCCL_CALL(Recv, (void *to, size_t count, NcclType type, int peer, NcclComm *comm, void *stream))

typedef struct {
#define NCCL_MEMBER(what, arguments) NcclResult(*what) arguments;
    NCCL_CALLS(NCCL_MEMBER)
#undef NCCL_MEMBER
    const char *(*GetErrorString)(NcclResult result);
    const char *(*GetLastError)(NcclComm *comm);
    /* Since 2.30; NULL before. Bytes of GPU memory, for NCCL_STAT_TOTAL. */
    NcclResult (*CommMemStats)(NcclComm *comm, int stat, uint64_t *value);
} NcclApi;

enum { NCCL_STAT_TOTAL = 3 };

#endif
