/* local.h -- ranks in one process. */
#ifndef COMM_LOCAL_LOCAL_H
#define COMM_LOCAL_LOCAL_H

#include "comm/comm.h"

/* Local. A comm of one rank, in the arena; ERR_CONFIG for more. */
Err local_open(Arena *a, const CommSettings *set, Comm **out);

#endif
