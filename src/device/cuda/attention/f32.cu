/* f32.cu -- attention and its gradient in f32 without tensor cores: for exactness, not for speed.
 *
 * The loops are those of bf16.cu and dx_bf16.cu, in tiles of 16 owned and 32 streamed rows; eight
 * threads share a row and take every eighth channel.
 *
 *     forward, dq    own 16 queries of a head       stream keys
 *     dk, dv         own 16 keys of a key head      stream queries of the heads that read it */
#include "device/cuda/attention/attention.cuh"

enum { OWN = 16, PASS = 32, THREADS = 128, EACH = MAX_CHANNELS / 8 };

/* Rows [row, row + R) of a head as floats, [R][pitch]; zeros past the end. */
template <int R>
static __device__ inline void rows_load(const Attention &a, const Tensor &x, int row, int head,
                                        float *to)
{
    const int pitch = a.c + 1;
    for (int i = threadIdx.x; i < R * a.c; i += THREADS) {
        const int r = i / a.c, c = i % a.c;
        to[r * pitch + c] =
            row + r < x.n[0]
                ? value_get(x.data, x.dtype, head_offset(x, row + r, head) + c * x.stride[2])
                : 0;
    }
}

static __device__ inline float dot(const float *x, const float *y, int n)
{
    float sum = 0;
#pragma unroll 4
    for (int c = 0; c < n; c++) sum += x[c] * y[c];
    return sum;
}

/* Sum and maximum over the eight threads of a row. */
static __device__ inline float sum_of_row(float x)
{
    for (int step = 4; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

static __device__ inline float max_of_row(float x)
{
    for (int step = 4; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

static __global__ void __launch_bounds__(THREADS)
    forward_kernel(const __grid_constant__ Attention a)
{
    extern __shared__ float shared[];
    const int pitch = a.c + 1, row = blockIdx.x * OWN, head = blockIdx.y;
    float *q = shared, *k = q + OWN * pitch, *v = k + PASS * pitch, *p = v + PASS * pitch;
    const int i = threadIdx.x / 8, lane = threadIdx.x % 8, source = key_head_of(a, head);
    const BlockHull u = a.hull[row / HULL_ROWS];
    const int4 r = row_ranges(a, row + i);
    float row_max = -INFINITY, total = 0, o[EACH] = {};
    rows_load<OWN>(a, a.q, row, head, q);
    if (a.carry && row + i < a.t)
        row_max = ((const float *)a.lse.data)[head_offset(a.lse, row + i, head)];
    if (row_max != -INFINITY) { /* carried on */
        total = 1;
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (lane + 8 * e < a.c)
                o[e] = value_get(a.o.data, a.o.dtype,
                                 head_offset(a.o, row + i, head) + (lane + 8 * e) * a.o.stride[2]);
    }
    __syncwarp(); /* all have read the lse that one of them writes */
    for (int key = 0; key < max(u.any[1], u.any[3]); key += PASS) {
        if (!hull_sees(u, key, key + PASS)) continue;
        __syncthreads();
        rows_load<PASS>(a, a.k, key, source, k);
        rows_load<PASS>(a, a.v, key, source, v);
        __syncthreads();
        float high = row_max, sum = 0;
        for (int j = lane; j < PASS; j += 8) {
            const float s =
                row_sees(r, key + j) ? a.scale * dot(q + i * pitch, k + j * pitch, a.c) : -INFINITY;
            p[i * PASS + j] = s;
            high = fmaxf(high, s);
        }
        high = max_of_row(high);
        const float base = high == -INFINITY ? 0 : high, shrink = expf(row_max - base);
        for (int j = lane; j < PASS; j += 8) sum += p[i * PASS + j] = expf(p[i * PASS + j] - base);
        total = total * shrink + sum_of_row(sum);
        row_max = high;
        __syncwarp();
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (lane + 8 * e >= a.c) break;
            o[e] *= shrink;
#pragma unroll 1
            for (int j = 0; j < PASS; j++) /* a weight of 0 is a key that is not seen */
                if (p[i * PASS + j] != 0) o[e] += p[i * PASS + j] * v[j * pitch + lane + 8 * e];
        }
    }
    if (row + i >= a.t) return;
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (lane + 8 * e < a.c)
            value_set(a.o.data, a.o.dtype,
                      head_offset(a.o, row + i, head) + (lane + 8 * e) * a.o.stride[2],
                      total == 0 ? 0 : o[e] / total);
    if (lane == 0)
        ((float *)a.lse.data)[head_offset(a.lse, row + i, head)] =
            total == 0 ? -INFINITY : row_max + logf(total);
}

/* p and ds of a pair that is seen. */
static __device__ inline float2 pair_slopes(const Attention &a, float s, float dp, float lse,
                                            float delta)
{
    const float p = lse == -INFINITY ? 0 : expf(a.scale * s - lse);
    return make_float2(p, p == 0 ? 0 : p * (dp - delta) * a.scale);
}

static __global__ void __launch_bounds__(THREADS) dq_kernel(const __grid_constant__ Attention a)
{
    extern __shared__ float shared[];
    const int pitch = a.c + 1, row = blockIdx.x * OWN, head = blockIdx.y;
    float *q = shared, *dout = q + OWN * pitch, *k = dout + OWN * pitch, *v = k + PASS * pitch;
    float *ds = v + PASS * pitch;
    const int i = threadIdx.x / 8, lane = threadIdx.x % 8, source = key_head_of(a, head);
    const BlockHull u = a.hull[row / HULL_ROWS];
    const int4 r = row_ranges(a, row + i);
    const bool live = row + i < a.t;
    const float lse =
        live ? ((const float *)a.lse.data)[head_offset(a.lse, row + i, head)] : -INFINITY;
    const float delta = live ? a.delta[(int64_t)(row + i) * a.h + head] : 0;
    float sum[EACH] = {};
    rows_load<OWN>(a, a.q, row, head, q);
    rows_load<OWN>(a, a.dout, row, head, dout);
    for (int key = 0; key < max(u.any[1], u.any[3]); key += PASS) {
        if (!hull_sees(u, key, key + PASS)) continue;
        __syncthreads();
        rows_load<PASS>(a, a.k, key, source, k);
        rows_load<PASS>(a, a.v, key, source, v);
        __syncthreads();
        for (int j = lane; j < PASS; j += 8) {
            float2 pair = make_float2(0, 0);
            if (row_sees(r, key + j))
                pair = pair_slopes(a, dot(q + i * pitch, k + j * pitch, a.c),
                                   dot(dout + i * pitch, v + j * pitch, a.c), lse, delta);
            ds[i * PASS + j] = pair.y;
        }
        __syncwarp();
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (lane + 8 * e >= a.c) break;
#pragma unroll 1
            for (int j = 0; j < PASS; j++)
                if (ds[i * PASS + j] != 0) sum[e] += ds[i * PASS + j] * k[j * pitch + lane + 8 * e];
        }
    }
    if (!live) return;
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (lane + 8 * e < a.c)
            value_keep(a.dq.data, a.dq.dtype,
                       head_offset(a.dq, row + i, head) + (lane + 8 * e) * a.dq.stride[2],
                       a.keep[0], sum[e]);
}

static __global__ void __launch_bounds__(THREADS) dkv_kernel(const __grid_constant__ Attention a)
{
    extern __shared__ float shared[];
    const int pitch = a.c + 1, key = blockIdx.x * OWN, source = blockIdx.y;
    float *k = shared, *v = k + OWN * pitch, *q = v + OWN * pitch, *dout = q + PASS * pitch;
    /* 96 rows precede it, an even number of floats */
    float2 *slopes = (float2 *)(dout + PASS * pitch);
    const int j = threadIdx.x / 8, lane = threadIdx.x % 8;
    const int2 readers = key_readers_of(a, source);
    float dk[EACH] = {}, dv[EACH] = {};
    rows_load<OWN>(a, a.k, key, source, k);
    rows_load<OWN>(a, a.v, key, source, v);
    for (int head = readers.x; head < readers.y; head++)
        for (int row = 0; row < a.t; row += PASS) {
            if (!hull_sees(a.hull[row / HULL_ROWS], key, key + OWN)) continue;
            __syncthreads();
            rows_load<PASS>(a, a.q, row, head, q);
            rows_load<PASS>(a, a.dout, row, head, dout);
            __syncthreads();
            for (int i = lane; i < PASS; i += 8) {
                float2 pair = make_float2(0, 0);
                if (row_sees(row_ranges(a, row + i), key + j))
                    pair =
                        pair_slopes(a, dot(q + i * pitch, k + j * pitch, a.c),
                                    dot(dout + i * pitch, v + j * pitch, a.c),
                                    ((const float *)a.lse.data)[head_offset(a.lse, row + i, head)],
                                    a.delta[(int64_t)(row + i) * a.h + head]);
                slopes[j * PASS + i] = pair;
            }
            __syncwarp();
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                if (lane + 8 * e >= a.c) break;
#pragma unroll 1
                for (int i = 0; i < PASS; i++) {
                    const float2 pair = slopes[j * PASS + i];
                    if (pair.y != 0) dk[e] += pair.y * q[i * pitch + lane + 8 * e];
                    if (pair.x != 0) dv[e] += pair.x * dout[i * pitch + lane + 8 * e];
                }
            }
        }
    if (key + j >= a.k.n[0]) return;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int c = lane + 8 * e;
        if (c >= a.c) break;
        value_keep(a.dk.data, a.dk.dtype, head_offset(a.dk, key + j, source) + c * a.dk.stride[2],
                   a.keep[1], dk[e]);
        value_keep(a.dv.data, a.dv.dtype, head_offset(a.dv, key + j, source) + c * a.dv.stride[2],
                   a.keep[2], dv[e]);
    }
}

