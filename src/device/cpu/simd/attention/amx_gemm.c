/* amx_gemm.c -- GEMM by sub-tiles, by AMX instructions. */
#if defined(__AVX512F__)

#include "device/cpu/simd/gemm/amx_tiles.h"
#include "device/cpu/simd/attention/amx_gemm_body.h"

const AmxGemm amx_gemm = {.begin = amx_tiles_begin, .end = amx_tiles_end, .multiply = multiply};

#else
typedef int no_amx_gemm; /* AMX implies AVX-512 */
#endif
