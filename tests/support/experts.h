/* experts.h -- a test family whose layers alternate between two kinds, one of them with experts.
 *
 *     layer 0, 2   dense    y = x + W a, a = rmsnorm(x)
 *     layer 1, 3   expert   y = x + V gelu(U a)           norm in the dense pack, U and V in the
 *                                                         pack of experts: cut over ep
 *
 * Routing is fixed: the tokens of a rank go to all experts of the rank's part of ep, so programs
 * exchange no tokens. A program has the experts of one part; the parameters have those of all. */
#ifndef SUPPORT_EXPERTS_H
#define SUPPORT_EXPERTS_H

#include "job/job.h"

/* Local. The model as a program sees it: ff_width is that of the experts of one part. */
ModelConfig experts_config(int64_t ff_width);
/* Local. The dim of a parameter that is cut over ep; -1: none. */
int experts_dim(const Param *p);
/* Local. Gives the parameters of experts their whole shapes: `ep` times those of a program. */
void experts_widen(Model *m, int ep);
/* Local. Links a job of this family again, with experts cut over ep. */
Err experts_shard(Job *job, Arena *arena);

#endif
