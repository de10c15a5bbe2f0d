/* test_kernels_codes.c -- coded weights: parts of a weight that is cut anywhere have the codes and
 * scales of the whole weight, rounded and quantized at once, on every device. */
#include "cpu_test.h"

#include "device/codes.h"
#include "support/expect.h"

static const Device *device_at(int i)
{
    if (i == 0) return &device_ref;
    return cpu_has((CpuSimd)(i - 1)) ? device_cpu_simd((CpuSimd)(i - 1)) : NULL;
}

enum { N_DEVICES = 1 + N_CPU_SIMD };

typedef struct {
    int64_t matrices, rows, columns;
    DType from;
    int32_t block;
} Weight;

/* Sizes that differ by far; row 1 is 0, and so is the first block of columns; NaN and infinities
 * late in the weight. */
static Tensor weights_of(Bench *b, const Weight *w)
{
    const int64_t n = w->matrices * w->rows * w->columns;
    const Tensor x = NEW(b, F32, DENSE, n);
    for (int64_t i = 0; i < n; i++) {
        const bool zero = i / w->columns == 1 || (w->columns > 128 && i % w->columns < 128);
        put(&x, i, zero ? 0 : bench_random(b) * ldexp(1, (int)(i * 7 % 23) - 17));
    }
    if (n > 300) put(&x, n - 7, (double)NAN), put(&x, n - 9, (double)INFINITY);
    return x;
}

static Tensor part_of(const Tensor *x, int64_t from, int64_t n)
{
    Tensor t = *x;
    t.data = (char *)x->data + (size_t)from * dtype_bytes(x->dtype);
    t.ndim = 1, t.n[0] = n, t.stride[0] = 1;
    return t;
}

static Tensor matrix_of(const Tensor *x, int64_t from, int64_t rows, int64_t columns)
{
    Tensor t = part_of(x, from, rows);
    t.ndim = 2, t.stride[0] = columns;
    t.n[1] = columns, t.stride[1] = 1;
    return t;
}

/* The whole weight: cast, then quantized matrix by matrix by the kernels that programs run. */
static void quantize_whole(const Device *d, Bench *b, const Weight *w, const Tensor *x, Tensor *y,
                           Tensor *s)
{
    const int64_t each = w->rows * w->columns, n = w->matrices * each;
    const Tensor narrow = NEW(b, w->from, DENSE, n), m = NEW(b, F32, DENSE, 1);
    Call cast = {.in = {*x}, .n_in = 1, .out = {narrow}, .n_out = 1};
    if (w->from == F32)
        cast.out[0] = *x;
    else
        assert_int_equal(d->kernel[KERNEL_cast](&cast), OK);
    for (int64_t i = 0; i < w->matrices; i++) {
        const int64_t down = w->block ? (w->rows + 127) / 128 : 1;
        const int64_t across = w->block ? (w->columns + 127) / 128 : 1;
        Call c = {.in = {matrix_of(&cast.out[0], i * each, w->rows, w->columns), m},
                  .n_in = w->block ? 1 : 2,
                  .out = {matrix_of(y, i * each, w->rows, w->columns),
                          matrix_of(s, i * down * across, down, across)},
                  .n_out = 2,
                  .attr.quantize = {E4M3, {w->block, w->block}}};
        Call amax = {.in = {c.in[0]}, .n_in = 1, .out = {m}, .n_out = 1};
        if (!w->block) {
            c.out[1] = part_of(s, i, 1);
            assert_int_equal(d->kernel[KERNEL_amax](&amax), OK);
        }
        assert_int_equal(d->kernel[w->block ? KERNEL_quantize_blocks : KERNEL_quantize](&c), OK);
    }
}

/* The same from parts that end anywhere, their maxima folded as ranks do. */
static void quantize_parts(const Device *d, CpuBench *c, const Weight *w, const Tensor *x,
                           const int64_t *cut, int parts, Tensor *y, Tensor *s)
{
    const int64_t cells = s->n[0];
    const Tensor all = NEW(&c->b, F32, DENSE, cells), mine = NEW(&c->b, F32, DENSE, cells);
    Call call = {.n_in = 1, .n_out = 1, .team = c->team[3]};
    for (int64_t i = 0; i < cells; i++) put(&all, i, 0);
    for (int p = 0; p <= parts; p++) {
        call.attr.codes.type = E4M3;
        call.attr.codes.from = w->from;
        call.attr.codes.block = w->block;
        call.attr.codes.rows = w->rows;
        call.attr.codes.columns = w->columns;
        call.attr.codes.at = cut[p];
        call.in[0] = part_of(x, cut[p], cut[p + 1] - cut[p]);
        call.out[0] = mine;
        for (int64_t i = 0; i < cells; i++) put(&mine, i, 0);
        assert_int_equal(d->kernel[KERNEL_weight_amax](&call), OK);
        for (int64_t i = 0; i < cells; i++) put(&all, i, fmax(get(&all, i), get(&mine, i)));
    }
    call.in[1] = all;
    call.n_in = 2;
    for (int p = 0; p <= parts; p++) {
        call.attr.codes.at = cut[p];
        call.in[0] = part_of(x, cut[p], cut[p + 1] - cut[p]);
        call.out[0] = part_of(y, cut[p], cut[p + 1] - cut[p]);
        assert_int_equal(d->kernel[KERNEL_weight_codes](&call), OK);
    }
    const Call scales = {.in = {all},
                         .n_in = 1,
                         .out = {*s},
                         .n_out = 1,
                         .attr.codes.type = E4M3,
                         .team = c->team[3]};
    assert_int_equal(d->kernel[KERNEL_weight_scales](&scales), OK);
}

