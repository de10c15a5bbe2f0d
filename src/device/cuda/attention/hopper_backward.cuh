/* hopper_backward.cuh -- arguments, shared memory and barriers of the backward kernel
 * (hopper_backward.cu), and its producer roles.
 *
 * A work item is a tile of 128 keys of one key head. Items are taken from a counter:
 *
 *     taking thread    the next item, while the last one is loaded
 *     producer warp    K and V of the item; Q, dO, lse and delta of each tile of queries that sees
 *                      a key of it, for all heads that share the key head
 *     2 warpgroups     64 keys each:  p = exp(k q' - lse)    ds = p (v dout' - delta)
 *                                     dv += p dout           dk += ds q
 *                      and half of dq = ds' k, from the ds of both, one tile of queries later, so
 *                      that the groups do not wait for each other. It is added to f32 sums in
 *                      device memory. */
#ifndef DEVICE_CUDA_ATTENTION_HOPPER_BACKWARD_CUH
#define DEVICE_CUDA_ATTENTION_HOPPER_BACKWARD_CUH

#include "device/cuda/attention/attention.cuh"
#include "device/cuda/hopper.cuh"
#include "device/cuda/wgmma.cuh"

enum { KEYS = BACKWARD_KEYS, STAGES = 2, GROUPS = 2, GROUP_THREADS = 128, GROUP_WARPS = 4 };
enum { BACKWARD_THREADS = (GROUPS + 1) * GROUP_THREADS };
enum { COLUMN_BOX = 128 * KEYS }; /* bytes of a box of 64 columns and KEYS rows */

/* Tiles of queries that see a tile of keys: their first and last, their number, and whether all
 * keys of the tile are seen. */
typedef struct {
    int first, last, count, all_seen;
} KeyColumn;

/* The first element of a head's row; all heads are of one sequence. */
static __device__ inline int64_t row_offset(const Tensor &x, int row, int head)
{
    return row * x.stride[0] + head * x.stride[1];
}

/* How the items are taken; written by the pass over the key tiles. */
typedef struct {
    int next;  /* the counter */
    int heads; /* key heads of a section of items; a section is small enough for the L2 cache */
} ItemOrder;

typedef struct {
    CUtensorMap q, k, v, dout;
    Attention a;
    int query_tiles, key_tiles, items, blocks;
    int cache_heads;   /* key heads whose queries fit into the L2 cache */
    float *sum;        /* [heads][query_tiles][2 parts] of dq, as a warpgroup holds them; or NULL */
    float *row;        /* [heads][query_tiles][lse log2(e), delta][rows of a tile] */
    int4 *range;       /* [query_tiles][rows]: first key and length of both ranges */
    BlockHull *hull;   /* [query_tiles] */
    KeyColumn *column; /* [key_tiles] */
    uint4 *seen;       /* [key_tiles]: one bit per key */
    int *order;        /* [key_tiles]: long columns first */
    ItemOrder *items_of;
    unsigned *ticket;
} BackwardArgs;

/* D channels; tiles of BM queries; whether dq is summed. */
template <int D_, int BM_, bool SUMS_> struct Backward {
    enum { D = D_, BM = BM_, SUMS = SUMS_ };
    enum { BOXES = D / 64, QUERY_BOX = 128 * BM, QUERY_BYTES = BOXES * QUERY_BOX };
    enum { KEY_BYTES = BOXES * COLUMN_BOX, DS_BOXES = BM / 64, DS_BYTES = DS_BOXES * COLUMN_BOX };
};

/* The stage of count n, and the parity of its phase. */
static __device__ inline int ring_at(int n) { return n % STAGES; }
static __device__ inline int ring_phase(int n) { return n / STAGES & 1; }

/* Notes of the producer to the consumers about a tile of queries. */
typedef struct {
    int sum;            /* index of its sums of dq */
    int partial, blind; /* needs a mask: of one range, or of 2; some rows see nothing */
} QueryNote;
typedef struct {
    int tile, head, tiles,
        all_seen; /* key tile, key head, query tiles to come; -1: no more items */
} ItemNote;

/* An item that has been taken; the query heads that read its key head. */
typedef struct {
    ItemNote item;
    KeyColumn column;
    int2 heads;
} ItemFound;

