/* links.c -- links between single nodes in a cluster file.
 *
 *     nodes: [1, 6]                      the link between node 1 and node 6
 *     islands: [[0, 1], [2, 3]]          the links 0-2, 0-3, 1-2 and 1-3
 *     pairs: {ranks: 3, latency_us: [..], gbps: [..]}          messages 0-1, 0-2 and 1-2 */
#include "plan/cluster/parts.h"

typedef struct {
    const ClusterReader *file;
    CostRates *rates;
    uint8_t between[MAX_CLUSTER_NODES][MAX_CLUSTER_NODES];
    int n; /* nodes that are named */
} LinkReader;

static Err node_number(const ClusterReader *r, const yaml_node_t *n, const char *where, int *out)
{
    double x = 0;
    ClusterNumber number = {.key = "a node", .unit = 1, .to = &x, .may_be_zero = true};
    TRY(cluster_number(r, n, &number));
    *out = (int)x;
    if (x != (double)*out || *out >= MAX_CLUSTER_NODES)
        return err_fail(ERR_CONFIG, "%s:%d: %s: %g is no node; nodes are 0 to %d", r->path,
                        (int)n->start_mark.line + 1, where, x, MAX_CLUSTER_NODES - 1);
    return OK;
}

Err cluster_nodes(const ClusterReader *r, const yaml_node_t *list, const char *where,
                  int node[MAX_CLUSTER_NODES], int *n)
{
    if (list->type != YAML_SEQUENCE_NODE)
        return cluster_refuse(r, list, where, "is not a list of nodes, as [0, 1]");
    const yaml_node_item_t *first = list->data.sequence.items.start;
    const int64_t count = list->data.sequence.items.top - first;
    if (count < 1 || count > MAX_CLUSTER_NODES)
        return cluster_refuse(r, list, where, "a list has 1 to 256 nodes");
    for (*n = 0; *n < (int)count; ++*n)
        TRY(node_number(r, yaml_document_get_node(r->doc, first[*n]), where, &node[*n]));
    return OK;
}

/* The nodes of a list, which a link names. */
static Err node_list(LinkReader *l, const yaml_node_t *list, int node[MAX_CLUSTER_NODES], int *n)
{
    TRY(cluster_nodes(l->file, list, "node_links", node, n));
    for (int i = 0; i < *n; i++)
        if (node[i] >= l->n) l->n = node[i] + 1;
    return OK;
}

/* The level that connects two nodes. */
static const CostLink *level_between(const CostRates *r, int a, int b)
{
    const CostLink *at = &r->level[1];
    const int64_t each = r->level[0].ranks;
    while (at->ranks && a * each / at->ranks != b * each / at->ranks) at++;
    return at;
}

static Err add_link(LinkReader *l, const yaml_node_t *where, int a, int b, int link)
{
    const CostLink *new = &l->rates->nodes->link[link], *level = level_between(l->rates, a, b);
    if (a == b)
        return err_fail(ERR_CONFIG, "%s:%d: node_links: node %d has no link to itself",
                        l->file->path, (int)where->start_mark.line + 1, a);
    if (l->between[a][b])
        return err_fail(ERR_CONFIG, "%s:%d: node_links: the link of nodes %d and %d is there twice",
                        l->file->path, (int)where->start_mark.line + 1, a, b);
    if (new->Bps > level->Bps || new->latency_s < level->latency_s)
        return err_fail(ERR_CONFIG,
                        "%s:%d: node_links: the link of nodes %d and %d is faster than that of "
                        "their level in `links` (%g us, %g GB/s); write the fastest there",
                        l->file->path, (int)where->start_mark.line + 1, a, b,
                        1e6 * level->latency_s, 1e-9 * level->Bps);
    l->between[a][b] = l->between[b][a] = (uint8_t)(link + 1);
    return OK;
}

static Err add_islands(LinkReader *l, const yaml_node_t *list, int link)
{
    int node[MAX_CLUSTER_NODES], island[MAX_CLUSTER_NODES], n = 0;
    if (list->type != YAML_SEQUENCE_NODE)
        return cluster_refuse(l->file, list, "islands", "is not a list of lists of nodes");
    const yaml_node_item_t *first = list->data.sequence.items.start;
    const int islands = (int)(list->data.sequence.items.top - first);
    if (islands < 2)
        return cluster_refuse(l->file, list, "islands",
                              "a link is between two or more islands, as [[0, 1], [2, 3]]");
    for (int i = 0; i < islands; i++) {
        int more[MAX_CLUSTER_NODES], n_more;
        const yaml_node_t *item = yaml_document_get_node(l->file->doc, first[i]);
        TRY(node_list(l, item, more, &n_more));
        if (n + n_more > MAX_CLUSTER_NODES)
            return cluster_refuse(l->file, item, "islands", "have more than 256 nodes");
        for (int k = 0; k < n_more; k++) {
            for (int j = 0; j < n; j++) /* add_link refuses a node that is there twice */
                if (island[j] != i || node[j] == more[k])
                    TRY(add_link(l, item, node[j], more[k], link));
            island[n] = i;
            node[n++] = more[k];
        }
    }
    return OK;
}

