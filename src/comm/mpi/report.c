/* report.c -- the report of a hang: which rank waits for which.
 *
 *     rank 0: waited 30.0 s (run.timeout_s=30) for all-reduce #17 over {0 1 2}, instruction 5: rank
 *     2 has not posted it; rank 2 does not answer; ...; rank 1 waits for recv #3 ...
 *
 * It sends QUERY to all other ranks. A rank that waits or polls replies; one that computes does
 * not, and then its latest post to this rank is reported. */
#include "comm/report.h"
#include "base/clock.h"
#include "comm/mpi/mpi_parts.h"

#include <stdio.h>
#include <string.h>

static const double REPLY_S = 0.2;

static const PendingTransfer *oldest(const Comm *c)
{
    const MpiComm *m = c->state;
    const PendingTransfer *found = NULL;
    for (int i = 0; i < c->set.in_flight; i++) {
        const PendingTransfer *p = &c->pending[i];
        if (m->flight[i].state != FINISHED && (!found || p->number < found->number)) found = p;
    }
    return found;
}

void report_status(const Comm *c, char text[STATUS_BYTES])
{
    const MpiComm *m = c->state;
    char name[TRANSFER_NAME_BYTES];
    const PendingTransfer *p = m->waits >= 0 ? &c->pending[m->waits] : oldest(c);
    const char *does = m->waits >= 0 ? "waits for " : "computes; its oldest transfer in flight is ";
    if (p)
        snprintf(text, STATUS_BYTES, "%s%s", does, transfer_name(&p->t, p->sequence, name));
    else
        snprintf(text, STATUS_BYTES, "computes, with no transfer in flight");
}

static bool all_replied(const MpiComm *m)
{
    const MpiProcess *w = m->world;
    for (int i = 0; i < w->base.ranks; i++)
        if (i != w->base.rank && !w->left[i] && !m->status_text[(size_t)i * STATUS_BYTES])
            return false;
    return true;
}

static Err query_ranks(Comm *c)
{
    MpiComm *m = c->state;
    MpiProcess *w = m->world;
    memset(m->status_text, 0, (size_t)w->base.ranks * STATUS_BYTES);
    for (int i = 0; i < w->base.ranks; i++)
        if (i != w->base.rank && !w->left[i]) TRY(control_send(w, i, QUERY, NULL));
    const double since_s = now_s();
    bool moved;
    while (!w->failed && !all_replied(m) && now_s() - since_s < REPLY_S)
        TRY(control_receive(c, &moved));
    return OK;
}

static void report_latest(Report *r, const Comm *c, int rank)
{
    const LatestPost *l = &((const MpiComm *)c->state)->latest[rank];
    const Transfer t = {.kind = l->kind,
                        .group = comm_group(c, l->group),
                        .instr = l->instr,
                        .from.rank = c->set.rank, /* the peer of a pair is this rank */
                        .to.rank = c->set.rank};
    char name[TRANSFER_NAME_BYTES];
    if (l->group < 0)
        report_add(r, "it has begun no transfer with rank %d", c->set.rank);
    else
        report_add(r, "its latest transfer with rank %d was %s", c->set.rank,
                   transfer_name(&t, l->sequence, name));
}

static void report_rank(Report *r, const Comm *c, int rank)
{
    const MpiComm *m = c->state;
    const char *status_text = m->status_text + (size_t)rank * STATUS_BYTES;
    report_add(r, "; rank %d ", rank);
    if (m->world->left[rank]) {
        report_add(r, "has closed its comm");
    } else if (*status_text) {
        report_add(r, "%s", status_text);
    } else {
        report_add(r, "computes and does not answer; ");
        report_latest(r, c, rank);
    }
}

static bool has_posted(const MpiFlight *f, int place)
{
    return place == f->me || f->state != WAITING || f->peer[place].message;
}

static void report_missing(Report *r, const MpiFlight *f)
{
    int missing = 0;
    for (int i = 0; i < f->n; i++)
        if (!has_posted(f, i) && missing++ < 8)
            report_add(r, "%s rank %d", missing == 1 ? ":" : ",", f->member[i]);
    if (missing > 8) report_add(r, " and %d more", missing - 8);
    if (missing > 0)
        report_add(r, missing == 1 ? " has not posted it" : " have not posted it");
    else
        report_add(r, ": all have posted it, but it makes no progress");
}

Err report_hang(Comm *c, int slot, double waited_s)
{
    const MpiComm *m = c->state;
    const MpiFlight *f = &m->flight[slot];
    const PendingTransfer *p = &c->pending[slot];
    const int ranks = m->world->base.ranks;
    char name[TRANSFER_NAME_BYTES];
    Report r = {.used = 0};
    TRY(query_ranks(c));
    if (m->world->failed) return ERR_PEER; /* another rank failed first */
    if (c->set.timeout_s > 0 && waited_s >= c->set.timeout_s)
        report_add(&r, "waited %.1f s (run.timeout_s=%g) for ", waited_s, c->set.timeout_s);
    else
        report_add(&r, "cannot complete ");
    report_add(&r, "%s", transfer_name(&p->t, p->sequence, name));
    report_missing(&r, f);
    for (int i = 0; i < f->n; i++)
        if (!has_posted(f, i)) report_rank(&r, c, f->member[i]);
    for (int i = 0; i < ranks; i++) {
        const int place = group_index((RankList){f->n, f->member}, i);
        if (i != c->set.rank && (place < 0 || has_posted(f, place))) report_rank(&r, c, i);
    }
    world_fail(m->world, r.text);
    return err_fail(ERR_PEER, "rank %d: %s", c->set.rank, r.text);
}

int report_departed(const Comm *c, int slot)
{
    const MpiComm *m = c->state;
    const MpiFlight *f = &m->flight[slot];
    for (int i = 0; f->state == WAITING && i < f->n; i++)
        if (!has_posted(f, i) && m->world->left[f->member[i]]) return f->member[i];
    return -1;
}