template <class B> struct BackwardShared {
    alignas(1024) char k[STAGES][B::KEY_BYTES];
    char v[B::KEY_BYTES];
    char q[STAGES][B::QUERY_BYTES], dout[STAGES][B::QUERY_BYTES], ds[STAGES][B::DS_BYTES];
    float lse[STAGES][B::BM], delta[STAGES][B::BM];
    int4 range[STAGES][B::BM];
    uint64_t found_full[STAGES], found_empty[STAGES], v_full, v_empty;
    uint64_t k_full[STAGES], k_empty[STAGES], q_full[STAGES], q_empty[STAGES];
    uint64_t dout_full[STAGES], dout_empty[STAGES], ds_full[STAGES], ds_empty[STAGES];
    ItemFound found[STAGES];
    ItemNote item[STAGES];
    QueryNote note[STAGES];
};

/* Barriers of a ring: arrivals that fill a stage, and that empty it. */
static __device__ inline void ring_init(uint64_t *full, uint64_t *empty, int fill, int drain,
                                        int stages)
{
    for (int i = 0; i < stages; i++) {
        mbarrier_init(shared_at(&full[i]), fill);
        mbarrier_init(shared_at(&empty[i]), drain);
    }
}

template <class B> static __device__ inline void backward_init(BackwardShared<B> &s)
{
    enum { WARPS = GROUPS * GROUP_WARPS };
    ring_init(s.found_full, s.found_empty, 1, 1, STAGES);
    ring_init(s.k_full, s.k_empty, 1, WARPS, STAGES);
    ring_init(&s.v_full, &s.v_empty, 1, WARPS, 1);
    ring_init(s.q_full, s.q_empty, 1, WARPS, STAGES);
    ring_init(s.dout_full, s.dout_empty, 1, WARPS, STAGES);
    ring_init(s.ds_full, s.ds_empty, WARPS, WARPS, STAGES);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* The position of item i: sections of heads; in a section long columns first, and the heads of a
 * column together. */
static __device__ inline void item_find(const BackwardArgs &args, int i, int *tile, int *head)
{
    const int heads = args.items_of->heads, each = heads * args.key_tiles, section = i / each;
    const int here = min(heads, args.a.g - section * heads), at = i - section * each;
    *tile = args.order[at / here];
    *head = section * heads + at % here;
}

/* The query heads of the call that read a key head. */
static __device__ inline int2 item_heads(const Attention &a, int head)
{
    return make_int2(max(head * a.group - a.head_at, 0),
                     min((head + 1) * a.group - a.head_at, a.h));
}

/* ---- producer warp ---- */

/* Loads the boxes of rows [row, ..) of a head. */
template <int BOXES, int BOX_BYTES>
static __device__ inline void rows_load(char *to, const CUtensorMap *from, int head, int row,
                                        uint32_t full)
{
#pragma unroll
    for (int b = 0; b < BOXES; b++)
        tma_load_3d(shared_at(to) + b * BOX_BYTES, from, 64 * b, head, row, full);
}

/* Loads tile `tile` of queries of a head, the n-th of this block. One thread. */
template <class B>
static __device__ inline void queries_load(const BackwardArgs &args, BackwardShared<B> &s, int n,
                                           int head, int tile, const QueryNote &note)
{
    const int at = ring_at(n), free = ring_phase(n) ^ 1;
    const uint32_t q_full = shared_at(&s.q_full[at]), dout_full = shared_at(&s.dout_full[at]);
    const float *row = args.row + (int64_t)note.sum * 2 * B::BM;
    mbarrier_wait(shared_at(&s.q_empty[at]), free);
    s.note[at] = note;
    mbarrier_expect_tx(q_full, B::QUERY_BYTES + 4 * B::BM + (note.partial ? 16 * B::BM : 0));
    rows_load<B::BOXES, B::QUERY_BOX>(s.q[at], &args.q, head, tile * B::BM, q_full);
    bulk_load(shared_at(s.lse[at]), row, 4 * B::BM, q_full);
    if (note.partial)
        bulk_load(shared_at(s.range[at]), args.range + (int64_t)tile * B::BM, 16 * B::BM, q_full);
    mbarrier_wait(shared_at(&s.dout_empty[at]), free);
    mbarrier_expect_tx(dout_full, B::QUERY_BYTES + 4 * B::BM);
    rows_load<B::BOXES, B::QUERY_BOX>(s.dout[at], &args.dout, head, tile * B::BM, dout_full);
    bulk_load(shared_at(s.delta[at]), row + B::BM, 4 * B::BM, dout_full);
}

/* Loads the tiles of queries of one head that see keys [key, key + KEYS); returns the new count. */
template <class B>
static __device__ inline int column_load(const BackwardArgs &args, BackwardShared<B> &s, int n,
                                         int head, const KeyColumn &column, int key)
{
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int first = column.first; first <= column.last; first += 32) {
        bool sees = false, full = false, blind = false, two = false;
        if (first + lane <= column.last) {
            const BlockHull u = args.hull[first + lane];
            sees = hull_sees(u, key, key + KEYS);
            full = hull_full(u, key, key + KEYS);
            two = u.any[2] != INT_MAX;
            blind = u.all[0] == INT_MAX && u.all[2] == INT_MAX;
        }
        uint32_t left = __ballot_sync(~0u, sees);
        const uint32_t fulls = __ballot_sync(~0u, full), blinds = __ballot_sync(~0u, blind);
        const uint32_t twos = __ballot_sync(~0u, two);
        for (; left; left &= left - 1, n++) {
            const int i = __ffs(left) - 1, tile = first + i;
            const QueryNote note = {head * args.query_tiles + tile,
                                    fulls >> i & 1 ? 0 : 1 + (int)(twos >> i & 1),
                                    (int)(blinds >> i & 1)};
            if (lane == 0) queries_load<B>(args, s, n, head, tile, note);
        }
        __syncwarp();
    }
    return n;
}

