/* GEMMs and column sums on the GPU: all transposes, odd sizes, views, accumulation, biases. */
#include "gpu_test.h"

typedef struct {
    int64_t m, n, k;
} Size;

static const Size sizes[] = {{1, 1, 1},     {7, 5, 3},     {33, 65, 17},   {64, 128, 256},
                             {1, 40, 24},   {40, 1, 24},   {130, 72, 200}, {0, 5, 3},
                             {5, 0, 3},     {5, 7, 0},     {16, 8, 512},   {257, 129, 96},
                             {8, 1024, 40}, {72, 64, 2000}};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static void one_gemm(Size s, int transpose, DType type, DType out, int variant)
{
    const bool ta = transpose & 1, tb = transpose & 2;
    const Strides strides = (Strides)(variant % N_STRIDES);
    const double keep = gpu_keeps[variant / 2 % 3];
    Call c = {.n_in = 2, .n_out = 1, .attr = {.gemm = {ta, tb}}, .number = {keep}};
    c.in[0] =
        ta ? RANDOM(&gpu.b, type, strides, s.k, s.m) : RANDOM(&gpu.b, type, strides, s.m, s.k);
    c.in[1] = tb ? RANDOM(&gpu.b, type, (Strides)(variant / 3 % N_STRIDES), s.n, s.k)
                 : RANDOM(&gpu.b, type, (Strides)(variant / 3 % N_STRIDES), s.k, s.n);
    if (variant % 4 == 1)
        c.in[c.n_in++] = RANDOM(&gpu.b, variant % 8 == 1 ? type : out, DENSE, s.n);
    c.out[0] = accumulator(
        &gpu.b, NEW(&gpu.b, out, variant % 5 ? DENSE : (Strides)(variant % N_STRIDES), s.m, s.n),
        keep);
    expect_like_ref(KERNEL_gemm, &c, gpu_terms((double)s.k), 0);
}

static void gemm(void **state)
{
    (void)state;
    for (int i = 0, variant = 0; i < N_SIZES; i++)
        for (int transpose = 0; transpose < 4; transpose++)
            for (int type = 0; type < 2; type++)
                for (int wide = 0; wide < 3; wide++, variant++)
                    one_gemm(sizes[i], transpose, gpu_types[type], wide ? F32 : gpu_types[type],
                             variant);
}

/* Dense and aligned GEMMs, as in a training step: by cuBLASLt, with its epilogues. */
static void gemm_dense(void **state)
{
    (void)state;
    for (int transpose = 0; transpose < 4; transpose++)
        for (int type = 0; type < 2; type++)
            for (int keep = 0; keep < 3; keep++)
                for (int bias = 0; bias < 2; bias++) {
                    const int64_t m = 192, n = 320, k = 128;
                    const DType t = gpu_types[type];
                    Call c = {
                        .n_in = 2, .n_out = 1, .attr = {.gemm = {transpose & 1, transpose & 2}}};
                    c.number[0] = gpu_keeps[keep];
                    c.in[0] =
                        RANDOM(&gpu.b, t, DENSE, transpose & 1 ? k : m, transpose & 1 ? m : k);
                    c.in[1] =
                        RANDOM(&gpu.b, t, DENSE, transpose & 2 ? n : k, transpose & 2 ? k : n);
                    if (bias) c.in[c.n_in++] = RANDOM(&gpu.b, t, DENSE, n);
                    c.out[0] = accumulator(&gpu.b, NEW(&gpu.b, keep == 1 ? F32 : t, DENSE, m, n),
                                           gpu_keeps[keep]);
                    expect_like_ref(KERNEL_gemm, &c, gpu_terms((double)k), 0);
                }
}

/* Autotunes, saves the file, and loads it in a new context. */
static void autotune_file(void **state)
{
    (void)state;
    const char *path = "cuda_autotune_test.txt";
    gpu.m->autotune->measure(gpu.context, true);
    gemm_dense(state);
    gpu.m->autotune->measure(gpu.context, false);
    gpu_ok(gpu.m->autotune->save(gpu.context, path));
    DeviceContext *old = gpu.context;
    DeviceQueue *q = gpu.q;
    gpu_ok(gpu.m->open(0, &gpu.context));
    gpu.q = gpu.m->queue(gpu.context, QUEUE_COMPUTE);
    gpu_ok(gpu.m->autotune->load(gpu.context, path));
    gemm_dense(state);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    fputs("other", f);
    fclose(f);
    assert_int_equal(gpu.m->autotune->load(gpu.context, path), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "measured again"));
    remove(path);
    gpu.m->close(gpu.context);
    gpu.context = old;
    gpu.q = q;
}

static void sum_rows(void **state)
{
    (void)state;
    static const int64_t size[][2] = {{1, 1},      {7, 5},      {64, 64},   {1000, 33},
                                      {0, 9},      {9, 0},      {700, 520}, {5000, 24},
                                      {3000, 768}, {300, 1600}, {37, 2048}, {900, 2056}};
    for (int i = 0; i < 12; i++)
        for (int type = 0; type < 2; type++)
            for (int strides = 0; strides < N_STRIDES; strides++) {
                const double keep = gpu_keeps[(i + strides) % 3];
                Call c = {.n_in = 1, .n_out = 1, .number = {keep}};
                c.in[0] = RANDOM(&gpu.b, gpu_types[type], (Strides)strides, size[i][0], size[i][1]);
                c.out[0] =
                    accumulator(&gpu.b, NEW(&gpu.b, F32, (Strides)strides, size[i][1]), keep);
                expect_like_ref(KERNEL_sum_rows, &c, gpu_terms(sqrt((double)size[i][0])), 0);
            }
}

static void f64_is_refused(void **state)
{
    (void)state;
    Call c = {.n_in = 2, .n_out = 1};
    c.in[0] = c.in[1] = c.out[0] = NEW(&gpu.b, F64, DENSE, 4, 4);
    const Call on = call_on_gpu(&c);
    assert_int_equal(gpu.device->kernel[KERNEL_gemm](&on), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "run.device=ref"));
    bench_clear(&gpu.b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gemm), cmocka_unit_test(gemm_dense), cmocka_unit_test(autotune_file),
    cmocka_unit_test(sum_rows), cmocka_unit_test(f64_is_refused)};

GPU_MAIN(tests)
