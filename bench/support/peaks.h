/* peaks.h -- what this machine can do at most, measured now: what floors are made of.
 *
 *     flops            of products of f32 and of bf16 with their operands in the first cache, on all threads
 *     memory, cache    the better of reading and of copying, over 256 MiB a thread and over a few
 *
 * Nobody reaches all of it: a product also has to fetch its operands. */
#ifndef BENCH_SUPPORT_PEAKS_H
#define BENCH_SUPPORT_PEAKS_H

#include "base/team.h"

typedef struct {
    double f32_flops, bf16_flops; /* per second, of all threads of the team */
    double memory_Bps, cache_Bps;
    double cache_bytes; /* less than this a kernel may find in the last cache */
} Peaks;

/* Local. About a second; after device_cpu_open. */
Err peaks_measure(Team *team, Peaks *out);

#endif
