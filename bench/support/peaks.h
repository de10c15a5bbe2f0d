/* peaks.h -- the peak rates of this machine, measured at run time: floors are computed from them.
 *
 *     flops            f32 and bf16 GEMM micro-kernels with operands in L1, on all threads
 *     memory, cache    the faster of reading and copying, over 256 MiB per thread and within L3
 *
 * No kernel reaches all of it: a GEMM also has to fetch its operands. */
#ifndef BENCH_SUPPORT_PEAKS_H
#define BENCH_SUPPORT_PEAKS_H

#include "base/team.h"

typedef struct {
    double f32_flops, bf16_flops; /* per second, all threads of the team together */
    double memory_Bps, cache_Bps;
    double cache_bytes; /* smaller operands may be in L3 already */
} Peaks;

/* Local. About a second; after device_cpu_open. */
Err peaks_measure(Team *team, Peaks *out);

#endif