static void expect_bytes(const Device *d, const Weight *w, const char *what, const Tensor *got,
                         const Tensor *want)
{
    const size_t each = dtype_bytes(got->dtype);
    for (int64_t i = 0; i < got->n[0]; i++)
        if (memcmp((char *)got->data + (size_t)i * each, (char *)want->data + (size_t)i * each,
                   each) != 0)
            fail_msg("%s: %s [%d] of %d x [%d, %d], blocks of %d: %.9g, not %.9g", d->name, what,
                     (int)i, (int)w->matrices, (int)w->rows, (int)w->columns, (int)w->block,
                     get(got, i), get(want, i));
}

static void parts_have_the_codes_of_the_whole(void **state)
{
    CpuBench *c = *state;
    static const int64_t shape[][3] = {{1, 1, 1},   {1, 7, 130}, {1, 129, 300},
                                       {2, 131, 5}, {3, 5, 257}, {1, 300, 129}};
    for (int k = 0; k < 6 * 4 * N_DEVICES; k++) {
        const Device *d = device_at(k % N_DEVICES);
        const int64_t *n = shape[k / N_DEVICES / 4];
        const Weight w = {n[0], n[1], n[2], k / N_DEVICES % 2 ? BF16 : F32,
                          k / N_DEVICES / 2 % 2 ? FP8_BLOCK : 0};
        int64_t cut[6] = {0};
        if (!d) continue;
        bench_clear(&c->b);
        const Tensor x = weights_of(&c->b, &w);
        const Attr attr = {.codes = {.block = w.block, .rows = w.rows, .columns = w.columns}};
        const int64_t cells = w.matrices * codes_cells(&attr), all = x.n[0];
        for (int p = 1; p <= 4; p++) cut[p] = all * (2 * p + p % 2) / 9; /* some may be empty */
        cut[5] = all;
        Tensor y[2], s[2];
        for (int i = 0; i < 2; i++)
            y[i] = NEW(&c->b, E4M3, DENSE, all), s[i] = NEW(&c->b, F32, DENSE, cells);
        quantize_whole(d, &c->b, &w, &x, &y[0], &s[0]);
        quantize_parts(d, c, &w, &x, cut, 4, &y[1], &s[1]);
        expect_bytes(d, &w, "code", &y[1], &y[0]);
        expect_bytes(d, &w, "scale", &s[1], &s[0]);
    }
}

static void turned_codes_are_transposed(void **state)
{
    CpuBench *c = *state;
    static const int64_t shape[][2] = {{1, 1}, {7, 130}, {65, 33}, {0, 5}, {5, 0}};
    for (int k = 0; k < 5 * N_DEVICES; k++) {
        const Device *d = device_at(k % N_DEVICES);
        const int64_t *n = shape[k / N_DEVICES];
        if (!d) continue;
        bench_clear(&c->b);
        const Tensor x = NEW(&c->b, E4M3, DENSE, n[0], n[1]),
                     z = NEW(&c->b, E4M3, PADDED, n[1], n[0]);
        for (int64_t i = 0; i < n[0] * n[1]; i++) ((uint8_t *)x.data)[i] = (uint8_t)(i * 37 % 127);
        const Call call = {.in = {x}, .n_in = 1, .out = {z}, .n_out = 1, .team = c->team[3]};
        assert_int_equal(d->kernel[KERNEL_turn](&call), OK);
        for (int64_t i = 0; i < n[0]; i++)
            for (int64_t j = 0; j < n[1]; j++)
                assert_int_equal(((uint8_t *)z.data)[j * z.stride[0] + i * z.stride[1]],
                                 (uint8_t)((i * n[1] + j) * 37 % 127));
        expect_gaps(&c->b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_have_the_codes_of_the_whole),
        cmocka_unit_test(turned_codes_are_transposed),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}
