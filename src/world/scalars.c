#include "world/scalars.h"

static Err move(WorldRank *r, CommKind kind, Reduce reduce, Ref from, Ref to)
{
    const Transfer t = {.kind = kind,
                        .reduce = reduce,
                        .group = r->all,
                        .from = from,
                        .to = to,
                        .instr = -1,
                        .scalar = true};
    return comm_do(r->comm, &t);
}

Err world_reduce(WorldRank *r, int arena, int64_t n, DType dtype, Reduce reduce)
{
    const Ref at = {r->rank, arena, 0, n, dtype};
    return move(r, COMM_ALL_REDUCE, reduce, at, at);
}

Err world_gather(WorldRank *r, int arena, int64_t n, DType dtype)
{
    const size_t row = (size_t)n * dtype_bytes(dtype);
    return move(r, COMM_ALL_GATHER, REDUCE_SUM,
                (Ref){r->rank, arena, row * (size_t)r->rank, n, dtype},
                (Ref){r->rank, arena, 0, n * r->ranks, dtype});
}

Err world_broadcast(WorldRank *r, int root, int arena, int64_t n, DType dtype)
{
    return move(r, COMM_BROADCAST, REDUCE_SUM, (Ref){root, arena, 0, n, dtype},
                (Ref){r->rank, arena, 0, n, dtype});
}
