/* devices.c -- devices of single nodes in a cluster file.
 *
 *     nodes: [2, 3], speed: 0.5, memory_gib: 40      device of nodes 0 to 3: 1, 1, 0.5, 0.5 */
#include "plan/cluster/parts.h"

typedef struct {
    const ClusterReader *file;
    double most_bytes; /* of `device` */
    CostDevice device[MAX_CLUSTER_NODES];
    bool given[MAX_CLUSTER_NODES];
    int n; /* nodes up to the last one that is given */
} DeviceReader;

static Err check_device(const DeviceReader *d, const yaml_node_t *map, const CostDevice *device)
{
    const char *path = d->file->path;
    const int line = (int)map->start_mark.line + 1;
    if (device->speed > 1)
        return err_fail(ERR_CONFIG,
                        "%s:%d: node_devices: speed %g is above 1, that of the fastest nodes; "
                        "write the rates of the fastest in `device`",
                        path, line, device->speed);
    if (device->memory_bytes > d->most_bytes)
        return err_fail(ERR_CONFIG,
                        "%s:%d: node_devices: memory_gib %g is above the %g of `device`; write "
                        "the most that a node has there, and the less of others here",
                        path, line, device->memory_bytes / 0x1p30, d->most_bytes / 0x1p30);
    return OK;
}

static Err read_entry(DeviceReader *d, const yaml_node_t *map)
{
    static const char *const keys[] = {"nodes", "speed", "memory_gib"};
    CostDevice device = {0};
    ClusterNumber table[] = {{.key = "speed", .unit = 1, .to = &device.speed},
                             {.key = "memory_gib", .unit = 0x1p30, .to = &device.memory_bytes}};
    int node[MAX_CLUSTER_NODES], n;
    TRY(cluster_keys(d->file, map, "node_devices", keys, 2, 1));
    for (int i = 0; i < 2; i++) {
        const yaml_node_t *value = cluster_value(d->file, map, table[i].key);
        if (value) TRY(cluster_number(d->file, value, &table[i]));
    }
    TRY(check_device(d, map, &device));
    const yaml_node_t *list = cluster_value(d->file, map, "nodes");
    TRY(cluster_nodes(d->file, list, "node_devices", node, &n));
    for (int i = 0; i < n; i++) {
        if (d->given[node[i]])
            return err_fail(ERR_CONFIG, "%s:%d: node_devices: node %d is there twice; remove one",
                            d->file->path, (int)list->start_mark.line + 1, node[i]);
        d->given[node[i]] = true;
        d->device[node[i]] = device;
        if (node[i] >= d->n) d->n = node[i] + 1;
    }
    return OK;
}

/* The nodes with these devices, and with the links that were read before. */
static Err keep_devices(const DeviceReader *d, CostRates *rates)
{
    CostNodes *nodes;
    CostDevice *device;
    TRY(ARENA_NEW(d->file->arena, 1, &nodes));
    TRY(ARENA_NEW(d->file->arena, d->n, &device));
    for (int i = 0; i < d->n; i++)
        device[i] = d->given[i] ? d->device[i] : (CostDevice){.speed = 1};
    if (rates->nodes) *nodes = *rates->nodes;
    nodes->n_devices = d->n;
    nodes->device = device;
    rates->nodes = nodes;
    return OK;
}

Err cluster_node_devices(const ClusterReader *r, const yaml_node_t *list, Cluster *c)
{
    DeviceReader d = {.file = r, .most_bytes = c->memory_bytes};
    if (!list) return OK;
    if (list->type != YAML_SEQUENCE_NODE)
        return cluster_refuse(r, list, "node_devices", "is not a list");
    const yaml_node_item_t *first = list->data.sequence.items.start;
    const int64_t n = list->data.sequence.items.top - first;
    if (n < 1 || n > MAX_CLUSTER_NODES)
        return cluster_refuse(r, list, "node_devices", "a file has 1 to 256 of them");
    if (c->rates.n_levels < 2)
        return cluster_refuse(r, list, "node_devices",
                              "`links` has one level; nodes are the blocks of the first of two");
    for (int i = 0; i < (int)n; i++) TRY(read_entry(&d, yaml_document_get_node(r->doc, first[i])));
    return keep_devices(&d, &c->rates);
}
