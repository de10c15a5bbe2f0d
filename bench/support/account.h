/* account.h -- where the time of steps went: a line for each kernel, beside its floor, and one for what is
 * between kernels; together all of it. */
#ifndef BENCH_SUPPORT_ACCOUNT_H
#define BENCH_SUPPORT_ACCOUNT_H

/* Local. Of what timed.h has kept over `steps` steps that took total_s. */
void account_print(double total_s, int steps);

#endif
