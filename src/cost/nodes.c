/* nodes.c -- links between single nodes, their devices, and the order of the nodes.
 *
 *     blocks of ranks    0     1     2     3         ranks 0-7, 8-15, ...
 *     at                 0     2     1     3         the second block runs on node 2
 *     links               \___/ \___/ \___/          0-2, 2-1 and 1-3 connect neighboring blocks */
#include "cost/cost_parts.h"

static int node_of(const CostRates *r, int rank)
{
    const int block = rank / r->level[0].ranks;
    return r->nodes->at && block < r->nodes->n_at ? r->nodes->at[block] : block;
}

CostDevice cost_device(const CostRates *r, int rank)
{
    const CostDevice plain = {.speed = 1};
    if (!r->nodes || r->nodes->n_devices == 0) return plain;
    const int node = node_of(r, rank);
    return node < r->nodes->n_devices ? r->nodes->device[node] : plain;
}

double cost_speeds(const CostRates *r, int ranks)
{
    double sum = 0;
    if (!r->nodes || r->nodes->n_devices == 0) return ranks;
    for (int i = 0; i < ranks; i++) sum += cost_device(r, i).speed;
    return sum;
}

int64_t cost_position(const CostRates *r, int rank)
{
    if (!r->nodes || !r->nodes->at) return rank;
    const int each = r->level[0].ranks;
    return (int64_t)node_of(r, rank) * each + rank % each;
}

int cost_find_pair(const CostRates *r, int64_t a, int64_t b)
{
    const int64_t n = r->pairs ? r->pairs->n : 0, low = a < b ? a : b, high = a < b ? b : a;
    if (low == high || high >= n) return 0;
    return (int)(1 + low * n - low * (low + 1) / 2 + high - low - 1);
}

static bool is_slower(const CostLink *a, const CostLink *b)
{
    return a->Bps != b->Bps ? a->Bps < b->Bps : a->latency_s > b->latency_s;
}

/* The slower of a link found so far (0: none) and that between two nodes. */
static int slower(const CostNodes *n, int found, int a, int b)
{
    const int link = a < n->n && b < n->n ? n->between[a * n->n + b] : 0;
    if (link == 0) return found;
    return !found || is_slower(&n->link[link - 1], &n->link[found - 1]) ? link : found;
}

void cost_find_links(const CostRates *r, RankList ranks, CostGroup *g)
{
    bool has[MAX_CLUSTER_NODES] = {false};
    int node[MAX_CLUSTER_NODES], n = 0;
    for (int i = 0; i < ranks.n; i++) {
        const int a = node_of(r, ranks.rank[i]), b = node_of(r, ranks.rank[(i + 1) % ranks.n]);
        g->ring_link = slower(r->nodes, g->ring_link, a, b);
        if (a >= r->nodes->n || has[a]) continue;
        has[a] = true;
        node[n++] = a;
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) g->any_link = slower(r->nodes, g->any_link, node[i], node[j]);
}
