/* card_rates.c -- launches, memory, attention, and kernels that move bytes, on a device. */
#include "plan/measure/card.h"

#include <math.h>
#include <string.h>

enum { MEMORY_POINTS = 7 };

/* Seconds of a kernel on vectors of f32. */
static Err time_vector(Measurer *m, KernelId kernel, int64_t n, double *seconds)
{
    const size_t mark = arena_mark(m->operands);
    Call c = {.n_in = kernel == KERNEL_add ? 2 : 1, .n_out = 1};
    for (int i = 0; i < c.n_in; i++) TRY(card_tensor(m, F32, 1, &n, &c.in[i]));
    TRY(card_tensor(m, F32, 1, &n, &c.out[0]));
    const Err err = card_call_seconds(m, kernel, &c, seconds);
    arena_rewind(m->operands, mark);
    return err;
}

/* A launch in a graph; memory by the bytes of an add. */
static Err measure_memory(Measurer *m)
{
    CostCurve *c = &m->out->memory;
    CostRates *r = &m->out->rates;
    double seconds;
    measure_progress(m, "launches");
    TRY(time_vector(m, KERNEL_add, 1, &seconds));
    r->launch_s = seconds;
    card_keep(m, "launch", "us", 1e6 * seconds, m->spread);
    measure_progress(m, "memory");
    c->n = m->s->grid == GRID_SMALL ? 3 : MEMORY_POINTS;
    for (int i = 0; i < c->n; i++) {
        const int64_t n = (int64_t)1 << (15 + 2 * i); /* 0.4 MB to 1.6 GB */
        TRY(time_vector(m, KERNEL_add, n, &seconds));
        c->x[i] = 12.0 * (double)n;
        c->y[i] = c->x[i] / fmax(seconds - r->launch_s, 0.1 * seconds);
    }
    r->memory_Bps = c->y[c->n - 1];
    card_keep(m, "memory", "GB/s", 1e-9 * r->memory_Bps, m->spread);
    return OK;
}

static Err copy_to_host(Measurer *m, void *work)
{
    void *const *at = work;
    return m->rt->copy(m->queue, at[0], at[1], 1 << 24);
}

/* From device to pinned host memory. */
static Err measure_host(Measurer *m)
{
    void *at[2] = {NULL, m->operands->base};
    Measured row = {0};
    measure_progress(m, "copies to the host");
    TRY(m->rt->alloc_host(m->context, 1 << 24, &at[0]));
    const Err err = card_seconds(m, copy_to_host, at, &row);
    m->rt->free_host(m->context, at[0]);
    TRY(err);
    m->out->rates.host_Bps = (1 << 24) / row.value;
    card_keep(m, "host copy", "GB/s", 1e-9 * m->out->rates.host_Bps, row.spread);
    return OK;
}

/* Flops of a gelu whose operands stay in the caches. */
static Err measure_pointwise(Measurer *m, DType dtype)
{
    const int64_t n = m->s->grid == GRID_SMALL ? 1 << 12 : 1 << 22;
    const size_t mark = arena_mark(m->operands);
    double seconds;
    Call c = {.n_in = 1, .n_out = 1};
    measure_progress(m, dtype == BF16 ? "pointwise bf16" : "pointwise f32");
    TRY(card_tensor(m, dtype, 1, &n, &c.in[0]));
    TRY(card_tensor(m, dtype, 1, &n, &c.out[0]));
    TRY(card_call_seconds(m, KERNEL_gelu, &c, &seconds));
    arena_rewind(m->operands, mark);
    const double rate = 10.0 * (double)n / fmax(seconds - m->out->rates.launch_s, 0.1 * seconds);
    m->out->rates.flops_per_s[WORK_POINTWISE][dtype] = rate;
    card_keep(m, dtype == BF16 ? "pointwise bf16" : "pointwise f32", "Gflop/s", 1e-9 * rate,
              m->spread);
    return OK;
}

/* ---- attention ---- */

typedef struct {
    int64_t tokens, keys; /* all rows; of one sequence */
    int64_t heads, width;
} AttentionShape;

static Err make_ranges(Measurer *m, const AttentionShape *s, Tensor *out)
{
    const int64_t n[] = {s->tokens, 4};
    int32_t *host;
    TRY(ARENA_NEW(m->r->arena, 4 * s->tokens, &host));
    for (int64_t i = 0; i < s->tokens; i++) {
        host[4 * i] = (int32_t)(i - i % s->keys);
        host[4 * i + 1] = (int32_t)i + 1;
    }
    return card_integers(m, 2, n, host, out);
}

