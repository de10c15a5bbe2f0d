/* Norms on the GPU: rows of a warp, of a block, longer than registers hold; heads; huge values. */
#include "gpu_test.h"

static const int64_t widths[] = {5, 40, 64, 100, 768, 1030, 2048, 5000, 9000};
enum { N_WIDTHS = sizeof widths / sizeof *widths };
static const Attr attr = {.norm = {1e-5}};

static Tensor rows_of(DType type, int lay, int64_t t, int64_t h, int64_t d)
{
    return h ? RANDOM(&gpu.b, type, (Lay)(lay % N_LAYS), t, h, d)
             : RANDOM(&gpu.b, type, (Lay)(lay % N_LAYS), t, d);
}

static Tensor stats_of(int lay, int64_t t, int64_t h)
{
    return h ? NEW(&gpu.b, F32, (Lay)(lay % N_LAYS), t, h)
             : NEW(&gpu.b, F32, (Lay)(lay % N_LAYS), t);
}

/* mean and rstd of x, by ref, for the gradients. */
static void forward(Call *c, const Tensor *x, const Tensor *w, Tensor *mean, Tensor *rstd)
{
    const Lay lay = DENSE;
    *c = (Call){.n_in = 2, .n_out = 2, .attr = attr};
    c->in[0] = *x;
    c->in[1] = *w;
    c->out[0] = bench_new(&gpu.b, x->dtype, lay, x->n, x->ndim);
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

static void one_norm(bool rms, int64_t t, int64_t h, int64_t d, int variant)
{
    const DType type = gpu_types[variant % 2];
    const int lay = variant / 2;
    const double tolerance = gpu_terms(sqrt((double)d));
    Call c, f;
    for (int which = 0; which < 3; which++) {
        const double keep = gpu_keeps[(variant + which) % 3];
        const Tensor x = rows_of(type, lay, t, h, d), w = RANDOM(&gpu.b, type, (Lay)(lay % 2), d);
        Tensor mean = stats_of(lay, t, h), rstd = stats_of(lay + 1, t, h);
        for (int64_t i = 0; i < tensor_count(&x); i++) put(&x, i, get(&x, i) + 0.5);
        if (which > 0) forward(&f, &x, &w, rms ? NULL : &mean, &rstd);
        c = (Call){.attr = attr, .number = {keep, keep}};
        if (which > 0) c.in[c.n_in++] = rows_of(type, lay + 1, t, h, d); /* dy */
        c.in[c.n_in++] = x;
        if (which < 2) c.in[c.n_in++] = w;
        if (which == 0 && !rms) c.in[c.n_in++] = RANDOM(&gpu.b, type, DENSE, d);
        if (which == 0) {
            c.out[c.n_out++] = bench_new(&gpu.b, type, (Lay)(lay % N_LAYS), x.n, x.ndim);
            if (!rms) c.out[c.n_out++] = mean;
            c.out[c.n_out++] = rstd;
            expect_like_ref(rms ? KERNEL_rmsnorm : KERNEL_layernorm, &c, tolerance, 0);
            continue;
        }
        if (!rms) c.in[c.n_in++] = mean;
        c.in[c.n_in++] = rstd;
        if (which == 1) {
            c.out[c.n_out++] = bench_new(&gpu.b, type, (Lay)(lay % N_LAYS), x.n, x.ndim);
            expect_like_ref(rms ? KERNEL_rmsnorm_dx : KERNEL_layernorm_dx, &c, 4 * tolerance, 0);
            continue;
        }
        for (int o = 0; o < (rms ? 1 : 2); o++)
            c.out[c.n_out++] = accumulator(&gpu.b, NEW(&gpu.b, F32, (Lay)(lay % 2), d), keep);
        expect_like_ref(rms ? KERNEL_rmsnorm_dw : KERNEL_layernorm_dw, &c, gpu_terms((double)t), 0);
    }
}

static void norms(void **state)
{
    (void)state;
    for (int i = 0, variant = 0; i < N_WIDTHS; i++)
        for (int k = 0; k < 6; k++, variant++) {
            one_norm(false, k == 5 ? 0 : 13, 0, widths[i], variant);
            one_norm(true, k == 5 ? 300 : 7, k % 2 ? 3 : 0, widths[i], variant);
        }
}

/* Squares past the end of f32. */
static void huge(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++)
        for (int rms = 0; rms < 2; rms++) {
            Call c = {.n_in = rms ? 2 : 3, .n_out = rms ? 2 : 3, .attr = attr};
            c.in[0] = RANDOM(&gpu.b, gpu_types[type], DENSE, 5, 96);
            fill(&gpu.b, &c.in[0], 1e30);
            c.in[1] = RANDOM(&gpu.b, gpu_types[type], DENSE, 96);
            c.in[2] = RANDOM(&gpu.b, gpu_types[type], DENSE, 96);
            c.out[0] = NEW(&gpu.b, gpu_types[type], DENSE, 5, 96);
            for (int o = 1; o < c.n_out; o++) c.out[o] = NEW(&gpu.b, F32, DENSE, 5);
            expect_like_ref(rms ? KERNEL_rmsnorm : KERNEL_layernorm, &c, gpu_terms(16), 0);
        }
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(norms), cmocka_unit_test(huge)};

GPU_MAIN(tests)
