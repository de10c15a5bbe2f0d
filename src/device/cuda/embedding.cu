/* embedding.cu -- gathers rows of a table by id, and sums gradients back into those rows.
 *
 * The table may be a shard of the vocabulary: rows base .. base + v. Ids of other shards give
 * zeros, so the shards add up to the whole.
 *
 * The gradient is a sum in token order without atomics. Tokens are sorted by id with a stable sort,
 * and the sorted list is split into strips of 32. A run of one id inside a strip is summed and
 * added to dw. The part of a run that crosses the ends of its strip goes to scratch:
 *
 *     sorted ids   2 2 2 5 5 7 | 7 7 7 7 7 7 | 7 9 9 9 ..      strips of 6
 *                  direct  ^head of 7 ^ all 7   ^tail, direct
 *
 * The strip with the head of a run then adds the tails of the following strips. A single frequent
 * id is thus no bottleneck. */
#include <cub/device/device_radix_sort.cuh>

#include "device/cuda/value.cuh"

enum { THREADS = 256, STRIP = EMBEDDING_STRIP, PREFETCH = 4 };

typedef struct {
    Tensor ids, w, y;
    int64_t base, pieces; /* pieces: of a row */
} LookUp;

template <int W>
static __global__ void __launch_bounds__(THREADS) look_up_kernel(const __grid_constant__ LookUp l)
{
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t t = index / l.pieces, i = index % l.pieces;
    if (t >= l.y.n[0]) return;
    const int64_t id = ((const int32_t *)l.ids.data)[t * l.ids.stride[0]] - l.base;
    float x[W] = {};
    if (id >= 0 && id < l.w.n[0])
        piece_floats(piece_load<W>(l.w.data, l.w.dtype, id * l.w.stride[0] + i * W * l.w.stride[1]),
                     l.w.dtype, x);
    piece_store<W>(l.y.data, l.y.dtype, t * l.y.stride[0] + i * W * l.y.stride[1], x);
}

extern "C" Err cuda_embedding(const Call *call)
{
    LookUp l = {call->in[0], call->in[1], call->out[0], call->attr.vocab.base, 0};
    TRY(cuda_begin(call, KERNEL_embedding));
    if (tensor_count(&l.y) == 0) return OK;
    const bool wide = walk_rows_wide(&l.y) && (walk_rows_wide(&l.w) || l.w.n[0] == 0);
    l.pieces = l.y.n[1] / (wide ? WALK_WIDE : 1);
    const unsigned blocks = (unsigned)blocks_of(l.y.n[0] * l.pieces, THREADS);
    if (wide)
        look_up_kernel<WALK_WIDE><<<blocks, THREADS, 0, call->queue->stream>>>(l);
    else
        look_up_kernel<1><<<blocks, THREADS, 0, call->queue->stream>>>(l);
    return cuda_launched(KERNEL_embedding);
}

typedef struct {
    Tensor dy, dw;
    const int32_t *id, *token; /* sorted rows of dw, ids of other shards last; their tokens */
    int64_t tokens, width;
    float *head, *tail; /* [strips, width]: run that leaves the strip; that enters it */
} EmbeddingFold;

/* Keys and values of the sort. Ids of other shards sort after all others. */
static __global__ void keys_kernel(Tensor ids, int64_t base, int64_t rows, int32_t *key,
                                   int32_t *token)
{
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= ids.n[0]) return;
    const int64_t id = ((const int32_t *)ids.data)[t * ids.stride[0]] - base;
    key[t] = id >= 0 && id < rows ? (int32_t)id : (int32_t)rows;
    token[t] = (int32_t)t;
}

