/* units.h -- by which instructions products of bf16 are multiplied, on the CPU of this process.
 *
 *     UNIT_TILES    AMX, where CPU and kernel grant it: 16 times the speed of f32
 *     UNIT_DOT      AVX512-BF16, on AMD's CPUs: twice the speed of f32
 *     UNIT_FMA      widened to f32; on Intel's CPUs the dot product of AVX512-BF16 runs at half of that
 *
 * A rule and no measurement: the unit is part of what the numbers of a run are, and must not hang on
 * how busy a machine was when it started. Of the process, like the permission to use AMX. */
#ifndef DEVICE_CPU_UNITS_H
#define DEVICE_CPU_UNITS_H

#include <stdbool.h>

typedef enum {
    UNIT_FMA,
    UNIT_DOT,
    UNIT_TILES,
    UNIT_TILES_IN_C, /* AMX by plain loops, for tests */
    N_CPU_UNITS
} CpuUnit;

/* Local, before there are threads that multiply: asks the kernel for AMX, once, and chooses. */
void units_open(void);
/* Local. Whether this CPU and its kernel run it; after units_open. */
bool units_have(CpuUnit unit);
/* Local. What products of bf16 use: as chosen, or as a test says. */
CpuUnit units_in_use(void);
void units_use(CpuUnit unit);
/* Local. Whether the unit comes with an instruction that rounds to bf16. */
bool units_round(void);
/* Local. "AMX", for people. */
const char *units_text(CpuUnit unit);

#endif
