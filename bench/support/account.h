/* account.h -- prints where the time of steps went: a line for each kernel with its floor, and one
 * for the time between kernels; together the whole step. */
#ifndef BENCH_SUPPORT_ACCOUNT_H
#define BENCH_SUPPORT_ACCOUNT_H

/* Local. Prints the rows of timed.h, per step, for `steps` steps that took total_s. */
void account_print(double total_s, int steps);

#endif