/* Adds a sum to W columns of a row of dw. */
template <int W>
static __device__ inline void add_to(const Tensor &dw, int64_t row, int64_t column, const float *x)
{
    const int64_t at = row * dw.stride[0] + column * dw.stride[1];
    float sum[W];
    piece_floats(piece_load<W>(dw.data, dw.dtype, at), dw.dtype, sum);
#pragma unroll
    for (int e = 0; e < W; e++) sum[e] += value_round(dw.dtype, x[e]);
    piece_store<W>(dw.data, dw.dtype, at, sum);
}

/* A thread sums W columns of one strip. Positions are uniform in a block; the rows of PREFETCH
 * tokens are loaded before the first is added. */
template <int W> static __global__ void strip_kernel(const __grid_constant__ EmbeddingFold f)
{
    const int64_t column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * W, strip = blockIdx.x;
    const int64_t from = strip * STRIP, to = min(from + STRIP, f.tokens);
    __shared__ int32_t id[STRIP], token[STRIP];
    if (threadIdx.x < STRIP && from + threadIdx.x < to) {
        id[threadIdx.x] = f.id[from + threadIdx.x];
        token[threadIdx.x] = f.token[from + threadIdx.x];
    }
    __syncthreads();
    if (column >= f.width) return;
    const int n = (int)(to - from);
    const bool enters = from > 0 && f.id[from - 1] == id[0];
    const bool leaves = to < f.tokens && f.id[to] == id[n - 1];
    const int64_t side = strip * f.width + column;
    float sum[W] = {};
    bool first = true;
    for (int at = 0; at < n; at += PREFETCH) {
        PackedElements<W> row[PREFETCH];
#pragma unroll
        for (int k = 0; k < PREFETCH; k++)
            if (at + k < n)
                row[k] = piece_load<W>(f.dy.data, f.dy.dtype,
                                       token[at + k] * f.dy.stride[0] + column * f.dy.stride[1]);
#pragma unroll
        for (int k = 0; k < PREFETCH; k++) {
            const int i = at + k;
            if (i >= n) break;
            if (id[i] >= f.dw.n[0]) return; /* the rest are ids of other shards */
            float x[W];
            piece_floats(row[k], f.dy.dtype, x);
#pragma unroll
            for (int e = 0; e < W; e++) sum[e] += x[e];
            if (i + 1 < n && id[i + 1] == id[i]) continue;
            if (first && enters) /* a strip that is one run with an earlier head is a tail */
                piece_store<W>(f.tail, F32, side, sum);
            else if (i + 1 == n && leaves)
                piece_store<W>(f.head, F32, side, sum);
            else
                add_to<W>(f.dw, id[i], column, sum);
            first = false;
#pragma unroll
            for (int e = 0; e < W; e++) sum[e] = 0;
        }
    }
}

/* Runs that cross strips: the strip with the head adds the following tails. */
template <int W> static __global__ void cross_kernel(const __grid_constant__ EmbeddingFold f)
{
    const int64_t column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * W, strip = blockIdx.x;
    const int64_t from = strip * STRIP, last = from + STRIP - 1;
    if (column >= f.width || last + 1 >= f.tokens) return;
    const int32_t id = f.id[last];
    if (id >= f.dw.n[0] || f.id[last + 1] != id) return;              /* no run leaves */
    if (from > 0 && f.id[from] == id && f.id[from - 1] == id) return; /* its head is earlier */
    float sum[W], x[W];
    piece_floats(piece_load<W>(f.head, F32, strip * f.width + column), F32, sum);
    for (int64_t s = strip + 1; s * STRIP < f.tokens && f.id[s * STRIP] == id; s++) {
        piece_floats(piece_load<W>(f.tail, F32, s * f.width + column), F32, x);
#pragma unroll
        for (int e = 0; e < W; e++) sum[e] += x[e];
    }
    add_to<W>(f.dw, id, column, sum);
}

