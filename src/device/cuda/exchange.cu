/* exchange.cu -- the rows that ranks send to the experts of other ranks; device/exchange.h draws
 * them. Counts stay on the device: the host takes no part. Rows without room stop the device, with
 * a message that names the key. */
#include <cstdio>
#include "device/cuda/context.h"
#include "device/cuda/cuda.h"
#include "device/cuda/value.cuh"

static const int THREADS = 256;

typedef struct {
    Tensor a, b, out;
    int64_t ep, etp, part, room, each; /* each: experts of a part */
    int64_t round;
} ExchangeArgs;

static __device__ inline int32_t int_of(const Tensor &t, int64_t i, int64_t k)
{
    return ((const int32_t *)t.data)[i * t.stride[0] + k * t.stride[1]];
}

static __device__ inline int32_t offset_of(const Tensor &t, int64_t e)
{
    return ((const int32_t *)t.data)[e * t.stride[0]];
}

/* As exchange_before of device/exchange.h, of `all` in t. */
static __device__ inline int32_t before(const ExchangeArgs &a, const Tensor &t, int64_t s,
                                        int64_t e)
{
    const int64_t n = int_of(t, s, e) - int_of(t, s, a.part * a.each) - a.round * a.room;
    return (int32_t)(n < 0 ? 0 : n < a.room ? n : a.room);
}

static __global__ void room_kernel(const __grid_constant__ ExchangeArgs a)
{
    const int64_t p = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (p >= a.ep) return;
    const int32_t n = offset_of(a.b, (p + 1) * a.each) - offset_of(a.b, p * a.each);
    if (n <= a.room) return;
    printf("%d rows of this rank are for experts %lld to %lld, whose rank has room for %lld of "
           "them; raise parallel.expert_rows\n",
           n, (long long)(p * a.each), (long long)((p + 1) * a.each - 1), (long long)a.room);
    __trap();
}

static __global__ void __launch_bounds__(THREADS)
    send_kernel(const __grid_constant__ ExchangeArgs a)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.a.n[0] * a.a.n[1]) return;
    const int64_t t = i / a.a.n[1], k = i % a.a.n[1];
    const int32_t row = int_of(a.a, t, k);
    int64_t lo = 0, hi = a.ep - 1;
    while (lo < hi) {
        const int64_t mid = (lo + hi + 1) / 2;
        if (offset_of(a.b, mid * a.each) <= row)
            lo = mid;
        else
            hi = mid - 1;
    }
    const int64_t in_part = row - offset_of(a.b, lo * a.each);
    const bool goes = row >= 0 && in_part / a.room == a.round;
    ((int32_t *)a.out.data)[t * a.out.stride[0] + k * a.out.stride[1]] =
        goes ? (int32_t)(lo * a.room + in_part % a.room) : -1;
}

/* A thread per offset. */
static __global__ void sum_kernel(const __grid_constant__ ExchangeArgs a)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, first = a.part * a.each;
    int32_t sum = 0;
    if (e >= a.out.n[0]) return;
    for (int64_t s = 0; s < a.a.n[0]; s++) sum += before(a, a.a, s, first + e);
    ((int32_t *)a.out.data)[e * a.out.stride[0]] = sum;
}

/* A block per piece: the rows of one local expert that one rank sends. */
template <typename T, bool collect>
static __global__ void __launch_bounds__(THREADS)
    copy_kernel(const __grid_constant__ ExchangeArgs a)
{
    const int64_t s = blockIdx.x / a.each, e = blockIdx.x % a.each, first = a.part * a.each;
    const int64_t own = before(a, a.b, s, first + e), n = before(a, a.b, s, first + e + 1) - own;
    const int64_t in_room = ((s % a.etp) * a.ep + s / a.etp) * a.room + own;
    int64_t at = 0;
    for (int64_t r = 0; r < a.b.n[0]; r++) at += before(a, a.b, r, first + e + (r < s));
    const int64_t from = collect ? in_room : at, to = collect ? at : in_room;
    const int64_t d = a.a.n[1];
    for (int64_t i = threadIdx.x; i < n * d; i += THREADS)
        ((T *)a.out.data)[(to + i / d) * a.out.stride[0] + i % d] =
            ((const T *)a.a.data)[(from + i / d) * a.a.stride[0] + i % d];
}

