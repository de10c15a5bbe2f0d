/* shares.h -- where the time of a step on a device went, op by op, from a trace of it. */
#ifndef SUPPORT_SHARES_H
#define SUPPORT_SHARES_H

#include "job/job.h"

/* Prints a line for each op, the longest first, beside its floor: flops at the one rate or bytes at the
 * other, whichever takes longer; then what of the step is none of theirs. */
void shares_print(const Job *job, const RankTrace *trace, double flops_per_s, double bytes_per_s,
                  double step_s);

#endif
