/* unit_tiles_in_c.c -- products by tiles in plain loops, for tests. */
#if defined(__AVX512F__)

#include "device/cpu/simd/gemm/tiles_in_c.h"
#include "device/cpu/simd/gemm/tiles.h"

const Unit unit_tiles_in_c = TILE_UNIT(tiles_begin, tiles_end);

#else
typedef int no_tiles_in_c; /* they come with AVX-512 */
#endif