/* Loads K and V of item j of this block, or says that there is none. One thread. */
template <class B>
static __device__ inline void item_load(const BackwardArgs &args, BackwardShared<B> &s, int j,
                                        const ItemNote &item)
{
    const int at = ring_at(j);
    const uint32_t k_full = shared_at(&s.k_full[at]), v_full = shared_at(&s.v_full);
    mbarrier_wait(shared_at(&s.k_empty[at]), ring_phase(j) ^ 1);
    s.item[at] = item;
    if (item.tiles < 0) {
        mbarrier_arrive(k_full);
        return;
    }
    mbarrier_expect_tx(k_full, B::KEY_BYTES);
    rows_load<B::BOXES, COLUMN_BOX>(s.k[at], &args.k, item.head, item.tile * KEYS, k_full);
    mbarrier_wait(shared_at(&s.v_empty), j % 2 ^ 1);
    mbarrier_expect_tx(v_full, B::KEY_BYTES);
    rows_load<B::BOXES, COLUMN_BOX>(s.v, &args.v, item.head, item.tile * KEYS, v_full);
}

/* Takes items ahead of the producer. One thread. */
template <class B>
static __device__ inline void items_take(const BackwardArgs &args, BackwardShared<B> &s)
{
#pragma unroll 1
    for (int j = 0;; j++) {
        ItemFound f = {{0, 0, -1, 1}, {}, {}};
        mbarrier_wait(shared_at(&s.found_empty[ring_at(j)]), ring_phase(j) ^ 1);
        const int i = atomicAdd(&args.items_of->next, 1);
        if (i < args.items) {
            item_find(args, i, &f.item.tile, &f.item.head);
            f.column = args.column[f.item.tile];
            f.heads = item_heads(args.a, f.item.head);
            f.item.tiles = f.column.count * max(f.heads.y - f.heads.x, 0);
            f.item.all_seen = f.column.all_seen;
        }
        s.found[ring_at(j)] = f;
        mbarrier_arrive(shared_at(&s.found_full[ring_at(j)]));
        if (f.item.tiles < 0) return;
    }
}

template <class B>
static __device__ inline void produce(const BackwardArgs &args, BackwardShared<B> &s)
{
    const int lane = threadIdx.x % 32;
    int n = 0;
#pragma unroll 1
    for (int j = 0;; j++) {
        mbarrier_wait(shared_at(&s.found_full[ring_at(j)]), ring_phase(j));
        const ItemFound f = s.found[ring_at(j)];
        __syncwarp();
        if (lane == 0) {
            mbarrier_arrive(shared_at(&s.found_empty[ring_at(j)]));
            item_load<B>(args, s, j, f.item);
        }
        __syncwarp();
        if (f.item.tiles < 0) return;
        if (f.item.tiles == 0) continue;
#pragma unroll 1
        for (int head = f.heads.x; head < f.heads.y; head++)
            n = column_load<B>(args, s, n, head, f.column, f.item.tile * KEYS);
    }
}

/* hopper_backward.cu: the kernel, between the passes of hopper_backward_passes.cu. */
Err backward_kernel_run(const Call *call, const BackwardArgs &args);

#endif
