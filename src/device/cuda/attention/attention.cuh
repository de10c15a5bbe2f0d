/* attention.cuh -- shared by the attention kernels: the call's arguments, hulls of the mask, and
 * bf16 tiles in shared memory for the tensor cores.
 *
 *            keys ->                                 A mask is two ranges of keys per row. The hull
 *     queries     0  [tile][    ][    ][    ]        of 64 rows bounds the keys that any of them
 *                64  [tile][tile][    ][    ]        sees and the keys that all of them see. Tiles
 *               128  [    ][tile][tile][    ]        that no row sees are skipped; tiles that all
 *                                                    rows see need no mask.
 *
 * Keys that no row sees may hold anything, also NaN. A weight of 0 would not keep a NaN out of the
 * sum, so the rows of such keys are set to 0 in shared memory, in masked tiles. */
#ifndef DEVICE_CUDA_ATTENTION_ATTENTION_CUH
#define DEVICE_CUDA_ATTENTION_ATTENTION_CUH

#include "device/cuda/value.cuh"

typedef __nv_bfloat16 bf16;

enum { MAX_CHANNELS = 256 };

#define LOG2E 1.44269504088896340736f

/* Two ranges each, relative to the first key of this block of keys. any: [lo, hi) of the union over
 * the rows; all: of the intersection. solid: bit k is set if the union of range k has no gap. */
typedef struct {
    int any[4], all[4];
    int solid;
} __align__(16) BlockHull;
static_assert(sizeof(BlockHull) == HULL_BYTES, "as planned");

/* Rows of tiles in the order in which a persistent kernel takes them (tiles.cuh). */
enum { ORDER_NEXT = WORK_CLASSES, ORDER_DONE, ORDER_COUNTS };
enum { TILE_COUNTS_AT = 32 }; /* of a queue's counters, of which the ticket is the first */
typedef struct {
    int row, solid; /* the first row; solid and any: of the hull of the rows */
    int pad[2];
    int any[4];
} __align__(16) TileRows;
static_assert(sizeof(TileRows) == TILE_ROWS_BYTES, "as planned");

typedef struct {
    TileRows *list; /* [WORK_CLASSES, tiles] */
    int *count;     /* [ORDER_COUNTS]: of each class; tiles taken; blocks done. 0 between kernels */
    int tiles;      /* rows of tiles */
    int tile_rows;  /* 0: no order */
} TileOrder;

typedef struct {
    Tensor q, k, v, ranges, o, lse, dout, dq, dk, dv;
    const float *delta; /* [t, h] dense: sum over channels of dout * o */
    int t, s, h, g, c;  /* queries, keys, heads, key heads, channels */
    int key_at, group, head_at;
    int heads_each, keys_each; /* heads and key heads of a sequence */
    float scale, keep[3];
    bool carry;            /* o and lse hold those of other blocks of keys */
    bool wide;             /* rows of q, k, v, dout can be copied 16 bytes at a time */
    const BlockHull *hull; /* one per HULL_ROWS queries */
    TileOrder order;
} Attention;

/* attention.cu: the arguments of a call, without hulls and delta. `several`: the heads of an
 * operand x[t,h,c] are those of h / n[3] sequences, stride[3] apart. */
void attention_arguments(const Call *call, bool backward, bool several, Attention *out);
/* attention.cu: also computes the hulls, and delta, in scratch, and the order of tiles of some
 * rows, a multiple of HULL_ROWS; 0: no order. */
Err attention_open(const Call *call, KernelId id, bool backward, bool several, int tile_rows,
                   Attention *out);
/* f32.cu: f32, without tensor cores. */
Err attention_f32(const Call *call, const Attention &a);
Err attention_dx_f32(const Call *call, const Attention &a);
/* bf16.cu, dx_bf16.cu: on the tensor cores. */
Err attention_bf16(const Call *call, const Attention &a);
Err attention_dx_bf16(const Call *call, const Attention &a);
/* dx_bf16.cu: dq alone. */
Err attention_dq_bf16(const Call *call, const Attention &a);

static __device__ inline bool hull_sees(const BlockHull &u, int from, int to)
{
    return (u.any[0] < to && u.any[1] > from) || (u.any[2] < to && u.any[3] > from);
}

