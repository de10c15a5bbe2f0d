/* transport.c -- an all-gather of the transports that each rank has; every rank then makes the same
 * choice from the same data. */
#include "world/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "comm/nccl.h"
#include "device/runtime.h"
#include "world/scalars.h"

/* The transports of one rank, as numbers for the all-gather. */
typedef struct {
    int64_t version;    /* of its NCCL; 0: it has none or may not use it */
    int64_t has_memory; /* 1: its device has memory of its own; -1: it has no device */
    int64_t card;       /* identity of its GPU, the same for ranks that share one */
    int64_t shares;     /* 1: its NCCL allows that, and its environment asks for it */
} TransportOffer;
/* The variable by which NCCL lets ranks share a GPU. */
static const char share_variable[] = "NCCL_MULTI_RANK_GPU_ENABLE";

enum { OFFER_NUMBERS = sizeof(TransportOffer) / sizeof(int64_t) };

typedef struct {
    NcclLibrary nccl;
    bool has_nccl;
    char why_not[TRANSPORT_BYTES / 2]; /* reason if this rank has no NCCL */
} NcclFound;

static Err probe(const WorldRank *r, const TransportSettings *s, TransportOffer *out,
                 NcclFound *found)
{
    *out = (TransportOffer){.has_memory = !s->device ? -1 : s->device->runtime != NULL};
    *found = (NcclFound){0};
    if (out->has_memory <= 0 || s->requested == TRANSPORT_MPI) return OK;
    TRY(s->device->runtime->identify(r->rank, (uint64_t *)&out->card));
    found->has_nccl = nccl_open(s->object, s->library, &found->nccl) == OK;
    const char *shares = getenv(share_variable);
    out->shares = found->has_nccl && nccl_shares_gpus(found->nccl.version) && shares &&
                  strcmp(shares, "1") == 0;
    if (found->has_nccl)
        out->version = found->nccl.version;
    else
        snprintf(found->why_not, sizeof found->why_not, "%.*s", (int)sizeof found->why_not - 1,
                 err_text());
    return OK;
}

static Err gather(WorldRank *r, const TransportOffer *mine, TransportOffer **all)
{
    TRY(world_agree(r, ARENA_NEW(r->arena, r->ranks, all)));
    TRY(comm_register(r->comm, ARENA_OFFERS, *all, sizeof **all * (size_t)r->ranks));
    (*all)[r->rank] = *mine;
    return world_gather(r, ARENA_OFFERS, OFFER_NUMBERS, I64);
}

/* Some rank has no NCCL: broadcasts the reason of the lowest such rank by an agreement. */
static void share_reason(WorldRank *r, const NcclFound *found, char *why)
{
    const Err mine = found->has_nccl ? OK : err_fail(ERR_CONFIG, "%s", found->why_not);
    (void)world_agree(r, mine);
    r->agreed = false; /* not an error yet: MPI may do */
    snprintf(why, TRANSPORT_BYTES / 2, "%.*s", TRANSPORT_BYTES / 2 - 1, err_text());
}

/* Writes why NCCL cannot be used, from the data of all ranks; "": it can. */
static void nccl_check(const WorldRank *r, const TransportOffer *all, char *why)
{
    char a[NCCL_VERSION_BYTES], b[NCCL_VERSION_BYTES];
    const size_t room = TRANSPORT_BYTES / 2;
    for (int i = 0; i < r->ranks && !why[0]; i++) {
        if (all[i].version != all[0].version)
            snprintf(why, room, "rank 0 has %s and rank %d %s; they must be the same",
                     nccl_version_text((int)all[0].version, a), i,
                     nccl_version_text((int)all[i].version, b));
        for (int k = 0; k < i && !why[0] && !(all[i].shares && all[k].shares); k++)
            if (all[i].card == all[k].card)
                snprintf(why, room,
                         "ranks %d and %d are on one GPU, which %s refuses%s (2.30 and newer "
                         "allow it, with %s=1)",
                         k, i, nccl_version_text((int)all[i].version, a),
                         nccl_shares_gpus((int)all[i].version) ? " as the variable is not set" : "",
                         share_variable);
    }
}

static Err request_check(const TransportSettings *s, const TransportOffer *mine)
{
    if (s->requested == TRANSPORT_MPI && !s->processes)
        return err_fail(ERR_CONFIG,
                        "run.comm=mpi: the ranks are threads of one process; start them with "
                        "mpirun or srun, or leave run.comm=auto");
    if (s->requested == TRANSPORT_NCCL && mine->has_memory == 0)
        return err_fail(ERR_CONFIG,
                        "run.comm=nccl: NCCL moves GPU memory, and device %s computes in host "
                        "memory; set run.device=cuda, or leave run.comm=auto",
                        s->device->name);
    return OK;
}

static Err choose(WorldRank *r, const TransportSettings *s, const TransportOffer *all,
                  const NcclFound *found, char *text)
{
    char why[TRANSPORT_BYTES / 2] = "", version[NCCL_VERSION_BYTES];
    bool missing = false;
    for (int i = 0; i < r->ranks; i++) missing = missing || all[i].version == 0;
    if (s->requested == TRANSPORT_MPI)
        snprintf(why, sizeof why, "run.comm=mpi");
    else if (missing)
        share_reason(r, found, why);
    else
        nccl_check(r, all, why);
    if (!why[0]) {
        snprintf(text, TRANSPORT_BYTES, "device memory between ranks: %s",
                 nccl_version_text((int)all[0].version, version));
        return nccl_attach(&found->nccl, r->comm);
    }
    if (s->requested == TRANSPORT_NCCL)
        return err_fail(ERR_CONFIG,
                        "run.comm=nccl: %s; run.comm=auto chooses another transport and prints it",
                        why);
    snprintf(text, TRANSPORT_BYTES,
             "device memory between ranks: MPI, staged through host memory: %s", why);
    return OK;
}

Err transport_open(WorldRank *r, const TransportSettings *s, char text[TRANSPORT_BYTES])
{
    TransportOffer mine, *all;
    NcclFound found;
    text[0] = '\0';
    Err err = probe(r, s, &mine, &found);
    if (err == OK) err = request_check(s, &mine);
    TRY(world_agree(r, err));
    if (!s->processes && s->requested == TRANSPORT_AUTO) {
        if (mine.has_memory > 0 && r->ranks > 1)
            snprintf(text, TRANSPORT_BYTES,
                     "device memory between ranks: direct copies, since ranks are threads");
        return OK;
    }
    TRY(gather(r, &mine, &all));
    for (int i = 0; i < r->ranks; i++)
        if (all[i].has_memory <= 0) return OK; /* host memory, or a run that will fail */
    return world_agree(r, choose(r, s, all, &found, text));
}
