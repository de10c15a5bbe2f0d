/* nodes.h -- mesh.nodes: the order of the nodes.
 *
 *     mesh.nodes=0,2,1,3, 8 ranks    ranks 0-1 on node 0, 2-3 on node 2, 4-5 on node 1, 6-7 on 3 */
#ifndef CLI_CONFIG_NODES_H
#define CLI_CONFIG_NODES_H

#include "cli/config/config.h"
#include "cost/cluster.h"

/* Local. ERR_CONFIG unless the list is empty, or has each of 0 to n-1 once and n divides the ranks
 * of the run, which are settled. */
Err config_check_nodes(const Config *c);
/* Local. The number of nodes; 0: the list is empty. */
int config_nodes(const Config *c);
/* Local. The rank that the launcher's rank `started` has in the mesh. */
int config_mesh_rank(const Config *c, int started);
/* Local. Orders the nodes of a cluster by the list. ERR_CONFIG if its nodes have another number of
 * ranks. `path`: the cluster file. */
Err config_order_cluster(const Config *c, const char *path, Arena *arena, Cluster *cluster);

#endif
