/* hopper_backward.cu -- the kernel of the gradient of attention for sm_90a; its roles are drawn in
 * hopper_backward.cuh. */
#include "device/cuda/attention/hopper_backward_group.cuh"
#include "device/cuda/pdl.cuh"

/* The registers of a warpgroup: sums of the item; scores and their gradients of a tile, being
 * multiplied when the work on the tile begins. */
template <class B> struct GroupSums {
    float dk[B::D / 2], dv[B::D / 2], s[B::BM / 2], dp[B::BM / 2];
};

/* Begins s = k q' of tile n of queries. */
template <class B>
static __device__ inline void scores_begin(BackwardShared<B> &m, const GroupState &g, int n,
                                           GroupSums<B> &r)
{
    const int at = ring_at(n);
    mbarrier_wait(shared_at(&m.q_full[at]), ring_phase(n));
    wgmma_fence();
    channels_multiply<B>(r.s, g.k + g.mine, shared_at(m.q[at]));
}

/* Begins dp = v dout' of tile n. */
template <class B>
static __device__ inline void slopes_begin(BackwardShared<B> &m, const GroupState &g, int n,
                                           GroupSums<B> &r)
{
    const int at = ring_at(n);
    mbarrier_wait(shared_at(&m.dout_full[at]), ring_phase(n));
    if (m.note[at].blind) blind_clear<B>(m.q[at], m.dout[at], m.range[at], g.group);
    wgmma_fence();
    channels_multiply<B>(r.dp, shared_at(m.v) + g.mine, shared_at(m.dout[at]));
}

/* Begins the dq of tile n, whose ds both groups have stored. */
template <class B>
static __device__ inline void dq_begin(float (&dq)[32], BackwardShared<B> &m, const GroupState &g,
                                       int n)
{
    mbarrier_wait(shared_at(&m.ds_full[ring_at(n)]), ring_phase(n));
    wgmma_fence();
    keys_multiply<B>(dq, shared_at(m.ds[ring_at(n)]), g.k, g.group);
}

/* Adds the dq of tile n to sum `at`, once all but the last PENDING multiplications are done. */
template <class B, int PENDING>
static __device__ inline void dq_end(float (&dq)[32], BackwardShared<B> &m, const GroupState &g,
                                     int n, float *sums, int at)
{
    wgmma_wait<PENDING>();
    accumulators_fence(dq);
    warp_arrive(&m.ds_empty[ring_at(n)]);
    dq_add(dq, sums + (2 * (int64_t)at + g.group) * DQ_PART);
}

/* The groups multiply in turns: while one does, the other computes weights. */
static __device__ inline void turn_take(const GroupState &g)
{
    named_sync(2 + g.group, GROUPS * GROUP_THREADS);
}

static __device__ inline void turn_pass(const GroupState &g)
{
    named_arrive(3 - g.group, GROUPS * GROUP_THREADS);
}

/* One tile of queries, the FIRST or LAST of an item. previous: index of the sums of the one before
 * it. Returns that of this one. */
template <class B, bool FIRST, bool LAST>
static __device__ inline int tile_run(const BackwardArgs &args, BackwardShared<B> &m, GroupState &g,
                                      GroupSums<B> &r, int key, int previous)
{
    const int n = g.n, at = ring_at(n);
    const QueryNote note = m.note[at];
    uint32_t p[B::BM / 16][4], ds[B::BM / 16][4];
    float dq[32];
    weights_of<B>(r.s, m.lse[at], m.range[at], args.a.scale * LOG2E, note.partial, key);
    wgmma_wait<0>();
    accumulators_fence(r.dp);
    if (LAST) warp_arrive(&m.v_empty);
    slopes_of<B>(r.s, r.dp, m.delta[at], g.unseen);
    operands_of(r.s, p);
    operands_of(r.dp, ds);
    if (B::SUMS) {
        mbarrier_wait(shared_at(&m.ds_empty[ring_at(n)]), ring_phase(n) ^ 1);
        slopes_store<B>(ds, m.ds[ring_at(n)], g);
        tma_store_fence();
        warp_arrive(&m.ds_full[ring_at(n)]);
    }
    turn_take(g);
    if (!FIRST && B::SUMS) dq_begin<B>(dq, m, g, n - 1);
    wgmma_fence();
    queries_multiply<B>(r.dv, p, shared_at(m.dout[at]), !FIRST);
    queries_multiply<B>(r.dk, ds, shared_at(m.q[at]), !FIRST);
    if (!FIRST && B::SUMS) dq_end<B, 2>(dq, m, g, n - 1, args.sum, previous);
    wgmma_wait<1>();
    warp_arrive(&m.dout_empty[at]);
    if (!LAST) {
        scores_begin<B>(m, g, n + 1, r);
        wgmma_wait<1>();
        warp_arrive(&m.q_empty[at]);
        slopes_begin<B>(m, g, n + 1, r);
    }
    turn_pass(g);
    if (!LAST) {
        wgmma_wait<1>();
        accumulators_fence(r.s);
    }
    if (LAST) {
        wgmma_wait<0>();
        accumulators_fence(r.dk);
        accumulators_fence(r.dv);
        warp_arrive(&m.q_empty[at]);
    }
    g.n++;
    return note.sum;
}

