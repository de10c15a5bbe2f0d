/* nodes.c -- links between single nodes, from the matrix of pairs.
 *
 *     pairs of ranks      mean of two nodes       links
 *     0-2 0-3 1-2 1-3     0-1: 24 GB/s            of the level: the fastest
 *     ...                 0-2:  9 GB/s            of their own: those below SLOW of that
 *
 * All ranks of a node share its links, so a ring through all ranks has the rate of its slowest hop,
 * and the level's measured rate is raised to that of the fastest. */
#include "plan/measure/parts.h"

#include <math.h>

static const double SLOW = 0.8;

typedef struct {
    int n, each; /* nodes; ranks of each */
    double latency_s[MAX_MEASURED_NODES][MAX_MEASURED_NODES];
    double Bps[MAX_MEASURED_NODES][MAX_MEASURED_NODES];
    double least_s, most_Bps;
} NodeMeans;

static void find_mean(const Measurement *o, NodeMeans *k, int a, int b)
{
    double latency = 0, Bps = 0;
    const int n = o->pairs.n;
    for (int i = a * k->each; i < (a + 1) * k->each; i++)
        for (int j = b * k->each; j < (b + 1) * k->each; j++) {
            const int at = i * n - i * (i + 1) / 2 + j - i - 1;
            latency += (double)o->pair_latency_s[at];
            Bps += (double)o->pair_Bps[at];
        }
    k->latency_s[a][b] = k->latency_s[b][a] = latency / (k->each * k->each);
    k->Bps[a][b] = k->Bps[b][a] = Bps / (k->each * k->each);
    k->least_s = fmin(k->least_s, k->latency_s[a][b]);
    k->most_Bps = fmax(k->most_Bps, k->Bps[a][b]);
}

static bool is_slow(const NodeMeans *k, int a, int b) { return k->Bps[a][b] < SLOW * k->most_Bps; }

static bool has_slow(const NodeMeans *k)
{
    bool any = false;
    for (int a = 0; a < k->n; a++)
        for (int b = a + 1; b < k->n; b++) any = any || is_slow(k, a, b);
    return any;
}

/* The slowest hop of the ring 0, 1, .. over the fastest pair. */
static double ring_share(const NodeMeans *k)
{
    double least = 1;
    for (int a = 0; a < k->n; a++) least = fmin(least, k->Bps[a][(a + 1) % k->n] / k->most_Bps);
    return least;
}

static void add_link(Measurement *o, const NodeMeans *k, int a, int b)
{
    const CostLink *level = &o->rates.level[1];
    CostLink *link = &o->node_link[o->nodes.n_links++];
    *link = (CostLink){.latency_s = level->latency_s * k->latency_s[a][b] / k->least_s,
                       .Bps = level->Bps * k->Bps[a][b] / k->most_Bps};
    o->node_between[a * k->n + b] = o->node_between[b * k->n + a] = (uint8_t)o->nodes.n_links;
}

/* Tables of collectives across nodes are of rings with slow hops: formulas replace them. */
static void drop_tables(Measurement *o)
{
    int n = 0;
    for (int i = 0; i < o->n_tables; i++)
        if (o->table[i].level == 0) o->table[n++] = o->table[i];
    o->n_tables = n;
}

void measure_nodes(Measurement *o)
{
    NodeMeans k = {.each = o->rates.level[0].ranks, .least_s = (double)INFINITY};
    CostLink *level = &o->rates.level[1];
    k.n = o->rates.n_levels == 2 ? o->pairs.n / k.each : 0;
    if (k.n < 3 || k.n > MAX_MEASURED_NODES) return;
    for (int a = 0; a < k.n; a++)
        for (int b = a + 1; b < k.n; b++) find_mean(o, &k, a, b);
    if (!has_slow(&k)) return;
    level->Bps /= ring_share(&k);
    level->pair_Bps = k.most_Bps;
    level->pair_latency_s = k.least_s;
    for (int a = 0; a < k.n; a++)
        for (int b = a + 1; b < k.n; b++)
            if (is_slow(&k, a, b)) add_link(o, &k, a, b);
    o->nodes.n = k.n;
    drop_tables(o);
}
