/* route.cu -- the router: a warp per token; device/route.h has the formulas.
 *
 * Logits and scores of a token are in shared memory. The k choices are k maxima over the warp, of
 * equal values the lower expert. load and stat are counts and sums in a fixed order: one block. */
#include "device/cuda/choices.cuh"
#include "device/route.h"

enum { WARPS = 4, LANES = 32, THREADS = 1024 };

typedef struct {
    Attr attr;
    Tensor s, bias, dgate, load, gate, expert, ds, stat;
    int64_t t, e, k;
    float keep;
} RouteArgs;

static __device__ inline int32_t *choice_at(const Tensor &t, int64_t token, int64_t k)
{
    return (int32_t *)t.data + token * t.stride[0] + k * t.stride[1];
}

static __device__ inline float softmax(const float *s, int64_t n, int lane, float *p)
{
    float most = -INFINITY, sum = 0;
    for (int64_t e = lane; e < n; e += LANES) most = fmaxf(most, s[e]);
    most = warp_max(most);
    for (int64_t e = lane; e < n; e += LANES) sum += p[e] = expf(s[e] - most);
    sum = warp_sum(sum);
    for (int64_t e = lane; e < n; e += LANES) p[e] /= sum;
    __syncwarp();
    return most + logf(sum);
}

static __device__ inline void scores(const RouteArgs &r, const float *s, int lane, float *p)
{
    if (r.attr.route.score != ROUTE_SIGMOID) {
        softmax(s, r.e, lane, p);
        return;
    }
    for (int64_t e = lane; e < r.e; e += LANES) p[e] = 1 / (1 + expf(-s[e]));
    __syncwarp();
}

/* NaN is the least value, so that the choices of a diverged router are experts too. */
static __device__ inline float ordered(float x) { return fmaxf(x, -INFINITY); }

/* The index of the largest of n values that is below the one before it in (value, index) order. */
static __device__ inline int next_best(const float *x, int64_t n, int lane, int before)
{
    const float limit = before < 0 ? INFINITY : ordered(x[before]);
    float best = -INFINITY;
    int at = INT32_MAX;
    for (int e = lane; e < n; e += LANES) {
        const float value = ordered(x[e]);
        const bool later = before < 0 || value < limit || (value == limit && e > before);
        if (later && (at == INT32_MAX || value > best)) best = value, at = e;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, best, step);
        const int index = __shfl_xor_sync(0xffffffffu, at, step);
        const bool wins = index != INT32_MAX &&
                          (at == INT32_MAX || other > best || (other == best && index < at));
        if (wins) best = other, at = index;
    }
    return at;
}

/* Experts of groups that are not chosen get -inf. group: scratch for the groups' values. */
static __device__ inline void close_groups(const RouteArgs &r, float *value, int lane, float *group)
{
    const int groups = r.attr.route.groups, keep = r.attr.route.chosen_groups;
    const int64_t each = r.e / groups, rule = r.k / keep > 1 ? r.k / keep : 1;
    const int64_t best = r.attr.route.group_best ? r.attr.route.group_best : rule;
    for (int g = 0; g < groups; g++) {
        float sum = 0;
        for (int64_t i = 0, at = -1; i < best && i < each; i++) {
            at = next_best(value + g * each, each, lane, (int)at);
            sum += value[g * each + at];
        }
        if (lane == 0) group[g] = sum;
        __syncwarp();
    }
    int last = -1;
    for (int i = 0; i < keep; i++) last = next_best(group, groups, lane, last);
    const float least = group[last];
    for (int64_t e = lane; e < r.e; e += LANES) {
        const int g = (int)(e / each);
        if (group[g] < least || (group[g] == least && g > last)) value[e] = -INFINITY;
    }
    __syncwarp();
}

