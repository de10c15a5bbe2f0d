/* microkernel_amx_emulated.c -- products by tiles in plain loops, for tests. */
#if defined(__AVX512F__)

#include "device/cpu/simd/gemm/amx_tiles_emulated.h"
#include "device/cpu/simd/gemm/microkernel_amx_body.h"

const Microkernel microkernel_amx_emulated = AMX_MICROKERNEL(tiles_begin, tiles_end);

#else
typedef int no_tiles_in_c; /* they come with AVX-512 */
#endif
