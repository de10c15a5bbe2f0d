/* Norms on the GPU: rows of a warp, of a block, longer than the registers; heads; huge values. */
#include "gpu_test.h"

static const int64_t widths[] = {5,    40,   64,   100,  128,  768,  1030, 1280,
                                 1536, 1600, 2048, 3072, 4096, 5000, 6144, 9000};
enum { N_WIDTHS = sizeof widths / sizeof *widths };
static const Attr attr = {.norm = {1e-5}};

static Tensor rows_of(DType type, int strides, int64_t t, int64_t h, int64_t d)
{
    return h ? RANDOM(&gpu.b, type, (Strides)(strides % N_STRIDES), t, h, d)
             : RANDOM(&gpu.b, type, (Strides)(strides % N_STRIDES), t, d);
}

static Tensor stats_of(int strides, int64_t t, int64_t h)
{
    return h ? NEW(&gpu.b, F32, (Strides)(strides % N_STRIDES), t, h)
             : NEW(&gpu.b, F32, (Strides)(strides % N_STRIDES), t);
}

/* mean and rstd of x, by ref, for the gradients. */
static void forward(Call *c, const Tensor *x, const Tensor *w, Tensor *mean, Tensor *rstd)
{
    const Strides strides = DENSE;
    *c = (Call){.n_in = 2, .n_out = 2, .attr = attr};
    c->in[0] = *x;
    c->in[1] = *w;
    c->out[0] = bench_new(&gpu.b, x->dtype, strides, x->n, x->ndim);
    c->out[1] = *rstd;
    if (!mean) {
        run(KERNEL_rmsnorm, c);
        return;
    }
    c->in[c->n_in++] = *w;
    c->out[1] = *mean;
    c->out[c->n_out++] = *rstd;
    run(KERNEL_layernorm, c);
}

/* dy, x, (w,) (mean,) rstd, and for some variants an addend of dx. */
static Call gradient_of(bool rms, int64_t t, int64_t h, int64_t d, int variant)
{
    const DType type = gpu_types[variant % 2];
    const int strides = variant / 2;
    Tensor mean = stats_of(strides, t, h), rstd = stats_of(strides + 1, t, h);
    const Tensor x = rows_of(type, strides, t, h, d),
                 w = RANDOM(&gpu.b, type, (Strides)(strides % 2), d);
    Call f, c = {.attr = attr};
    for (int64_t i = 0; i < tensor_count(&x); i++) put(&x, i, get(&x, i) + 0.5);
    forward(&f, &x, &w, rms ? NULL : &mean, &rstd);
    c.in[c.n_in++] = rows_of(type, strides + 1, t, h, d);
    c.in[c.n_in++] = x;
    c.in[c.n_in++] = w;
    if (!rms) c.in[c.n_in++] = mean;
    c.in[c.n_in++] = rstd;
    if (variant % 3 == 0) c.in[c.n_in++] = rows_of(type, strides + 2, t, h, d);
    return c;
}

static void add_sums(Call *c, bool rms, int64_t d, int variant)
{
    for (int o = 0; o < (rms ? 1 : 2); o++) {
        const double keep = gpu_keeps[(variant + o) % 3];
        c->number[c->n_out] = keep;
        c->out[c->n_out++] =
            accumulator(&gpu.b, NEW(&gpu.b, F32, (Strides)(variant / 2 % 2), d), keep);
    }
}

static Tensor dx_of(const Call *c, int variant)
{
    return bench_new(&gpu.b, c->in[1].dtype, (Strides)(variant / 2 % N_STRIDES), c->in[1].n,
                     c->in[1].ndim);
}

static void gradients(bool rms, int64_t t, int64_t h, int64_t d, int variant)
{
    const double rows = (double)(t * (h ? h : 1)), tolerance = 4 * gpu_terms(sqrt((double)d));
    Call c = gradient_of(rms, t, h, d, variant);
    c.out[c.n_out++] = dx_of(&c, variant);
    expect_like_ref(rms ? KERNEL_rmsnorm_dx : KERNEL_layernorm_dx, &c, tolerance, 0);

    const Call all = gradient_of(rms, t, h, d, variant);
    c = (Call){.attr = attr};
    for (int i = 0; i < (rms ? 4 : 5); i++)
        if (i != 2) c.in[c.n_in++] = all.in[i];
    add_sums(&c, rms, d, variant);
    expect_like_ref(rms ? KERNEL_rmsnorm_dw : KERNEL_layernorm_dw, &c, gpu_terms(rows), 0);

    c = gradient_of(rms, t, h, d, variant);
    c.out[c.n_out++] = variant % 2 ? c.in[0] : dx_of(&c, variant); /* overwrites dy, or not */
    add_sums(&c, rms, d, variant);
    expect_like_ref(rms ? KERNEL_rmsnorm_back : KERNEL_layernorm_back, &c,
                    fmax(tolerance, gpu_terms(rows)), 0);
}

