/* amx_gemm.c -- products of squares by AMX. */
#if defined(__AVX512F__)

#include "device/cpu/simd/gemm/amx_tiles.h"
#include "device/cpu/simd/attention/amx_gemm_body.h"

const AmxGemm amx_gemm = {.begin = amx_tiles_begin, .end = amx_tiles_end, .multiply = multiply};

#else
typedef int no_amx_gemm; /* they come with AVX-512 */
#endif
