/* measure.c -- repeats kernels and transfers for a given time and takes medians. */
#include "plan/measure/parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "ir/ops.h"

enum { GEMM_SIZE = 512, REF_SIZE = 96, NORM_WIDTH = 256, TOKENS = 512, HEADS = 8, HEAD_SIZE = 64 };
enum { SMALL_GEMM = 128, CACHED = 1 << 13, LARGE = 1 << 23, SMALL_LARGE = 1 << 18 };

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

Err measure_all_reduce(Measurer *m, int arena, int64_t count, DType dtype)
{
    const Ref whole = {m->r->rank, arena, 0, count, dtype};
    const Transfer t = {
        .kind = COMM_ALL_REDUCE, .group = {m->r->ranks, m->all}, .from = whole, .to = whole};
    return m->r->ranks > 1 ? comm_do(m->r->comm, &t) : OK;
}

void measure_progress(const Measurer *m, const char *what)
{
    if (m->s->progress && m->r->rank == 0) m->s->progress(m->s->context, what);
}

Err measure_repeat(Measurer *m, Repeat *one, void *work, int fixed, Measured *row)
{
    int n = 0;
    if (row->what) measure_progress(m, row->what);
    TRY(one(m, work));
    TRY(measure_all_reduce(m, ARENA_NUMBERS, 1, F64));
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

double measure_median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

Err measure_call(Measurer *m, void *work)
{
    const TimedCall *t = work;
    TRY(t->kernel(&t->call));
    return m->rt ? comm_sync(m->r->comm, (CommDevice){m->rt, m->context}, m->queue) : OK;
}

Err measure_tensor(Measurer *m, DType dtype, int ndim, const int64_t *n, Tensor *out)
{
    int64_t step = 1;
    *out = (Tensor){.dtype = dtype, .ndim = ndim};
    for (int i = ndim - 1; i >= 0; i--) {
        out->n[i] = n[i];
        out->stride[i] = step;
        step *= n[i];
    }
    TRY(arena_push(m->operands, (size_t)step * dtype_bytes(dtype), &out->data));
    if (!m->rt) /* zeros are as fast as other numbers */
        memset(out->data, 0, (size_t)step * dtype_bytes(dtype));
    return OK;
}

void measure_keep(Measurer *m, Measured row, double amount, double unit)
{
    row.value = amount / row.value / unit;
    m->out->row[m->out->n++] = row;
}

void measure_keep_time(Measurer *m, Measured row, double seconds)
{
    row.value = 1e6 * seconds;
    m->out->row[m->out->n++] = row;
}

static Err measure_gemm(Measurer *m, DType dtype)
{
    static const char *const name[N_DTYPES] = {"gemm f64", "gemm f32", "gemm bf16"};
    const Device *device = dtype == F64 ? &device_ref : m->s->device;
    const int64_t most = m->s->grid == GRID_SMALL ? SMALL_GEMM : GEMM_SIZE,
                  size = dtype == F64 ? REF_SIZE : most, n[] = {size, size};
    const double flops = 2.0 * (double)(size * size * size);
    const size_t mark = arena_mark(m->operands);
    Measured row = {name[dtype], "Gflop/s", 0, 0};
    TimedCall t = {device->kernel[KERNEL_gemm],
                   {.n_in = 2,
                    .n_out = 1,
                    .attr = {.gemm = {.tb = true}},
                    .team = m->s->team,
                    .queue = m->queue}};
    for (int i = 0; i < 3; i++)
        TRY(measure_tensor(m, dtype, 2, n, i < 2 ? &t.call.in[i] : &t.call.out[0]));
    TRY(measure_repeat(m, measure_call, &t, 0, &row));
    m->out->peak_flops_per_s[dtype] = flops / m->seconds[0];
    m->out->rates.flops_per_s[WORK_GEMM][dtype] = flops / row.value;
    measure_keep(m, row, flops, 1e9);
    arena_rewind(m->operands, mark);
    return OK;
}

/* f64 alone: other types have curves (tables.c). */
static Err measure_attention_f64(Measurer *m)
{
    const int64_t tokens = TOKENS / 8, qkv[] = {tokens, HEADS, HEAD_SIZE}, ranges[] = {tokens, 4};
    const double flops = 4.0 * HEADS * HEAD_SIZE * (double)(tokens * (tokens + 1) / 2);
    const size_t mark = arena_mark(m->operands);
    Measured row = {"attention f64", "Gflop/s", 0, 0};
    TimedCall t = {
        device_ref.kernel[KERNEL_attention],
        {.n_in = 4, .n_out = 2, .attr = {.attention = {.scale = 0.125}}, .team = m->s->team}};
    for (int i = 0; i < 3; i++) TRY(measure_tensor(m, F64, 3, qkv, &t.call.in[i]));
    TRY(measure_tensor(m, I32, 2, ranges, &t.call.in[3]));
    TRY(measure_tensor(m, F64, 3, qkv, &t.call.out[0]));
    TRY(measure_tensor(m, F64, 2, qkv, &t.call.out[1]));
    for (int64_t i = 0; i < tokens; i++) ((int32_t *)t.call.in[3].data)[4 * i + 1] = (int32_t)i + 1;
    TRY(measure_repeat(m, measure_call, &t, 0, &row));
    m->out->rates.flops_per_s[WORK_ATTENTION][F64] = flops / row.value;
    measure_keep(m, row, flops, 1e9);
    arena_rewind(m->operands, mark);
    return OK;
}

/* Seconds of a kernel on vectors of n elements. */
static Err time_vectors(Measurer *m, KernelId kernel, DType dtype, int64_t n, Measured *row)
{
    const Device *device = dtype == F64 ? &device_ref : m->s->device;
    const size_t mark = arena_mark(m->operands);
    const int n_in = kernel == KERNEL_add ? 2 : 1;
    TimedCall t = {device->kernel[kernel],
                   {.n_in = n_in, .n_out = 1, .team = m->s->team, .queue = m->queue}};
    for (int i = 0; i < n_in; i++) TRY(measure_tensor(m, dtype, 1, &n, &t.call.in[i]));
    TRY(measure_tensor(m, dtype, 1, &n, &t.call.out[0]));
    TRY(measure_repeat(m, measure_call, &t, 0, row));
    arena_rewind(m->operands, mark);
    return OK;
}

/* Seconds of an RMS norm of CACHED numbers, in rows of NORM_WIDTH. */
static Err time_norm(Measurer *m, DType dtype, Measured *row)
{
    const Device *device = dtype == F64 ? &device_ref : m->s->device;
    const size_t mark = arena_mark(m->operands);
    const int64_t x[] = {CACHED / NORM_WIDTH, NORM_WIDTH}, w[] = {NORM_WIDTH};
    TimedCall t = {device->kernel[KERNEL_rmsnorm],
                   {.n_in = 2, .n_out = 2, .team = m->s->team, .queue = m->queue}};
    t.call.attr.norm.eps = 1e-5;
    TRY(measure_tensor(m, dtype, 2, x, &t.call.in[0]));
    TRY(measure_tensor(m, dtype, 1, w, &t.call.in[1]));
    TRY(measure_tensor(m, dtype, 2, x, &t.call.out[0]));
    TRY(measure_tensor(m, dtype_wide(dtype), 1, x, &t.call.out[1]));
    TRY(measure_repeat(m, measure_call, &t, 0, row));
    arena_rewind(m->operands, mark);
    return OK;
}

/* Flops of gelu and of a norm, 10 and 5 for each number as ops.def has them, without launches. */
static Err measure_pointwise(Measurer *m, DType dtype)
{
    static const char *const name[N_DTYPES] = {"pointwise f64", "pointwise f32", "pointwise bf16"};
    const double flops = 15.0 * CACHED;
    Measured row = {name[dtype], "Gflop/s", 0, 0}, norm = {NULL, NULL, 0, 0};
    TRY(time_vectors(m, KERNEL_gelu, dtype, CACHED, &row));
    TRY(time_norm(m, dtype, &norm));
    row.value += norm.value;
    row.value = fmax(row.value - 2 * m->out->rates.launch_s, 0.1 * row.value);
    m->out->rates.flops_per_s[WORK_POINTWISE][dtype] = flops / row.value;
    measure_keep(m, row, flops, 1e9);
    return OK;
}

static Err measure_memory(Measurer *m)
{
    Measured launch = {"launch", "us", 0, 0}, memory = {"memory", "GB/s", 0, 0};
    const int64_t large = m->s->grid == GRID_SMALL ? SMALL_LARGE : LARGE;
    Measured host = {"host copy", "GB/s", 0, 0};
    TRY(time_vectors(m, KERNEL_add, F32, 1, &launch));
    m->out->rates.launch_s = launch.value;
    measure_keep_time(m, launch, launch.value);
    TRY(time_vectors(m, KERNEL_add, F32, large, &memory));
    m->out->rates.memory_Bps = 12.0 * (double)large / memory.value;
    measure_keep(m, memory, 12.0 * (double)large, 1e9);
    TRY(time_vectors(m, KERNEL_copy, F32, large, &host));
    m->out->rates.host_Bps = 4.0 * (double)large / host.value;
    measure_keep(m, host, 4.0 * (double)large, 1e9);
    return OK;
}

/* Hosts of several ranks each are a level of their own. One rank has no link: as its memory. */
static void set_levels(Measurer *m)
{
    CostRates *r = &m->out->rates;
    const int node = m->s->node_ranks;
    const bool two = node > 1 && node < m->r->ranks;
    r->n_levels = 1 + two;
    for (int l = 0; l < r->n_levels; l++) r->level[l] = (CostLink){.Bps = r->memory_Bps};
    r->level[0].name = two ? "node" : "world";
    if (two) r->level[0].ranks = node, r->level[1].name = "world";
}

/* The reference device computes f64, in host memory. */
static Err measure_f64(const Measurer *from)
{
    Measurer m = *from;
    m.rt = NULL;
    m.queue = NULL;
    m.operands = m.r->arena;
    TRY(measure_gemm(&m, F64));
    TRY(measure_attention_f64(&m));
    return measure_pointwise(&m, F64);
}

static Err measure_all(Measurer *m)
{
    TRY(measure_memory(m));
    TRY(measure_f64(m));
    for (int t = F32; t <= BF16; t++) {
        TRY(measure_gemm(m, (DType)t));
        TRY(measure_pointwise(m, (DType)t));
        TRY(measure_attention_curve(m, (DType)t));
        TRY(measure_gemm_grid(m, (DType)t));
    }
    TRY(measure_memory_curve(m));
    set_levels(m);
    return measure_links(m);
}

/* Opens the rank's device, and the way of its memory to other ranks. */
static Err measure_device(Measurer *m)
{
    m->rt = m->s->device->runtime;
    TRY(m->rt->open(m->r->place % m->rt->count(), &m->context));
    m->queue = m->rt->queue(m->context, QUEUE_COMPUTE);
    Err err = OK;
    if (m->s->transport) err = transport_open(m->r, m->s->transport, m->out->transport);
    if (err == OK) err = measure_f64(m);
    if (err == OK) err = measure_card(m);
    set_levels(m);
    if (err == OK) err = measure_links(m);
    m->rt->close(m->context);
    return err;
}

CostRates measurement_rates(Measurement *m)
{
    CostRates r = m->rates;
    for (int t = F32; t <= BF16; t++) {
        m->gemm[t].rate = m->gemm_rate[t];
        if (m->gemm[t].n_m > 0) r.gemm[t] = &m->gemm[t];
        if (m->attention[t].n > 0) r.attention[t] = &m->attention[t];
        if (m->keyed[t].n > 0) r.keyed[t] = &m->keyed[t];
    }
    if (m->memory.n > 0) r.memory = &m->memory;
    m->pairs.latency_s = m->pair_latency_s;
    m->pairs.Bps = m->pair_Bps;
    if (m->pairs.n > 0) r.pairs = &m->pairs;
    m->nodes.link = m->node_link;
    m->nodes.between = m->node_between;
    if (m->nodes.n_links > 0) r.nodes = &m->nodes;
    r.n_tables = m->n_tables;
    r.table = m->table;
    return r;
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
    m.operands = r->arena;
    return s->device->runtime ? measure_device(&m) : measure_all(&m);
}
