/* passes.cu -- attention in two passes that keeps its scores, and its gradients: a block of threads
 * for each row of an output. Attention without kept scores is faster; these kernels serve the plan
 * that it is compared with. */
#include "device/cuda/value.cuh"

enum { THREADS = 128 };

static __device__ inline float element(const Tensor &x, int64_t row, int64_t head, int64_t i)
{
    return value_get(x.data, x.dtype, row * x.stride[0] + head * x.stride[1] + i * x.stride[2]);
}

/* Copies a row to shared memory. */
static __device__ inline void load_row(const Tensor &x, int64_t row, int64_t head, float *to)
{
    for (int64_t i = threadIdx.x; i < x.n[2]; i += THREADS) to[i] = element(x, row, head, i);
    __syncthreads();
}

static __device__ inline float dot_row(const float *a, const Tensor &x, int64_t row, int64_t head)
{
    float sum = 0;
    for (int64_t i = 0; i < x.n[2]; i++) sum += a[i] * element(x, row, head, i);
    return sum;
}

typedef struct {
    Tensor in[5], out[2];
    float scale, keep;
    int64_t key_at;
} PassCall;

static __global__ void __launch_bounds__(THREADS) scores_kernel(const __grid_constant__ PassCall a)
{
    extern __shared__ float query[];
    const int64_t t = blockIdx.x, h = blockIdx.y;
    const Tensor &k = a.in[1], &ranges = a.in[2], &s = a.out[0], &lse = a.out[1];
    const int32_t *r = (const int32_t *)ranges.data + t * ranges.stride[0];
    const int64_t step = ranges.stride[1], lse_at = t * lse.stride[0] + h * lse.stride[1];
    const float before = a.keep != 0 ? ((const float *)lse.data)[lse_at] : -INFINITY;
    float max = -INFINITY, sum = 0;
    load_row(a.in[0], t, h, query);
    for (int64_t j = threadIdx.x; j < k.n[0]; j += THREADS) {
        const int64_t key = a.key_at + j;
        const bool seen =
            (key >= r[0] && key < r[step]) || (key >= r[2 * step] && key < r[3 * step]);
        const float x = seen ? a.scale * dot_row(query, k, j, h) : -INFINITY;
        ((float *)s.data)[t * s.stride[0] + h * s.stride[1] + j * s.stride[2]] = x;
        if (!seen) continue;
        sum = x > max ? sum * expf(max - x) + 1 : sum + expf(x - max);
        max = fmaxf(max, x);
    }
    const float most = fmaxf(group_max<THREADS>(max), before);
    const float all = group_sum<THREADS>(max == -INFINITY ? 0.0f : sum * expf(max - most));
    if (threadIdx.x > 0) return;
    const float kept = before == -INFINITY ? 0 : expf(before - most);
    ((float *)lse.data)[lse_at] = most == -INFINITY ? most : most + logf(all + kept);
}

/* in: scores, lse */
static __device__ inline float weight_of(const PassCall &a, int64_t t, int64_t h, int64_t j)
{
    const float s = element(a.in[0], t, h, j);
    const float lse = ((const float *)a.in[1].data)[t * a.in[1].stride[0] + h * a.in[1].stride[1]];
    return s == -INFINITY || lse == -INFINITY ? 0 : expf(s - lse);
}

/* y[row] = keep * y[row] + the sum over the rows i of x of their factor for this row: a weight, or
 * an element of in[0]. BY_KEY: rows of y are keys, and those of x queries. */
template <bool BY_KEY, bool WEIGHTS>
static __global__ void __launch_bounds__(THREADS)
    sum_kernel(const __grid_constant__ PassCall a, const __grid_constant__ Tensor x,
               const __grid_constant__ Tensor y)
{
    __shared__ float factor[THREADS];
    const int64_t row = blockIdx.x, h = blockIdx.y;
    for (int64_t c = threadIdx.x; c - threadIdx.x < y.n[2]; c += THREADS) {
        float sum = 0;
        for (int64_t from = 0; from < x.n[0]; from += THREADS) {
            const int64_t i = from + threadIdx.x, t = BY_KEY ? i : row, j = BY_KEY ? row : i;
            __syncthreads();
            factor[threadIdx.x] = i >= x.n[0] ? 0
                                  : WEIGHTS   ? weight_of(a, t, h, j)
                                              : element(a.in[0], t, h, j);
            __syncthreads();
            const int64_t n = x.n[0] - from < THREADS ? x.n[0] - from : THREADS;
            for (int64_t k = 0; k < n && c < y.n[2]; k++)
                if (factor[k] != 0) sum += factor[k] * element(x, from + k, h, c);
        }
        const int64_t at = row * y.stride[0] + h * y.stride[1] + c * y.stride[2];
        if (c < y.n[2]) value_keep(y.data, y.dtype, at, a.keep, sum);
    }
}

