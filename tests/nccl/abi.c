/* abi.c -- compiled if nccl.h is installed: compares the declarations of comm/nccl/api.h with
 * it. */
#include <nccl.h>
#include <stddef.h>

#include "comm/nccl/api.h"

#define SAME(what, a, b) _Static_assert((int)(a) == (int)(b), what)
SAME("id", sizeof(NcclId), sizeof(ncclUniqueId));
SAME("ok", NCCL_OK, ncclSuccess);
SAME("usage", NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME("remote", NCCL_REMOTE_ERROR, ncclRemoteError);
SAME("in progress", NCCL_IN_PROGRESS, ncclInProgress);
SAME("u8", NCCL_U8, ncclUint8);
SAME("i32", NCCL_I32, ncclInt32);
SAME("i64", NCCL_I64, ncclInt64);
SAME("f32", NCCL_F32, ncclFloat32);
SAME("f64", NCCL_F64, ncclFloat64);
SAME("bf16", NCCL_BF16, ncclBfloat16);
SAME("sum", NCCL_SUM, ncclSum);
SAME("max", NCCL_MAX, ncclMax);
SAME("enums", sizeof(NcclType), sizeof(ncclDataType_t));
SAME("size", offsetof(NcclConfig, size), offsetof(ncclConfig_t, size));
SAME("magic", offsetof(NcclConfig, magic), offsetof(ncclConfig_t, magic));
SAME("version", offsetof(NcclConfig, version), offsetof(ncclConfig_t, version));
SAME("blocking", offsetof(NcclConfig, blocking), offsetof(ncclConfig_t, blocking));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 17, 0)
SAME("cga", offsetof(NcclConfig, cga_size), offsetof(ncclConfig_t, cgaClusterSize));
SAME("ctas", offsetof(NcclConfig, max_ctas), offsetof(ncclConfig_t, maxCTAs));
SAME("split", offsetof(NcclConfig, split_share), offsetof(ncclConfig_t, splitShare));
SAME("unset", NCCL_UNSET, NCCL_CONFIG_UNDEF_INT);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
SAME("total", NCCL_STAT_TOTAL, ncclStatGpuMemTotal);
#endif

/* Functions: the arguments must agree except for the names of types. */
typedef ncclResult_t AllReduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                               ncclComm_t, cudaStream_t);
typedef ncclResult_t Reduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int,
                            ncclComm_t, cudaStream_t);
typedef ncclResult_t Gather(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
typedef ncclResult_t Broadcast(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t,
                               cudaStream_t);
typedef ncclResult_t Send(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
typedef ncclResult_t Recv(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
typedef ncclResult_t Init(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
typedef ncclResult_t OfComm(ncclComm_t);
typedef ncclResult_t Asks(ncclComm_t, ncclResult_t *);

int main(void)
{
    static AllReduce *const reduces[] = {ncclAllReduce, ncclReduceScatter};
    static Reduce *const reduce = ncclReduce;
    static Gather *const gather = ncclAllGather;
    static Broadcast *const broadcast = ncclBroadcast;
    static Send *const send = ncclSend;
    static Recv *const recv = ncclRecv;
    static Init *const init = ncclCommInitRankConfig;
    static OfComm *const ends[] = {ncclCommFinalize, ncclCommDestroy, ncclCommAbort};
    static Asks *const asks = ncclCommGetAsyncError;
    return !(reduces[0] && reduce && gather && broadcast && send && recv && init && ends[0] &&
             asks);
}
