/* scratch.h -- bytes of a queue's scratch that kernels take, from shapes alone. Launchers and
 * cuda_workspace.c, which is part of the program, include it, so both count alike; it needs no CUDA
 * header. All sizes are of at most the extents given: they rise with each. */
#ifndef DEVICE_CUDA_SCRATCH_H
#define DEVICE_CUDA_SCRATCH_H

#include "base/math.h"
#include "device/device.h"

enum { BLAS_SCRATCH = 32 << 20 }; /* NVIDIA's advice for Hopper */

static inline int64_t scratch_blocks(int64_t n, int64_t each) { return (n + each - 1) / each; }

/* ---- column sums ---- */

enum { FETCH_BLOCKS = 264 };                            /* row_fetch.cuh: two per SM of 132 */
enum { STRIP_BLOCKS = 528, STRIP_COLUMNS = 32 };        /* column_sums.cu: at most; four per SM */
enum { STRIP_ROWS = 64, STRIP_WIDE = 8 };               /* of a block at least; columns of a lane */
enum { MIN_FETCH_WIDTH = 136, MAX_FETCH_WIDTH = 2048 }; /* of rows that a warp may have */

/* sums rows of f32 for each of some blocks. */
static inline size_t scratch_columns(int64_t sums, int64_t blocks, int64_t width)
{
    return sizeof(float) * (size_t)(sums * blocks * width) + 1;
}

/* Blocks down, at most `limit` together. */
static inline int64_t strips_down(int64_t rows, int64_t across)
{
    const int64_t most = STRIP_BLOCKS / across > 0 ? STRIP_BLOCKS / across : 1;
    return min_i64(scratch_blocks(rows, STRIP_ROWS), most);
}

/* Aligned rows have fewer blocks across, so more down. */
static inline size_t scratch_sum_rows(int64_t rows, int64_t width)
{
    const int64_t across = scratch_blocks(width, STRIP_COLUMNS * STRIP_WIDE);
    int64_t down = across > 0 ? strips_down(rows, across) : 0;
    if (width >= MIN_FETCH_WIDTH && width <= MAX_FETCH_WIDTH)
        down = max_i64(down, min_i64(rows, FETCH_BLOCKS));
    return scratch_columns(1, down, width);
}

static inline size_t scratch_norm(int64_t sums, int64_t rows, int64_t width)
{
    return scratch_columns(sums, min_i64(rows, FETCH_BLOCKS), width);
}

/* clip_sums.cu */
enum { CLIP_CHUNK = 512, MAX_CLIP_CHUNKS = 128 };

static inline int64_t clip_chunks(int64_t rows)
{
    return max_i64(min_i64(scratch_blocks(rows, CLIP_CHUNK), MAX_CLIP_CHUNKS), 1);
}

static inline size_t scratch_clips(int64_t rows, int64_t clips, int64_t width)
{
    return sizeof(float) * 2 * (size_t)(clip_chunks(rows) * clips * width);
}

/* gemm/pingpong.cuh: a row of sums for each TOKENS rows. */
enum { PINGPONG_TOKENS = 192 };

static inline size_t scratch_pingpong(int64_t tokens, int64_t width)
{
    return scratch_columns(1, scratch_blocks(tokens, PINGPONG_TOKENS), width);
}

/* ---- losses, squares, choices of experts ---- */

static inline size_t scratch_token_loss(int64_t rows)
{
    return sizeof(double) * (size_t)(rows + 1);
}

enum { SQUARES_CHUNK = 65536, UPDATE_CHUNK = 8192 };

static inline size_t scratch_squares(int64_t n)
{
    return sizeof(double) * (size_t)(scratch_blocks(n, SQUARES_CHUNK) + 1);
}

/* choices.cuh */
enum { CHOICE_CHUNK = 1024 };

static inline size_t scratch_choices(int64_t choices, int64_t experts)
{
    return sizeof(int32_t) * (size_t)((scratch_blocks(choices, CHOICE_CHUNK) + 1) * experts + 1);
}

static inline size_t scratch_route_losses(int64_t tokens)
{
    return sizeof(float) * (size_t)(2 * tokens + 1);
}

/* ---- embedding_dw ---- */

enum { EMBEDDING_STRIP = 32 };

/* Keys and tokens before and after the sort; sums that leave and enter each strip. */
typedef struct {
    size_t list, part, sort;
} EmbeddingScratch;

