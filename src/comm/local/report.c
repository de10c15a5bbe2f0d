/* report.c -- the report of a hang: which rank waits for which.
 *
 *     rank 0 has waited 30.0 s (run.timeout_s) for all-reduce #17 over {0 1 2}, instruction 5: rank
 *     2 has not posted it; rank 2 waits for recv #3 from rank 1 over {1 2}, instruction 9; ...
 *
 * Other ranks continue meanwhile, so this reads only atomic copies (PublishedTransfer), which may
 * be a moment old. Those of ranks that hang do not change. */
#include "comm/report.h"
#include "comm/local/local_parts.h"

#include <stdio.h>

static void report_published(Report *r, const PublishedTransfer *s)
{
    char name[TRANSFER_NAME_BYTES];
    const Channel *ch = atomic_load(&s->channel);
    Transfer t = {.kind = (CommKind)atomic_load(&s->kind), .instr = atomic_load(&s->instr)};
    if (!ch) return;
    t.group = (RankList){ch->group_n, ch->group};
    t.from.rank = ch->from;
    t.to.rank = ch->to;
    report_add(r, "%s", transfer_name(&t, atomic_load(&s->sequence), name));
}

static const PublishedTransfer *oldest(const LocalRank *s)
{
    const PublishedTransfer *found = NULL;
    for (int i = 0; i < s->flights; i++) {
        const PublishedTransfer *x = &s->flight[i];
        if (!atomic_load(&x->channel)) continue;
        if (!found || atomic_load(&x->number) < atomic_load(&found->number)) found = x;
    }
    return found;
}

static void report_rank(Report *r, const LocalWorld *w, int rank)
{
    const LocalRank *s = &w->rank[rank];
    const int state = atomic_load(&s->state);
    report_add(r, "; rank %d ", rank);
    if (state != RANK_JOINED) {
        report_add(r, state == RANK_LEFT ? "has closed its comm" : "has not joined yet");
        return;
    }
    const int waits = atomic_load(&s->waits);
    const PublishedTransfer *unfinished = oldest(s);
    if (waits >= 0) {
        report_add(r, "waits for ");
        report_published(r, &s->flight[waits]);
    } else if (unfinished) {
        report_add(r, "computes; its oldest transfer in flight is ");
        report_published(r, unfinished);
    } else if (atomic_load(&s->latest.channel)) {
        report_add(r, "computes; its latest transfer was ");
        report_published(r, &s->latest);
    } else {
        report_add(r, "has begun no transfer");
    }
}

static bool has_posted(const LocalFlight *f, int64_t sequence, int place)
{
    return atomic_load(&entry_of(f, sequence)->post[place].sequence) == sequence + 1;
}

/* Members that have not posted the transfer; at most 8 are named. */
static void report_missing(Report *r, const Comm *c, int slot)
{
    const LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
    const Channel *ch = f->member->channel;
    const int64_t sequence = c->pending[slot].sequence;
    int missing = 0;
    for (int i = 0; i < ch->n; i++)
        if (!has_posted(f, sequence, i) && i != f->member->place && missing++ < 8)
            report_add(r, "%s rank %d", missing == 1 ? ":" : ",", ch->member[i]);
    if (missing > 8) report_add(r, " and %d more", missing - 8);
    if (missing > 0)
        report_add(r, missing == 1 ? " has not posted it" : " have not posted it");
    else
        report_add(r, f->state == UNPOSTED ? ": earlier ones on this group are not finished"
                                           : ": all have posted it, but it makes no progress");
}

Err report_hang(Comm *c, int slot, double waited_s)
{
    LocalComm *l = c->state;
    LocalWorld *w = l->world;
    const PendingTransfer *p = &c->pending[slot];
    char name[TRANSFER_NAME_BYTES];
    Report r = {.used = 0};
    pthread_mutex_lock(&w->lock); /* no channel is reused for another group meanwhile */
    if (c->set.timeout_s > 0 && waited_s >= c->set.timeout_s)
        report_add(&r, "waited %.1f s (run.timeout_s=%g) for ", waited_s, c->set.timeout_s);
    else
        report_add(&r, "cannot complete ");
    report_add(&r, "%s", transfer_name(&p->t, p->sequence, name));
    report_missing(&r, c, slot);
    const Channel *ch = l->flight[slot].member->channel;
    for (int i = 0; i < ch->n; i++)
        if (ch->member[i] != c->set.rank && !has_posted(&l->flight[slot], p->sequence, i))
            report_rank(&r, w, ch->member[i]);
    for (int i = 0; i < w->base.ranks; i++) {
        const int place = group_index((RankList){ch->n, ch->member}, i);
        if (i == c->set.rank) continue;
        if (place < 0 || has_posted(&l->flight[slot], p->sequence, place)) report_rank(&r, w, i);
    }
    pthread_mutex_unlock(&w->lock);
    world_fail(w, c->set.rank, r.text);
    return err_fail(ERR_PEER, "rank %d: %s", c->set.rank, r.text);
}

int report_departed(Comm *c, int slot)
{
    const LocalComm *l = c->state;
    const LocalFlight *f = &l->flight[slot];
    const Channel *ch = f->member->channel;
    for (int i = 0; i < ch->n; i++) {
        const int state = atomic_load(&l->world->rank[ch->member[i]].state);
        if (state == RANK_LEFT && !has_posted(f, c->pending[slot].sequence, i))
            return ch->member[i];
    }
    return -1;
}