/* Seconds of a causal attention and of its gradient. */
static Err time_attention(Measurer *m, DType dtype, const AttentionShape *s, double seconds[2])
{
    const int64_t qkv[] = {s->tokens, s->heads, s->width};
    Call f = {.n_in = 4, .n_out = 2}, b = {.n_in = 7, .n_out = 3};
    f.attr.attention.scale = 1 / sqrt((double)s->width);
    f.attr.attention.causal = s->keys;
    b.attr = f.attr;
    for (int i = 0; i < 3; i++) TRY(card_tensor(m, dtype, 3, qkv, &f.in[i]));
    TRY(make_ranges(m, s, &f.in[3]));
    TRY(card_tensor(m, dtype, 3, qkv, &f.out[0]));
    TRY(card_tensor(m, F32, 2, qkv, &f.out[1]));
    for (int i = 0; i < 4; i++) b.in[i] = f.in[i];
    TRY(card_tensor(m, dtype, 3, qkv, &b.in[4]));
    b.in[5] = f.out[1];
    b.in[6] = f.out[0];
    for (int i = 0; i < 3; i++) TRY(card_tensor(m, dtype, 3, qkv, &b.out[i]));
    TRY(card_call_seconds(m, KERNEL_attention, &f, &seconds[0]));
    return card_call_seconds(m, KERNEL_attention_dx, &b, &seconds[1]);
}

static Err measure_attention(Measurer *m)
{
    static const int64_t keys[] = {512, 1024, 4096, 16384, 32768};
    const bool small = m->s->grid == GRID_SMALL;
    CostAttention *a = &m->out->keyed[BF16];
    measure_progress(m, "attention bf16");
    for (a->n = 0; a->n < 2; a->n++) {
        CostCurve *curve[] = {&a->forward[a->n], &a->backward[a->n]};
        a->width[a->n] = a->n ? 128 : 64;
        for (int i = 0; i < (small ? 2 : 5); i++) {
            AttentionShape s = {16384, keys[i], 16, (int64_t)a->width[a->n]};
            if (small) s = (AttentionShape){64, 16 << i, 2, s.width};
            if (s.tokens < s.keys) s.tokens = s.keys;
            const size_t mark = arena_mark(m->operands);
            const double mean = 0.5 * (double)(s.keys + 1);
            const double pairs = (double)(s.tokens * s.heads) * mean;
            double seconds[2];
            TRY(time_attention(m, BF16, &s, seconds));
            arena_rewind(m->operands, mark);
            for (int k = 0; k < 2; k++) {
                const double flops = (k ? 10 : 4) * (double)s.width * pairs;
                curve[k]->x[i] = mean;
                curve[k]->y[i] =
                    flops / fmax(seconds[k] - m->out->rates.launch_s, 0.1 * seconds[k]);
                curve[k]->n = i + 1;
            }
        }
    }
    m->out->rates.flops_per_s[WORK_ATTENTION][BF16] = a->forward[0].y[a->forward[0].n - 1];
    card_keep(m, "attention bf16", "Gflop/s", 1e-9 * a->forward[0].y[a->forward[0].n - 1],
              m->spread);
    return OK;
}

/* One rate for f32, of a short sequence. */
static Err measure_attention_f32(Measurer *m)
{
    const size_t mark = arena_mark(m->operands);
    AttentionShape s = {4096, 1024, 8, 64};
    double seconds[2];
    if (m->s->grid == GRID_SMALL) s = (AttentionShape){64, 32, 2, 64};
    TRY(time_attention(m, F32, &s, seconds));
    arena_rewind(m->operands, mark);
    const double pairs = (double)(s.tokens * s.heads) * 0.5 * (double)(s.keys + 1);
    m->out->rates.flops_per_s[WORK_ATTENTION][F32] =
        14.0 * (double)s.width * pairs / (seconds[0] + seconds[1]);
    return OK;
}

/* ---- kernels that move bytes ---- */

static double bytes_of(const Call *c)
{
    double bytes = 0;
    for (int i = 0; i < c->n_in; i++)
        bytes += (double)tensor_count(&c->in[i]) * (double)dtype_bytes(c->in[i].dtype);
    for (int i = 0; i < c->n_out; i++)
        bytes += (double)tensor_count(&c->out[i]) * (double)dtype_bytes(c->out[i].dtype);
    return bytes;
}

/* Keeps the part of the memory's rate at which these bytes were moved. */
static void keep_reach(Measurer *m, MemoryReach which, double bytes, double seconds)
{
    static const char *const name[] = {"norms", "loss", "update"};
    const double most = m->out->rates.memory_Bps, launch = m->out->rates.launch_s;
    const double reach = bytes / fmax(seconds - launch, 0.1 * seconds) / most;
    m->out->rates.reach[which] = fmin(1, reach);
    card_keep(m, name[which], "of mem.", reach, m->spread);
}

