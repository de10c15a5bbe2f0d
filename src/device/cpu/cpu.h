/* cpu.h -- the fast device of a CPU: f32, and bf16 storage with f32 inside.
 *
 *     const Device *cpu;
 *     device_cpu_open(NULL, &cpu);            "cpu: AVX-512, AMX for bf16"
 *     puts(device_cpu_text());
 *
 * All kernels are ours, compiled for three instruction sets, of which the CPU gets the widest it runs.
 * Products of bf16 use more where there is more: see units.h. Results are the same for any number of
 * threads, and for every CPU with the same instructions. f64 is for `ref`. */
#ifndef DEVICE_CPU_CPU_H
#define DEVICE_CPU_CPU_H

#include "device/device.h"

typedef enum { CPU_BASE, CPU_AVX2, CPU_AVX512, N_CPU_SIMD } CpuSimd;

/* Local, before the teams that will multiply. `library`: NULL, or the file of an OpenBLAS that products
 * of f32 go to, for comparison; ERR_CONFIG says what is wrong with it. */
Err device_cpu_open(const char *library, const Device **out);
/* Local. Instructions (and library) in one line, for people; after device_cpu_open. */
const char *device_cpu_text(void);

/* Local. Flops a second of one thread's products of this type (F32 or BF16) with their operands in
 * the first cache, measured now, in a few hundredths of a second; after device_cpu_open. */
double device_cpu_peak(DType type);

/* What a product of device cpu consists of; a part runs alone to be timed, on memory as it is. Parts
 * that a unit does at once take less together. */
typedef enum { GEMM_WHOLE, GEMM_PACK, GEMM_MULTIPLY, GEMM_STORE, N_GEMM_PARTS } GemmPart;

/* Local. One part of a product by our own kernels, as kernels.def has gemm; after device_cpu_open. */
Err device_cpu_gemm_part(const Call *call, GemmPart part);

/* Local. Whether this build has the instruction set and this CPU runs it. */
bool cpu_has(CpuSimd simd);
/* Local. The kernels of one instruction set that cpu_has, for tests. */
const Device *device_cpu_simd(CpuSimd simd);

#endif
