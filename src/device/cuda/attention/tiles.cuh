/* tiles.cuh -- tiles of query rows: their hulls, the blocks of keys that they see, and the order in
 * which a persistent kernel takes them.
 *
 * Classes of work by powers of two; each tile appends itself to the list of its class. The order
 * within a class depends on the timing, the results do not. */
#ifndef DEVICE_CUDA_ATTENTION_TILES_CUH
#define DEVICE_CUDA_ATTENTION_TILES_CUH

#include "device/cuda/attention/attention.cuh"

static __device__ inline bool range_empty(const int *range) { return range[0] >= range[1]; }

/* The hull of two neighboring hulls. A range has no gap if neither has one and they touch. */
static __device__ inline BlockHull hull_append(const BlockHull &a, const BlockHull &b)
{
    BlockHull u = hull_join(a, b);
    u.solid = 0;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int *x = &a.any[2 * k], *y = &b.any[2 * k];
        const bool touch = max(x[0], y[0]) <= min(x[1], y[1]);
        if (range_empty(x) || range_empty(y) || touch) u.solid |= a.solid & b.solid & 1 << k;
    }
    return u;
}

/* One past the last key below `top` in one of two ranges; 0: none. */
static __device__ inline int block_end(const int *any, int top)
{
    int end = 0;
#pragma unroll
    for (int k = 0; k < 4; k += 2)
        if (any[k] < top) end = max(end, min(any[k + 1], top));
    return end;
}

/* A bit for each of 32 keys from `key` on: set if the ranges have it. */
static __device__ inline uint32_t bits_below(int n)
{
    return n <= 0 ? 0 : n >= 32 ? ~0u : (1u << n) - 1;
}

static __device__ inline uint32_t seen_bits(const int4 &r, int key)
{
    return (bits_below(r.y - key) & ~bits_below(r.x - key)) |
           (bits_below(r.w - key) & ~bits_below(r.z - key));
}

/* Appends a tile to the list of its class; class 0 has the most work. */
static __device__ inline void tile_append(const TileOrder &order, int row, const BlockHull &u)
{
    const int keys = max(u.any[1] - u.any[0], 0) + max(u.any[3] - u.any[2], 0);
    const int c = max(WORK_CLASSES - 1 - (32 - __clz((keys + HULL_ROWS - 1) / HULL_ROWS)), 0);
    order.list[(int64_t)c * order.tiles + atomicAdd(&order.count[c], 1)] = {
        row, u.solid, {0, 0}, {u.any[0], u.any[1], u.any[2], u.any[3]}};
}

/* The i-th of all lists. */
static __device__ inline const TileRows *tile_rows_at(const TileOrder &order, int i)
{
    int c = 0, n = order.count[0];
    while (i >= n) i -= n, n = order.count[++c];
    return &order.list[(int64_t)c * order.tiles + i];
}

/* The last block of the grid to call it clears the counts for the next kernel; one thread of
 * each. */
static __device__ inline void order_close(const TileOrder &order)
{
    __threadfence();
    if (atomicAdd(&order.count[ORDER_DONE], 1) != (int)gridDim.x - 1) return;
    for (int i = 0; i < ORDER_COUNTS; i++) order.count[i] = 0;
}

#endif