/* RMS norm forward and backward. */
static Err measure_norms(Measurer *m)
{
    const bool small = m->s->grid == GRID_SMALL;
    const int64_t x[] = {small ? 64 : 32768, small ? 64 : 2048}, w[] = {x[1]};
    const size_t mark = arena_mark(m->operands);
    double seconds[2];
    Call f = {.n_in = 2, .n_out = 2}, b = {.n_in = 5, .n_out = 2, .number = {0, 1}};
    f.attr.norm.eps = 1e-5;
    TRY(card_tensor(m, BF16, 2, x, &f.in[0]));
    TRY(card_tensor(m, BF16, 1, w, &f.in[1]));
    TRY(card_tensor(m, BF16, 2, x, &f.out[0]));
    TRY(card_tensor(m, F32, 1, x, &f.out[1]));
    TRY(card_tensor(m, BF16, 2, x, &b.in[0]));
    b.in[1] = f.in[0], b.in[2] = f.in[1], b.in[3] = f.out[1];
    TRY(card_tensor(m, BF16, 2, x, &b.in[4]));
    TRY(card_tensor(m, BF16, 2, x, &b.out[0]));
    TRY(card_tensor(m, F32, 1, w, &b.out[1]));
    TRY(card_call_seconds(m, KERNEL_rmsnorm, &f, &seconds[0]));
    TRY(card_call_seconds(m, KERNEL_rmsnorm_back, &b, &seconds[1]));
    arena_rewind(m->operands, mark);
    keep_reach(m, REACH_NORM, bytes_of(&f) + bytes_of(&b),
               seconds[0] + seconds[1] - m->out->rates.launch_s);
    return OK;
}

/* The loss with its gradient, in place. */
static Err measure_loss(Measurer *m)
{
    const bool small = m->s->grid == GRID_SMALL;
    const int64_t x[] = {small ? 16 : 8192, small ? 64 : 65536}, one = 1;
    const size_t mark = arena_mark(m->operands);
    int32_t *target;
    double seconds;
    Call c = {.n_in = 3, .n_out = 2};
    TRY(ARENA_NEW(m->r->arena, x[0], &target));
    for (int64_t i = 0; i < x[0]; i++) target[i] = (int32_t)(i * 7 % x[1]);
    TRY(card_tensor(m, BF16, 2, x, &c.in[0]));
    TRY(card_integers(m, 1, x, target, &c.in[1]));
    TRY(card_tensor(m, F32, 1, x, &c.in[2]));
    c.out[0] = c.in[0];
    TRY(card_tensor(m, F32, 1, &one, &c.out[1]));
    TRY(card_call_seconds(m, KERNEL_token_loss_dx, &c, &seconds));
    arena_rewind(m->operands, mark);
    keep_reach(m, REACH_LOSS, bytes_of(&c), seconds);
    return OK;
}

typedef struct {
    DeviceList *squares, *update;
    DeviceClip clip;
    UpdateNumbers numbers;
} StateLists;

static Err enqueue_state(Measurer *m, void *work)
{
    const StateLists *s = work;
    TRY(m->rt->lists->squares_run(m->queue, s->squares));
    TRY(m->rt->lists->clip(m->queue, &s->clip));
    return m->rt->lists->update_run(m->queue, s->update, &s->numbers);
}

/* Squares of the gradients, clip and AdamW: 4 + 4 bytes read of each gradient, 24 of master weights
 * and moments, 2 written as bf16. */
static Err measure_state(Measurer *m)
{
    const int64_t n = m->s->grid == GRID_SMALL ? 1 << 12 : 1 << 26, few = 64;
    const size_t mark = arena_mark(m->operands);
    static const struct {
        double mean;
        UpdateRates rates;
    } number = {1, {1e-3, 0.1, 0.05}};
    Tensor t[5], cell;
    Measured row = {0};
    for (int i = 0; i < 5; i++) TRY(card_tensor(m, i == 4 ? BF16 : F32, 1, &n, &t[i]));
    TRY(card_tensor(m, F32, 1, &few, &cell));
    double *at = cell.data;
    StateLists s = {.clip = {.sums = at, .n = 1, .mean = at + 3, .max_norm = 1, .out = at + 1},
                    .numbers = {0.9, 0.95, 1e-8, (const UpdateRates *)(void *)(at + 4), at + 1}};
    const UpdatePiece piece = {t[0].data, t[1].data, t[2].data, t[3].data, t[4].data,
                               n,         0.1,       F32,       false,     0};
    const SquaresPiece square = {t[0].data, n, at, 0, F32};
    TRY(m->rt->set(m->queue, t[3].data, 0, (size_t)n * 4)); /* no root of a negative */
    TRY(m->rt->copy(m->queue, at + 3, &number, sizeof number));
    TRY(m->rt->sync(m->queue));
    TRY(m->rt->lists->squares_open(m->context, &square, 1, NULL, &s.squares));
    Err err = m->rt->lists->update_open(m->context, &piece, 1, NULL, &s.update);
    if (err == OK) err = card_seconds(m, enqueue_state, &s, &row);
    if (s.update) m->rt->lists->list_close(s.update);
    m->rt->lists->list_close(s.squares);
    arena_rewind(m->operands, mark);
    m->spread = row.spread;
    if (err == OK) keep_reach(m, REACH_STATE, 34.0 * (double)n, row.value);
    return err;
}

Err card_rates(Measurer *m)
{
    TRY(measure_memory(m));
    TRY(measure_host(m));
    for (int t = F32; t <= BF16; t++) TRY(measure_pointwise(m, (DType)t));
    TRY(measure_attention(m));
    TRY(measure_attention_f32(m));
    measure_progress(m, "norms");
    TRY(measure_norms(m));
    measure_progress(m, "the loss");
    TRY(measure_loss(m));
    measure_progress(m, "the update");
    return m->rt->lists ? measure_state(m) : OK;
}
