/* group.c -- the table of open groups. A row counts the transfers of its group, and members match
 * transfers by these counts without further communication. Few groups are open at a time, so a
 * linear search over the rows that were ever used is enough. */
#include "comm/backend.h"

#include <string.h>

int group_index(RankList group, int rank)
{
    for (int i = 0; i < group.n; i++)
        if (group.rank[i] == rank) return i;
    return -1;
}

GroupRow *group_find(Comm *c, RankList ranks, int purpose)
{
    for (int i = 0; i < c->group_rows; i++) {
        GroupRow *g = &c->group[i];
        if (g->serial < 0 || g->n != ranks.n || g->purpose != purpose) continue;
        if (memcmp(g->rank, ranks.rank, sizeof *g->rank * (size_t)ranks.n) == 0) return g;
    }
    return NULL;
}

MatchChannel *group_channel(GroupRow *g, const Transfer *t)
{
    const bool send = t->kind == COMM_SEND;
    if (!send && t->kind != COMM_RECV) return g->channel;
    const int peer = group_index((RankList){g->n, g->rank}, send ? t->to.rank : t->from.rank);
    return g->channel + (peer < 0 ? 0 : 1 + (send ? 0 : g->n) + peer);
}

RankList comm_group(const Comm *c, int32_t group)
{
    for (int i = 0; group >= 0 && i < MAX_GROUPS; i++)
        if (c->group[i].serial == group) return (RankList){c->group[i].n, c->group[i].rank};
    return (RankList){0, NULL};
}

static Err ranks_check(const Comm *c, RankList ranks)
{
    for (int i = 0; i < ranks.n; i++) {
        const int rank = ranks.rank[i];
        if (rank < 0 || rank >= c->set.ranks)
            return err_fail(ERR_CHECK, "comm: a group of %d names rank %d; ranks are 0 to %d",
                            ranks.n, rank, c->set.ranks - 1);
        if (group_index(ranks, rank) != i)
            return err_fail(ERR_CHECK, "comm: a group of %d names rank %d twice", ranks.n, rank);
    }
    if (group_index(ranks, c->set.rank) < 0)
        return err_fail(ERR_CHECK, "comm: rank %d uses a group of %d ranks that it is not in",
                        c->set.rank, ranks.n);
    return OK;
}

/* A free row, preferably one with enough allocated ranks: groups that live for one step then take
 * no new memory. NULL: all are in use. */
static GroupRow *free_row(Comm *c, int n)
{
    GroupRow *best = NULL;
    for (int i = 0; i < MAX_GROUPS; i++) {
        GroupRow *g = &c->group[i];
        if (g->serial >= 0) continue;
        if (g->cap >= n) return g;
        if (!best) best = g;
    }
    return best;
}

Err group_of(Comm *c, RankList ranks, int purpose, GroupRow **out)
{
    GroupRow *g = group_find(c, ranks, purpose);
    if (!g) {
        TRY(ranks_check(c, ranks));
        g = free_row(c, ranks.n);
        if (!g)
            return err_fail(ERR_CHECK,
                            "comm: %d groups are open, the most there can be; end those "
                            "that lived for one step",
                            MAX_GROUPS);
        if (g->cap < ranks.n) {
            TRY(ARENA_NEW(c->arena, ranks.n, &g->rank));
            TRY(ARENA_NEW(c->arena, 1 + 2 * ranks.n, &g->channel));
            g->cap = ranks.n;
        }
        memcpy(g->rank, ranks.rank, sizeof *g->rank * (size_t)ranks.n);
        memset(g->channel, 0, sizeof *g->channel * (size_t)(1 + 2 * ranks.n));
        if (c->group_rows <= g - c->group) c->group_rows = (int)(g - c->group) + 1;
        g->serial = c->groups_made++;
        g->purpose = purpose;
        g->n = ranks.n;
        g->in_flight = 0;
    }
    *out = g;
    return OK;
}

Err comm_group_end(Comm *c, RankList group, int purpose)
{
    GroupRow *g = group_find(c, group, purpose);
    if (!g) return OK;
    if (g->in_flight > 0)
        return err_fail(ERR_CHECK,
                        "comm: a group of %d ranks (first %d, purpose %d) ends with %d transfers "
                        "in flight; wait for them before",
                        g->n, g->rank[0], purpose, g->in_flight);
    for (int i = 0; i < 1 + 2 * g->n; i++) {
        if (g->channel[i].backend && c->table->end) c->table->end(c, &g->channel[i]);
        if (g->channel[i].transport) c->transport->group_end(c, &g->channel[i]);
    }
    g->serial = -1;
    return OK;
}
