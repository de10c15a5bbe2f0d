/* map.c -- searches the order of the nodes; map.h has the method. */
#include "plan/search/map.h"

#include <math.h>
#include <string.h>

/* Of a block that is not placed: no link names such a node. */
enum { NOT_PLACED = 1 << 20 };

typedef struct {
    StepClock *clock;
    Cluster cluster; /* its order is nodes.at */
    CostNodes nodes;
    const double *need; /* [n]: bytes of a rank of each block; NULL: any node has them */
    bool prunes;        /* partial orders have bounds */
    int n, max_plays, plays;
    int *at;               /* [n]: the order that is played; NOT_PLACED + i: block i has no node */
    bool *used;            /* [n]: nodes */
    const int *class;      /* [n]: the first node that is like this one */
    int *best;             /* [n] */
    double best_s, open_s; /* open_s: the least bound of orders that were not tried */
} MapSearch;

Err cluster_ordered(const Cluster *c, const int *at, int n, Arena *arena, Cluster *out)
{
    CostNodes *nodes;
    TRY(ARENA_NEW(arena, 1, &nodes));
    if (c->rates.nodes) *nodes = *c->rates.nodes;
    nodes->at = at;
    nodes->n_at = n;
    *out = *c;
    out->rates.nodes = nodes;
    return OK;
}

Cluster cluster_alike(const Cluster *c)
{
    Cluster out = *c;
    out.rates.nodes = NULL;
    out.rates.pairs = NULL;
    return out;
}

static Err play(MapSearch *s, double *step_s)
{
    StepTime t;
    s->plays++;
    TRY(clock_play(s->clock, &s->cluster, &t));
    *step_s = t.step_s;
    return OK;
}

static void keep_if_best(MapSearch *s, double step_s)
{
    if (step_s >= s->best_s) return;
    s->best_s = step_s;
    memcpy(s->best, s->at, (size_t)s->n * sizeof *s->at);
}

/* ---- memory ---- */

static double node_bytes(const Cluster *c, int node)
{
    const CostNodes *n = c->rates.nodes;
    const bool own = n && node < n->n_devices && n->device[node].memory_bytes > 0;
    return own ? n->device[node].memory_bytes : c->memory_bytes;
}

/* True if the node has the memory that block i needs. */
static bool has_room(const MapSearch *s, int i, int node)
{
    return !s->need || s->need[i] <= node_bytes(&s->cluster, node);
}

static bool all_fit(const MapSearch *s)
{
    bool fit = true;
    for (int i = 0; i < s->n; i++) fit = fit && has_room(s, i, s->at[i]);
    return fit;
}

/* Gives each block the first node of s->at that has room, blocks that need most first: each node
 * that has room for them has room for the others. False: no order fits. */
static bool make_fit(MapSearch *s)
{
    int order[MAX_CLUSTER_NODES];
    bool placed[MAX_CLUSTER_NODES] = {false}, used[MAX_CLUSTER_NODES] = {false};
    if (all_fit(s)) return true;
    memcpy(order, s->at, (size_t)s->n * sizeof *order);
    for (int k = 0; k < s->n; k++) {
        int block = -1, from = 0;
        for (int i = 0; i < s->n; i++)
            if (!placed[i] && (block < 0 || s->need[i] > s->need[block])) block = i;
        while (from < s->n && (used[from] || !has_room(s, block, order[from]))) from++;
        if (from == s->n) return false;
        placed[block] = used[from] = true;
        s->at[block] = order[from];
    }
    return true;
}

/* ---- nodes that are alike ---- */

/* The narrowest level that connects two nodes, and the link of their own. */
static int link_of(const CostRates *r, int a, int b)
{
    const CostNodes *n = r->nodes;
    const int64_t each = r->level[0].ranks;
    int level = 1;
    while (r->level[level].ranks &&
           a * each / r->level[level].ranks != b * each / r->level[level].ranks)
        level++;
    return level * 256 + (a < n->n && b < n->n ? n->between[a * n->n + b] : 0);
}

