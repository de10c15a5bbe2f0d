/* microkernels.h -- the choice of a micro-kernel for bf16 GEMMs and attention, one per process.
 *
 *     MICROKERNEL_AMX    AMX, if CPU and operating system grant it: 16 times the flops of f32
 *     MICROKERNEL_DOT    AVX512-BF16, on AMD CPUs: twice the flops of f32
 *     MICROKERNEL_FMA    widened to f32; on Intel CPUs AVX512-BF16 runs at half the rate of this
 *
 * The choice is a rule, not a measurement: the micro-kernel determines the bits of a run, which
 * must not depend on how busy the machine was at start-up. Like the permission to use AMX, it
 * belongs to the process. */
#ifndef DEVICE_CPU_MICROKERNELS_H
#define DEVICE_CPU_MICROKERNELS_H

#include <stdbool.h>

typedef enum {
    MICROKERNEL_FMA,
    MICROKERNEL_DOT,
    MICROKERNEL_AMX,
    MICROKERNEL_AMX_EMULATED, /* AMX by loops, for tests */
    N_CPU_MICROKERNELS
} CpuMicrokernel;

/* Local; call it before any thread multiplies. Requests AMX from the operating system and chooses.
 * Later calls do nothing. */
void microkernels_open(void);
/* Local. True if this CPU and its operating system run it; after microkernels_open. */
bool microkernel_available(CpuMicrokernel kernel);
/* Local. The micro-kernel for bf16: the chosen one, or the one that microkernel_use has set. */
CpuMicrokernel microkernel_in_use(void);
/* Local. Sets the micro-kernel, for tests and benchmarks. */
void microkernel_use(CpuMicrokernel kernel);
/* Local. True if the CPU of the micro-kernel in use has an instruction that rounds f32 to bf16. */
bool microkernel_rounds_bf16(void);
/* Local. "AMX", for the user. */
const char *microkernel_text(CpuMicrokernel kernel);

#endif
