/* measure.c -- repeats kernels and transfers for a given time and takes medians. */
#include "plan/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "ir/ops.h"

enum { GEMM_SIZE = 512, REF_SIZE = 96, TOKENS = 512, HEADS = 8, HEAD_SIZE = 64 };
enum { CACHED = 1 << 13, LARGE = 1 << 23, MAX_REPEATS = 2000, LEAST_REPEATS = 5 };

typedef struct {
    const MeasureSettings *s;
    WorldRank *r;
    Measurement *out;
    double *seconds; /* [MAX_REPEATS] */
    double *cell;    /* one number, registered with the comm: the barrier */
    int32_t *all;    /* [ranks] */
} Measurer;

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A repetition: a kernel, or a transfer. */
typedef Err Repeat(Measurer *m, void *work);

static Err all_reduce(Measurer *m, int arena, int64_t count, DType dtype)
{
    const Ref whole = {m->r->rank, arena, 0, count, dtype};
    const Transfer t = {
        .kind = COMM_ALL_REDUCE, .group = {m->r->ranks, m->all}, .from = whole, .to = whole};
    return m->r->ranks > 1 ? comm_do(m->r->comm, &t) : OK;
}

/* Runs the repetition once to warm up, then until the budget is spent, and returns the median
 * seconds. All ranks start together. fixed: the number of repetitions, equal on all ranks, which a
 * transfer needs; 0: by the budget. */
static Err repeat(Measurer *m, Repeat *one, void *work, int fixed, Measured *row)
{
    int n = 0;
    if (m->s->progress && m->r->rank == 0) m->s->progress(m->s->context, row->what);
    TRY(one(m, work));
    TRY(all_reduce(m, ARENA_NUMBERS, 1, F64));
    const double start = now_s();
    while (fixed ? n < fixed
                 : n < LEAST_REPEATS || (n < MAX_REPEATS && now_s() - start < m->s->budget_s)) {
        const double before = now_s();
        TRY(one(m, work));
        m->seconds[n++] = now_s() - before;
    }
    qsort(m->seconds, (size_t)n, sizeof *m->seconds, by_value);
    row->value = m->seconds[n / 2];
    row->spread = (m->seconds[3 * n / 4] - m->seconds[n / 4]) / row->value;
    return OK;
}

typedef struct {
    Kernel kernel;
    Call call;
} TimedCall;

static Err run_call(Measurer *m, void *work)
{
    const TimedCall *t = work;
    (void)m;
    return t->kernel(&t->call);
}

static Err make_tensor(Measurer *m, DType dtype, int ndim, const int64_t *n, Tensor *out)
{
    int64_t step = 1;
    *out = (Tensor){.dtype = dtype, .ndim = ndim};
    for (int i = ndim - 1; i >= 0; i--) {
        out->n[i] = n[i];
        out->stride[i] = step;
        step *= n[i];
    }
    TRY(arena_push(m->r->arena, (size_t)step * dtype_bytes(dtype), &out->data));
    memset(out->data, 0, (size_t)step * dtype_bytes(dtype)); /* zeros are as fast as others */
    return OK;
}

/* Appends a row; its value becomes `amount` per second in units of `unit`. */
static void keep(Measurer *m, Measured row, double amount, double unit)
{
    row.value = amount / row.value / unit;
    m->out->row[m->out->n++] = row;
}

/* Appends a row whose value is a time: `seconds`. */
static void keep_time(Measurer *m, Measured row, double seconds)
{
    row.value = 1e6 * seconds;
    m->out->row[m->out->n++] = row;
}

