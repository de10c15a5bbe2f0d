/* cost_parts.h -- internal to cost/. */
#ifndef COST_COST_PARTS_H
#define COST_COST_PARTS_H

#include "cost/cost.h"

/* Local. The position of a rank on the machine, by the order of the nodes. */
int64_t cost_position(const CostRates *r, int rank);
/* Local. Sets the links of a group that crosses nodes; r->nodes has links. */
void cost_find_links(const CostRates *r, RankList ranks, CostGroup *g);

#endif
