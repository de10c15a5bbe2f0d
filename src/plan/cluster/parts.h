/* parts.h -- internal to the reader of cluster files: nodes of the document as numbers.
 *
 *     cluster.c    the file, its devices and links
 *     node.c       numbers, lists and maps of YAML, with errors that name file and line
 *     tables.c     tables of kernels and collectives
 *     links.c      links between single nodes
 *     devices.c    devices of single nodes
 *     write.c      the text of a file */
#ifndef PLAN_CLUSTER_PARTS_H
#define PLAN_CLUSTER_PARTS_H

#include <yaml.h>

#include "plan/cluster/cluster.h"

/* One number: its key, the unit that it is written in, and where it goes. */
typedef struct {
    const char *key;
    double unit;
    double *to;
    bool may_be_zero, optional;
    bool set;
} ClusterNumber;

typedef struct {
    const char *path;
    yaml_document_t *doc;
    Arena *arena;
} ClusterReader;

/* Local. The text of a scalar; NULL for a list or a map. */
const char *cluster_scalar(const yaml_node_t *n);
/* Local. ERR_CONFIG with file and line of the node. */
Err cluster_refuse(const ClusterReader *r, const yaml_node_t *n, const char *where,
                   const char *what);
Err cluster_number(const ClusterReader *r, const yaml_node_t *n, ClusterNumber *number);
/* Local. Reads a map whose keys are those of the table, each once. `where` is the map's own key. */
Err cluster_numbers(const ClusterReader *r, const yaml_node_t *map, const char *where,
                    ClusterNumber *table, int n);
/* Local. A list of 1 to `most` numbers above 0; rising: each above the one before it. */
typedef struct {
    const char *key;
    double unit;
    int most;
    bool rising;
} ClusterList;
Err cluster_list(const ClusterReader *r, const yaml_node_t *list, const ClusterList *kind,
                 double *to, int *n);
/* Local. The value of a key of a map; NULL: it is not there. */
const yaml_node_t *cluster_value(const ClusterReader *r, const yaml_node_t *map, const char *key);
/* Local. Checks that a map has the first n keys, perhaps the next n_optional, each once, and no
 * other. */
Err cluster_keys(const ClusterReader *r, const yaml_node_t *map, const char *where,
                 const char *const *key, int n, int n_optional);

/* Local. The tables of a device, if it has any. */
Err cluster_device_tables(const ClusterReader *r, const yaml_node_t *device, CostRates *rates);
/* Local. Sizes and times of collectives; level_name [n_levels]: NULL or the name of a level. */
Err cluster_collectives(const ClusterReader *r, const yaml_node_t *list, CostRates *rates);
/* Local. Messages between single ranks; map may be NULL. */
Err cluster_pairs(const ClusterReader *r, const yaml_node_t *map, CostRates *rates);
/* Local. Links between nodes that are slower than their level; list may be NULL. */
Err cluster_node_links(const ClusterReader *r, const yaml_node_t *list, CostRates *rates);
/* Local. Devices of nodes that are slower than `device`; list may be NULL. */
Err cluster_node_devices(const ClusterReader *r, const yaml_node_t *list, Cluster *c);
/* Local. A list of 1 to MAX_CLUSTER_NODES numbers of nodes; `where` is its key. */
Err cluster_nodes(const ClusterReader *r, const yaml_node_t *list, const char *where,
                  int node[MAX_CLUSTER_NODES], int *n);

#endif