static Err read_entry(LinkReader *l, const yaml_node_t *map, CostLink *link, int index)
{
    static const char *const keys[] = {"latency_us", "gbps", "nodes", "islands"};
    ClusterNumber table[] = {
        {.key = "latency_us", .unit = 1e-6, .to = &link->latency_s, .may_be_zero = true},
        {.key = "gbps", .unit = 1e9, .to = &link->Bps}};
    int pair[MAX_CLUSTER_NODES], n;
    TRY(cluster_keys(l->file, map, "node_links", keys, 2, 2));
    for (int i = 0; i < 2; i++)
        TRY(cluster_number(l->file, cluster_value(l->file, map, table[i].key), &table[i]));
    const yaml_node_t *nodes = cluster_value(l->file, map, "nodes");
    const yaml_node_t *islands = cluster_value(l->file, map, "islands");
    if (!nodes == !islands)
        return cluster_refuse(l->file, map, "node_links",
                              "an entry has nodes: [0, 1] or islands: [[0, 1], [2, 3]]");
    if (islands) return add_islands(l, islands, index);
    TRY(node_list(l, nodes, pair, &n));
    if (n != 2) return cluster_refuse(l->file, nodes, "nodes", "a link has two nodes");
    return add_link(l, nodes, pair[0], pair[1], index);
}

/* Copies the matrix of the nodes that are named. */
static Err keep_matrix(const LinkReader *l, CostNodes *out)
{
    uint8_t *between;
    TRY(ARENA_NEW(l->file->arena, l->n * l->n + 1, &between));
    for (int i = 0; i < l->n; i++)
        for (int j = 0; j < l->n; j++) between[i * l->n + j] = l->between[i][j];
    out->n = l->n;
    out->between = between;
    return OK;
}

Err cluster_node_links(const ClusterReader *r, const yaml_node_t *list, CostRates *rates)
{
    LinkReader *l;
    CostNodes *nodes;
    CostLink *link;
    if (!list) return OK;
    if (list->type != YAML_SEQUENCE_NODE)
        return cluster_refuse(r, list, "node_links", "is not a list");
    const yaml_node_item_t *first = list->data.sequence.items.start;
    const int64_t n = list->data.sequence.items.top - first;
    if (n < 1 || n > UINT8_MAX)
        return cluster_refuse(r, list, "node_links", "a file has 1 to 255 of them");
    if (rates->n_levels < 2)
        return cluster_refuse(r, list, "node_links",
                              "`links` has one level; nodes are the blocks of the first of two");
    TRY(ARENA_NEW(r->arena, 1, &l));
    TRY(ARENA_NEW(r->arena, 1, &nodes));
    TRY(ARENA_NEW(r->arena, n, &link));
    *nodes = (CostNodes){.n_links = (int)n, .link = link};
    rates->nodes = nodes;
    l->file = r;
    l->rates = rates;
    for (int i = 0; i < (int)n; i++)
        TRY(read_entry(l, yaml_document_get_node(r->doc, first[i]), &link[i], i));
    return keep_matrix(l, nodes);
}

/* A list of a number for each pair. */
static Err read_pairs(const ClusterReader *r, const yaml_node_t *map, const char *key, double unit,
                      int count, const float **out)
{
    double *x;
    float *to;
    int n;
    TRY(ARENA_NEW(r->arena, count, &x));
    TRY(ARENA_NEW(r->arena, count, &to));
    TRY(cluster_list(r, cluster_value(r, map, key), &(ClusterList){key, unit, count, false}, x,
                     &n));
    if (n != count)
        return err_fail(ERR_CONFIG, "%s:%d: pairs: %s has %d numbers, not one for each of %d pairs",
                        r->path, (int)map->start_mark.line + 1, key, n, count);
    for (int i = 0; i < n; i++) to[i] = (float)x[i];
    *out = to;
    return OK;
}

Err cluster_pairs(const ClusterReader *r, const yaml_node_t *map, CostRates *rates)
{
    static const char *const keys[] = {"ranks", "latency_us", "gbps"};
    CostPairs *p;
    double ranks;
    ClusterNumber number = {.key = "ranks", .unit = 1, .to = &ranks};
    if (!map) return OK;
    TRY(ARENA_NEW(r->arena, 1, &p));
    TRY(cluster_keys(r, map, "pairs", keys, 3, 0));
    TRY(cluster_number(r, cluster_value(r, map, "ranks"), &number));
    p->n = (int)ranks;
    if (ranks != (double)p->n || p->n < 2 || p->n > MAX_CLUSTER_PAIRS)
        return err_fail(ERR_CONFIG, "%s:%d: pairs: %g ranks; a matrix has 2 to %d", r->path,
                        (int)map->start_mark.line + 1, ranks, MAX_CLUSTER_PAIRS);
    const int count = p->n * (p->n - 1) / 2;
    TRY(read_pairs(r, map, "latency_us", 1e-6, count, &p->latency_s));
    TRY(read_pairs(r, map, "gbps", 1e9, count, &p->Bps));
    rates->pairs = p;
    return OK;
}
