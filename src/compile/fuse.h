/* fuse.h -- the patterns of fuse, a file each. A pattern rewrites the first place it finds, says so in
 * *found, and leaves the graph tidy; it is called again until it finds none. */
#ifndef COMPILE_FUSE_H
#define COMPILE_FUSE_H

#include "ir/graph.h"

/* Local. All of them. */
Err fuse_siblings(Graph *g, bool *found);
Err fuse_sum(Graph *g, bool *found);
Err fuse_onto(Graph *g, bool *found);
Err fuse_loss(Graph *g, bool *found);

#endif