static CostDevice device_of(const CostNodes *n, int node)
{
    return node < n->n_devices ? n->device[node] : (CostDevice){.speed = 1};
}

static bool are_alike(const CostRates *r, int n, int a, int b)
{
    const CostDevice x = device_of(r->nodes, a), y = device_of(r->nodes, b);
    if (x.speed != y.speed || x.memory_bytes != y.memory_bytes) return false;
    for (int c = 0; c < n; c++)
        if (c != a && c != b && link_of(r, a, c) != link_of(r, b, c)) return false;
    return true;
}

static Err find_classes(MapSearch *s, Arena *temp)
{
    int *class;
    TRY(ARENA_NEW(temp, s->n, &class));
    for (int i = 0; i < s->n; i++) {
        class[i] = i;
        for (int j = 0; j < i && class[i] == i; j++)
            if (class[j] == j && are_alike(&s->cluster.rates, s->n, i, j)) class[i] = j;
    }
    s->class = class;
    return OK;
}

/* ---- local search: swaps of two blocks, while one makes the step shorter ---- */

static void swap(int *a, int *b)
{
    const int c = *a;
    *a = *b;
    *b = c;
}

/* Tries every swap once; *better: one was kept. */
static Err try_swaps(MapSearch *s, double *step_s, bool *better)
{
    for (int i = 0; i < s->n; i++)
        for (int j = 0; j < i && s->plays < s->max_plays; j++) {
            double with_s;
            if (s->class[s->at[i]] == s->class[s->at[j]]) continue;
            if (!has_room(s, i, s->at[j]) || !has_room(s, j, s->at[i])) continue;
            swap(&s->at[i], &s->at[j]);
            TRY(play(s, &with_s));
            if (with_s < *step_s * (1 - 1e-12)) {
                *step_s = with_s;
                *better = true;
            } else {
                swap(&s->at[i], &s->at[j]);
            }
        }
    return OK;
}

static Err descend(MapSearch *s)
{
    double step_s;
    TRY(play(s, &step_s));
    for (bool better = true; better;) {
        better = false;
        TRY(try_swaps(s, &step_s, &better));
    }
    keep_if_best(s, step_s);
    return OK;
}

/* Descends from the order of numbers, and from some shuffled orders: always the same ones. */
static Err search_locally(MapSearch *s, double bound_s)
{
    uint64_t state = 1;
    for (int start = 0; start < 8 && s->plays < s->max_plays / 2; start++) {
        for (int i = 0; i < s->n; i++) s->at[i] = i;
        for (int i = s->n - 1; start > 0 && i > 0; i--) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            swap(&s->at[i], &s->at[(state >> 33) % (uint64_t)(i + 1)]);
        }
        if (!make_fit(s)) return OK;
        TRY(descend(s));
        if (s->best_s <= bound_s * (1 + 1e-12)) return OK;
    }
    return OK;
}

/* ---- branch and bound ---- */

static void leave_open(MapSearch *s, double bound_s)
{
    if (bound_s < s->open_s) s->open_s = bound_s;
}

/* Places block `i` and those after it; bound_s: of the blocks before it. */
static Err place_from(MapSearch *s, int i, double bound_s)
{
    if (i == s->n) {
        keep_if_best(s, bound_s);
        return OK;
    }
    for (int node = 0; node < s->n; node++) {
        bool is_first = !s->used[node]; /* of its class, among those that are free */
        for (int k = 0; k < node && is_first; k++)
            is_first = s->used[k] || s->class[k] != s->class[node];
        if (!is_first || !has_room(s, i, node)) continue;
        if (s->plays >= s->max_plays) {
            leave_open(s, bound_s);
            return OK;
        }
        double with_s = bound_s;
        s->at[i] = node;
        s->used[node] = true;
        if (s->prunes || i == s->n - 1) TRY(play(s, &with_s));
        if (i == s->n - 1 || with_s < s->best_s * (1 - 1e-12)) TRY(place_from(s, i + 1, with_s));
        s->used[node] = false;
        s->at[i] = NOT_PLACED + i;
    }
    return OK;
}