/* The tiles of an item, one or more. key: the first of this thread. */
template <class B>
static __device__ inline void tiles_run(const BackwardArgs &args, BackwardShared<B> &m,
                                        GroupState &g, GroupSums<B> &r, int tiles, int key)
{
    float dq[32];
    int last = -1;
    scores_begin<B>(m, g, g.n, r);
    slopes_begin<B>(m, g, g.n, r);
    wgmma_wait<1>();
    accumulators_fence(r.s);
    if (tiles > 1) {
        last = tile_run<B, true, false>(args, m, g, r, key, last);
#pragma unroll 1
        for (int i = 2; i < tiles; i++) last = tile_run<B, false, false>(args, m, g, r, key, last);
        last = tile_run<B, false, true>(args, m, g, r, key, last);
    } else
        last = tile_run<B, true, true>(args, m, g, r, key, last);
    if (!B::SUMS) return;
    dq_begin<B>(dq, m, g, g.n - 1);
    dq_end<B, 0>(dq, m, g, g.n - 1, args.sum, last);
}

/* All items of a block. */
template <class B>
static __device__ inline void group_run(const BackwardArgs &args, BackwardShared<B> &m,
                                        GroupState &g)
{
    if (g.group == 1) turn_pass(g);
#pragma unroll 1
    for (;; g.items++) {
        GroupSums<B> r;
        const int at = ring_at(g.items);
        mbarrier_wait(shared_at(&m.k_full[at]), ring_phase(g.items));
        ItemNote item = m.item[at];
        item.tiles = __shfl_sync(~0u, item.tiles, 0);
        if (item.tiles < 0) break;
        const int row = item.tile * KEYS + 64 * g.group;
        g.k = shared_at(m.k[at]);
        g.unseen = !item.all_seen;
        if (g.unseen) unseen_clear<B>(m.k[at], args.seen[item.tile]);
        mbarrier_wait(shared_at(&m.v_full), g.items % 2);
        if (item.tiles > 0) {
            tiles_run<B>(args, m, g, r, item.tiles, row + 16 * g.warp + g.lane / 4);
        } else {
            warp_arrive(&m.v_empty);
#pragma unroll
            for (int i = 0; i < B::D / 2; i++) r.dk[i] = r.dv[i] = 0;
        }
        warp_arrive(&m.k_empty[at]);
        sums_store(r.dk, args.a.dk, row, item.head, 0, args.a.scale, args.a.keep[1]);
        sums_store(r.dv, args.a.dv, row, item.head, 0, 1, args.a.keep[2]);
    }
    if (g.group == 0) turn_take(g);
}

template <class B>
static __global__ void __launch_bounds__(BACKWARD_THREADS, 1)
    backward_kernel(const __grid_constant__ BackwardArgs args)
{
    extern __shared__ char raw[];
    BackwardShared<B> &m = *(BackwardShared<B> *)(((uintptr_t)raw + 1023) / 1024 * 1024);
    const int group = threadIdx.x / GROUP_THREADS, warp = threadIdx.x / 32 % GROUP_WARPS;
    if (threadIdx.x == 0) backward_init<B>(m);
    __syncthreads();
    pdl_wait();
    if (group == GROUPS) {
        setmaxnreg_dec<24>();
        if (warp == 0) produce<B>(args, m);
        if (warp == 1 && threadIdx.x % 32 == 0) items_take<B>(args, m);
    } else {
        setmaxnreg_inc<240>();
        GroupState g = {group, warp, (int)(threadIdx.x % 32),   0, 0,
                        false, 0,    64 * 128 * (uint32_t)group};
        group_run<B>(args, m, g);
    }
}

template <class B> static Err backward_launch(const Call *call, const BackwardArgs &args)
{
    const int bytes = (int)sizeof(BackwardShared<B>) + 1024;
    static_assert(sizeof(BackwardShared<B>) + 1024 <= 227 * 1024, "shared memory of a block");
    CUDA_TRY(cudaFuncSetAttribute(backward_kernel<B>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  bytes));
    const LaunchShape shape = {dim3((unsigned)args.blocks), dim3(BACKWARD_THREADS), (size_t)bytes};
    return pdl_launch(backward_kernel<B>, shape, call->queue, args);
}

template <int D, int BM> static Err backward_choose(const Call *call, const BackwardArgs &args)
{
    return args.sum ? backward_launch<Backward<D, BM, true>>(call, args)
                    : backward_launch<Backward<D, BM, false>>(call, args);
}

Err backward_kernel_run(const Call *call, const BackwardArgs &args)
{
    return args.a.c == 64 ? backward_choose<64, 128>(call, args)
                          : backward_choose<128, 64>(call, args);
}