/* dx, its column sums, and that of the addend, which dx may overwrite. */
static void with_addend_sum(int64_t t, int64_t d, int variant)
{
    const double keep = gpu_keeps[variant % 3];
    Call c = gradient_of(false, t, 0, d, variant);
    if (c.n_in < 6) c.in[c.n_in++] = rows_of(c.in[0].dtype, variant / 2 + 2, t, 0, d);
    c.out[c.n_out++] = variant % 4 < 2 ? c.in[5] : dx_of(&c, variant);
    add_sums(&c, false, d, variant);
    c.number[3] = keep;
    c.out[c.n_out++] = accumulator(&gpu.b, NEW(&gpu.b, F32, DENSE, d), keep);
    expect_like_ref(KERNEL_layernorm_back, &c,
                    fmax(4 * gpu_terms(sqrt((double)d)), gpu_terms((double)t)), 0);
}

static void one_norm(bool rms, int64_t t, int64_t h, int64_t d, int variant)
{
    const DType type = gpu_types[variant % 2];
    const int strides = variant / 2;
    Call c = {.attr = attr};
    const Tensor x = rows_of(type, strides, t, h, d),
                 w = RANDOM(&gpu.b, type, (Strides)(strides % 2), d);
    for (int64_t i = 0; i < tensor_count(&x); i++) put(&x, i, get(&x, i) + 0.5);
    c.in[c.n_in++] = x;
    c.in[c.n_in++] = w;
    if (!rms) c.in[c.n_in++] = RANDOM(&gpu.b, type, DENSE, d);
    c.out[c.n_out++] = bench_new(&gpu.b, type, (Strides)(strides % N_STRIDES), x.n, x.ndim);
    if (!rms) c.out[c.n_out++] = stats_of(strides, t, h);
    c.out[c.n_out++] = stats_of(strides + 1, t, h);
    expect_like_ref(rms ? KERNEL_rmsnorm : KERNEL_layernorm, &c, gpu_terms(sqrt((double)d)), 0);
    gradients(rms, t, h, d, variant);
}

static void norms(void **state)
{
    (void)state;
    for (int i = 0, variant = 0; i < N_WIDTHS; i++)
        for (int k = 0; k < 6; k++, variant++) {
            one_norm(false, k == 5 ? 0 : 13, 0, widths[i], variant);
            one_norm(true, k == 5 ? 300 : 7, k % 2 ? 3 : 0, widths[i], variant);
            with_addend_sum(k == 5 ? 0 : 13, widths[i], variant);
            if (i == 5) one_norm(k % 2, 3000, 0, widths[i], k + 6); /* several rows per group */
            if (i == 5 && k < 2) with_addend_sum(3000, widths[i], k);
        }
}

static void expect_same_bits(const char *what, const Tensor *a, const Tensor *b)
{
    for (int64_t i = 0; i < tensor_count(a); i++)
        if (get(a, i) != get(b, i))
            fail_msg("%s [%d]: %.9g separately, %.9g together", what, (int)i, get(a, i), get(b, i));
}

/* dx and the sums have the same bits, computed together or separately. */
static void one_together(bool rms, int64_t t, int64_t h, int64_t d, int variant)
{
    Call dx = gradient_of(rms, t, h, d, variant), dw = {.attr = attr}, both = dx;
    for (int i = 0; i < (rms ? 4 : 5); i++)
        if (i != 2) dw.in[dw.n_in++] = dx.in[i];
    dx.out[dx.n_out++] = dx_of(&dx, variant);
    both.out[both.n_out++] = dx_of(&dx, variant);
    add_sums(&dw, rms, d, 0);
    add_sums(&both, rms, d, 0);
    both.number[1] = dw.number[0], both.number[2] = dw.number[1];
    for (int o = 0; o < dw.n_out; o++)
        for (int64_t i = 0; i < d; i++) put(&both.out[1 + o], i, get(&dw.out[o], i));
    run_on_gpu(rms ? KERNEL_rmsnorm_dx : KERNEL_layernorm_dx, &dx, gpu.b.arena.base,
               gpu.b.arena.base);
    run_on_gpu(rms ? KERNEL_rmsnorm_dw : KERNEL_layernorm_dw, &dw, gpu.b.arena.base,
               gpu.b.arena.base);
    run_on_gpu(rms ? KERNEL_rmsnorm_back : KERNEL_layernorm_back, &both, gpu.b.arena.base,
               gpu.b.arena.base);
    expect_same_bits("dx", &dx.out[0], &both.out[0]);
    for (int o = 0; o < dw.n_out; o++) expect_same_bits("sum", &dw.out[o], &both.out[1 + o]);
    bench_clear(&gpu.b);
}

