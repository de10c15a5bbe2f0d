/* amx_gemm_emulated.c -- products of squares by tiles in plain loops, for tests. */
#if defined(__AVX512F__)

#include "device/cpu/simd/gemm/amx_tiles_emulated.h"
#include "device/cpu/simd/attention/amx_gemm_body.h"

const Squares squares_in_c = {.begin = amx_tiles_begin, .end = amx_tiles_end, .multiply = multiply};

#else
typedef int no_squares_in_c; /* they come with AVX-512 */
#endif
