/* microkernel_amx.c -- products by AMX. */
#if defined(__AVX512F__)

#include "device/cpu/simd/gemm/amx_tiles.h"
#include "device/cpu/simd/gemm/microkernel_amx_body.h"

const Microkernel microkernel_amx = AMX_MICROKERNEL(tiles_begin, tiles_end);

#else
typedef int no_tiles; /* they come with AVX-512 */
#endif
