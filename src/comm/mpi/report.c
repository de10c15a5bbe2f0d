/* report.c -- who waits for whom, when a wait takes too long.
 *
 *     rank 0: waited 30.0 s (run.timeout_s=30) for all-reduce #17 over {0 1 2}, instruction 5: rank
 *     2 has not posted it; rank 2 does not answer; ...; rank 1 waits for recv #3 ...
 *
 * It asks all others where they are. One that waits or polls answers; one that computes does not,
 * and then the latest that it posted to this rank is told. */
#include "comm/report.h"
#include "comm/mpi/mpi_parts.h"

#include <stdio.h>
#include <string.h>

static const double ANSWER_S = 0.2;

static const Pending *oldest(const Comm *c)
{
    const Mpi *m = c->state;
    const Pending *found = NULL;
    for (int i = 0; i < c->set.in_flight; i++) {
        const Pending *p = &c->pending[i];
        if (m->flight[i].stage != OVER && (!found || p->number < found->number)) found = p;
    }
    return found;
}

void report_status(const Comm *c, char text[STATUS_BYTES])
{
    const Mpi *m = c->state;
    char name[TRANSFER_NAME_BYTES];
    const Pending *p = m->waits >= 0 ? &c->pending[m->waits] : oldest(c);
    const char *does = m->waits >= 0 ? "waits for " : "computes; its oldest transfer in flight is ";
    if (p)
        snprintf(text, STATUS_BYTES, "%s%s", does, transfer_name(&p->t, p->sequence, name));
    else
        snprintf(text, STATUS_BYTES, "computes, with no transfer in flight");
}

static bool all_answered(const Mpi *m)
{
    const World *w = m->world;
    for (int i = 0; i < w->ranks; i++)
        if (i != w->rank && !w->left[i] && !m->answer[(size_t)i * STATUS_BYTES]) return false;
    return true;
}

static Err ask(Comm *c)
{
    Mpi *m = c->state;
    World *w = m->world;
    memset(m->answer, 0, (size_t)w->ranks * STATUS_BYTES);
    for (int i = 0; i < w->ranks; i++)
        if (i != w->rank && !w->left[i]) TRY(mail_send(w, i, ASK, NULL));
    const double since_s = comm_now_s();
    bool moved;
    while (!w->failed && !all_answered(m) && comm_now_s() - since_s < ANSWER_S)
        TRY(mail_take(c, &moved));
    return OK;
}

static void say_latest(Report *r, const Comm *c, int rank)
{
    const Latest *l = &((const Mpi *)c->state)->latest[rank];
    const Transfer t = {.kind = l->kind,
                        .group = comm_group(c, l->group),
                        .instr = l->instr,
                        .from.rank = c->set.rank, /* of a pair, the other is this rank */
                        .to.rank = c->set.rank};
    char name[TRANSFER_NAME_BYTES];
    if (l->group < 0)
        say(r, "it has begun no transfer with rank %d", c->set.rank);
    else
        say(r, "its latest transfer with rank %d was %s", c->set.rank,
            transfer_name(&t, l->sequence, name));
}

static void say_rank(Report *r, const Comm *c, int rank)
{
    const Mpi *m = c->state;
    const char *answer = m->answer + (size_t)rank * STATUS_BYTES;
    say(r, "; rank %d ", rank);
    if (m->world->left[rank]) {
        say(r, "has closed its comm");
    } else if (*answer) {
        say(r, "%s", answer);
    } else {
        say(r, "computes and does not answer; ");
        say_latest(r, c, rank);
    }
}

static bool has_posted(const Flight *f, int place)
{
    return place == f->me || f->stage != POSTED_ALL || f->peer[place].mail;
}

static void say_missing(Report *r, const Flight *f)
{
    int missing = 0;
    for (int i = 0; i < f->n; i++)
        if (!has_posted(f, i) && missing++ < 8)
            say(r, "%s rank %d", missing == 1 ? ":" : ",", f->member[i]);
    if (missing > 8) say(r, " and %d more", missing - 8);
    if (missing > 0)
        say(r, missing == 1 ? " has not posted it" : " have not posted it");
    else
        say(r, ": all have posted it, and one stopped moving it");
}

Err report_hang(Comm *c, int slot, double waited_s)
{
    const Mpi *m = c->state;
    const Flight *f = &m->flight[slot];
    const Pending *p = &c->pending[slot];
    const int ranks = m->world->ranks;
    char name[TRANSFER_NAME_BYTES];
    Report r = {.used = 0};
    TRY(ask(c));
    if (m->world->failed) return ERR_PEER; /* another was faster */
    if (c->set.timeout_s > 0 && waited_s >= c->set.timeout_s)
        say(&r, "waited %.1f s (run.timeout_s=%g) for ", waited_s, c->set.timeout_s);
    else
        say(&r, "waits in vain for ");
    say(&r, "%s", transfer_name(&p->t, p->sequence, name));
    say_missing(&r, f);
    for (int i = 0; i < f->n; i++)
        if (!has_posted(f, i)) say_rank(&r, c, f->member[i]);
    for (int i = 0; i < ranks; i++) {
        const int place = group_place((RankList){f->n, f->member}, i);
        if (i != c->set.rank && (place < 0 || has_posted(f, place))) say_rank(&r, c, i);
    }
    world_fail(m->world, r.text);
    return err_fail(ERR_PEER, "rank %d: %s", c->set.rank, r.text);
}

int report_gone(const Comm *c, int slot)
{
    const Mpi *m = c->state;
    const Flight *f = &m->flight[slot];
    for (int i = 0; f->stage == POSTED_ALL && i < f->n; i++)
        if (!has_posted(f, i) && m->world->left[f->member[i]]) return f->member[i];
    return -1;
}
