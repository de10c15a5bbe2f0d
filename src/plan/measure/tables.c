/* tables.c -- rates of kernels by shape and by size. */
#include "plan/measure/parts.h"

#include <math.h>
#include <string.h>

/* Weights come from memory or the last cache in a step, activations from the caches: between two
 * uses of a weight are those of all other layers. So each repetition has weights of its own, in
 * turn, up to as many bytes as caches hold, and no more of them than 12 layers have. */
enum { COLD_BYTES = 32 << 20, MOST_COLD = 48 };

/* The three GEMMs of a linear map: y = x w^T, dx = dy w, dw += dy^T x. */
typedef struct {
    TimedCall layout[3];
    Tensor *weight[3]; /* w, w, dw */
    void *cold[3][MOST_COLD];
    int n_cold[3], turn;
} GemmShape;

static Err run_shape(Measurer *m, void *work)
{
    GemmShape *s = work;
    for (int i = 0; i < 3; i++) {
        s->weight[i]->data = s->cold[i][s->turn % s->n_cold[i]];
        TRY(measure_call(m, &s->layout[i]));
    }
    s->turn++;
    return OK;
}

/* Makes the weights of one layout; *t has the first. */
static Err open_cold(Measurer *m, GemmShape *s, int i, Tensor *t)
{
    const size_t bytes = (size_t)(t->n[0] * t->n[1]) * dtype_bytes(t->dtype);
    const size_t sets = COLD_BYTES / bytes;
    s->weight[i] = t;
    s->n_cold[i] = sets < 1 ? 1 : sets > MOST_COLD ? MOST_COLD : (int)sets;
    s->cold[i][0] = t->data;
    for (int k = 1; k < s->n_cold[i]; k++) {
        Tensor more;
        TRY(measure_tensor(m, t->dtype, 2, t->n, &more));
        s->cold[i][k] = more.data;
    }
    return OK;
}

/* Mean seconds of the three layouts at one point. */
static Err time_shape(Measurer *m, DType dtype, const int64_t mnk[3], double *seconds)
{
    const int64_t a[2][2] = {{mnk[0], mnk[2]}, {mnk[2], mnk[0]}};
    const int64_t b[2][2] = {{mnk[1], mnk[2]}, {mnk[2], mnk[1]}}, c[2] = {mnk[0], mnk[1]};
    const size_t mark = arena_mark(m->operands);
    Measured row = {NULL, NULL, 0, 0};
    GemmShape s = {.turn = 0};
    for (int i = 0; i < 3; i++) {
        const bool dw = i == 2;
        TimedCall *t = &s.layout[i];
        *t = (TimedCall){m->s->device->kernel[KERNEL_gemm],
                         {.n_in = 2,
                          .n_out = 1,
                          .attr = {.gemm = {.ta = dw, .tb = i == 0}},
                          .team = m->s->team,
                          .queue = m->queue}};
        TRY(measure_tensor(m, dtype, 2, a[dw], &t->call.in[0]));
        TRY(measure_tensor(m, dtype, 2, b[i != 0], &t->call.in[1]));
        TRY(measure_tensor(m, dw ? dtype_wide(dtype) : dtype, 2, c, &t->call.out[0]));
        t->call.number[0] = dw; /* kept: sums of micro-batches */
        TRY(open_cold(m, &s, i, dw ? &t->call.out[0] : &t->call.in[1]));
    }
    TRY(measure_repeat(m, run_shape, &s, 0, &row));
    *seconds = row.value / 3;
    arena_rewind(m->operands, mark);
    return OK;
}

Err measure_gemm_grid(Measurer *m, DType dtype)
{
    static const struct {
        int n;
        double m[5], nk[5];
    } size[N_GRIDS] = {[GRID_FULL] = {5, {16, 64, 256, 1024, 4096}, {32, 128, 512, 1024, 4096}},
                       [GRID_QUICK] = {3, {32, 256, 1024}, {64, 256, 1024}},
                       [GRID_SMALL] = {3, {4, 8, 16}, {4, 12, 20}}};
    const int n = size[m->s->grid].n;
    CostGrid *g = &m->out->gemm[dtype];
    measure_progress(m, dtype == BF16 ? "grid of GEMMs bf16" : "grid of GEMMs f32");
    g->n_m = g->n_n = g->n_k = n;
    for (int i = 0; i < n; i++) {
        g->m[i] = size[m->s->grid].m[i];
        g->n[i] = g->k[i] = size[m->s->grid].nk[i];
    }
    for (int i = 0; i < n * n * n; i++) {
        const int64_t mnk[] = {(int64_t)g->m[i / (n * n)], (int64_t)g->n[i / n % n],
                               (int64_t)g->k[i % n]};
        double seconds;
        TRY(time_shape(m, dtype, mnk, &seconds));
        seconds = fmax(seconds - m->out->rates.launch_s, 0.1 * seconds);
        m->out->gemm_rate[dtype][i] = 2.0 * (double)(mnk[0] * mnk[1] * mnk[2]) / seconds;
    }
    return OK;
}

