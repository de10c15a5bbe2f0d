/* Elementwise kernels and copies on the GPU: shapes, views, outputs that alias inputs, large
 * values. */
#include "gpu_test.h"

typedef struct {
    int ndim;
    int64_t n[3];
} Extents;

static const Extents shapes[] = {{1, {1}},        {1, {1000}},     {2, {33, 40}}, {2, {7, 5}},
                                 {3, {9, 4, 16}}, {3, {5, 0, 3}},  {1, {0}},      {3, {3, 1, 24}},
                                 {2, {1, 17}},    {2, {300, 256}}, {3, {6, 7, 1}}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static Tensor shaped(const Extents *e, DType type, int strides, double scale)
{
    const Tensor t = bench_new(&gpu.b, type, (Strides)(strides % N_STRIDES), e->n, e->ndim);
    fill(&gpu.b, &t, scale);
    return t;
}

/* All shapes and views of a kernel with n_in inputs and n_out outputs. alias: the input that the
 * first output may alias, or -1. */
static void try_all(KernelId id, int n_in, int n_out, int alias, Attr attr, double scale)
{
    for (int i = 0; i < N_SHAPES; i++)
        for (int type = 0; type < 2; type++)
            for (int strides = 0; strides < 4; strides++) {
                Call c = {.n_in = n_in, .n_out = n_out, .attr = attr};
                for (int k = 0; k < n_in; k++)
                    c.in[k] = shaped(&shapes[i], gpu_types[type],
                                     strides < 3 ? strides + k * (i % 2) : 0, scale);
                for (int o = 0; o < n_out; o++)
                    c.out[o] = bench_new(&gpu.b, gpu_types[type], (Strides)(strides % N_STRIDES),
                                         shapes[i].n, shapes[i].ndim);
                if (alias >= 0 && strides % 2) c.out[0] = c.in[alias];
                expect_like_ref(id, &c, gpu_terms(16 * scale), 0);
            }
}

static void formulas(void **state)
{
    (void)state;
    const Attr none = {.scale = {1}};
    try_all(KERNEL_add, 2, 1, 1, none, 1);
    try_all(KERNEL_scale, 1, 1, 0, (Attr){.scale = {-1.375}}, 1);
    for (int large = 0; large < 2; large++) {
        try_all(KERNEL_gelu, 1, 1, -1, none, large ? 40 : 3);
        try_all(KERNEL_gelu_dx, 2, 1, 0, none, large ? 40 : 3);
        try_all(KERNEL_swiglu, 2, 1, -1, none, large ? 120 : 3);
        try_all(KERNEL_swiglu_dx, 3, 2, -1, none, large ? 120 : 3);
    }
}

static void cast(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++)
        for (int types = 0; types < 4; types++) {
            Call c = {.n_in = 1, .n_out = 1};
            c.in[0] = shaped(&shapes[i], gpu_types[types & 1], types, 3);
            c.out[0] = bench_new(&gpu.b, gpu_types[types >> 1], (Strides)(i % N_STRIDES),
                                 shapes[i].n, shapes[i].ndim);
            expect_like_ref(KERNEL_cast, &c, 0, 0);
        }
}

/* Compared as bytes: all types, also NaN payloads. */
static void copy(void **state)
{
    (void)state;
    static const DType types[] = {F32, BF16, I32, F64, I64};
    for (int i = 0; i < N_SHAPES; i++)
        for (int type = 0; type < 5; type++)
            for (int strides = 0; strides < 9; strides++) {
                Call c = {.n_in = 1, .n_out = 1};
                const Extents *e = &shapes[i];
                c.in[0] = bench_new(&gpu.b, types[type], (Strides)(strides % 3), e->n, e->ndim);
                c.out[0] = bench_new(&gpu.b, types[type], (Strides)(strides / 3), e->n, e->ndim);
                unsigned char *bytes = c.in[0].data;
                for (char *at = c.in[0].data; at < (char *)c.out[0].data; at++)
                    *bytes++ = (unsigned char)(255 * bench_random(&gpu.b));
                const size_t used = gpu.b.arena.used_bytes;
                char *before = malloc(2 * used), *after = before + used;
                assert_non_null(before);
                memcpy(before, gpu.b.arena.base, used);
                run_on_gpu(KERNEL_copy, &c, before, after);
                run(KERNEL_copy, &c);
                assert_true(memcmp(after, gpu.b.arena.base, used) == 0);
                free(before);
                bench_clear(&gpu.b);
            }
}

/* Rows to places of a longer tensor, whose other rows stay; some go nowhere. */
static void put_rows_at(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++)
        for (int strides = 0; strides < 9; strides++)
            for (int64_t wide = 1; wide < 5; wide++) {
                Call c = {.n_in = 2, .n_out = 1};
                c.in[0] = RANDOM(&gpu.b, gpu_types[type], (Strides)(strides % 3), 11, 3, 4 * wide);
                c.in[1] = NEW(&gpu.b, I32, (Strides)(strides / 3), 11);
                for (int64_t t = 0; t < 11; t++)
                    put(&c.in[1], t, t % 5 == 2 ? -1 : (double)(7 * t % 23));
                c.out[0] = RANDOM(&gpu.b, gpu_types[type], (Strides)(strides / 3), 23, 3, 4 * wide);
                expect_like_ref(KERNEL_put_rows_at, &c, 0, 0);
            }
}

/* Parts of wider rows, eight channels at a time: gate and up of one GEMM, q of qkv. */
static void parts(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++)
        for (int64_t from = 0; from < 48; from += from == 8 ? 4 : 8) { /* 12: no longer aligned */
            Call c = {.n_in = 2, .n_out = 1};
            const Tensor all = RANDOM(&gpu.b, gpu_types[type], DENSE, 37, 96);
            for (int k = 0; k < 2; k++) {
                c.in[k] = all;
                c.in[k].n[1] = 40;
                c.in[k].data = (char *)all.data + (size_t)(k ? 48 : from) * dtype_bytes(all.dtype);
            }
            c.out[0] = NEW(&gpu.b, gpu_types[type], DENSE, 37, 40);
            expect_like_ref(KERNEL_swiglu, &c, gpu_terms(16), 0);
        }
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(formulas), cmocka_unit_test(cast),
                                          cmocka_unit_test(copy), cmocka_unit_test(put_rows_at),
                                          cmocka_unit_test(parts)};

GPU_MAIN(tests)
