/* cpu.h -- the fast device of a CPU: f32, and bf16 storage with f32 arithmetic.
 *
 *     const Device *cpu;
 *     char text[CPU_TEXT_BYTES];
 *     device_cpu_open(NULL, &cpu);            "cpu: AVX-512, AMX for bf16"
 *     puts(device_cpu_text(text));
 *
 * All kernels are compiled for three instruction sets; the widest that the CPU supports is used.
 * GEMM and attention in bf16 use further instructions where the CPU has them: microkernels.h.
 * Results have the same bits for any number of threads, and on all CPUs with the same instructions.
 * f64 is left to device ref. */
#ifndef DEVICE_CPU_CPU_H
#define DEVICE_CPU_CPU_H

#include "device/device.h"

typedef enum { CPU_BASE, CPU_AVX2, CPU_AVX512, N_CPU_SIMD } CpuSimd;

enum { CPU_TEXT_BYTES = 320 };

struct BlasLibrary;

/* Local; call it before opening the teams that will multiply. library: NULL, or an OpenBLAS for f32
 * GEMMs (blas.h), for comparison; ERR_CONFIG if it cannot be opened. */
Err device_cpu_open(const struct BlasLibrary *library, const Device **out);
/* Local. Writes instruction set, micro-kernel and library as one line for the user, and returns the
 * buffer; after device_cpu_open. */
const char *device_cpu_text(char buffer[CPU_TEXT_BYTES]);

/* Local. Flops per second of one thread's GEMMs of this type (F32 or BF16) with operands in L1.
 * Measures it now, in a few hundredths of a second; after device_cpu_open. */
double device_cpu_peak(DType type);

/* The parts of a blocked GEMM. A part runs alone to be timed, on memory as it is. Parts that a
 * micro-kernel overlaps take less time together. */
typedef enum { GEMM_WHOLE, GEMM_PACK, GEMM_MULTIPLY, GEMM_STORE, N_GEMM_PARTS } GemmPart;

/* Local. Runs one part of gemm (kernels.def) by the blocked GEMM; after device_cpu_open. */
Err device_cpu_gemm_part(const Call *call, GemmPart part);

/* Local. True if this build contains the instruction set and this CPU supports it. */
bool cpu_has(CpuSimd simd);
/* Local. The kernels of one instruction set, for tests; cpu_has(simd) must be true. */
const Device *device_cpu_simd(CpuSimd simd);

#endif
