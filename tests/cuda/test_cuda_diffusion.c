/* test_cuda_diffusion.c -- kernels of diffusion transformers on the GPU: rows by the vectors of
 * their clip, features of a time, squared errors; and attention along one of several token dims. */
#include "gpu_test.h"

/* Rows t of width d, clips b. Clips are in order, as in a model, or mixed. */
typedef struct {
    int64_t t, b, d;
    bool mixed;
} RowSizes;

static const RowSizes row_sizes[] = {{11, 3, 9, true},     {64, 2, 64, false},  {300, 5, 72, true},
                                     {96, 1, 1152, false}, {40, 3, 2048, true}, {1, 1, 8, false},
                                     {2500, 4, 40, false}, {0, 2, 16, false}};
enum { N_ROW_SIZES = sizeof row_sizes / sizeof *row_sizes };

static Tensor clip_numbers(const RowSizes *z, Strides strides)
{
    const Tensor t = NEW(&gpu.b, I32, strides, z->t);
    for (int64_t i = 0; i < z->t; i++)
        put(&t, i, (double)(z->mixed ? i * 7 % z->b : i * z->b / z->t));
    return t;
}

static Strides strides_of(int variant, int tensor)
{
    return variant == 0 ? DENSE : (Strides)((variant + tensor) % N_STRIDES);
}

static Tensor rows(const RowSizes *z, DType type, int variant, int tensor)
{
    return RANDOM(&gpu.b, type, strides_of(variant, tensor), z->t, z->d);
}

static Tensor vectors(const RowSizes *z, DType type, int variant, int tensor)
{
    return RANDOM(&gpu.b, type, strides_of(variant, tensor), z->b, z->d);
}

static Tensor statistic(const RowSizes *z, int variant)
{
    return RANDOM(&gpu.b, F32, variant ? PADDED : DENSE, z->t);
}

static void modulate_forward(const RowSizes *z, DType type, int variant)
{
    const Call call = {.in = {rows(z, type, variant, 0), vectors(z, type, variant, 1),
                              vectors(z, type, variant, 2), clip_numbers(z, DENSE)},
                       .n_in = 4,
                       .out = {NEW(&gpu.b, type, strides_of(variant, 1), z->t, z->d),
                               NEW(&gpu.b, F32, variant ? PADDED : DENSE, z->t),
                               NEW(&gpu.b, F32, DENSE, z->t)},
                       .n_out = 3,
                       .attr.norm = {0.01}};
    expect_like_ref(KERNEL_modulate, &call, gpu_terms((double)z->d), 0);
}

static void modulate_backward(const RowSizes *z, DType type, int variant)
{
    const Call call = {.in = {rows(z, type, variant, 0), rows(z, type, variant, 1),
                              vectors(z, type, variant, 2), clip_numbers(z, DENSE),
                              statistic(z, variant), statistic(z, 0)},
                       .n_in = 6,
                       .out = {NEW(&gpu.b, type, strides_of(variant, 2), z->t, z->d)},
                       .n_out = 1};
    Call same = call;
    expect_like_ref(KERNEL_modulate_dx, &call, gpu_terms(4 * (double)z->d), 0);
    if (z->t == 0) return;
    same.in[0] = rows(z, type, 0, 0), same.in[1] = rows(z, type, 0, 1); /* in place */
    same.in[2] = vectors(z, type, 0, 2), same.in[3] = clip_numbers(z, DENSE);
    same.in[4] = statistic(z, 0), same.in[5] = statistic(z, 0);
    same.out[0] = same.in[0];
    expect_like_ref(KERNEL_modulate_dx, &same, gpu_terms(4 * (double)z->d), 0);
}

static void clip_sums(const RowSizes *z, DType type, int variant)
{
    const double keep = gpu_keeps[variant % 3];
    for (int sum = 0; sum < 2; sum++) {
        const DType to = variant % 2 ? type : F32;
        Call call = {
            .in = {rows(z, type, variant, 0), rows(z, type, variant, 1), clip_numbers(z, DENSE)},
            .n_in = 3,
            .n_out = 1,
            .number = {keep, keep}};
        call.out[0] =
            accumulator(&gpu.b, NEW(&gpu.b, to, strides_of(variant, 0), z->b, z->d), keep);
        if (sum == 0) {
            call.in[3] = statistic(z, variant), call.in[4] = statistic(z, 0);
            call.n_in = 5;
            call.out[1] =
                accumulator(&gpu.b, NEW(&gpu.b, to, strides_of(variant, 1), z->b, z->d), keep);
            call.n_out = 2;
        }
        expect_like_ref(sum ? KERNEL_gate_add_dw : KERNEL_modulate_dw, &call,
                        gpu_terms(4 * (double)z->t), 0);
    }
}

