/* works.h -- predicted and measured seconds of each kind of work in a step.
 *
 *     works_head(f)      setting,op,calls,m,n,k,width,queries,heavy,light,bytes,plan_s,step_s */
#ifndef BENCH_SUPPORT_WORKS_H
#define BENCH_SUPPORT_WORKS_H

#include <stdio.h>

#include "cost/cost.h"
#include "job/job.h"

/* Local. The names of the columns. */
void works_head(FILE *f);
/* Local. A line for each kind of work of the traced step; sums over its calls. The state's work is
 * one line each for norm and update. */
Err works_write(FILE *f, int setting, const Job *job, const RankTrace *trace, const CostRates *r,
                Arena *temp);

#endif
