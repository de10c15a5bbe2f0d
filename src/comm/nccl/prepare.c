/* prepare.c -- opens the channels of a program, before its first step: in a step nothing is opened,
 * connected or allocated.
 *
 *     open       all channels, in one sorted order         no kernel is on a GPU
 *     connect    a byte between each two members that will send to each other
 *
 * NCCL allocates at the first send of a pair, which may wait for all of the GPU. Among threads that
 * share it, one channel at a time is connected, so that no other kernel is in flight:
 *
 *     turn of rank 0   {0 1} | {0 2} | {1 0}      channels whose lowest member is 0, sorted;
 *     turn of rank 1   {1 2} | {2 1}              the members of each meet before it */
#include "comm/nccl/channels.h"

#include <stdlib.h>
#include <string.h>

static bool among_threads(const Comm *c)
{
    return c->set.ranks > 1 && strcmp(c->table->name, "local") == 0;
}

int nccl_ranks_here(const Comm *c)
{
    const int gpus = c->device.runtime->count();
    return among_threads(c) ? (c->set.ranks + gpus - 1) / gpus : 1;
}

/* True if members send parts to each other in some transfer of the channel. */
static bool sends_parts(const ChannelKey *key, const Transfer *t, int n)
{
    bool sends = key->pair[0] >= 0;
    for (int i = 0; i < n && !sends; i++) {
        const ChannelKey of = {&t[i], {-1, -1}};
        const bool parts = t[i].kind == COMM_ALL_TO_ALL ||
                           (t[i].kind == COMM_REDUCE_SCATTER && t[i].reduce == REDUCE_MAX);
        sends = parts && channel_key_compare(key, &of) == 0;
    }
    return sends;
}

/* Streams of a process that wait at the same time need a connection to the GPU each: two that share
 * one wait for each other. */
static Err check_queues(const Comm *c)
{
    const int here = nccl_ranks_here(c);
    int own = 1; /* compute */
    for (NcclChannel *ch = ((NcclState *)c->transport_state)->channels; ch; ch = ch->next) own++;
    if (own * here <= MAX_CONNECTIONS) return OK;
    return err_fail(ERR_CONFIG,
                    "nccl: %d ranks as threads on one GPU use %d queues each; %d in all are the "
                    "most that run at once; start the ranks as processes (mpirun), or leave "
                    "run.comm=auto",
                    here, own, MAX_CONNECTIONS);
}

/* Sends among three or more threads on one GPU hung with NCCL 2.30.7, before kernels were limited
 * to SHARED_CTAS and connections made in turns; with both they have not run on a GPU. */
static Err check_sends(const Comm *c, const ChannelKey *key, int n)
{
    const char *tries = getenv("SHEAF_NCCL_THREADS");
    bool sends = false;
    for (int i = 0; i < n; i++) sends = sends || key[i].pair[0] >= 0;
    if (!sends || nccl_ranks_here(c) < 3 || (tries && strcmp(tries, "1") == 0)) return OK;
    return err_fail(ERR_CONFIG,
                    "nccl: %d ranks as threads on one GPU send to single ranks, which has not been "
                    "seen to work; start them as processes (mpirun), leave run.comm=auto, or set "
                    "SHEAF_NCCL_THREADS=1 to try it",
                    nccl_ranks_here(c));
}

static int32_t lowest(RankList members)
{
    int32_t least = members.rank[0];
    for (int i = 1; i < members.n; i++)
        if (members.rank[i] < least) least = members.rank[i];
    return least;
}

/* Collective over all ranks if they are threads. `key`: the channels to connect, sorted. */
static Err connect_all(Comm *c, const ChannelKey *key, int n)
{
    const bool turns = among_threads(c);
    if (turns) TRY(comm_quiet(c));
    for (int32_t turn = 0; turn < (turns ? c->set.ranks : 1); turn++) {
        for (int i = 0; i < n; i++) {
            const RankList members = channel_members(&key[i]);
            if (turns && lowest(members) != turn) continue;
            if (turns) TRY(comm_agree(c, members, OK));
            TRY(nccl_channel_connect(c, nccl_channel_find(c, key[i].t), &key[i]));
        }
        if (turns) TRY(comm_quiet(c));
    }
    return OK;
}

Err nccl_prepare(Comm *c, const Transfer *t, int n)
{
    ChannelKey *key;
    NcclChannel *ch;
    int connected = 0;
    TRY(ARENA_NEW(c->arena, n + 1, &key));
    for (int i = 0; i < n; i++) key[i] = channel_key(&t[i], c->set.rank);
    const int channels = channel_keys_unique(key, n);
    TRY(check_sends(c, key, channels));
    for (int i = 0; i < channels; i++) {
        if (nccl_channel_find(c, key[i].t)) continue;
        TRY(nccl_channel_open(c, &key[i], &ch));
        if (ch->n == 1 || !sends_parts(&key[i], t, n)) continue;
        TRY(nccl_reserve(c, ch, 2 * (size_t)ch->n));
        key[connected++] = key[i];
    }
    TRY(check_queues(c));
    for (int i = 0; i < n; i++) TRY(launch_reserve(c, &t[i], nccl_channel_find(c, &t[i])));
    for (int i = 0; i < c->set.in_flight; i++) TRY(nccl_open_event(c, i));
    return connect_all(c, key, connected);
}