static __global__ void __launch_bounds__(WARPS *LANES)
    route_kernel(const __grid_constant__ RouteArgs r)
{
    extern __shared__ float memory[];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t t = (int64_t)blockIdx.x * WARPS + warp;
    float *s = memory + warp * 3 * r.e, *p = s + r.e, *group = p + r.e;
    if (t >= r.t) return;
    const bool biased = r.bias.data, grouped = r.attr.route.groups > 1;
    for (int64_t e = lane; e < r.e; e += LANES)
        s[e] = value_get(r.s.data, r.s.dtype, t * r.s.stride[0] + e * r.s.stride[1]);
    __syncwarp();
    float *value = s;
    if (biased || grouped) {
        value = p;
        scores(r, s, lane, p);
        for (int64_t e = lane; biased && e < r.e; e += LANES)
            p[e] += value_get(r.bias.data, r.bias.dtype, e * r.bias.stride[0]);
        __syncwarp();
    }
    if (grouped) close_groups(r, value, lane, group);
    for (int64_t i = 0, at = -1; i < r.k; i++) {
        at = next_best(value, r.e, lane, (int)at);
        if (lane == 0) *choice_at(r.expert, t, i) = (int32_t)at;
    }
    __syncwarp();
    /* Gates: of the chosen alone, or of all. */
    float sum = 0;
    if (r.attr.route.score == ROUTE_SOFTMAX_CHOSEN) {
        for (int64_t i = lane; i < r.k; i += LANES) group[i] = s[*choice_at(r.expert, t, i)];
        __syncwarp();
        softmax(group, r.k, lane, group);
    } else {
        scores(r, s, lane, p);
        for (int64_t i = lane; i < r.k; i += LANES) group[i] = p[*choice_at(r.expert, t, i)];
        __syncwarp();
    }
    for (int64_t i = lane; i < r.k; i += LANES) sum += group[i];
    sum = warp_sum(sum);
    const float factor =
        (float)r.attr.route.scaling / (r.attr.route.renormalize ? sum + 1e-20f : 1);
    for (int64_t i = lane; i < r.k; i += LANES)
        value_set(r.gate.data, r.gate.dtype, t * r.gate.stride[0] + i * r.gate.stride[1],
                  factor * group[i]);
}

/* A warp per expert counts its tokens. */
static __global__ void __launch_bounds__(CHUNK_LANES)
    load_kernel(const __grid_constant__ ChoiceCounts c, Tensor to, int64_t first, float keep)
{
    const int e = (int)blockIdx.x, count = count_of(c, e);
    if (threadIdx.x == 0)
        value_keep(to.data, to.dtype, (first + e) * to.stride[0], keep, (float)count);
}

/* to[first + e] = keep to + tokens of expert e. */
static Err count_loads(const Call *call, const RouteArgs *r, const Tensor *to, int64_t first,
                       float keep)
{
    ChoiceCounts c;
    TRY(choice_counts(call, &r->expert, r->e, &c));
    load_kernel<<<(unsigned)r->e, CHUNK_LANES, 0, call->queue->stream>>>(c, *to, first, keep);
    return OK;
}

extern "C" Err cuda_route(const Call *call)
{
    RouteArgs r = {};
    TRY(cuda_begin(call, KERNEL_route));
    r.attr = call->attr;
    r.s = call->in[0], r.gate = call->out[0], r.expert = call->out[1], r.load = call->out[2];
    if (call->n_in > 1) r.bias = call->in[1];
    r.t = r.s.n[0], r.e = r.s.n[1], r.k = r.gate.n[1];
    const size_t bytes = (size_t)(WARPS * 3 * r.e) * sizeof(float);
    TRY(cuda_shared(call, KERNEL_route, (const void *)route_kernel, bytes));
    if (r.t > 0)
        route_kernel<<<(unsigned)blocks_of(r.t, WARPS), WARPS * LANES, bytes,
                       call->queue->stream>>>(r);
    TRY(count_loads(call, &r, &r.load, 0, 0));
    return cuda_launched(KERNEL_route);
}

/* Adds the gradient of the gates of one token to ds. p: scratch. */
static __device__ inline void add_dgate(const RouteArgs &r, int64_t t, const float *s, int lane,
                                        float *p, float *group, float *ds)
{
    const bool chosen_only = r.attr.route.score == ROUTE_SOFTMAX_CHOSEN;
    const bool sigmoid = r.attr.route.score == ROUTE_SIGMOID;
    float sum = 0, dot = 0, mean = 0;
    if (chosen_only) {
        for (int64_t i = lane; i < r.k; i += LANES) group[i] = s[*choice_at(r.expert, t, i)];
        __syncwarp();
        softmax(group, r.k, lane, group);
    } else {
        scores(r, s, lane, p);
        for (int64_t i = lane; i < r.k; i += LANES) group[i] = p[*choice_at(r.expert, t, i)];
        __syncwarp();
    }
    for (int64_t i = lane; i < r.k; i += LANES) {
        const float dg =
            value_get(r.dgate.data, r.dgate.dtype, t * r.dgate.stride[0] + i * r.dgate.stride[1]);
        sum += group[i];
        dot += dg * group[i];
    }
    sum = r.attr.route.renormalize ? warp_sum(sum) + 1e-20f : 1;
    dot = r.attr.route.renormalize ? warp_sum(dot) / sum : 0;
    const float factor = (float)r.attr.route.scaling / sum;
    for (int64_t i = lane; i < r.k; i += LANES) {
        const float dg =
            value_get(r.dgate.data, r.dgate.dtype, t * r.dgate.stride[0] + i * r.dgate.stride[1]);
        mean += factor * (dg - dot) * group[i];
    }
    mean = sigmoid ? 0 : warp_sum(mean);
    for (int64_t e = lane; e < r.e; e += LANES) ds[e] = sigmoid || chosen_only ? 0 : -p[e] * mean;
    __syncwarp();
    for (int64_t i = lane; i < r.k; i += LANES) {
        const float dg =
            value_get(r.dgate.data, r.dgate.dtype, t * r.dgate.stride[0] + i * r.dgate.stride[1]);
        const float dp = factor * (dg - dot), x = group[i];
        ds[*choice_at(r.expert, t, i)] +=
            sigmoid ? dp * x * (1 - x) : x * (chosen_only ? dp - mean : dp);
    }
    __syncwarp();
}