/* True if every row sees all of [from, to), by one of its two ranges. */
static __device__ inline bool hull_full(const BlockHull &u, int from, int to)
{
    return (u.all[0] <= from && u.all[1] >= to) || (u.all[2] <= from && u.all[3] >= to);
}

/* First tile of BN keys, from the one at `key` on, that a row sees; `end` or more if there is
 * none. */
template <int BN> static __device__ inline int hull_next_tile(const BlockHull &u, int key, int end)
{
    while (key < end && !hull_sees(u, key, key + BN)) key += BN;
    return key;
}

/* The hull of no rows. */
static __device__ inline BlockHull hull_nothing()
{
    return {{INT_MAX, 0, INT_MAX, 0}, {0, INT_MAX, 0, INT_MAX}, 3};
}

static __device__ inline BlockHull hull_join(const BlockHull &a, const BlockHull &b)
{
    BlockHull u;
    u.solid = a.solid & b.solid;
    for (int r = 0; r < 4; r += 2) {
        u.any[r] = min(a.any[r], b.any[r]);
        u.any[r + 1] = max(a.any[r + 1], b.any[r + 1]);
        u.all[r] = max(a.all[r], b.all[r]);
        u.all[r + 1] = min(a.all[r + 1], b.all[r + 1]);
    }
    return u;
}

/* The two ranges of a row relative to the first key, clipped to the keys of this block. A row past
 * the end sees nothing. */
static __device__ inline int4 row_ranges(const Attention &a, int row)
{
    int4 r = make_int4(0, 0, 0, 0);
    if (row >= a.t) return r;
    if (!a.ranges.data) { /* attention_along: keys of the row's own sequence */
        r.x = row / (int)a.ranges.stride[0] * (int)a.ranges.stride[1];
        r.y = min(r.x + (int)a.ranges.stride[1], a.s);
        return r;
    }
    const int32_t *at = (const int32_t *)a.ranges.data + row * a.ranges.stride[0];
    const int64_t step = a.ranges.stride[1];
    r.x = max(at[0] - a.key_at, 0), r.y = min(at[step] - a.key_at, a.s);
    r.z = max(at[2 * step] - a.key_at, 0), r.w = min(at[3 * step] - a.key_at, a.s);
    return r;
}

/* The hull of one row; a row past the end changes nothing. */
static __device__ inline BlockHull row_hull(const Attention &a, int row, const int4 &r)
{
    BlockHull u;
    const int lo[2] = {r.x, r.z}, hi[2] = {r.y, r.w};
    u.solid = 3;
    for (int k = 0; k < 2; k++) {
        const bool some = lo[k] < hi[k], past = row >= a.t;
        u.any[2 * k] = some ? lo[k] : INT_MAX;
        u.any[2 * k + 1] = some ? hi[k] : 0;
        u.all[2 * k] = past ? 0 : some ? lo[k] : INT_MAX;
        u.all[2 * k + 1] = past ? INT_MAX : some ? hi[k] : 0;
    }
    return u;
}

static __device__ inline bool row_sees(const int4 &r, int key)
{
    return (key >= r.x && key < r.y) || (key >= r.z && key < r.w);
}

static __device__ inline bool row_sees_any(const int4 &r, int from, int to)
{
    return max(r.x, from) < min(r.y, to) || max(r.z, from) < min(r.w, to);
}

/* 2^x in one instruction; denormals become 0. */
static __device__ inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Shares of two parts with sums exp(a) and exp(b); returns the log of the total. A part without
 * keys (-inf) has share 0; both may be such. */
static __device__ inline float merge_shares(float a, float b, float share[2])
{
    const bool no_a = a == -INFINITY, no_b = b == -INFINITY;
    share[0] = no_a ? 0 : no_b ? 1 : 1 / (1 + expf(b - a));
    share[1] = no_b ? 0 : no_a ? 1 : 1 / (1 + expf(a - b));
    if (no_a || no_b) return fmaxf(a, b);
    return fmaxf(a, b) + log1pf(expf(-fabsf(a - b)));
}

static __device__ inline int64_t head_offset(const Tensor &x, int row, int head)
{
    const int each = (int)x.n[3];
    int64_t at = row * x.stride[0];
    if (head >= each) at += head / each * x.stride[3], head %= each;
    return at + head * x.stride[1];
}

