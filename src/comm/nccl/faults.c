/* faults.c -- errors of NCCL as messages that name the transfer; the abort of all channels. */
#include "comm/nccl/channels.h"

#include <stdio.h>
#include "base/clock.h"

/* The oldest launch of the channel that has not run; NULL: all have. */
static const NcclLaunch *oldest_launch(const Comm *c, const NcclChannel *ch)
{
    const NcclLaunch *oldest = NULL;
    for (int i = 0; i < LAUNCH_RING; i++) {
        const NcclLaunch *l = &ch->launch[i];
        bool done = true;
        if (l->t.group.n == 0 || l->captured) continue; /* never used, or in a graph */
        if (l->recorded && c->device.runtime->done(l->done, &done) == OK && done) continue;
        if (!oldest || l->sequence < oldest->sequence) oldest = l;
    }
    return oldest;
}

/* "all-reduce #17 over {0 1 2}, instruction 5, launched 3.2 s ago: " */
static void describe_launch(const Comm *c, const NcclChannel *ch, char *out, size_t bytes)
{
    char name[TRANSFER_NAME_BYTES];
    const NcclLaunch *l = ch->comm ? oldest_launch(c, ch) : NULL;
    out[0] = '\0';
    if (l)
        snprintf(out, bytes, "%s, launched %.1f s ago: ", transfer_name(&l->t, l->sequence, name),
                 now_s() - l->at_s);
}

Err nccl_ok(const Comm *c, const NcclChannel *ch, NcclResult result, const char *call)
{
    char launched[TRANSFER_NAME_BYTES + 64];
    if (result == NCCL_OK || result == NCCL_IN_PROGRESS) return OK;
    const char *more = api_of(c)->GetLastError(ch->comm);
    describe_launch(c, ch, launched, sizeof launched);
    return err_fail(ERR_PEER, "nccl: %scannot %s: %s%s%s", launched, call,
                    api_of(c)->GetErrorString(result), more && *more ? ": " : "", more ? more : "");
}

Err nccl_poll(Comm *c)
{
    for (const NcclChannel *ch = ((NcclState *)c->transport_state)->channels; ch; ch = ch->next) {
        NcclResult state = NCCL_OK;
        if (!ch->comm) continue;
        TRY(nccl_ok(c, ch, api_of(c)->CommGetAsyncError(ch->comm, &state), "query errors"));
        TRY(nccl_ok(c, ch, state, "continue"));
    }
    return OK;
}

Err nccl_overdue(Comm *c, double waited_s)
{
    const NcclLaunch *oldest = NULL;
    char name[TRANSFER_NAME_BYTES];
    for (const NcclChannel *ch = ((NcclState *)c->transport_state)->channels; ch; ch = ch->next) {
        const NcclLaunch *l = ch->comm ? oldest_launch(c, ch) : NULL;
        if (l && (!oldest || l->at_s < oldest->at_s)) oldest = l;
    }
    if (!oldest && c->graph_at_s == 0) return OK; /* the device computes; that has no time limit */
    if (!oldest)
        return err_fail(
            ERR_PEER,
            "nccl: waited %.1f s (run.timeout_s=%g) for the device: the graph of the step was "
            "launched %.1f s ago by all ranks, and is not over; did the GPU of one of them stop, "
            "or "
            "the network between them? run.capture=off names the transfer, NCCL_DEBUG=INFO prints "
            "NCCL's own log; a step that is longer needs a larger run.timeout_s",
            waited_s, c->set.timeout_s, now_s() - c->graph_at_s);
    return err_fail(
        ERR_PEER,
        "nccl: waited %.1f s (run.timeout_s=%g) for the device: %s was launched "
        "%.1f s ago, after all members had begun it, and is not over; did the GPU of "
        "one of them stop, or the network between them? NCCL_DEBUG=INFO prints NCCL's own log",
        waited_s, c->set.timeout_s, transfer_name(&oldest->t, oldest->sequence, name),
        now_s() - oldest->at_s);
}

/* All communicators are aborted before any queue is waited for: kernels of one channel may wait
 * behind those of another on the GPU. */
void nccl_abort(Comm *c)
{
    for (NcclChannel *ch = ((NcclState *)c->transport_state)->channels; ch; ch = ch->next) {
        if (ch->comm) (void)api_of(c)->CommAbort(ch->comm);
        ch->comm = NULL;
        ch->busy = -1;
    }
    for (NcclChannel *ch = ((NcclState *)c->transport_state)->channels; ch; ch = ch->next)
        if (ch->queue)
            (void)c->device.runtime->sync(ch->queue); /* no kernel accesses memory any more */
}