static void gates(const RowSizes *z, DType type, int variant)
{
    for (int residual = 0; residual < 3; residual++) { /* 2: y is the residual */
        Call call = {
            .in = {rows(z, type, variant, 0), vectors(z, type, variant, 1), clip_numbers(z, DENSE)},
            .n_in = 3,
            .n_out = 1};
        if (residual) call.in[call.n_in++] = rows(z, type, variant, 2);
        call.out[0] =
            residual == 2 ? call.in[3] : NEW(&gpu.b, type, strides_of(variant, 1), z->t, z->d);
        expect_like_ref(KERNEL_gate_add, &call, gpu_terms(2), 0);
    }
}

static void by_clip(void **state)
{
    (void)state;
    for (int n = 0; n < N_ROW_SIZES; n++)
        for (int variant = 0; variant < 3; variant++)
            for (int type = 0; type < 2; type++) {
                modulate_forward(&row_sizes[n], gpu_types[type], variant);
                modulate_backward(&row_sizes[n], gpu_types[type], variant);
                clip_sums(&row_sizes[n], gpu_types[type], variant);
                gates(&row_sizes[n], gpu_types[type], variant);
            }
}

static void times(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++)
        for (int variant = 0; variant < 3; variant++) {
            const Tensor time = RANDOM(&gpu.b, F32, variant ? PADDED : DENSE, 5);
            const Call call = {.in = {time},
                               .n_in = 1,
                               .out = {NEW(&gpu.b, gpu_types[type], (Strides)variant, 5, 256)},
                               .n_out = 1,
                               .attr.sinusoid = {.rate = 1000, .base = 10000}};
            expect_like_ref(KERNEL_sinusoid, &call, gpu_terms(8), 0);
        }
}

/* Rows of weight 0 may hold anything. */
static void squares(void **state)
{
    (void)state;
    for (int n = 0; n < N_ROW_SIZES; n++)
        for (int variant = 0; variant < 3; variant++)
            for (int type = 0; type < 2; type++)
                for (int back = 0; back < 2; back++) {
                    const RowSizes *z = &row_sizes[n];
                    const DType t = gpu_types[type];
                    const double keep = back ? 0 : gpu_keeps[variant];
                    Call call = {.in = {rows(z, t, variant, 0), rows(z, F32, variant, 1),
                                        RANDOM(&gpu.b, F32, DENSE, z->t)},
                                 .n_in = 3,
                                 .n_out = 1,
                                 .number = {keep}};
                    for (int64_t i = 2; i < z->t; i += 5) {
                        put(&call.in[2], i, 0);
                        put(&call.in[0], i * z->d, (double)NAN);
                    }
                    call.out[0] = back ? NEW(&gpu.b, t, strides_of(variant, 1), z->t, z->d)
                                       : accumulator(&gpu.b, NEW(&gpu.b, F32, DENSE, 1), keep);
                    expect_like_ref(back ? KERNEL_square_loss_dx : KERNEL_square_loss, &call,
                                    gpu_terms(64), 0);
                }
}

/* Groups e, queries b and keys s at a places, heads h over key heads g of c channels. */
typedef struct {
    int64_t e, b, s, a, h, g, c, group, head_at;
} AlongSizes;

static const AlongSizes along_sizes[] = {
    {1, 5, 5, 7, 4, 2, 8, 0, 0},       {3, 16, 16, 1, 4, 4, 16, 0, 0},
    {6, 3, 3, 1, 2, 1, 8, 0, 0},       {2, 9, 4, 5, 6, 3, 8, 0, 0},
    {2, 70, 70, 2, 2, 2, 8, 0, 0},     {2, 300, 20, 1, 2, 2, 8, 0, 0},
    {9, 1, 2, 3, 2, 2, 4, 0, 0},       {2, 51, 51, 3, 4, 4, 72, 0, 0},
    {1, 64, 64, 3, 2, 2, 64, 0, 0},    {5, 24, 24, 1, 2, 2, 16, 0, 0},
    {1, 128, 128, 2, 2, 1, 72, 0, 0},  {1, 129, 129, 2, 2, 2, 64, 0, 0},
    {1, 257, 257, 2, 1, 1, 128, 0, 0}, {1, 17, 33, 3, 2, 2, 80, 0, 0},
    {1, 400, 400, 1, 2, 2, 72, 0, 0},  {2, 33, 60, 2, 5, 3, 24, 3, 2},
    {2, 40, 0, 2, 2, 2, 8, 0, 0},      {0, 4, 4, 2, 2, 2, 8, 0, 0},
    {2, 40, 20, 3, 2, 2, 5, 0, 0},     {1, 20, 300, 2, 2, 2, 64, 0, 0},
    {1, 100, 100, 1, 1, 1, 256, 0, 0}, {2, 51, 51, 2, 3, 3, 72, 0, 0},
    {1, 16, 12, 2, 4, 2, 72, 0, 0},    {1, 30, 30, 3, 1, 1, 72, 0, 0},
    {1, 100, 128, 2, 2, 2, 64, 0, 0},  {2, 90, 90, 1, 3, 3, 72, 0, 0}};