static __global__ void __launch_bounds__(WARPS *LANES)
    route_dx_kernel(const __grid_constant__ RouteArgs r, float *losses)
{
    extern __shared__ float memory[];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int64_t t = (int64_t)blockIdx.x * WARPS + warp;
    float *s = memory + warp * 4 * r.e, *p = s + r.e, *group = p + r.e, *ds = group + r.e;
    if (t >= r.t) return;
    for (int64_t e = lane; e < r.e; e += LANES)
        s[e] = value_get(r.s.data, r.s.dtype, t * r.s.stride[0] + e * r.s.stride[1]);
    __syncwarp();
    add_dgate(r, t, s, lane, p, group, ds);
    const float aux = (float)r.attr.route.aux, z = (float)r.attr.route.z;
    const float lse = softmax(s, r.e, lane, p);
    float all = 0, total = 1, mean = 0;
    for (int64_t e = lane; e < r.e; e += LANES) {
        ds[e] += z * 2 * lse * p[e];
        all += value_get(r.load.data, r.load.dtype, e * r.load.stride[0]);
    }
    all = warp_sum(all);
    __syncwarp();
    if (r.attr.route.score == ROUTE_SIGMOID) {
        scores(r, s, lane, p);
        total = 0;
        for (int64_t e = lane; e < r.e; e += LANES) total += p[e];
        total = warp_sum(total);
    }
    const float weight = all > 0 ? (float)r.e / all : 0;
    for (int64_t e = lane; e < r.e; e += LANES)
        mean += weight * value_get(r.load.data, r.load.dtype, e * r.load.stride[0]) * p[e] / total;
    mean = warp_sum(mean);
    for (int64_t e = lane; e < r.e; e += LANES) {
        const float load = value_get(r.load.data, r.load.dtype, e * r.load.stride[0]);
        const float slope = r.attr.route.score == ROUTE_SIGMOID ? 1 - p[e] : 1;
        ds[e] += aux * p[e] / total * slope * (weight * load - mean);
        value_set(r.ds.data, r.ds.dtype, t * r.ds.stride[0] + e * r.ds.stride[1], ds[e]);
    }
    if (lane == 0) losses[2 * t] = mean, losses[2 * t + 1] = lse * lse;
}

/* Sums of the losses of all tokens, in a fixed order: one block. */
static __global__ void __launch_bounds__(THREADS)
    losses_kernel(const float *losses, int64_t n, Tensor stat, float keep)
{
    double sum[2] = {};
    for (int64_t t = threadIdx.x; t < n; t += THREADS)
        for (int i = 0; i < 2; i++) sum[i] += (double)losses[2 * t + i];
    for (int i = 0; i < 2; i++) {
        const double all = group_sum<THREADS>(sum[i]);
        if (threadIdx.x == 0)
            value_keep(stat.data, stat.dtype, i * stat.stride[0], keep, (float)all);
    }
}

extern "C" Err cuda_route_dx(const Call *call)
{
    RouteArgs r = {};
    float *losses;
    TRY(cuda_begin(call, KERNEL_route_dx));
    r.attr = call->attr;
    r.dgate = call->in[0], r.s = call->in[1], r.expert = call->in[2], r.load = call->in[3];
    r.ds = call->out[0];
    r.t = r.s.n[0], r.e = r.s.n[1], r.k = r.dgate.n[1];
    const size_t bytes = (size_t)(WARPS * 4 * r.e) * sizeof(float);
    const cudaStream_t stream = call->queue->stream;
    TRY(cuda_scratch(call->queue, scratch_route_losses(r.t), (void **)&losses));
    TRY(cuda_shared(call, KERNEL_route_dx, (const void *)route_dx_kernel, bytes));
    if (r.t > 0)
        route_dx_kernel<<<(unsigned)blocks_of(r.t, WARPS), WARPS * LANES, bytes, stream>>>(r,
                                                                                           losses);
    if (call->n_out > 1) {
        const float keep = (float)call->number[1];
        losses_kernel<<<1, THREADS, 0, stream>>>(losses, r.t, call->out[1], keep);
        TRY(count_loads(call, &r, &call->out[1], 2, keep));
    }
    return cuda_launched(KERNEL_route_dx);
}
