/* hopper_forward_group.cuh -- a consumer warpgroup of the forward kernel.
 *
 * It has 64 query rows. While it turns the scores of a block into weights, the tensor cores
 * multiply for the others: the groups take turns in issuing their products. The products of a turn
 * are the scores of the next block and the values of the last. */
#ifndef DEVICE_CUDA_ATTENTION_HOPPER_FORWARD_GROUP_CUH
#define DEVICE_CUDA_ATTENTION_HOPPER_FORWARD_GROUP_CUH

#include "device/cuda/attention/hopper_forward.cuh"
#include "device/cuda/attention/hopper_softmax.cuh"

#define LN2 0.69314718055994530942f

/* Named barriers: turns of the groups, then threads of each group. */
enum { TURN = 1, GROUP = 5 };

/* Issues s = q k' of a group's rows and a block. */
template <class F>
static __device__ inline void issue_scores(float (&s)[F::BN / 2], uint32_t q, uint32_t k)
{
#pragma unroll
    for (int c = 0; c < F::D; c += 16) {
        const uint32_t box = c / BOX_CHANNELS, at = c % BOX_CHANNELS * 2;
        wgmma_add<0, 0>(s, matrix_descriptor(q + box * F::Q_BOX + at),
                        matrix_descriptor(k + box * F::K_BOX + at), c > 0);
    }
    wgmma_commit();
}

/* Issues o = keep o + p v. */
template <class F>
static __device__ inline void issue_values(float (&o)[F::D / 2], const uint32_t (&p)[F::BN / 16][4],
                                           uint32_t v, int keep)
{
#pragma unroll
    for (int i = 0; i < F::BN / 16; i++)
        wgmma_add_registers<1>(o, p[i], matrix_descriptor(v + i * 16 * BOX_ROW, F::K_BOX),
                               i > 0 ? 1 : keep);
    wgmma_commit();
}

/* A consumer warpgroup. */
template <class F> struct Consumer {
    const ForwardShared<F> &r;
    const ForwardArgs &args;
    int group;
    StageRing<F::STAGES> ring;
    uint32_t stored = 0; /* barrier of the q that the last o is stored from; 0: none */

    __device__ inline bool elected() const { return threadIdx.x % WARPGROUP == 0; }
    __device__ inline bool is(const BlockNote &note, int flag) const
    {
        return note.flags >> 4 * group & flag;
    }
    __device__ inline void turn_wait() const { named_sync(TURN + group, 2 * WARPGROUP); }
    __device__ inline void turn_pass() const
    {
        named_arrive(TURN + (group + 1) % F::GROUPS, 2 * WARPGROUP);
    }
    __device__ inline BlockNote keys_wait() const
    {
        mbarrier_wait(r.k_full + 8 * ring.at, ring.phase);
        const BlockNote note = r.blocks[ring.at];
        return {uniform(note.key), uniform(note.flags)};
    }
    __device__ inline void keys_done() const
    {
        if (elected()) mbarrier_arrive(r.k_empty + 8 * ring.at);
    }
    __device__ inline void values_wait(const StageRing<F::STAGES> &at) const
    {
        mbarrier_wait(r.v_clean + 8 * at.at, at.phase);
    }
    __device__ inline void values_done(const StageRing<F::STAGES> &at) const
    {
        if (elected()) mbarrier_arrive(r.v_empty + 8 * at.at);
    }

    /* Leaves out a block that this group does not see. */
    __device__ inline void skip()
    {
        turn_wait();
        turn_pass();
        named_sync(GROUP + group, WARPGROUP); /* all have read the note */
        if (elected()) values_wait(ring);
        keys_done();
        values_done(ring);
        ring.next();
    }

    /* Frees the q of the last tile when its o has been stored from there. */
    __device__ inline void query_done()
    {
        if (stored && elected()) {
            tma_stores_read<0>();
            mbarrier_arrive(stored);
        }
        stored = 0;
    }

    /* Masks and weighs the scores of a block. */
    __device__ inline void weigh_block(float (&s)[F::BN / 2], Rows &w, const BlockNote &note,
                                       const ForwardTile &tile) const
    {
        if (!is(note, FULL)) {
            const int row = row_of(tile);
            const int4 ranges[] = {row_ranges(args.a, row), row_ranges(args.a, row + 8)};
            mask_scores(s, ranges, note.key + 2 * (threadIdx.x % 4));
        }
        weigh(s, w, args.a.scale * LOG2E);
    }

    /* All blocks that the group sees, from the one of `note` on; returns the note of the last. */
    __device__ inline BlockNote attend(float (&o)[F::D / 2], Rows &w, uint32_t q, BlockNote note,
                                       const ForwardTile &tile)
    {
        float s[F::BN / 2];
        uint32_t p[F::BN / 16][4];
        const uint32_t k = r.k, v = r.v;
        const int4 ranges[] = {row_ranges(args.a, row_of(tile)),
                               row_ranges(args.a, row_of(tile) + 8)};
        turn_wait();
        wgmma_fence();
        issue_scores<F>(s, q, k + ring.at * F::BLOCK_BYTES);
        turn_pass();
        wgmma_wait<0>();
        accumulators_fence(s);
        keys_done();
        if (!is(note, FULL)) mask_scores(s, ranges, note.key + 2 * (threadIdx.x % 4));
        weigh(s, w, args.a.scale * LOG2E);
        query_done();
        pack(p, s);
        int keep = 0;
        while (!is(note, ENDS)) {
            const StageRing<F::STAGES> last = ring;
            ring.next();
            note = keys_wait();
            turn_wait();
            accumulators_fence(s);
            accumulators_fence(o);
            wgmma_fence();
            issue_scores<F>(s, q, k + ring.at * F::BLOCK_BYTES);
            values_wait(last);
            wgmma_fence();
            issue_values<F>(o, p, v + last.at * F::BLOCK_BYTES, keep);
            turn_pass();
            wgmma_wait<1>();
            accumulators_fence(s);
            keys_done();
            weigh_block(s, w, note, tile);
            wgmma_wait<0>();
            accumulators_fence(o);
            values_done(last);
            pack(p, s);
            rescale(o, w);
            keep = 1;
        }
        values_wait(ring);
        accumulators_fence(o);
        wgmma_fence();
        issue_values<F>(o, p, v + ring.at * F::BLOCK_BYTES, keep);
        wgmma_wait<0>();
        accumulators_fence(o);
        values_done(ring);
        ring.next();
        return note;
    }

    /* Ends the softmax: o becomes the mean of the values, merged with that of other keys. */
    __device__ inline void close_rows(float (&o)[F::D / 2], Rows &w, const ForwardTile &tile) const
    {
        const Attention &a = args.a;
        const float scale = a.scale * LOG2E;
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = row_of(tile) + 8 * half;
            float sum = w.sum[half], share[2] = {0, 1};
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            float lse = sum == 0 ? -INFINITY : LN2 * (w.row_max[half] * scale + log2f(sum));
            float *to = (float *)a.lse.data + head_offset(a.lse, t, tile.head);
            if (a.carry && t < a.t) lse = merge_shares(*to, lse, share);
            __syncwarp();
            if (lane % 4 == 0 && t < a.t) *to = lse;
            const float factor = sum > 0 ? share[1] / sum : sum; /* no key: 0; NaN stays */
            const int64_t at = head_offset(a.o, t, tile.head);
#pragma unroll
            for (int i = 2 * half; i < F::D / 2; i += 4) {
                o[i] *= factor;
                o[i + 1] *= factor;
                const int c = 2 * i - 4 * half + 2 * (lane % 4);
                if (share[0] != 0 && c < a.c) {
                    o[i] += share[0] * value_get(a.o.data, a.o.dtype, at + c * a.o.stride[2]);
                    o[i + 1] +=
                        share[0] * value_get(a.o.data, a.o.dtype, at + (c + 1) * a.o.stride[2]);
                }
            }
        }
    }

    /* The first of the thread's two rows. */
    __device__ inline int row_of(const ForwardTile &tile) const
    {
        return tile.rows.row + group * 64 + threadIdx.x % WARPGROUP / 32 * 16 +
               threadIdx.x % 32 / 4;
    }

    /* Stores o through the group's rows of q, which are no longer needed. */
    __device__ inline void store_boxes(const float (&o)[F::D / 2], uint32_t q,
                                       const ForwardTile &tile) const
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x % WARPGROUP / 32;
        const int row = warp * 16 + lane % 16;
        named_sync(GROUP + group, WARPGROUP);
