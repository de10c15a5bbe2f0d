/* cost_parts.h -- internal to cost/. */
#ifndef COST_COST_PARTS_H
#define COST_COST_PARTS_H

#include "cost/cost.h"

/* Local. The position of a rank on the machine, by the order of the nodes. */
int64_t cost_position(const CostRates *r, int rank);
/* Local. 1 + index of two positions in r->pairs; 0: not in it. */
int cost_find_pair(const CostRates *r, int64_t a, int64_t b);
/* Local. Sets the links of a group that crosses nodes; r->nodes has links. */
void cost_find_links(const CostRates *r, RankList ranks, CostGroup *g);

/* Local. The rate of an attention with curves by keys; backward: of a gradient. */
double cost_attention_at(const CostAttention *a, const CostWork *w, bool backward);
/* Local. The part of the memory's rate that the op reaches. */
double cost_reach(const CostRates *r, const CostWork *w);

/* Local. Whether the op is a GEMM over the rows of all experts. */
bool cost_is_grouped(OpId op);
/* Local. Sets the extents of a grouped GEMM's w from those of its operands. */
void cost_set_grouped(CostWork *w, const Dims *in, const Dims *out);
/* Local. Leaves other ops as they are. Ops over the rows of experts: sets the extents of GEMMs, and
 * scales the work from rooms to rows. */
void cost_set_experts(CostWork *w, const Program *p, const Instr *i);

#endif
