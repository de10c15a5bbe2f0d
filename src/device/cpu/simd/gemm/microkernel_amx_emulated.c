/* microkernel_amx_emulated.c -- the AMX micro-kernel with emulated tiles, for tests. */
#if defined(__AVX512F__)

#include "device/cpu/simd/gemm/amx_tiles_emulated.h"
#include "device/cpu/simd/gemm/microkernel_amx_body.h"

const Microkernel microkernel_amx_emulated = AMX_MICROKERNEL(amx_tiles_begin, amx_tiles_end);

#else
typedef int no_amx_emulated; /* only builds with AVX-512 contain it */
#endif
