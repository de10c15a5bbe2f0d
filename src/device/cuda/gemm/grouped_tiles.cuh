/* grouped_tiles.cuh -- the tiles of the grouped ping-pong kernel (hopper_grouped.cuh).
 *
 * Each block reads the offsets and finds its tiles by itself:
 *
 *     rows of expert 0        | 192 | 192 | 57 .      the last tile of an expert may be ragged
 *     rows of expert 1        (none)
 *     rows of expert 2        | 192 | 8 .
 *     start                   0  3  3  5              row tiles before each expert
 *
 * A ragged tile multiplies rows of the next expert too, which its columns keep to themselves; they
 * are not stored. A gradient of weights has the rows as its depth: there the rows past the end must
 * read as zero. Both are done by a ragged box. */
#ifndef DEVICE_CUDA_GEMM_GROUPED_TILES_CUH
#define DEVICE_CUDA_GEMM_GROUPED_TILES_CUH

#include "device/cuda/gemm/hopper_grouped.h"
#include "device/cuda/gemm/pingpong.cuh"

enum { MAX_GROUPS = PINGPONG_THREADS };
enum { GROUPED_BYTES = PINGPONG_BYTES + 4 * (MAX_GROUPS + 1) };
enum { GRAD_ROWS = DEPTH / 2 }; /* of a box of x: each block of a cluster loads half of them */

/* Tiles of a kind. WIDTH: features of a block; a swiglu has the same ones of gate and up, a half
 * tile each. A piece has ROWS rows of BOXES tensors. */
template <GroupedKind KIND> struct GroupedShape {
    enum {
        WIDTH = KIND == GROUPED_SWIGLU ? +SIDE : +FEATURES,
        TRANSPOSED = KIND == GROUPED_BACK || KIND == GROUPED_DSWIGLU || KIND == GROUPED_GRAD,
        BOXES = KIND == GROUPED_DSWIGLU ? 2 : 1,
        ROWS = SIDE / BOXES,
        BYTES = PIECE_BYTES / BOXES,
        HALF = TOKENS / ROWS,
        SETS = KIND == GROUPED_SWIGLU ? 3 : HALVES,
        PIECES_OF_TILE = SETS * HALF
    };
};

typedef struct {
    CUtensorMap w[2], x[2], aux[2], out[3]; /* of GRAD: w[0] and x[0] */
    Tensor grad;
    const int32_t *offsets;
    int experts, stride; /* of offsets */
    int across, down;    /* pairs of tiles along features; of GRAD: tiles along columns */
    int steps, sources;  /* depth steps of one w and x, and how many of these; not of GRAD */
    float keep;
} GroupedTilesArgs;

/* ---- ragged boxes ---- */

/* A ragged box: `rows` of its first ones exist, the others read as zero and are not written. Its
 * map has four dims whose addresses cancel out: y has 2^30 rows of stride S and ends behind the
 * last row that exists, u has stride 2^34 - S, and z stride S, so
 *
 *     y = 2^30 - rows    z = row + rows    u = 2^30    address y S + z S + u (2^34 - S)
 *                                                      = row S + 2^64 */
enum { RAGGED = 1 << 30 };

static __device__ inline void tma_load_ragged(uint32_t to, const CUtensorMap *from, int x, int row,
                                              int end, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(from), "r"(barrier), "r"(x), "r"(RAGGED - (end - row)), "r"(end), "r"(+RAGGED)
                 : "memory");
}

static __device__ inline void tma_load_ragged_multicast(uint32_t to, const CUtensorMap *from, int x,
                                                        int row, int end, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(from), "r"(barrier), "r"(x), "r"(RAGGED - (end - row)), "r"(end), "r"(+RAGGED),
                 "h"((uint16_t)3)
                 : "memory");
}

static __device__ inline void tma_store_ragged(const CUtensorMap *to, uint32_t from, int x, int row,
                                               int end)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(x), "r"(RAGGED - (end - row)), "r"(end), "r"(+RAGGED)
                 : "memory");
}

/* ---- tiles ---- */

typedef struct {
    int expert, feature;
    int token;      /* first row; of GRAD: first column */
    int first, end; /* rows of the expert */
} GroupedTile;

static __device__ inline int offset_of(const GroupedTilesArgs &args, int e)
{
    return __ldg(args.offsets + e * args.stride);
}

/* Fills start[experts + 1]: a thread per expert. The caller synchronizes the block afterwards. */
static __device__ inline void find_starts(const GroupedTilesArgs &args, int *start)
{
    const int e = threadIdx.x;
    int sum = 0;
    if (e < args.experts)
        start[e + 1] = (offset_of(args, e + 1) - offset_of(args, e) + TOKENS - 1) / TOKENS;
    __syncthreads();
    for (int i = 0; i <= e && i < args.experts; i++) sum += start[i + 1];
    __syncthreads();
    if (e < args.experts) start[e + 1] = sum;
    if (e == 0) start[0] = 0;
}

template <GroupedKind KIND>
static __device__ inline int tiles_of(const GroupedTilesArgs &args, const int *start)
{
    const int clusters = gridDim.x / 2,
              rows = KIND == GROUPED_GRAD ? args.experts * args.down : start[args.experts];
    return (rows * args.across - (int)blockIdx.x / 2 + clusters - 1) / clusters;
}

/* Tile j of the block, as in pingpong.cuh. *expert: that of an earlier tile. */
template <GroupedKind KIND>
static __device__ inline GroupedTile tile_of(const GroupedTilesArgs &args, const int *start, int j,
                                             int *expert)
{
    const int pair = blockIdx.x / 2 + j * (gridDim.x / 2), row = pair / args.across;
    GroupedTile t;
    t.feature = (2 * (pair - row * args.across) + cluster_rank()) * GroupedShape<KIND>::WIDTH;
    if (KIND == GROUPED_GRAD)
        *expert = row / args.down;
    else
        while (row >= start[*expert + 1]) ++*expert;
    t.expert = *expert;
    t.first = offset_of(args, t.expert), t.end = offset_of(args, t.expert + 1);
    t.token = KIND == GROUPED_GRAD ? (row - t.expert * args.down) * TOKENS
                                   : t.first + (row - start[t.expert]) * TOKENS;
    return t;
}

template <GroupedKind KIND>
static __device__ inline int steps_of(const GroupedTilesArgs &args, const GroupedTile &t)
{
    return KIND == GROUPED_GRAD ? (t.end - t.first + DEPTH - 1) / DEPTH : args.steps * args.sources;
}

#endif
