/* microkernels.h -- by which instructions products of bf16 are multiplied, on the CPU of this process.
 *
 *     MICROKERNEL_AMX    AMX, where CPU and kernel grant it: 16 times the speed of f32
 *     MICROKERNEL_DOT      AVX512-BF16, on AMD's CPUs: twice the speed of f32
 *     MICROKERNEL_FMA      widened to f32; on Intel's CPUs the dot product of AVX512-BF16 runs at half of that
 *
 * A rule and no measurement: the unit is part of what the numbers of a run are, and must not hang on
 * how busy a machine was when it started. Of the process, like the permission to use AMX. */
#ifndef DEVICE_CPU_MICROKERNELS_H
#define DEVICE_CPU_MICROKERNELS_H

#include <stdbool.h>

typedef enum {
    MICROKERNEL_FMA,
    MICROKERNEL_DOT,
    MICROKERNEL_AMX,
    MICROKERNEL_AMX_EMULATED, /* AMX by plain loops, for tests */
    N_CPU_MICROKERNELS
} CpuMicrokernel;

/* Local, before there are threads that multiply: asks the kernel for AMX, once, and chooses. */
void microkernels_open(void);
/* Local. Whether this CPU and its kernel run it; after microkernels_open. */
bool microkernel_available(CpuMicrokernel kernel);
/* Local. What products of bf16 use: as chosen, or as a test says. */
CpuMicrokernel microkernel_in_use(void);
void microkernel_use(CpuMicrokernel kernel);
/* Local. Whether the unit comes with an instruction that rounds to bf16. */
bool microkernel_rounds_bf16(void);
/* Local. "AMX", for people. */
const char *microkernel_text(CpuMicrokernel kernel);

#endif