static void together(void **state)
{
    (void)state;
    for (int i = 0, variant = 0; i < N_WIDTHS; i++)
        for (int k = 0; k < 6; k++, variant++)
            one_together(k % 2, k < 4 || widths[i] > 2048 ? 37 : 900, k == 3 ? 5 : 0, widths[i],
                         variant);
}

/* The sum of the addend has the bits of sum_rows; the other outputs are the same with and without
 * it. */
static void one_sum_together(int64_t t, int64_t d, int variant)
{
    Call all = gradient_of(false, t, 0, d, variant), without, alone = {.n_in = 1, .n_out = 1};
    if (all.n_in < 6) all.in[all.n_in++] = rows_of(all.in[0].dtype, variant / 2 + 2, t, 0, d);
    without = all;
    alone.in[0] = all.in[5];
    alone.out[0] = NEW(&gpu.b, F32, DENSE, d);
    for (int k = 0; k < 2; k++) {
        Call *c = k ? &all : &without;
        c->out[c->n_out++] = k && variant % 4 < 2 ? c->in[5] : dx_of(&all, variant);
        for (int o = 0; o < 2 + k; o++) c->out[c->n_out++] = NEW(&gpu.b, F32, DENSE, d);
    }
    run_on_gpu(KERNEL_sum_rows, &alone, gpu.b.arena.base, gpu.b.arena.base);
    run_on_gpu(KERNEL_layernorm_back, &without, gpu.b.arena.base, gpu.b.arena.base);
    run_on_gpu(KERNEL_layernorm_back, &all, gpu.b.arena.base, gpu.b.arena.base);
    for (int o = 0; o < 3; o++) expect_same_bits(o ? "sum" : "dx", &without.out[o], &all.out[o]);
    expect_same_bits("sum of the addend", &alone.out[0], &all.out[3]);
    bench_clear(&gpu.b);
}

static void sum_together(void **state)
{
    (void)state;
    for (int i = 0, variant = 0; i < N_WIDTHS; i++)
        for (int k = 0; k < 6; k++, variant++) one_sum_together(37, widths[i], variant);
    for (int each = 1; each <= 9; each++) { /* pieces per thread; several rows per warp */
        one_sum_together(300, 256 * each - 8, 12 * each);
        one_sum_together(1900, 256 * each - 8, 12 * each + 1);
        one_sum_together(each < 5 ? 4300 : 300, 256 * each - 40, 12 * each + 2);
    }
}

/* Squares that overflow f32, in some of the rows. */
static void one_huge(DType type, bool rms, int64_t d)
{
    Call c = {.n_in = rms ? 2 : 3, .n_out = rms ? 2 : 3, .attr = attr};
    c.in[0] = RANDOM(&gpu.b, type, DENSE, 17, d);
    for (int64_t i = 0; i < 17 * d; i++)
        if (i / d % 3 == 0) put(&c.in[0], i, 1e30 * get(&c.in[0], i));
    c.in[1] = RANDOM(&gpu.b, type, DENSE, d);
    c.in[2] = RANDOM(&gpu.b, type, DENSE, d);
    c.out[0] = NEW(&gpu.b, type, DENSE, 17, d);
    for (int o = 1; o < c.n_out; o++) c.out[o] = NEW(&gpu.b, F32, DENSE, 17);
    expect_like_ref(rms ? KERNEL_rmsnorm : KERNEL_layernorm, &c, gpu_terms(16), 0);
}

static void huge(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int d = 96; d <= 6000; d *= 5) one_huge(gpu_types[i / 2], i % 2, d);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(norms), cmocka_unit_test(together),
                                          cmocka_unit_test(sum_together), cmocka_unit_test(huge)};

GPU_MAIN(tests)
