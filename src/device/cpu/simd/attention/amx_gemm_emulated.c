/* amx_gemm_emulated.c -- GEMM by sub-tiles with emulated AMX tiles, for tests. */
#if defined(__AVX512F__)

#include "device/cpu/simd/gemm/amx_tiles_emulated.h"
#include "device/cpu/simd/attention/amx_gemm_body.h"

const AmxGemm amx_gemm_emulated = {
    .begin = amx_tiles_begin, .end = amx_tiles_end, .multiply = multiply};

#else
typedef int no_amx_gemm_emulated; /* only builds with AVX-512 contain it */
#endif
