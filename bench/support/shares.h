/* shares.h -- prints where the time of a step on a device went, op by op, from its trace. */
#ifndef SUPPORT_SHARES_H
#define SUPPORT_SHARES_H

#include "job/job.h"

/* Local. Prints a line for each op, the longest first, with its floor: flops or bytes at the given
 * rates, whichever takes longer. The last line is the time between ops. */
void shares_print(const Job *job, const RankTrace *trace, double flops_per_s, double bytes_per_s,
                  double step_s);

#endif
