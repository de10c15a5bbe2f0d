/* card_gemm.c -- GEMMs of a device: a grid by shape, and what epilogues add.
 *
 *     m >= k    y = x w^T and dx = dy w: activations of m tokens
 *     m <= k    dw = dy^T x, in f32: gradients of weights, summed over k tokens
 *
 * FP8 has one rate.
 *
 * A quick profile takes the library's first suggestion at each point of the grid. Training measures
 * the candidates (device/runtime.h), so the grid is raised by the gain of that at a few points. */
#include "plan/measure/card.h"

#include <math.h>

enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT };

static const double most_flops = 2e13;

static int64_t bytes_of(int64_t m, int64_t n, int64_t k, bool weights)
{
    return 2 * (m * k + k * n) + (weights ? 4 : 2) * m * n;
}

static Err make_gemm(Measurer *m, DType dtype, int layout, const int64_t s[3], Call *c)
{
    const bool dw = layout == WEIGHT_GRADIENT, tb = layout == FORWARD;
    *c = (Call){.n_in = 2, .n_out = 1, .attr = {.gemm = {.ta = dw, .tb = tb}}};
    TRY(card_matrix(m, dtype, dw ? s[2] : s[0], dw ? s[0] : s[2], &c->in[0]));
    TRY(card_matrix(m, dtype, tb ? s[1] : s[2], tb ? s[2] : s[1], &c->in[1]));
    return card_matrix(m, dw ? dtype_wide(dtype) : dtype, s[0], s[1], &c->out[0]);
}

/* The device chooses the algorithm of this GEMM by measurement, as before the first step of a
 * run. */
static Err tune(Measurer *m, KernelId kernel, const Call *call)
{
    const DeviceAutotune *a = m->rt->autotune;
    Call first = *call;
    first.queue = m->queue;
    if (!a) return OK;
    a->measure(m->context, true);
    const Err err = m->s->device->kernel[kernel](&first);
    a->measure(m->context, false);
    return err;
}

/* Seconds of a GEMM of this layout, with the library's first suggestion or a measured one. */
static Err time_gemm(Measurer *m, DType dtype, int layout, const int64_t s[3], bool tuned,
                     double *seconds)
{
    const size_t mark = arena_mark(m->operands);
    Call c;
    Err err = make_gemm(m, dtype, layout, s, &c);
    if (err == OK && tuned) err = tune(m, KERNEL_gemm, &c);
    if (err == OK) err = card_call_seconds(m, KERNEL_gemm, &c, seconds);
    arena_rewind(m->operands, mark);
    return err;
}

static double rate_of(const int64_t s[3], double seconds)
{
    return 2.0 * (double)s[0] * (double)s[1] * (double)s[2] / seconds;
}

/* Mean rate of the layouts that have this shape; 0: the shape is too large to be measured. */
static Err measure_point(Measurer *m, const int64_t s[3], bool tuned, double *rate)
{
    double sum = 0, seconds;
    int n = 0;
    *rate = 0;
    const bool fits = (size_t)bytes_of(s[0], s[1], s[2], true) + (1 << 20) <
                      m->operands->cap_bytes - m->operands->used_bytes;
    if (!fits || rate_of(s, 1) > most_flops) return OK;
    for (int layout = FORWARD; layout <= WEIGHT_GRADIENT; layout++) {
        if (layout == WEIGHT_GRADIENT ? s[0] > s[2] : s[0] < s[2]) continue;
        TRY(time_gemm(m, BF16, layout, s, tuned, &seconds));
        sum += fmax(seconds - m->out->rates.launch_s, 0.1 * seconds);
        n++;
    }
    *rate = rate_of(s, sum / n);
    return OK;
}

/* The points that were too large have the rate of the nearest smaller one. */
static void fill_grid(const CostGrid *g, double *rate)
{
    const int n = g->n_m;
    for (int i = 0; i < n * n * n; i++) {
        const int at[] = {i / (n * n), i / n % n, i % n}, step[] = {n * n, n, 1};
        for (int a = 0; a < 3 && rate[i] == 0; a++)
            if (at[a] > 0) rate[i] = rate[i - step[a]];
    }
}

/* The mean of log(measured / suggested) over a few shapes. The suggested one has another k, since
 * an algorithm that has been chosen for a shape stays. */
