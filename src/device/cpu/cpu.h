/* cpu.h -- the fast device of a CPU: f32, and bf16 storage with f32 inside.
 *
 *     const Device *cpu;
 *     device_cpu_open(NULL, &cpu);            "cpu: AVX-512; products by OpenBLAS 0.3.21, ..."
 *     puts(device_cpu_text());
 *
 * All kernels but the products of large matrices are ours, compiled for three instruction sets, of
 * which the CPU gets the widest it runs. Products go to a library where there is one, on tiles that
 * are ours; see blas.h. Results are the same for any number of threads. f64 is for `ref`. */
#ifndef DEVICE_CPU_CPU_H
#define DEVICE_CPU_CPU_H

#include "device/device.h"

typedef enum { CPU_BASE, CPU_AVX2, CPU_AVX512, N_CPU_SIMD } CpuSimd;

/* Local, before the teams that will multiply. `library`: the file of an OpenBLAS, NULL for the
 * system's. Never fails for want of one: device_cpu_text says what is used instead. */
Err device_cpu_open(const char *library, const Device **out);
/* Local. Instruction set and library in one line, for people; after device_cpu_open. */
const char *device_cpu_text(void);

/* Local. Whether this build has the instruction set and this CPU runs it. */
bool cpu_has(CpuSimd simd);
/* Local. The kernels of one instruction set that cpu_has, for tests. */
const Device *device_cpu_simd(CpuSimd simd);

#endif