#pragma unroll
        for (int i = 0; i < F::D / 16; i++) { /* 16 columns: two pieces of 16 bytes */
            const uint32_t piece = i % 4 * 2 + lane / 16;
            uint32_t x[4];
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = bf16x2_pack(o[8 * i + 2 * e], o[8 * i + 2 * e + 1]);
            stmatrix(q + i / 4 * F::Q_BOX + row * BOX_ROW + ((piece ^ row % 8) << 4), x);
        }
        tma_store_fence();
        named_sync(GROUP + group, WARPGROUP);
        if (elected() && tile.rows.row + group * 64 < args.a.t)
            for (int i = 0; i < F::BOXES; i++)
                tma_store_3d(&args.o, q + i * F::Q_BOX, i * BOX_CHANNELS, tile.head,
                             tile.rows.row + group * 64);
    }

    __device__ inline void store_rows(const float (&o)[F::D / 2], const ForwardTile &tile) const
    {
        const Attention &a = args.a;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = row_of(tile) + 8 * half;
            if (t >= a.t) continue;
            const int64_t at = head_offset(a.o, t, tile.head);
#pragma unroll
            for (int i = 2 * half; i < F::D / 2; i += 4)
                pair_keep(a.o, at, 2 * i - 4 * half + 2 * (threadIdx.x % 4), 0, o[i], o[i + 1]);
        }
    }

    __device__ inline void run_tile(const ForwardTile &tile, uint32_t q)
    {
        float o[F::D / 2];
        Rows w;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            w.row_max[half] = -INFINITY;
            w.sum[half] = 0;
        }
        BlockNote note = {0, LAST};
        const bool some = has_blocks(tile);
        if (some) note = keys_wait();
        while (some && !is(note, SEES) && !(note.flags & LAST)) {
            skip();
            note = keys_wait();
        }
        if (is(note, SEES)) {
            note = attend(o, w, q, note, tile);
        } else {
#pragma unroll
            for (int i = 0; i < F::D / 2; i++) o[i] = 0;
            if (some) skip();
        }
        while (!(note.flags & LAST)) {
            note = keys_wait();
            skip();
        }
        close_rows(o, w, tile);
        if (args.boxes)
            store_boxes(o, q, tile);
        else
            store_rows(o, tile);
    }

    __device__ inline void run()
    {
        StageRing<N_TILES> tiles;
        StageRing<N_QUERIES> queries;
        if (group == F::GROUPS - 1) turn_pass(); /* the first turn is that of group 0 */
        for (;;) {
            const ForwardTile tile = tile_take(r, tiles);
            if (tile.rows.row < 0) break;
            mbarrier_wait(r.q_full + 8 * queries.at, queries.phase);
            run_tile(tile, r.q + queries.at * F::Q_BYTES + group * 64 * BOX_ROW);
            query_done(); /* if the tile had no block */
            stored = r.q_empty + 8 * queries.at;
            queries.next();
        }
        if (elected()) tma_stores_done();
    }
};

#endif