enum { N_ALONG_SIZES = sizeof along_sizes / sizeof *along_sizes };

static Tensor along_rows(const AlongSizes *z, DType type, Strides strides, int64_t n, int64_t heads)
{
    return RANDOM(&gpu.b, type, strides, z->e, n, z->a, heads, z->c);
}

static double inside(DType type) { return type == BF16 ? ldexp(1, -7) : 0; }

/* variant 0: q, k and v are parts of one tensor if their shapes agree; 1: dense; 2: others. */
static Call along_call(const AlongSizes *z, DType type, int variant)
{
    const Strides strides = variant == 2 ? PADDED : DENSE;
    Call c = {.n_in = 3, .n_out = 2};
    c.attr.attention.scale = z->e == 9 ? -0.4 : 0.4;
    c.attr.attention.group = z->group, c.attr.attention.head_at = z->head_at;
    c.in[0] = along_rows(z, type, strides, z->b, z->h);
    c.in[1] = along_rows(z, type, strides, z->s, z->g);
    c.in[2] = along_rows(z, type, variant == 2 ? COLUMN_MAJOR : DENSE, z->s, z->g);
    if (variant == 0 && z->b == z->s && z->h == z->g) {
        const Tensor all = along_rows(z, type, DENSE, z->b, 3 * z->h);
        for (int i = 0; i < 3; i++) {
            c.in[i] = all;
            c.in[i].n[3] = z->h;
            c.in[i].data = (char *)all.data + (size_t)(i * z->h * z->c) * dtype_bytes(type);
        }
    }
    c.out[0] = NEW(&gpu.b, type, strides, z->e, z->b, z->a, z->h, z->c);
    c.out[1] = NEW(&gpu.b, F32, strides, z->e, z->b, z->a, z->h);
    return c;
}

/* The results of other keys, that a call carries on from. */
static void carry_on(Call *c, bool wide)
{
    if (wide) c->out[0] = bench_new(&gpu.b, F32, DENSE, c->out[0].n, 5);
    fill(&gpu.b, &c->out[0], 1);
    fill(&gpu.b, &c->out[1], 3);
    c->number[0] = c->number[1] = 1;
}

static void along(void **state)
{
    (void)state;
    for (int n = 0; n < N_ALONG_SIZES; n++)
        for (int variant = 0; variant < 3; variant++)
            for (int carry = 0; carry < 3; carry++)
                for (int type = 0; type < 2; type++) {
                    const AlongSizes *z = &along_sizes[n];
                    const double terms = gpu_terms(8 * (double)(z->s + z->c));
                    Call c = along_call(z, gpu_types[type], variant);
                    if (carry) carry_on(&c, carry == 2);
                    expect_like_ref(KERNEL_attention_along, &c, terms, 2 * inside(gpu_types[type]));
                }
}

static void along_backward(void **state)
{
    (void)state;
    for (int n = 0; n < N_ALONG_SIZES; n++)
        for (int variant = 0; variant < 3; variant++)
            for (int wide = 0; wide < 2; wide++)
                for (int type = 0; type < 2; type++) {
                    const AlongSizes *z = &along_sizes[n];
                    const DType t = gpu_types[type], sum = wide ? F32 : t;
                    const Strides strides = variant == 2 ? COLUMN_MAJOR : DENSE;
                    const Call f = along_call(z, t, variant);
                    Call back = {.attr = f.attr, .n_in = 6, .n_out = 3};
                    run(KERNEL_attention_along, &f);
                    for (int i = 0; i < 3; i++) back.in[i] = f.in[i];
                    back.in[3] = along_rows(z, t, strides, z->b, z->h);
                    back.in[4] = f.out[1];
                    back.in[5] = f.out[0];
                    if (wide) /* delta instead of o, as in a ring */
                        back.in[5] = RANDOM(&gpu.b, F32, DENSE, z->e, z->b, z->a, z->h);
                    for (int o = 0; o < 3; o++) {
                        const Tensor *like = &back.in[o];
                        back.number[o] = gpu_keeps[(variant + wide + o) % 3];
                        back.out[o] = accumulator(
                            &gpu.b, bench_new(&gpu.b, sum, strides, like->n, 5), back.number[o]);
                    }
                    expect_like_ref(KERNEL_attention_along_dx, &back,
                                    gpu_terms(8 * (double)(z->s + z->b + z->c)), 2 * inside(t));
                }
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(by_clip), cmocka_unit_test(times),
                                          cmocka_unit_test(squares), cmocka_unit_test(along),
                                          cmocka_unit_test(along_backward)};

GPU_MAIN(tests)