static Err search_all(MapSearch *s, double bound_s)
{
    for (int i = 0; i < s->n; i++) s->at[i] = NOT_PLACED + i;
    memset(s->used, 0, (size_t)s->n * sizeof *s->used);
    return place_from(s, 0, bound_s);
}

static Err open_search(MapSearch *s, const ClockInput *in, Arena *temp)
{
    const CostRates *r = &in->cluster->rates;
    const int each = r->level[0].ranks;
    s->n = in->mesh->world < each ? 1 : in->mesh->world / each;
    if (r->n_levels < 2 || (in->mesh->world > each && in->mesh->world % each != 0))
        return err_fail(ERR_CONFIG,
                        "an order of nodes: %d ranks are no whole number of nodes of %d ranks",
                        in->mesh->world, each);
    if (s->n > MAX_CLUSTER_NODES)
        return err_fail(ERR_CONFIG, "an order of nodes: %d nodes; at most %d can be ordered", s->n,
                        MAX_CLUSTER_NODES);
    s->cluster = *in->cluster;
    s->nodes = *r->nodes;
    s->cluster.rates.nodes = &s->nodes;
    s->cluster.rates.pairs = NULL; /* nodes are compared by their links */
    s->nodes.n_at = s->n;
    s->prunes = r->n_levels == 2; /* with more, a place decides the level too */
    s->best_s = s->open_s = (double)INFINITY;
    TRY(ARENA_NEW(temp, s->n, &s->at));
    TRY(ARENA_NEW(temp, s->n, &s->used));
    TRY(find_classes(s, temp));
    s->nodes.at = s->at;
    return OK;
}

/* The step if no link is slower than the fastest one between nodes. */
static Err play_alike(MapSearch *s, double *alike_s, double *bound_s)
{
    const Cluster own = s->cluster;
    s->cluster = cluster_alike(&own);
    TRY(play(s, alike_s));
    CostRates *r = &s->cluster.rates;
    for (int i = 2; i < r->n_levels; i++) {
        r->level[i].latency_s = fmin(r->level[i].latency_s, r->level[1].latency_s);
        r->level[i].Bps = fmax(r->level[i].Bps, r->level[1].Bps);
    }
    *bound_s = *alike_s;
    if (r->n_levels > 2) TRY(play(s, bound_s));
    s->cluster = own;
    return OK;
}

Err plan_map(const ClockInput *in, const double *need, int max_plays, Arena *arena, Arena *temp,
             NodeMap *out)
{
    const size_t mark = arena_mark(temp);
    MapSearch s = {.max_plays = max_plays, .need = need};
    NodeMap m = {0};
    double least_s;
    TRY(open_search(&s, in, temp));
    m.n = s.n;
    TRY(ARENA_NEW(arena, s.n, &m.at));
    s.best = m.at;
    const size_t kept = arena_mark(arena);
    TRY(clock_open(in, arena, temp, &s.clock));
    TRY(play_alike(&s, &m.alike_s, &least_s));
    for (int i = 0; i < s.n; i++) s.at[i] = i;
    TRY(play(&s, &m.in_order_s));
    if (all_fit(&s)) keep_if_best(&s, m.in_order_s);
    TRY(search_locally(&s, least_s));
    m.complete = s.best_s <= least_s * (1 + 1e-12);
    if (!m.complete) TRY(search_all(&s, least_s));
    m.complete = m.complete || isinf(s.open_s);
    m.step_s = s.best_s;
    m.bound_s = m.complete ? s.best_s : fmin(s.open_s, s.best_s);
    m.plays = s.plays;
    arena_rewind(arena, kept);
    arena_rewind(temp, mark);
    *out = m;
    return OK;
}