static Err measure_gemm(Measurer *m, DType dtype)
{
    static const char *const name[N_DTYPES] = {"gemm f64", "gemm f32", "gemm bf16"};
    const Device *device = dtype == F64 ? &device_ref : m->s->device;
    const int64_t size = dtype == F64 ? REF_SIZE : GEMM_SIZE, n[] = {size, size};
    const double flops = 2.0 * (double)(size * size * size);
    const size_t mark = arena_mark(m->r->arena);
    Measured row = {name[dtype], "Gflop/s", 0, 0};
    TimedCall t = {device->kernel[KERNEL_gemm],
                   {.n_in = 2, .n_out = 1, .attr = {.gemm = {.tb = true}}, .team = m->s->team}};
    for (int i = 0; i < 3; i++)
        TRY(make_tensor(m, dtype, 2, n, i < 2 ? &t.call.in[i] : &t.call.out[0]));
    TRY(repeat(m, run_call, &t, 0, &row));
    m->out->peak_flops_per_s[dtype] = flops / m->seconds[0];
    m->out->rates.flops_per_s[WORK_GEMM][dtype] = flops / row.value;
    keep(m, row, flops, 1e9);
    arena_rewind(m->r->arena, mark);
    return OK;
}

static Err measure_attention(Measurer *m, DType dtype)
{
    static const char *const name[N_DTYPES] = {"attention f64", "attention f32", "attention bf16"};
    const Device *device = dtype == F64 ? &device_ref : m->s->device;
    const int64_t tokens = dtype == F64 ? TOKENS / 8 : TOKENS;
    const int64_t qkv[] = {tokens, HEADS, HEAD_SIZE}, ranges[] = {tokens, 4};
    const double flops = 4.0 * HEADS * HEAD_SIZE * (double)(tokens * (tokens + 1) / 2);
    const size_t mark = arena_mark(m->r->arena);
    Measured row = {name[dtype], "Gflop/s", 0, 0};
    TimedCall t = {
        device->kernel[KERNEL_attention],
        {.n_in = 4, .n_out = 2, .attr = {.attention = {.scale = 0.125}}, .team = m->s->team}};
    for (int i = 0; i < 3; i++) TRY(make_tensor(m, dtype, 3, qkv, &t.call.in[i]));
    TRY(make_tensor(m, I32, 2, ranges, &t.call.in[3]));
    TRY(make_tensor(m, dtype, 3, qkv, &t.call.out[0]));
    TRY(make_tensor(m, dtype_wide(dtype), 2, qkv, &t.call.out[1]));
    for (int64_t i = 0; i < tokens; i++) ((int32_t *)t.call.in[3].data)[4 * i + 1] = (int32_t)i + 1;
    TRY(repeat(m, run_call, &t, 0, &row));
    m->out->rates.flops_per_s[WORK_ATTENTION][dtype] = flops / row.value;
    keep(m, row, flops, 1e9);
    arena_rewind(m->r->arena, mark);
    return OK;
}

/* Seconds of a kernel on vectors of n elements. */
static Err time_vectors(Measurer *m, KernelId kernel, DType dtype, int64_t n, Measured *row)
{
    const Device *device = dtype == F64 ? &device_ref : m->s->device;
    const size_t mark = arena_mark(m->r->arena);
    const int n_in = kernel == KERNEL_add ? 2 : 1;
    TimedCall t = {device->kernel[kernel], {.n_in = n_in, .n_out = 1, .team = m->s->team}};
    for (int i = 0; i < n_in; i++) TRY(make_tensor(m, dtype, 1, &n, &t.call.in[i]));
    TRY(make_tensor(m, dtype, 1, &n, &t.call.out[0]));
    TRY(repeat(m, run_call, &t, 0, row));
    arena_rewind(m->r->arena, mark);
    return OK;
}

/* Flops of gelu, as ops.def counts them, without the launch. */
static Err measure_pointwise(Measurer *m, DType dtype)
{
    static const char *const name[N_DTYPES] = {"pointwise f64", "pointwise f32", "pointwise bf16"};
    const double flops = 10.0 * CACHED;
    Measured row = {name[dtype], "Gflop/s", 0, 0};
    TRY(time_vectors(m, KERNEL_gelu, dtype, CACHED, &row));
    row.value = fmax(row.value - m->out->rates.launch_s, 0.1 * row.value);
    m->out->rates.flops_per_s[WORK_POINTWISE][dtype] = flops / row.value;
    keep(m, row, flops, 1e9);
    return OK;
}