/* A block per part: the rows of it that have returned. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    return_kernel(const __grid_constant__ ExchangeArgs a)
{
    const int64_t part = blockIdx.x, d = a.a.n[1];
    const int64_t first = offset_of(a.b, part * a.each) + a.round * a.room;
    const int64_t left = offset_of(a.b, (part + 1) * a.each) - first;
    const int64_t n = left < a.room ? left : a.room;
    for (int64_t i = threadIdx.x; i < n * d; i += THREADS)
        ((T *)a.out.data)[(first + i / d) * a.out.stride[0] + i % d] =
            ((const T *)a.a.data)[(part * a.room + i / d) * a.a.stride[0] + i % d];
}

static ExchangeArgs args_of(const Call *call, int64_t offsets)
{
    ExchangeArgs a = {};
    a.a = call->in[0], a.out = call->out[0];
    if (call->n_in > 1) a.b = call->in[1];
    a.ep = call->attr.exchange.ep, a.etp = call->attr.exchange.etp;
    a.part = call->attr.exchange.part, a.room = call->attr.exchange.room;
    a.each = (offsets - 1) / a.ep;
    a.round = call->attr.exchange.round;
    return a;
}

static unsigned blocks(int64_t n) { return (unsigned)((n + THREADS - 1) / THREADS); }

extern "C" Err cuda_send_rows(const Call *call)
{
    const ExchangeArgs a = args_of(call, call->in[1].n[0]);
    const int64_t choices = a.a.n[0] * a.a.n[1];
    TRY(cuda_begin(call, KERNEL_send_rows));
    if (!call->attr.exchange.rounds)
        room_kernel<<<blocks(a.ep), THREADS, 0, call->queue->stream>>>(a);
    if (choices > 0) send_kernel<<<blocks(choices), THREADS, 0, call->queue->stream>>>(a);
    return cuda_launched(KERNEL_send_rows);
}

extern "C" Err cuda_sum_offsets(const Call *call)
{
    const ExchangeArgs a = args_of(call, call->in[0].n[1]);
    TRY(cuda_begin(call, KERNEL_sum_offsets));
    sum_kernel<<<blocks(a.out.n[0]), THREADS, 0, call->queue->stream>>>(a);
    return cuda_launched(KERNEL_sum_offsets);
}

template <bool collect> static Err copy_rows(const Call *call, KernelId id)
{
    const ExchangeArgs a = args_of(call, call->in[1].n[1]);
    const unsigned pieces = (unsigned)(a.b.n[0] * a.each);
    const cudaStream_t stream = call->queue->stream;
    TRY(cuda_begin(call, id));
    if (a.a.n[1] == 0 || pieces == 0) return OK;
    if (dtype_bytes(a.a.dtype) == 2)
        copy_kernel<uint16_t, collect><<<pieces, THREADS, 0, stream>>>(a);
    else if (dtype_bytes(a.a.dtype) == 4)
        copy_kernel<uint32_t, collect><<<pieces, THREADS, 0, stream>>>(a);
    else
        copy_kernel<uint64_t, collect><<<pieces, THREADS, 0, stream>>>(a);
    return cuda_launched(id);
}

extern "C" Err cuda_collect_rows(const Call *call)
{
    return copy_rows<true>(call, KERNEL_collect_rows);
}

extern "C" Err cuda_spread_rows(const Call *call)
{
    return copy_rows<false>(call, KERNEL_spread_rows);
}

extern "C" Err cuda_return_rows(const Call *call)
{
    const ExchangeArgs a = args_of(call, call->in[1].n[0]);
    const unsigned parts = (unsigned)a.ep;
    const cudaStream_t stream = call->queue->stream;
    TRY(cuda_begin(call, KERNEL_return_rows));
    if (a.a.n[1] == 0) return OK;
    if (dtype_bytes(a.a.dtype) == 2)
        return_kernel<uint16_t><<<parts, THREADS, 0, stream>>>(a);
    else if (dtype_bytes(a.a.dtype) == 4)
        return_kernel<uint32_t><<<parts, THREADS, 0, stream>>>(a);
    else
        return_kernel<uint64_t><<<parts, THREADS, 0, stream>>>(a);
    return cuda_launched(KERNEL_return_rows);
}
