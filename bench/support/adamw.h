/* adamw.h -- the optimizer of all step benchmarks; the peers use the same settings. */
#ifndef BENCH_SUPPORT_ADAMW_H
#define BENCH_SUPPORT_ADAMW_H

#include "run/rank.h"

static const OptimSettings bench_adamw = {.kind = OPTIM_ADAMW,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .weight_decay = 0.1,
                                          .clip = 1,
                                          .block = 65536};

#endif