static Err measure_memory(Measurer *m)
{
    Measured launch = {"launch", "us", 0, 0}, memory = {"memory", "GB/s", 0, 0};
    Measured host = {"host copy", "GB/s", 0, 0};
    TRY(time_vectors(m, KERNEL_add, F32, 1, &launch));
    m->out->rates.launch_s = launch.value;
    keep_time(m, launch, launch.value);
    TRY(time_vectors(m, KERNEL_add, F32, LARGE, &memory));
    m->out->rates.memory_Bps = 12.0 * LARGE / memory.value;
    keep(m, memory, 12.0 * LARGE, 1e9);
    TRY(time_vectors(m, KERNEL_copy, F32, LARGE, &host));
    m->out->rates.host_Bps = 4.0 * LARGE / host.value;
    keep(m, host, 4.0 * LARGE, 1e9);
    return OK;
}

static Err small_transfer(Measurer *m, void *work)
{
    (void)work;
    return all_reduce(m, ARENA_NUMBERS, 1, F64);
}

static Err large_transfer(Measurer *m, void *work)
{
    return all_reduce(m, ARENA_LOOP, *(int64_t *)work, F32);
}

/* Inverts the formulas of cost.c: an all-reduce of n ranks is 2 log2(n) latencies if it is small,
 * and 2 (n-1) latencies and 2 (n-1)/n S bytes if it is large. */
static Err measure_links(Measurer *m)
{
    const double n = m->r->ranks, rounds = ceil(log2(n)), bytes = 4.0 * LARGE / 4;
    Measured small = {"latency", "us", 0, 0}, large = {"link", "GB/s", 0, 0};
    int64_t count = LARGE / 4;
    CostLink *link = &m->out->rates.level[0];
    float *data;
    m->out->rates.n_levels = 1;
    *link = (CostLink){.Bps = m->out->rates.memory_Bps}; /* one rank has no link: as its memory */
    if (m->r->ranks == 1) return OK;
    TRY(ARENA_NEW(m->r->arena, count, &data));
    TRY(comm_register(m->r->comm, ARENA_LOOP, data, (size_t)count * sizeof *data));
    TRY(repeat(m, small_transfer, NULL, 500, &small));
    link->latency_s = small.value / (2 * rounds);
    keep_time(m, small, link->latency_s);
    TRY(repeat(m, large_transfer, &count, 15, &large));
    const double busy = fmax(large.value - 2 * (n - 1) * link->latency_s, 0.1 * large.value);
    link->Bps = 2 * (n - 1) / n * bytes / busy;
    large.value = busy;
    keep(m, large, 2 * (n - 1) / n * bytes, 1e9);
    return OK;
}

Err measure_rates(const MeasureSettings *s, WorldRank *r, Measurement *out)
{
    Measurer m = {.s = s, .r = r, .out = out};
    *out = (Measurement){0};
    TRY(ARENA_NEW(r->arena, MAX_REPEATS, &m.seconds));
    TRY(ARENA_NEW(r->arena, 1, &m.cell));
    TRY(ARENA_NEW(r->arena, r->ranks, &m.all));
    for (int i = 0; i < r->ranks; i++) m.all[i] = i;
    TRY(comm_register(r->comm, ARENA_NUMBERS, m.cell, sizeof *m.cell));
    TRY(measure_memory(&m));
    for (int t = F64; t <= BF16; t++) {
        TRY(measure_gemm(&m, (DType)t));
        TRY(measure_attention(&m, (DType)t));
        TRY(measure_pointwise(&m, (DType)t));
    }
    return measure_links(&m);
}
