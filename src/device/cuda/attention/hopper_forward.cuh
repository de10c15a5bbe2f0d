/* hopper_forward.cuh -- shared memory and the loading warps of the forward kernel
 * (hopper_forward.cu).
 *
 * A tile has 64 query rows of one head for each consumer warpgroup. Its blocks of BN keys come in
 * falling order, each placed so that it ends at the last key that is left to see: no key between
 * two ranges is loaded.
 *
 *     planner    tile, tile, ...               takes tiles from the order, with their hulls
 *     loader     Q | K V | K V | ...           into rings of STAGES blocks; a tile ahead with Q
 *     checker        V   | V   | ...           sets unseen rows of V to 0, which may hold NaN
 *     group 0        S =====S= PV --softmax-- S= PV --softmax--      S: scores of the next block
 *     group 1        (waits) S =====S= PV --softmax-- S= PV          PV: values of the last one
 *
 * Tiles are taken in classes of falling work from one counter, heads innermost, so that heads that
 * share keys run at the same time and short tiles fill the end. */
#ifndef DEVICE_CUDA_ATTENTION_HOPPER_FORWARD_CUH
#define DEVICE_CUDA_ATTENTION_HOPPER_FORWARD_CUH

#include "device/cuda/attention/tiles.cuh"
#include "device/cuda/hopper.cuh"
#include "device/cuda/wgmma.cuh"

enum { WARPGROUP = 128, BOX_CHANNELS = 64, BOX_ROW = 128, N_TILES = 3, N_QUERIES = 2 };

/* D channels; GROUPS consumer warpgroups; blocks of BN keys; a ring of STAGES of them. */
template <int D_, int GROUPS_, int BN_, int STAGES_> struct ForwardShape {
    enum { D = D_, GROUPS = GROUPS_, BN = BN_, STAGES = STAGES_ };
    enum { BM = GROUPS * 64, BOXES = D / BOX_CHANNELS, THREADS = (GROUPS + 1) * WARPGROUP };
    enum { Q_BOX = BM * BOX_ROW, K_BOX = BN * BOX_ROW, Q_BYTES = BOXES * Q_BOX };
    enum { BLOCK_BYTES = BOXES * K_BOX };
    enum { BARRIERS = 2 * N_TILES + 2 * N_QUERIES + 5 * STAGES };
    enum { RING_BYTES = N_QUERIES * Q_BYTES + 2 * STAGES * BLOCK_BYTES };
    enum { NOTE_BYTES = 192 * N_TILES + 16 * STAGES };
    enum { BYTES = 1024 + RING_BYTES + 8 * BARRIERS + 16 + NOTE_BYTES };
    /* The registers of a thread of each warpgroup are together at most those at the launch. */
    enum { CONSUMER_REGS = GROUPS == 2 ? 232 : 160, LOADER_REGS = GROUPS == 2 ? 40 : 32 };
};

typedef struct {
    Attention a;
    CUtensorMap q, k, v, o;
    bool boxes; /* o is stored by TMA */
} ForwardArgs;

/* A tile; row -1: no more tiles. In shared memory it has the hull of each warpgroup's rows. */
typedef struct {
    TileRows rows;
    int head;
} ForwardTile;
typedef struct {
    ForwardTile tile;
    BlockHull hull[3];
} TileNote;

/* A block: its first key, which may be negative, and flags. */
typedef struct {
    int key, flags;
} BlockNote;

/* Flags of a block: of warpgroup g, shifted by 4 g; and of all. */
enum { SEES = 1, FULL = 2, ENDS = 4, LAST = 1 << 16, CLEAR = 1 << 17, CLEAR_BY_ROW = 1 << 18 };

/* Shared memory addresses. */
template <class F> struct ForwardShared {
    uint32_t q, k, v;
    uint32_t tile_full, tile_empty, q_full, q_empty;
    uint32_t k_full, k_empty, v_full, v_empty, v_clean;
    TileNote *tiles;
    BlockNote *blocks; /* of K, then of V */

    __device__ inline explicit ForwardShared(char *raw)
    {
        const uint32_t at = shared_at(raw);
        q = (at + 1023) & ~1023u;
        k = q + N_QUERIES * F::Q_BYTES;
        v = k + F::STAGES * F::BLOCK_BYTES;
        tile_full = v + F::STAGES * F::BLOCK_BYTES;
        tile_empty = tile_full + 8 * N_TILES;
        q_full = tile_empty + 8 * N_TILES;
        q_empty = q_full + 8 * N_QUERIES;
        k_full = q_empty + 8 * N_QUERIES;
        k_empty = k_full + 8 * F::STAGES;
        v_full = k_empty + 8 * F::STAGES;
        v_empty = v_full + 8 * F::STAGES;
        v_clean = v_empty + 8 * F::STAGES;
        tiles = (TileNote *)(raw + ((v_clean + 8 * F::STAGES - at + 15) & ~15u));
        blocks = (BlockNote *)(tiles + N_TILES);
    }
    __device__ inline void open() const
    {
        for (int i = 0; i < N_TILES; i++) {
            mbarrier_init(tile_full + 8 * i, 1);
            mbarrier_init(tile_empty + 8 * i, 4 * F::GROUPS + 2); /* warps */
        }
        for (int i = 0; i < N_QUERIES; i++) {
            mbarrier_init(q_full + 8 * i, 1);
            mbarrier_init(q_empty + 8 * i, F::GROUPS);
        }
        for (int i = 0; i < F::STAGES; i++) {
            mbarrier_init(k_full + 8 * i, 1);
            mbarrier_init(k_empty + 8 * i, F::GROUPS);
            mbarrier_init(v_full + 8 * i, 1);
            mbarrier_init(v_empty + 8 * i, F::GROUPS);
            mbarrier_init(v_clean + 8 * i, 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
};

/* A position in a ring and the parity of its phase. */
template <int N> struct StageRing {
    int at = 0, phase = 0;
    __device__ inline void next()
    {
        if (++at < N) return;
        at = 0;
        phase ^= 1;
    }
};

/* The value of lane 0: the compiler then knows that branches on it are taken by whole warps. */
static __device__ inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

/* Reads the next tile; all threads of a warp. */
template <class F>
static __device__ inline ForwardTile tile_take(const ForwardShared<F> &r, StageRing<N_TILES> &ring)
{
    mbarrier_wait(r.tile_full + 8 * ring.at, ring.phase);
    ForwardTile tile = r.tiles[ring.at].tile;
    tile.rows.row = uniform(tile.rows.row);
    tile.head = uniform(tile.head);
    if (threadIdx.x % 32 == 0) mbarrier_arrive(r.tile_empty + 8 * ring.at);
    ring.next();
    return tile;
}

/* Whether some row of the tile sees a key. */
static __device__ inline bool has_blocks(const ForwardTile &tile)
{
    return uniform(!range_empty(tile.rows.any) || !range_empty(tile.rows.any + 2));
}

#endif
