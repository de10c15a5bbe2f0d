/* transfer.c -- rings and trees of transfers.
 *
 * A ring of n members sends S (n-1)/n bytes over each link in n-1 steps for an all-gather or a
 * reduce-scatter of S bytes, and twice that for an all-reduce. A tree sends 2 S in 2 log2(n) steps,
 * which is faster for small S. An all-to-all sends S (n-1)/n in n-1 messages. Members that share a
 * block cross to other blocks through all their links together, but no faster than the links
 * inside of the block. Where links between nodes differ, the slowest one that the transfer uses
 * decides. */
#include "cost/cost_parts.h"

static double smaller(double a, double b) { return a < b ? a : b; }

/* Bytes per second of one rank while all ranks of its block use their links. */
static double rank_Bps(const CostLink *l)
{
    return l->shared_by > 1 ? l->Bps / l->shared_by : l->Bps;
}

/* True if one block of the level has both ranks. */
static bool connects(const CostLink *l, int64_t a, int64_t b)
{
    return l->ranks == 0 || a / l->ranks == b / l->ranks;
}

/* Finds the level of a group from its first and last rank; inside must be counted by the caller. */
static CostGroup group_at(const CostRates *r, int members, int64_t first, int64_t last)
{
    CostGroup g = {.members = members, .inside = 1};
    while (g.level < r->n_levels - 1 && !connects(&r->level[g.level], first, last)) g.level++;
    return g;
}

CostGroup cost_group(const CostRates *r, RankList ranks)
{
    int64_t low = cost_position(r, ranks.rank[0]), high = low;
    for (int i = 1; i < ranks.n; i++) {
        const int64_t at = cost_position(r, ranks.rank[i]);
        if (at < low) low = at;
        if (at > high) high = at;
    }
    CostGroup g = group_at(r, ranks.n, low, high);
    if (ranks.n == 2) g.pair = cost_find_pair(r, low, high);
    if (g.level == 0) return g;
    int inside = 0;
    for (int i = 0; i < ranks.n; i++)
        inside += connects(&r->level[g.level - 1], low, cost_position(r, ranks.rank[i]));
    g.inside = inside;
    if (r->nodes && r->nodes->n_links) cost_find_links(r, ranks, &g);
    return g;
}

CostGroup cost_group_strided(const CostRates *r, int members, int stride)
{
    CostGroup g = group_at(r, members, 0, (int64_t)(members - 1) * stride);
    if (g.level == 0) return g;
    const int block = r->level[g.level - 1].ranks;
    g.inside = stride < block ? (block + stride - 1) / stride : 1;
    return g;
}

/* The link that decides the time of a transfer of this kind: every pair of an all-to-all has bytes
 * of its own, and the hops of a tree are between any two members; all others follow a ring. */
static CostLink group_link(const CostRates *r, CommKind kind, CostGroup g)
{
    const bool any = kind == COMM_ALL_TO_ALL || kind == COMM_BROADCAST;
    const int slow = any ? g.any_link : g.ring_link;
    CostLink link = r->level[g.level];
    if (slow == 0) return link;
    const CostLink *l = &r->nodes->link[slow - 1];
    link.latency_s = l->latency_s;
    link.Bps = l->Bps;
    link.pair_latency_s = link.pair_Bps = 0;
    return link;
}

/* Bytes per second of a member's part in a transfer over the whole group. */
static double group_Bps(const CostRates *r, const CostLink *link, CostGroup g)
{
    const double across = rank_Bps(link) * g.inside;
    return g.level > 0 ? smaller(across, rank_Bps(&r->level[g.level - 1])) : across;
}

/* The smallest integer whose power of two is at least n. */
static int log2_ceil(int n)
{
    int log = 0;
    while (log < 31 && (int64_t)1 << log < n) log++;
    return log;
}

static double pair_seconds(const CostRates *r, const CostLink *l, CostGroup g, double bytes)
{
    if (g.pair)
        return (double)r->pairs->latency_s[g.pair - 1] + bytes / (double)r->pairs->Bps[g.pair - 1];
    const double latency = l->pair_latency_s > 0 ? l->pair_latency_s : l->latency_s;
    return latency + bytes / (l->pair_Bps > 0 ? l->pair_Bps : rank_Bps(l));
}

static const CostTable *find_table(const CostRates *r, CommKind kind, CostGroup g)
{
    for (int i = 0; i < r->n_tables; i++) {
        const CostTable *t = &r->table[i];
        if (t->kind == kind && t->members == g.members && t->level == g.level &&
            t->inside == g.inside)
            return t;
    }
    return NULL;
}

/* Beyond the largest size the bytes have the rate of that size; below the smallest, its seconds. */
static double table_seconds(const CostTable *t, double bytes)
{
    const CostCurve *c = &t->seconds;
    const double most = c->x[c->n - 1], seconds = cost_curve_at(c, bytes);
    return bytes > most ? seconds * bytes / most : seconds;
}

double cost_transfer_seconds(const CostRates *r, CommKind kind, CostGroup g, double bytes)
{
    if (g.members <= 1) return 0;
    const CostTable *table = g.any_link ? NULL : find_table(r, kind, g);
    if (table) return table_seconds(table, bytes);
    const CostLink l = group_link(r, kind, g), *link = &l;
    const CostLink tree = group_link(r, COMM_BROADCAST, g);
    const double n = g.members, rounds = log2_ceil(g.members);
    const double Bps = group_Bps(r, link, g), part = bytes * (n - 1) / n;
    switch (kind) {
    case COMM_ALL_REDUCE:
        return smaller(2 * (n - 1) * link->latency_s + 2 * part / Bps,
                       2 * rounds * tree.latency_s + 2 * bytes / group_Bps(r, &tree, g));
    case COMM_ALL_GATHER:
    case COMM_REDUCE_SCATTER:
        return (n - 1) * link->latency_s + part / Bps;
    case COMM_ALL_TO_ALL: /* every pair has bytes of its own: no ring shares the links */
        return (n - 1) * link->latency_s + part / smaller(rank_Bps(link), Bps);
    case COMM_BROADCAST:
        return rounds * link->latency_s + bytes / Bps;
    case COMM_SEND:
    case COMM_RECV:
        return pair_seconds(r, link, g, bytes);
    default:
        MUST(false, "transfer kind %d", (int)kind);
    }
    return 0;
}

double cost_parts_seconds(const CostRates *r, CommKind kind, CostGroup g, double bytes)
{
    const CostTable *table = g.any_link ? NULL : find_table(r, kind, g);
    double least = cost_transfer_seconds(r, kind, g, bytes);
    if (!table || g.members <= 1) return least; /* by the formulas, one is the fastest */
    const CostCurve *c = &table->seconds;
    for (int i = 0; i < c->n && c->x[i] <= bytes; i++)
        least = smaller(least, bytes * c->y[i] / c->x[i]);
    return least;
}