/* Bytes of shared memory for `rows` rows and `numbers` floats per pair of a tile. */
static int smem_bytes(const Attention &a, int rows, int numbers)
{
    return (int)sizeof(float) * (rows * (a.c + 1) + numbers * OWN * PASS);
}

Err attention_f32(const Call *call, const Attention &a)
{
    const int bytes = smem_bytes(a, OWN + 2 * PASS, 1);
    TRY(cuda_shared(call, KERNEL_attention, (const void *)forward_kernel, (size_t)bytes));
    forward_kernel<<<dim3((unsigned)blocks_of(a.t, OWN), (unsigned)a.h), THREADS, bytes,
                     call->queue->stream>>>(a);
    return cuda_launched(KERNEL_attention);
}

Err attention_dx_f32(const Call *call, const Attention &a)
{
    const cudaStream_t stream = call->queue->stream;
    const int bytes = smem_bytes(a, 2 * OWN + 2 * PASS, 2);
    TRY(cuda_shared(call, KERNEL_attention_dx, (const void *)dq_kernel, (size_t)bytes));
    TRY(cuda_shared(call, KERNEL_attention_dx, (const void *)dkv_kernel, (size_t)bytes));
    if (a.t > 0 && a.h > 0)
        dq_kernel<<<dim3((unsigned)blocks_of(a.t, OWN), (unsigned)a.h), THREADS, bytes, stream>>>(
            a);
    if (a.k.n[0] > 0 && a.g > 0)
        dkv_kernel<<<dim3((unsigned)blocks_of(a.k.n[0], OWN), (unsigned)a.g), THREADS, bytes,
                     stream>>>(a);
    return cuda_launched(KERNEL_attention_dx);
}
