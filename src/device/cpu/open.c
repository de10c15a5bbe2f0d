/* open.c -- detects the CPU's instruction sets and selects the kernels of the widest one. */
#include "device/cpu/cpu.h"

#include <stddef.h>
#include <stdio.h>
#include "device/cpu/blas.h"
#include "device/cpu/microkernels.h"

extern const Device cpu_base_device;
double cpu_base_peak(DType type);
Err cpu_base_gemm_part(const Call *call, GemmPart part);
#ifdef SHEAF_CPU_AVX2
extern const Device cpu_avx2_device;
double cpu_avx2_peak(DType type);
Err cpu_avx2_gemm_part(const Call *call, GemmPart part);
#endif
#ifdef SHEAF_CPU_AVX512
extern const Device cpu_avx512_device;
double cpu_avx512_peak(DType type);
Err cpu_avx512_gemm_part(const Call *call, GemmPart part);
#endif

/* The entry points of one instruction set; device is NULL if this build does not contain it. */
typedef struct {
    const char *name;
    const Device *device;
    double (*peak)(DType type);
    Err (*gemm_part)(const Call *call, GemmPart part);
} SimdSet;

static const SimdSet sets[N_CPU_SIMD] = {
    [CPU_BASE] = {"portable code", &cpu_base_device, cpu_base_peak, cpu_base_gemm_part},
#ifdef SHEAF_CPU_AVX2
    [CPU_AVX2] = {"AVX2", &cpu_avx2_device, cpu_avx2_peak, cpu_avx2_gemm_part},
#endif
#ifdef SHEAF_CPU_AVX512
    [CPU_AVX512] = {"AVX-512", &cpu_avx512_device, cpu_avx512_peak, cpu_avx512_gemm_part},
#endif
};

bool cpu_has(CpuSimd simd)
{
    if (!sets[simd].device) return false;
#ifdef SHEAF_CPU_AVX2
    /* These builtins also check that the operating system saves the wide registers. */
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return simd == CPU_BASE || (simd == CPU_AVX2 && avx2) || (simd == CPU_AVX512 && avx2 && avx512);
#else
    return simd == CPU_BASE;
#endif
}

const Device *device_cpu_simd(CpuSimd simd)
{
    MUST(cpu_has(simd), "this CPU does not support instruction set %d", (int)simd);
    return sets[simd].device;
}

static CpuSimd widest(void)
{
    CpuSimd simd = CPU_BASE;
    for (CpuSimd s = CPU_BASE; s < N_CPU_SIMD; s++)
        if (cpu_has(s)) simd = s;
    return simd;
}

Err device_cpu_open(const BlasLibrary *library, const Device **out)
{
    const Device *const device = device_cpu_simd(widest());
    TRY(device_check(device));
    microkernels_open();
    if (library && !blas_open(library)) return err_fail(ERR_CONFIG, "%s", blas_text());
    *out = device;
    return OK;
}

double device_cpu_peak(DType type) { return sets[widest()].peak(type); }

Err device_cpu_gemm_part(const Call *call, GemmPart part)
{
    return sets[widest()].gemm_part(call, part);
}

const char *device_cpu_text(char buffer[CPU_TEXT_BYTES])
{
    const CpuSimd simd = widest();
    const CpuMicrokernel kernel = simd == CPU_AVX512 ? microkernel_in_use() : MICROKERNEL_FMA;
    int used = snprintf(buffer, CPU_TEXT_BYTES, "cpu: %s", sets[simd].name);
    if (kernel != MICROKERNEL_FMA)
        used += snprintf(buffer + used, CPU_TEXT_BYTES - (size_t)used, ", %s for bf16",
                         microkernel_text(kernel));
    if (blas_sgemm())
        snprintf(buffer + used, CPU_TEXT_BYTES - (size_t)used, "; f32 GEMM by %s", blas_text());
    return buffer;
}
