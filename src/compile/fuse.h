/* fuse.h -- the patterns of fuse, a file each. A pattern rewrites the first match, sets *found, and
 * leaves the graph sorted; it is called again until it finds none. */
#ifndef COMPILE_FUSE_H
#define COMPILE_FUSE_H

#include "ir/graph.h"

/* Local. All of them. */
Err fuse_siblings(Graph *g, bool *found);
Err fuse_sum(Graph *g, bool *found);
Err fuse_residual(Graph *g, bool *found);
Err fuse_loss(Graph *g, bool *found);
Err fuse_add(Graph *g, bool *found);
Err fuse_gelu(Graph *g, bool *found);
Err fuse_slope(Graph *g, bool *found);
Err fuse_experts(Graph *g, bool *found);
Err fuse_quantized(Graph *g, bool *found);

/* Local. The GEMM of this kind that makes v, if it can become one node with a reader of v: both are
 * recomputed or neither, in one chunk. NO_NODE: there is none. */
int fuse_gemm(const Graph *g, const Node *reader, Value v, OpId op);
/* Local. Turns the node into `op`, with these operands and the GEMM's attributes; removes the GEMM
 * and sorts the graph. */
Err fuse_into(Graph *g, int node, int gemm, OpId op, int n_in, const Value *in);

#endif