enum { HEADS = 8, HEAD_SIZE = 64 };

/* Forward, then backward of one causal sequence. */
typedef struct {
    TimedCall forward, backward;
} AttentionPair;

static Err run_pair(Measurer *m, void *work)
{
    AttentionPair *p = work;
    TRY(measure_call(m, &p->forward));
    return measure_call(m, &p->backward);
}

static Err make_ranges(Measurer *m, int64_t tokens, Tensor *out)
{
    const int64_t n[] = {tokens, 4};
    int32_t *host;
    TRY(measure_tensor(m, I32, 2, n, out));
    TRY(ARENA_NEW(m->r->arena, 4 * tokens, &host));
    for (int64_t i = 0; i < tokens; i++) host[4 * i + 1] = (int32_t)i + 1;
    if (m->rt) return m->rt->copy(m->queue, out->data, host, 16 * (size_t)tokens);
    memcpy(out->data, host, 16 * (size_t)tokens);
    return OK;
}

static Err open_pair(Measurer *m, DType dtype, int64_t tokens, AttentionPair *p)
{
    const int64_t qkv[] = {tokens, HEADS, HEAD_SIZE};
    const Call base = {
        .attr = {.attention = {.scale = 0.125}}, .team = m->s->team, .queue = m->queue};
    Call *f = &p->forward.call, *b = &p->backward.call;
    *p = (AttentionPair){{m->s->device->kernel[KERNEL_attention], base},
                         {m->s->device->kernel[KERNEL_attention_dx], base}};
    for (int i = 0; i < 3; i++) TRY(measure_tensor(m, dtype, 3, qkv, &f->in[i]));
    TRY(make_ranges(m, tokens, &f->in[3]));
    TRY(measure_tensor(m, dtype, 3, qkv, &f->out[0]));
    TRY(measure_tensor(m, dtype_wide(dtype), 2, qkv, &f->out[1]));
    for (int i = 0; i < 4; i++) b->in[i] = f->in[i];
    b->in[4] = b->in[6] = f->out[0];
    b->in[5] = f->out[1];
    for (int i = 0; i < 3; i++) TRY(measure_tensor(m, dtype, 3, qkv, &b->out[i]));
    f->n_in = 4, f->n_out = 2, b->n_in = 7, b->n_out = 3;
    return OK;
}

/* One rate for both directions: 14 c flops for each pair and head, as ops.def counts them. The
 * sizes are those of the forward. */
Err measure_attention_curve(Measurer *m, DType dtype)
{
    static const int64_t sizes[N_GRIDS][3] = {{64, 256, 1024}, {64, 256, 1024}, {4, 8, 16}};
    const int64_t *tokens = sizes[m->s->grid];
    const char *name = dtype == BF16 ? "attention bf16" : "attention f32";
    CostCurve *c = &m->out->attention[dtype];
    for (int i = 0; i < 3; i++) {
        const double pairs = HEADS * (double)(tokens[i] * (tokens[i] + 1) / 2);
        const size_t mark = arena_mark(m->operands);
        Measured row = {i == 2 ? name : NULL, "Gflop/s", 0, 0};
        AttentionPair p;
        TRY(open_pair(m, dtype, tokens[i], &p));
        TRY(measure_repeat(m, run_pair, &p, 0, &row));
        c->x[i] = 4.0 * HEAD_SIZE * pairs;
        c->y[i] = 14.0 * HEAD_SIZE * pairs /
                  fmax(row.value - 2 * m->out->rates.launch_s, 0.1 * row.value);
        if (i == 2) measure_keep(m, row, 14.0 * HEAD_SIZE * pairs, 1e9);
        arena_rewind(m->operands, mark);
    }
    c->n = 3;
    m->out->rates.flops_per_s[WORK_ATTENTION][dtype] = c->y[2];
    return OK;
}

/* An add of n numbers moves 12 n bytes. */
Err measure_memory_curve(Measurer *m)
{
    static const int64_t count[] = {1 << 9, 1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 23};
    const int n = m->s->grid == GRID_SMALL ? 4 : (int)(sizeof count / sizeof *count);
    CostCurve *c = &m->out->memory;
    measure_progress(m, "memory by size");
    for (int i = 0; i < n; i++) {
        const size_t mark = arena_mark(m->operands);
        Measured row = {NULL, NULL, 0, 0};
        TimedCall t = {m->s->device->kernel[KERNEL_add],
                       {.n_in = 2, .n_out = 1, .team = m->s->team, .queue = m->queue}};
        for (int k = 0; k < 2; k++) TRY(measure_tensor(m, F32, 1, &count[i], &t.call.in[k]));
        TRY(measure_tensor(m, F32, 1, &count[i], &t.call.out[0]));
        TRY(measure_repeat(m, measure_call, &t, 0, &row));
        c->x[i] = 12.0 * (double)count[i];
        c->y[i] = c->x[i] / fmax(row.value - m->out->rates.launch_s, 0.1 * row.value);
        arena_rewind(m->operands, mark);
    }
    c->n = n;
    return OK;
}