/* dw = keep * dw, before anything is added. */
static Err scale_dw(const Call *call)
{
    const Tensor *dw = &call->out[0];
    Call scale = {};
    if (call->number[0] == 1) return OK;
    if (call->number[0] == 0 && dw->stride[1] == 1 && dw->stride[0] == dw->n[1]) {
        CUDA_TRY(cudaMemsetAsync(dw->data, 0, (size_t)tensor_count(dw) * dtype_bytes(dw->dtype),
                                 call->queue->stream));
        return OK;
    }
    scale.in[0] = scale.out[0] = *dw;
    scale.n_in = scale.n_out = 1;
    scale.queue = call->queue;
    scale.attr.scale.factor = call->number[0];
    return call->number[0] == 0 ? cuda_zero(&scale) : cuda_scale(&scale);
}

static int bits_of(int64_t n)
{
    int bits = 1;
    while (n >> bits) bits++;
    return bits;
}

/* Scratch: that of the sort, two lists before and after it, heads and tails. */
static Err sort_ids(const Call *call, EmbeddingFold *f)
{
    const cudaStream_t stream = call->queue->stream;
    const EmbeddingScratch of = embedding_scratch(f->tokens, f->width);
    const size_t list = of.list, part = of.part;
    const int bits = bits_of(f->dw.n[0]), n = (int)f->tokens;
    size_t sort_bytes = 0;
    char *at;
    int32_t *none = NULL;
    CUDA_TRY(cub::DeviceRadixSort::SortPairs(NULL, sort_bytes, none, none, none, none, n, 0, bits,
                                             stream));
    if (sort_bytes > of.sort)
        return err_fail(ERR_CHECK,
                        "cuda: the sort of %d tokens takes %zu bytes of scratch, %zu were planned; "
                        "this is a bug of Sheaf",
                        n, sort_bytes, of.sort);
    TRY(cuda_scratch(call->queue, embedding_scratch_bytes(&of), (void **)&at));
    int32_t *key = (int32_t *)at, *token = (int32_t *)(at + list);
    f->id = (const int32_t *)(at + 2 * list);
    f->token = (const int32_t *)(at + 3 * list);
    f->head = (float *)(at + 4 * list);
    f->tail = (float *)(at + 4 * list + part);
    keys_kernel<<<(unsigned)blocks_of(n, THREADS), THREADS, 0, stream>>>(
        call->in[1], call->attr.vocab.base, f->dw.n[0], key, token);
    CUDA_TRY(cub::DeviceRadixSort::SortPairs(at + 4 * list + 2 * part, sort_bytes, key,
                                             (int32_t *)f->id, token, (int32_t *)f->token, n, 0,
                                             bits, stream));
    return cuda_launched(KERNEL_embedding_dw);
}

extern "C" Err cuda_embedding_dw(const Call *call)
{
    EmbeddingFold f = {};
    f.dy = call->in[0], f.dw = call->out[0];
    f.tokens = f.dy.n[0], f.width = f.dw.n[1];
    TRY(cuda_begin(call, KERNEL_embedding_dw));
    if (tensor_count(&f.dw) == 0) return OK;
    TRY(scale_dw(call));
    if (f.tokens == 0) return OK;
    TRY(sort_ids(call, &f));
    const bool wide = walk_rows_wide(&f.dy) && walk_rows_wide(&f.dw);
    const int64_t pieces = wide ? f.width / WALK_WIDE : f.width;
    const unsigned threads = pieces >= 128 ? 128 : pieces > 64 ? 96 : 64;
    const dim3 grid((unsigned)blocks_of(f.tokens, STRIP), (unsigned)blocks_of(pieces, threads));
    if (wide) {
        strip_kernel<WALK_WIDE><<<grid, threads, 0, call->queue->stream>>>(f);
        cross_kernel<WALK_WIDE><<<grid, threads, 0, call->queue->stream>>>(f);
    } else {
        strip_kernel<1><<<grid, threads, 0, call->queue->stream>>>(f);
        cross_kernel<1><<<grid, threads, 0, call->queue->stream>>>(f);
    }
    return cuda_launched(KERNEL_embedding_dw);
}