static __device__ inline int key_head_of(const Attention &a, int head)
{
    return head / a.heads_each * a.keys_each + (a.head_at + head % a.heads_each) / a.group;
}

/* The query heads [x, y) that read a key head; none if y <= x. */
static __device__ inline int2 key_readers_of(const Attention &a, int source)
{
    const int first = source / a.keys_each * a.heads_each, each = min(a.heads_each, a.h);
    const int at = source % a.keys_each * a.group - a.head_at;
    return make_int2(first + max(at, 0), first + min(at + a.group, each));
}

/* Elements from row to row of a tile in shared memory: D channels and 16 bytes of padding, so that
 * eight rows of a matrix are in different banks. */
template <int D> struct Pitch {
    enum { N = D + 8 };
};

static __device__ inline uint32_t shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

static __device__ inline void copy_async(void *to, const void *from, bool live)
{
    const int bytes = live ? 16 : 0; /* the rest of the 16 is filled with zeros */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes));
}

static __device__ inline void copies_commit() { asm volatile("cp.async.commit_group;\n" ::); }
template <int N> static __device__ inline void copies_wait()
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N));
}

/* Copies rows [row, row + R) of a head of x[n, heads, c]; zeros past the last row and channel. A
 * thread copies eight channels of every STEP-th row, so its addresses need one multiplication, then
 * additions. */
template <int D, int R, int THREADS>
static __device__ inline void tile_load(const Attention &a, const Tensor &x, int row, int head,
                                        bf16 *tile)
{
    enum { PIECES = D / 8, STEP = THREADS / PIECES };
    const int first = threadIdx.x / PIECES, c = threadIdx.x % PIECES * 8;
    const int live = c < a.c ? min((int)x.n[0] - row, R) : 0; /* rows that exist */
    const bf16 *from = (const bf16 *)x.data;
    bf16 *to = tile + first * Pitch<D>::N + c;
    if (first < live) from += head_offset(x, row + first, head) + c * x.stride[2];
    const int64_t step = STEP * x.stride[0];
#pragma unroll
    for (int r = first; r < R; r += STEP, from += step, to += STEP * Pitch<D>::N) {
        if (a.wide) {
            copy_async(to, r < live ? from : (const bf16 *)x.data, r < live);
        } else {
            for (int e = 0; e < 8; e++)
                to[e] = r < live && c + e < a.c ? from[e * x.stride[2]] : __float2bfloat16(0.f);
        }
    }
}

/* Copies the tiles of K and V at `key` of one key head to a stage of shared memory. */
template <int D, int BN, int THREADS, class Shared>
static __device__ inline void keys_load(const Attention &a, int key, int source, Shared &smem,
                                        int stage)
{
    tile_load<D, BN, THREADS>(a, a.k, key, source, smem.k[stage]);
    tile_load<D, BN, THREADS>(a, a.v, key, source, smem.v[stage]);
}

template <int D> static __device__ inline void tile_clear_row(bf16 *tile, int row)
{
    for (int c = 0; c < D; c += 8)
        *(uint4 *)(tile + row * Pitch<D>::N + c) = make_uint4(0, 0, 0, 0);
}

/* Four 8 x 8 matrices, each transposed if `transposed`. */
static __device__ inline void matrices_load(uint32_t m[4], const bf16 *at, bool transposed)
{
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(shared_address(at)));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(shared_address(at)));
}

/* d[16, 8] += a[16, 16] b[16, 8]. A thread holds rows lane / 4 and 8 + lane / 4 of the 16 x 8
 * result, columns 2 (lane % 4) and the next: d[0], d[1], then d[2], d[3]. */