/* The sort of CUB takes two more lists, and counts for tiles of the list and digits of 8 bits. */
static inline EmbeddingScratch embedding_scratch(int64_t tokens, int64_t width)
{
    enum { DIGITS = 256, LEAST_TILE = 1024, FIXED = 1 << 16 };
    const size_t part = sizeof(float) * (size_t)(scratch_blocks(tokens, EMBEDDING_STRIP) * width);
    EmbeddingScratch s = {(size_t)tokens * sizeof(int32_t), part, 0};
    s.list = (s.list + 255) / 256 * 256;
    s.part = (s.part + 255) / 256 * 256;
    s.sort =
        2 * s.list + FIXED + (size_t)scratch_blocks(tokens, LEAST_TILE) * DIGITS * sizeof(int32_t);
    return s;
}

static inline size_t embedding_scratch_bytes(const EmbeddingScratch *s)
{
    return 4 * s->list + 2 * s->part + s->sort;
}

/* ---- attention ---- */

enum { HULL_ROWS = 64, HULL_BYTES = 48 };         /* attention.cuh: BlockHull */
enum { WORK_CLASSES = 16, TILE_ROWS_BYTES = 32 }; /* the same: TileRows */
enum { MAX_TILE_ROWS = 192 };
enum { MAX_ATTENTION_HEADS = 65535 }; /* of a launch */
enum { BACKWARD_KEYS = 128 };         /* hopper_backward.cuh: keys of a tile */
enum { DQ_PART = 64 * 64 };           /* half of a tile of dq: 64 rows, 64 channels */
enum { CUDNN_SLACK = 1 << 16 };

/* Hulls, lists of tiles of tile_rows (0: none), and delta. */
typedef struct {
    int64_t tiles, hulls;
    size_t hull_bytes, list_bytes, delta_bytes;
} HullScratch;

static inline HullScratch hull_scratch(int64_t rows, int64_t heads, int64_t tile_rows, bool delta)
{
    const int64_t each = tile_rows ? tile_rows : HULL_ROWS;
    HullScratch s = {.tiles = scratch_blocks(rows, each)};
    s.hulls = s.tiles * each / HULL_ROWS;
    s.hull_bytes = HULL_BYTES * (size_t)(s.hulls + 1);
    s.list_bytes = tile_rows ? TILE_ROWS_BYTES * WORK_CLASSES * (size_t)s.tiles : 0;
    s.delta_bytes = delta ? sizeof(float) * (size_t)rows * (size_t)heads : 0;
    return s;
}

static inline size_t hull_scratch_bytes(const HullScratch *s)
{
    return s->hull_bytes + s->list_bytes + s->delta_bytes;
}

/* Each array of the backward kernels of sm_90a begins at 128 bytes. */
static inline size_t backward_array(int64_t n, size_t each)
{
    return (each * (size_t)n + 127) / 128 * 128;
}

/* tile: queries of a tile. sums: of dq in f32, two parts for each tile and head. */
static inline size_t scratch_backward(int64_t rows, int64_t keys, int64_t heads, int64_t tile,
                                      bool sums)
{
    const int64_t down = scratch_blocks(rows, tile), across = scratch_blocks(keys, BACKWARD_KEYS);
    const size_t four = 4 * sizeof(int32_t);
    size_t bytes = sums ? backward_array(down * heads * 2 * DQ_PART, sizeof(float)) : 0;
    bytes += backward_array(down * heads * 2 * tile, sizeof(float)); /* lse and delta */
    bytes += backward_array(down * tile, four);                      /* key ranges */
    bytes += backward_array(down, HULL_BYTES);
    bytes += 2 * backward_array(across, four); /* columns, and their keys */
    bytes += backward_array(across, sizeof(int32_t));
    return bytes + backward_array(1, 2 * sizeof(int32_t));
}

static inline size_t cudnn_stats_bytes(int64_t rows, int64_t heads)
{
    return (sizeof(float) * (size_t)rows * (size_t)heads + 1023) / 1024 * 1024;
}

/* The room for cuDNN's workspace, whose size cuDNN alone knows: sums of dq in f32 and of rows; if
 * heads share keys also dk and dv of each head. A plan that needs more is not used. */
static inline size_t scratch_cudnn(int64_t rows, int64_t heads, int64_t key_heads, int64_t channels,
                                   bool backward)
{
    const size_t all = sizeof(float) * (size_t)rows * (size_t)heads;
    const size_t shared = heads == key_heads ? 0 : all * (size_t)channels;
    const size_t sums = backward ? all * (size_t)channels + all + shared : 0;
    return cudnn_stats_bytes(rows, heads) + sums + CUDNN_SLACK;
}

#endif
