/* microkernel_amx.c -- the micro-kernel by AMX instructions. */
#if defined(__AVX512F__)

#include "device/cpu/simd/gemm/amx_tiles.h"
#include "device/cpu/simd/gemm/microkernel_amx_body.h"

const Microkernel microkernel_amx = AMX_MICROKERNEL(amx_tiles_begin, amx_tiles_end);

#else
typedef int no_amx; /* AMX implies AVX-512 */
#endif