static __device__ inline void multiply_add(float d[4], const uint32_t a[4], uint32_t b0,
                                           uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The 16 x 16 operand a at (row, column) of a tile. */
template <int D>
static __device__ inline void operand_a(uint32_t m[4], const bf16 *tile, int row, int column)
{
    const int lane = threadIdx.x % 32;
    matrices_load(m, tile + (row + lane % 16) * Pitch<D>::N + column + lane / 16 * 8, false);
}

/* Two adjacent 16 x 8 operands b with b[k][n] = tile[n][k]. */
template <int D>
static __device__ inline void operand_b_rows(uint32_t m[4], const bf16 *tile, int n, int k)
{
    const int lane = threadIdx.x % 32;
    matrices_load(m, tile + (n + lane / 16 * 8 + lane % 8) * Pitch<D>::N + k + lane / 8 % 2 * 8,
                  false);
}

/* Two adjacent 16 x 8 operands b with b[k][n] = tile[k][n]. */
template <int D>
static __device__ inline void operand_b_columns(uint32_t m[4], const bf16 *tile, int k, int n)
{
    const int lane = threadIdx.x % 32;
    matrices_load(m, tile + (k + lane % 16) * Pitch<D>::N + n + lane / 16 * 8, true);
}

/* s[M][N / 8] += a[16 M, D] b[N, D]' for the 16 M rows of a from `row` on; the M blocks share the
 * loads of b. */
template <int D, int N, int M>
static __device__ inline void multiply_rows(float s[M][N / 8][4], const bf16 *a, int row,
                                            const bf16 *b)
{
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t ma[M][4], mb[4];
#pragma unroll
        for (int m = 0; m < M; m++) operand_a<D>(ma[m], a, row + 16 * m, k);
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            operand_b_rows<D>(mb, b, n, k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(s[m][n / 8], ma[m], mb[0], mb[1]);
                multiply_add(s[m][n / 8 + 1], ma[m], mb[2], mb[3]);
            }
        }
    }
}

/* Packs the weights of 16 rows and N columns as operands a, one per 16 columns. */
template <int N>
static __device__ inline void weights_pack(const float p[N / 8][4], uint32_t m[N / 16][4])
{
#pragma unroll
    for (int i = 0; i < N / 16; i++) {
        m[i][0] = bf16_pair(p[2 * i][0], p[2 * i][1]);
        m[i][1] = bf16_pair(p[2 * i][2], p[2 * i][3]);
        m[i][2] = bf16_pair(p[2 * i + 1][0], p[2 * i + 1][1]);
        m[i][3] = bf16_pair(p[2 * i + 1][2], p[2 * i + 1][3]);
    }
}

/* sum[M][C / 8] += w[16 M, N] b[N, C], channels [at, at + C) of a tile. */
template <int D, int N, int C, int M>
static __device__ inline void
multiply_weights(float sum[M][C / 8][4], const uint32_t w[M][N / 16][4], const bf16 *b, int at)
{
#pragma unroll
    for (int k = 0; k < N; k += 16)
#pragma unroll
        for (int c = 0; c < C; c += 16) {
            uint32_t mb[4];
            operand_b_columns<D>(mb, b, k, at + c);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(sum[m][c / 8], w[m][k / 16], mb[0], mb[1]);
                multiply_add(sum[m][c / 8 + 1], w[m][k / 16], mb[2], mb[3]);
            }
        }
}

/* Channels c and c + 1 of a head's row: x = keep * x + value, stored as one word if aligned. */
static __device__ inline void pair_keep(const Tensor &x, int64_t row, int c, float keep, float v0,
                                        float v1)
{
    const int64_t at = row + c * x.stride[2];
    if (keep == 0 && x.dtype == BF16 && x.stride[2] == 1 && c + 1 < x.n[2] &&
        ((uintptr_t)x.data + 2 * at) % 4 == 0) {
        *(uint32_t *)((bf16 *)x.data + at) = bf16_pair(v0, v1);
        return;
    }
    if (c < x.n[2]) value_keep(x.data, x.dtype, at, keep, v0);
    if (c + 1 < x.n[2]) value_keep(x.data, x.dtype, at + x.stride[2], keep, v1);
}

/* Sets the rows of b to 0, keys from `key` on, that none of the R rows sees. The last rows see
 * most, so they are checked first. */
template <int D, int R, int N>
static __device__ inline void clear_unseen(bf16 *b, const int4 *ranges, int key)
{
    if (threadIdx.x < N) {
        bool seen = false;
        for (int r = R - 1; r >= 0 && !seen; r--) seen = row_sees(ranges[r], key + threadIdx.x);
        if (!seen) tile_clear_row<D>(b, threadIdx.x);
    }
    __syncthreads();
}

#endif
