/* report.c -- who waits for whom, when a wait takes too long.
 *
 *     rank 0 has waited 30.0 s (run.timeout_s) for all-reduce #17 over {0 1 2}, instruction 5: rank
 *     2 has not posted it; rank 2 waits for recv #3 from rank 1 over {1 2}, instruction 9; ...
 *
 * Others go on meanwhile, so what is read here are atomic copies (Shown), and may be a moment old;
 * of ranks that hang nothing changes. */
#include "comm/report.h"
#include "comm/local/local_parts.h"

#include <stdio.h>

static void say_shown(Report *r, const Shown *s)
{
    char name[TRANSFER_NAME_BYTES];
    const Channel *ch = atomic_load(&s->channel);
    Transfer t = {.kind = (CommKind)atomic_load(&s->kind), .instr = atomic_load(&s->instr)};
    if (!ch) return;
    t.group = (RankList){ch->group_n, ch->group};
    t.from.rank = ch->from;
    t.to.rank = ch->to;
    say(r, "%s", transfer_name(&t, atomic_load(&s->sequence), name));
}

static const Shown *oldest(const Seat *s)
{
    const Shown *found = NULL;
    for (int i = 0; i < s->flights; i++) {
        const Shown *x = &s->flight[i];
        if (!atomic_load(&x->channel)) continue;
        if (!found || atomic_load(&x->number) < atomic_load(&found->number)) found = x;
    }
    return found;
}

static void say_rank(Report *r, const LocalWorld *w, int rank)
{
    const Seat *s = &w->seat[rank];
    const int state = atomic_load(&s->state);
    say(r, "; rank %d ", rank);
    if (state != SEAT_TAKEN) {
        say(r, state == SEAT_LEFT ? "has closed its comm" : "has not joined yet");
        return;
    }
    const int waits = atomic_load(&s->waits);
    const Shown *unfinished = oldest(s);
    if (waits >= 0) {
        say(r, "waits for ");
        say_shown(r, &s->flight[waits]);
    } else if (unfinished) {
        say(r, "computes; its oldest transfer in flight is ");
        say_shown(r, unfinished);
    } else if (atomic_load(&s->latest.channel)) {
        say(r, "computes; its latest transfer was ");
        say_shown(r, &s->latest);
    } else {
        say(r, "has begun no transfer");
    }
}

static bool has_posted(const Flight *f, int64_t sequence, int place)
{
    return atomic_load(&flight_op(f, sequence)->post[place].sequence) == sequence + 1;
}

static void say_missing(Report *r, const Comm *c, int slot)
{
    const Flight *f = &((Local *)c->state)->flight[slot];
    const Channel *ch = f->link->channel;
    const int64_t sequence = c->pending[slot].sequence;
    int missing = 0;
    for (int i = 0; i < ch->n; i++)
        if (!has_posted(f, sequence, i) && i != f->link->place && missing++ < 8)
            say(r, "%s rank %d", missing == 1 ? ":" : ",", ch->member[i]);
    if (missing > 8) say(r, " and %d more", missing - 8);
    if (missing > 0)
        say(r, missing == 1 ? " has not posted it" : " have not posted it");
    else
        say(r, f->stage == UNPOSTED ? ": earlier ones on this group are not finished"
                                    : ": all have posted it, and one stopped moving it");
}

Err report_hang(Comm *c, int slot, double waited_s)
{
    Local *l = c->state;
    LocalWorld *w = l->world;
    const Pending *p = &c->pending[slot];
    char name[TRANSFER_NAME_BYTES];
    Report r = {.used = 0};
    pthread_mutex_lock(&w->lock); /* channels keep their names */
    if (c->set.timeout_s > 0 && waited_s >= c->set.timeout_s)
        say(&r, "waited %.1f s (run.timeout_s=%g) for ", waited_s, c->set.timeout_s);
    else
        say(&r, "waits in vain for ");
    say(&r, "%s", transfer_name(&p->t, p->sequence, name));
    say_missing(&r, c, slot);
    const Channel *ch = l->flight[slot].link->channel;
    for (int i = 0; i < ch->n; i++)
        if (ch->member[i] != c->set.rank && !has_posted(&l->flight[slot], p->sequence, i))
            say_rank(&r, w, ch->member[i]);
    for (int i = 0; i < w->ranks; i++) {
        const int place = group_place((RankList){ch->n, ch->member}, i);
        if (i == c->set.rank) continue;
        if (place < 0 || has_posted(&l->flight[slot], p->sequence, place)) say_rank(&r, w, i);
    }
    pthread_mutex_unlock(&w->lock);
    world_fail(w, c->set.rank, r.text);
    return err_fail(ERR_PEER, "rank %d: %s", c->set.rank, r.text);
}

int report_gone(Comm *c, int slot)
{
    const Local *l = c->state;
    const Flight *f = &l->flight[slot];
    const Channel *ch = f->link->channel;
    for (int i = 0; i < ch->n; i++) {
        const int state = atomic_load(&l->world->seat[ch->member[i]].state);
        if (state == SEAT_LEFT && !has_posted(f, c->pending[slot].sequence, i))
            return ch->member[i];
    }
    return -1;
}