/* in: scores, lse, v, dout, delta */
static __global__ void __launch_bounds__(THREADS) slope_kernel(const __grid_constant__ PassCall a)
{
    extern __shared__ float dout[];
    const int64_t t = blockIdx.x, h = blockIdx.y;
    const Tensor &v = a.in[2], &delta = a.in[4], &ds = a.out[0];
    const float mean = ((const float *)delta.data)[t * delta.stride[0] + h * delta.stride[1]];
    load_row(a.in[3], t, h, dout);
    for (int64_t j = threadIdx.x; j < v.n[0]; j += THREADS) {
        const float weight = weight_of(a, t, h, j);
        const float x = weight == 0 ? 0 : weight * (dot_row(dout, v, j, h) - mean) * a.scale;
        ((float *)ds.data)[t * ds.stride[0] + h * ds.stride[1] + j * ds.stride[2]] = x;
    }
}

static PassCall pass_call(const Call *call, double keep)
{
    PassCall a = {};
    for (int i = 0; i < call->n_in && i < 5; i++) a.in[i] = call->in[i];
    for (int i = 0; i < call->n_out; i++) a.out[i] = call->out[i];
    a.scale = (float)call->attr.attention.scale;
    a.key_at = call->attr.attention.key_at;
    a.keep = (float)keep;
    return a;
}

/* A block for each (row, head) of x. */
static dim3 blocks_for(const Tensor &x) { return dim3((unsigned)x.n[0], (unsigned)x.n[1]); }

static Err check_heads(const Call *call, KernelId id, const Tensor &x)
{
    TRY(cuda_begin(call, id));
    if (x.n[1] <= 65535 && x.n[2] <= 8192) return OK;
    return err_fail(ERR_CONFIG,
                    "cuda: %s of %lld heads of %lld channels; the limits are 65535, 8192",
                    kernel_name(id), (long long)x.n[1], (long long)x.n[2]);
}

extern "C" Err cuda_attention_scores(const Call *call)
{
    const Tensor &q = call->in[0];
    TRY(check_heads(call, KERNEL_attention_scores, q));
    if (q.n[0] == 0 || q.n[1] == 0) return OK;
    const size_t shared = (size_t)q.n[2] * sizeof(float);
    scores_kernel<<<blocks_for(q), THREADS, shared, call->queue->stream>>>(
        pass_call(call, call->number[1]));
    return cuda_launched(KERNEL_attention_scores);
}

template <bool BY_KEY, bool WEIGHTS>
static void launch_sum(const Call *call, const Tensor &x, const Tensor &y, double keep)
{
    if (y.n[0] == 0 || y.n[1] == 0) return;
    sum_kernel<BY_KEY, WEIGHTS>
        <<<blocks_for(y), THREADS, 0, call->queue->stream>>>(pass_call(call, keep), x, y);
}

extern "C" Err cuda_attention_weigh(const Call *call)
{
    TRY(check_heads(call, KERNEL_attention_weigh, call->out[0]));
    launch_sum<false, true>(call, call->in[2], call->out[0], call->number[0]);
    return cuda_launched(KERNEL_attention_weigh);
}

extern "C" Err cuda_attention_weigh_dx(const Call *call)
{
    const Tensor &dout = call->in[3];
    TRY(check_heads(call, KERNEL_attention_weigh_dx, dout));
    if (dout.n[0] > 0 && dout.n[1] > 0)
        slope_kernel<<<blocks_for(dout), THREADS, (size_t)dout.n[2] * sizeof(float),
                       call->queue->stream>>>(pass_call(call, 0));
    launch_sum<true, true>(call, dout, call->out[1], call->number[1]);
    return cuda_launched(KERNEL_attention_weigh_dx);
}

extern "C" Err cuda_attention_scores_dx(const Call *call)
{
    TRY(check_heads(call, KERNEL_attention_scores_dx, call->in[1]));
    launch_sum<false, false>(call, call->in[2], call->out[0], call->number[0]);
    launch_sum<true, false>(call, call->in[1], call->out[1], call->number[1]);
    return cuda_launched(KERNEL_attention_scores_dx);
}
