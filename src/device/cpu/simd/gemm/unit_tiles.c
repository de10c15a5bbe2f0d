/* unit_tiles.c -- products by AMX. */
#if defined(__AVX512F__)

#include "device/cpu/simd/gemm/tiles_amx.h"
#include "device/cpu/simd/gemm/tiles.h"

const Unit unit_tiles = TILE_UNIT(tiles_begin, tiles_end);

#else
typedef int no_tiles; /* they come with AVX-512 */
#endif
