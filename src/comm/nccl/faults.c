/* faults.c -- what NCCL has to say, in words that name the transfer; and the end of all ways. */
#include "comm/nccl/channels.h"

#include <stdio.h>

const Launch *way_oldest(const Comm *c, const Way *w)
{
    const Launch *oldest = NULL;
    for (int i = 0; i < WAY_RING; i++) {
        const Launch *l = &w->launch[i];
        bool done = true;
        if (l->t.group.n == 0) continue; /* never used */
        if (l->recorded && c->device.runtime->done(l->done, &done) == OK && done) continue;
        if (!oldest || l->sequence < oldest->sequence) oldest = l;
    }
    return oldest;
}

/* "all-reduce #17 over {0 1 2}, instruction 5, launched 3.2 s ago: " */
static void say_launch(const Comm *c, const Way *w, char *out, size_t bytes)
{
    char name[TRANSFER_NAME_BYTES];
    const Launch *l = w->comm ? way_oldest(c, w) : NULL;
    out[0] = '\0';
    if (l)
        snprintf(out, bytes, "%s, launched %.1f s ago: ", transfer_name(&l->t, l->sequence, name),
                 comm_now_s() - l->at_s);
}

Err nccl_ok(const Comm *c, const Way *w, NcclResult result, const char *call)
{
    char launched[TRANSFER_NAME_BYTES + 64];
    if (result == NCCL_OK || result == NCCL_IN_PROGRESS) return OK;
    const char *more = api_of(c)->GetLastError(w->comm);
    say_launch(c, w, launched, sizeof launched);
    return err_fail(ERR_PEER, "nccl: %scannot %s: %s%s%s", launched, call,
                    api_of(c)->GetErrorString(result), more && *more ? ": " : "", more ? more : "");
}

Err nccl_poll(Comm *c)
{
    for (const Way *w = ((Nccl *)c->transport_state)->ways; w; w = w->next) {
        NcclResult state = NCCL_OK;
        if (!w->comm) continue;
        TRY(nccl_ok(c, w, api_of(c)->CommGetAsyncError(w->comm, &state), "ask for errors"));
        TRY(nccl_ok(c, w, state, "go on"));
    }
    return OK;
}

Err nccl_overdue(Comm *c, double waited_s)
{
    const Launch *oldest = NULL;
    char name[TRANSFER_NAME_BYTES];
    for (const Way *w = ((Nccl *)c->transport_state)->ways; w; w = w->next) {
        const Launch *l = w->comm ? way_oldest(c, w) : NULL;
        if (l && (!oldest || l->at_s < oldest->at_s)) oldest = l;
    }
    if (!oldest) return OK; /* the device computes, for as long as it likes */
    return err_fail(
        ERR_PEER,
        "nccl: waited %.1f s (run.timeout_s=%g) for the device: %s was launched "
        "%.1f s ago, after all members had begun it, and is not over; did the GPU of "
        "one of them stop, or the network between them? NCCL_DEBUG=INFO makes NCCL tell",
        waited_s, c->set.timeout_s, transfer_name(&oldest->t, oldest->sequence, name),
        comm_now_s() - oldest->at_s);
}

void nccl_abort(Comm *c)
{
    for (Way *w = ((Nccl *)c->transport_state)->ways; w; w = w->next) {
        if (w->comm) (void)api_of(c)->CommAbort(w->comm);
        w->comm = NULL;
        w->busy = -1;
    }
    for (Way *w = ((Nccl *)c->transport_state)->ways; w; w = w->next)
        if (w->queue) (void)c->device.runtime->sync(w->queue); /* nobody touches memory any more */
}