static Err measure_gain(Measurer *m, double *gain)
{
    static const struct {
        int layout;
        int64_t s[3];
    } shape[] = {{FORWARD, {16384, 4096, 1024}},
                 {INPUT_GRADIENT, {16384, 1024, 4096}},
                 {WEIGHT_GRADIENT, {4096, 1024, 16384}}};
    const int n = sizeof shape / sizeof *shape;
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double seconds[2], rate[2];
        for (int tuned = 0; tuned < 2; tuned++) {
            const int64_t s[] = {shape[i].s[0], shape[i].s[1], shape[i].s[2] + (tuned ? 64 : 128)};
            TRY(time_gemm(m, BF16, shape[i].layout, s, tuned, &seconds[tuned]));
            rate[tuned] = rate_of(s, seconds[tuned]);
        }
        sum += fmax(0, log(rate[1] / rate[0]));
    }
    *gain = exp(sum / n);
    card_keep(m, "gemm, measured", "x", *gain, 0);
    return OK;
}

static Err measure_grid(Measurer *m)
{
    static const double full[] = {512, 1024, 2048, 4096, 16384, 65536},
                        quick[] = {1024, 4096, 16384, 65536}, small[] = {64, 128};
    const MeasureGrid grid = m->s->grid;
    const double *size = grid == GRID_FULL ? full : grid == GRID_QUICK ? quick : small;
    const int n = grid == GRID_FULL ? 6 : grid == GRID_QUICK ? 4 : 2;
    CostGrid *g = &m->out->gemm[BF16];
    double *rate = m->out->gemm_rate[BF16], gain = 1;
    measure_progress(m, "grid of GEMMs bf16");
    if (grid == GRID_QUICK && m->rt->autotune) TRY(measure_gain(m, &gain));
    g->n_m = g->n_n = g->n_k = n;
    for (int i = 0; i < n; i++) g->m[i] = g->n[i] = g->k[i] = size[i];
    for (int i = 0; i < n * n * n; i++) {
        const int64_t s[] = {(int64_t)size[i / (n * n)], (int64_t)size[i / n % n],
                             (int64_t)size[i % n]};
        TRY(measure_point(m, s, grid == GRID_FULL, &rate[i]));
        rate[i] *= gain;
    }
    fill_grid(g, rate);
    return OK;
}

/* ---- epilogues ---- */

/* A GEMM with a gelu writes one more matrix, its gradient reads one more. */
static Err make_epilogue(Measurer *m, bool gelu, const int64_t s[3], Call *c)
{
    *c = (Call){.n_in = gelu ? 2 : 3, .n_out = gelu ? 2 : 1, .attr = {.gemm = {.tb = gelu}}};
    TRY(card_matrix(m, BF16, s[0], s[2], &c->in[0]));
    TRY(card_matrix(m, BF16, gelu ? s[1] : s[2], gelu ? s[2] : s[1], &c->in[1]));
    TRY(card_matrix(m, BF16, s[0], s[1], &c->out[0]));
    return card_matrix(m, BF16, s[0], s[1], gelu ? &c->out[1] : &c->in[2]);
}

static Err time_epilogue(Measurer *m, KernelId kernel, const int64_t s[3], double *seconds)
{
    const size_t mark = arena_mark(m->operands);
    Call c;
    Err err = make_epilogue(m, kernel == KERNEL_gemm_gelu, s, &c);
    if (err == OK) err = tune(m, kernel, &c);
    if (err == OK) err = card_call_seconds(m, kernel, &c, seconds);
    arena_rewind(m->operands, mark);
    return err;
}

static Err measure_epilogue(Measurer *m)
{
    const int64_t large[] = {32768, 4096, 1024}, few[] = {64, 128, 64};
    const int64_t *s = m->s->grid == GRID_SMALL ? few : large;
    const double more = 2.0 * (double)(s[0] * s[1]) / m->out->rates.memory_Bps;
    double plain[2], with[2];
    measure_progress(m, "epilogues of GEMMs");
    TRY(time_gemm(m, BF16, FORWARD, s, true, &plain[0]));
    TRY(time_gemm(m, BF16, INPUT_GRADIENT, s, true, &plain[1]));
    TRY(time_epilogue(m, KERNEL_gemm_gelu, s, &with[0]));
    TRY(time_epilogue(m, KERNEL_gemm_dgelu, s, &with[1]));
    const double share = (with[0] + with[1] - plain[0] - plain[1]) / (2 * more);
    m->out->rates.epilogue = fmax(0.01, share);
    card_keep(m, "epilogue", "x", m->out->rates.epilogue, m->spread);
    return OK;
}

