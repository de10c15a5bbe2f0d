/* nodes.c -- reads mesh.nodes. */
#include "cli/config/nodes.h"

#include <stdlib.h>
#include <string.h>

#include "plan/search/map.h"

int config_nodes(const Config *c) { return c->mesh_nodes.n; }

/* The i-th entry; -1: it is no number of a node. */
static int node_at(const Config *c, int i)
{
    const char *text = c->mesh_nodes.at[i];
    char *end;
    const long node = strtol(text, &end, 10);
    return end != text && !*end && *text != '-' && *text != '+' && node < config_nodes(c)
               ? (int)node
               : -1;
}

Err config_check_nodes(const Config *c)
{
    const int n = config_nodes(c);
    const char *origin = c->origin[KEY_mesh_nodes];
    for (int i = 0; i < n; i++) {
        if (node_at(c, i) < 0)
            return err_fail(ERR_CONFIG,
                            "%s: mesh.nodes: \"%.40s\" is none of the %d nodes 0 to %d; list each "
                            "of them once, as 0,2,1,3",
                            origin, c->mesh_nodes.at[i], n, n - 1);
        for (int k = 0; k < i; k++)
            if (node_at(c, k) == node_at(c, i))
                return err_fail(ERR_CONFIG,
                                "%s: mesh.nodes: node %d is there twice; list each of the %d nodes "
                                "once",
                                origin, node_at(c, i), n);
    }
    /* A launcher's number of ranks is known when the configuration is loaded again. */
    const bool open = c->dp_follows && strcmp(c->origin[KEY_run_ranks], "default") == 0;
    if (n == 0 || open || c->run_ranks % n == 0) return OK;
    return err_fail(
        ERR_CONFIG,
        "%s: mesh.nodes lists %d nodes, and %lld ranks are no multiple of that; list as "
        "many nodes as are used",
        origin, n, (long long)c->run_ranks);
}

int config_mesh_rank(const Config *c, int started)
{
    const int n = config_nodes(c);
    if (n == 0) return started;
    const int each = (int)(c->run_ranks / n);
    int block = 0;
    while (node_at(c, block) != started / each) block++;
    return block * each + started % each;
}

Err config_order_cluster(const Config *c, const char *path, Arena *arena, Cluster *cluster)
{
    const int n = config_nodes(c);
    const CostRates *r = &cluster->rates;
    int *at;
    if (n == 0) return OK;
    if (r->n_levels < 2 || (int64_t)r->level[0].ranks * n != c->run_ranks)
        return err_fail(ERR_CONFIG,
                        "%s: mesh.nodes lists %d nodes of %lld ranks, and the nodes of %s have %d; "
                        "give another cluster file, or leave mesh.nodes out",
                        c->origin[KEY_mesh_nodes], n, (long long)c->run_ranks / n, path,
                        r->n_levels < 2 ? (int)c->run_ranks : r->level[0].ranks);
    TRY(ARENA_NEW(arena, n, &at));
    for (int i = 0; i < n; i++) at[i] = node_at(c, i);
    return cluster_ordered(cluster, at, n, arena, cluster);
}