/* One rate of a large GEMM in f32 and in bf16. */
static Err measure_large(Measurer *m, DType dtype, int64_t size)
{
    static const char *const name[N_DTYPES] = {[F32] = "gemm f32", [BF16] = "gemm bf16"};
    const int64_t s[] = {size, size, size};
    double seconds;
    measure_progress(m, name[dtype]);
    TRY(time_gemm(m, dtype, FORWARD, s, dtype == BF16, &seconds));
    const double rate = rate_of(s, seconds);
    m->out->rates.flops_per_s[WORK_GEMM][dtype] = m->out->peak_flops_per_s[dtype] = rate;
    card_keep(m, name[dtype], "Gflop/s", 1e-9 * rate, m->spread);
    return OK;
}

/* ---- operands of 8 bits ---- */

/* Random numbers in E4M3, and their scale. */
static Err make_fp8(Measurer *m, int64_t rows, int64_t columns, Tensor *out, Tensor *scale)
{
    const int64_t n[] = {rows, columns}, one = 1;
    Call amax = {.n_in = 1, .n_out = 1, .queue = m->queue};
    Call quantize = {.n_in = 2, .n_out = 2, .queue = m->queue};
    quantize.attr.quantize.type = E4M3;
    TRY(card_tensor(m, BF16, 2, n, &amax.in[0]));
    TRY(card_tensor(m, F32, 1, &one, &amax.out[0]));
    quantize.in[0] = amax.in[0];
    quantize.in[1] = amax.out[0];
    TRY(card_tensor(m, E4M3, 2, n, &quantize.out[0]));
    TRY(card_tensor(m, F32, 1, &one, &quantize.out[1]));
    TRY(m->s->device->kernel[KERNEL_amax](&amax));
    TRY(m->s->device->kernel[KERNEL_quantize](&quantize));
    *out = quantize.out[0];
    *scale = quantize.out[1];
    return OK;
}

static Err time_fp8(Measurer *m, int layout, const int64_t s[3], double *seconds)
{
    const bool dw = layout == WEIGHT_GRADIENT, tb = layout == FORWARD;
    Call c = {.n_in = 4, .n_out = 1, .attr = {.gemm = {.ta = dw, .tb = tb}}};
    TRY(make_fp8(m, dw ? s[2] : s[0], dw ? s[0] : s[2], &c.in[0], &c.in[2]));
    TRY(make_fp8(m, tb ? s[1] : s[2], tb ? s[2] : s[1], &c.in[1], &c.in[3]));
    TRY(card_matrix(m, dw ? F32 : BF16, s[0], s[1], &c.out[0]));
    return card_call_seconds(m, KERNEL_scaled_gemm, &c, seconds);
}

/* One rate of the three GEMMs of a linear map; transposing operands is a part of them. */
static Err measure_fp8(Measurer *m)
{
    const int64_t size = m->s->grid == GRID_SMALL ? 64 : 4096, s[] = {size, size, size};
    double sum = 0, seconds;
    measure_progress(m, "gemm fp8");
    for (int layout = FORWARD; layout <= WEIGHT_GRADIENT; layout++) {
        const size_t mark = arena_mark(m->operands);
        TRY(time_fp8(m, layout, s, &seconds));
        arena_rewind(m->operands, mark);
        sum += seconds;
    }
    m->out->rates.flops_per_s[WORK_GEMM][E4M3] = rate_of(s, sum / 3);
    card_keep(m, "gemm fp8", "Gflop/s", 1e-9 * rate_of(s, sum / 3), m->spread);
    return OK;
}

Err card_gemms(Measurer *m)
{
    const bool small = m->s->grid == GRID_SMALL;
    TRY(measure_large(m, F32, small ? 64 : 4096));
    TRY(measure_large(m, BF16, small ? 64 : 8192));
    TRY(measure_fp8(m));
    TRY(measure_epilogue(m));
    return measure_grid(m);
}
