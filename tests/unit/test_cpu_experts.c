/* test_cpu_experts.c -- rows of experts and grouped GEMMs on device cpu against ref: all
 * instruction sets and micro-kernels, f32 and bf16, an expert without rows, a hot one, dropped
 * choices. */
#include "cpu_test.h"

enum { T = 37, K = 2, E = 5 };

/* Row r is of the expert that `offsets` says; -1: the choice was dropped. */
static Tensor row_numbers(Bench *b, bool drops)
{
    const Tensor at = NEW(b, I32, PADDED, T, K);
    for (int i = 0; i < T * K; i++) put(&at, i, drops && i % 7 == 3 ? -1 : i * 11 % (T * K));
    return at;
}

static Tensor offsets_of(Bench *b, int which)
{
    static const int offset[3][E + 1] = {
        {0, 10, 10, 31, 60, 74}, {0, 0, 0, 70, 71, 74}, {0, 3, 9, 9, 20, 51}};
    const Tensor t = NEW(b, I32, DENSE, E + 1);
    for (int e = 0; e <= E; e++) put(&t, e, offset[which][e]);
    return t;
}

static void permutes(void **state)
{
    CpuBench *c = *state;
    for (int i = 0; i < 24; i++) {
        bench_clear(&c->b);
        const DType type = i % 2 ? BF16 : F32;
        const Strides strides = i % 3 ? DENSE : PADDED;
        const int64_t width = i / 12 ? 1100 : 37;
        const Tensor at = row_numbers(&c->b, i / 4 % 2);
        const Tensor gate = RANDOM(&c->b, F32, DENSE, T, K);
        const Tensor x = RANDOM(&c->b, type, strides, T, width);
        const Tensor y = RANDOM(&c->b, type, DENSE, T * K, width);
        const Tensor to = RANDOM(&c->b, type, strides, T * K, width);
        const Tensor back = NEW(&c->b, type, strides, T, width);
        const Tensor dgate = NEW(&c->b, F32, DENSE, T, K);
        const Call there = {.in = {x, at, gate}, .n_in = 2 + i / 2 % 2, .out = {to}, .n_out = 1};
        const Call again = {.in = {at, y, gate}, .n_in = 2 + i / 2 % 2, .out = {back}, .n_out = 1};
        const Call dot = {.in = {x, at, y}, .n_in = 3, .out = {dgate}, .n_out = 1};
        against_ref(c, KERNEL_permute, &there, tol_sum(type, 1));
        against_ref(c, KERNEL_unpermute, &again, tol_sum(type, K));
        against_ref(c, KERNEL_permute_dgate, &dot, tol_sum(F32, (double)width));
    }
}

static void grouped_gemms(void **state)
{
    CpuBench *c = *state;
    for (int i = 0; i < 24; i++) {
        bench_clear(&c->b);
        const DType type = i % 2 ? BF16 : F32;
        const bool tb = i / 2 % 2;
        const int64_t n = i / 12 ? 300 : 33, k = i / 12 ? 70 : 129;
        const double keep = i / 4 % 2;
        const Tensor offsets = offsets_of(&c->b, i % 3);
        const Tensor a = RANDOM(&c->b, type, DENSE, T * K, k);
        const Tensor b =
            tb ? RANDOM(&c->b, type, DENSE, E, n, k) : RANDOM(&c->b, type, DENSE, E, k, n);
        const Tensor y = RANDOM(&c->b, type, DENSE, T * K, n);
        const Call gemm = {.in = {a, b, offsets},
                           .n_in = 3,
                           .out = {y},
                           .n_out = 1,
                           .attr.gemm = {.tb = tb},
                           .number = {keep}};
        against_ref(c, KERNEL_grouped_gemm, &gemm, tol_sum(type, (double)k));
        const Tensor dy = RANDOM(&c->b, type, DENSE, T * K, n);
        const Tensor dw = RANDOM(&c->b, F32, DENSE, E, n, k);
        const Call grad = {
            .in = {dy, a, offsets}, .n_in = 3, .out = {dw}, .n_out = 1, .number = {keep}};
        against_ref(c, KERNEL_grouped_gemm_dw, &grad, tol_sum(F32, T * K));
    }
}

/* Experts of many tiles; matrices that are packed in rounds of two; matrices of more than 16 MiB,
 * which the whole team multiplies one by one. */
static void large_experts(void **state)
{
    static const int size[][4] = {{700, 40, 33, 650}, {22, 1500, 1000, 9}, {13, 2304, 2048, 5}};
    CpuBench *c = *state;
    for (int i = 0; i < 3; i++) {
        bench_clear(&c->b);
        const int rows = size[i][0], n = size[i][1], k = size[i][2];
        const Tensor offsets = NEW(&c->b, I32, DENSE, 4);
        for (int e = 0; e < 4; e++) put(&offsets, e, e == 0 ? 0 : e < 3 ? size[i][3] : rows);
        const Tensor a = RANDOM(&c->b, F32, DENSE, rows, k);
        const Tensor b = RANDOM(&c->b, F32, DENSE, 3, n, k);
        const Tensor y = RANDOM(&c->b, F32, DENSE, rows, n);
        const Call gemm = {.in = {a, b, offsets},
                           .n_in = 3,
                           .out = {y},
                           .n_out = 1,
                           .attr.gemm = {.tb = true},
                           .number = {1}};
        against_ref(c, KERNEL_grouped_gemm, &gemm, tol_sum(F32, (double)k));
    }
}

/* Few rows in all are a decoding step: another path. */
static void few_rows(void **state)
{
    CpuBench *c = *state;
    for (int i = 0; i < 4; i++) {
        bench_clear(&c->b);
        const DType type = i % 2 ? BF16 : F32;
        const Tensor offsets = NEW(&c->b, I32, DENSE, E + 1);
        for (int e = 0; e <= E; e++) put(&offsets, e, e < 2 ? 0 : i / 2 ? e - 1 : 8);
        const Tensor a = RANDOM(&c->b, type, DENSE, 8, 129),
                     b = RANDOM(&c->b, type, DENSE, E, 65, 129);
        const Tensor y = RANDOM(&c->b, type, DENSE, 8, 65);
        const Call gemm = {
            .in = {a, b, offsets}, .n_in = 3, .out = {y}, .n_out = 1, .attr.gemm = {.tb = true}};
        against_ref(c, KERNEL_grouped_gemm, &gemm, tol_sum(type, 129));
    }
}

/* Several kernels in one. */
static void fused_gemms(void **state)
{
    CpuBench *c = *state;
    for (int i = 0; i < 6; i++) {
        bench_clear(&c->b);
        const DType type = i % 2 ? BF16 : F32;
        const int64_t n = 33, k = 70;
        const Tensor offsets = offsets_of(&c->b, i / 2);
        Tensor x[2], dy[2], out[3], w[2];
        for (int m = 0; m < 2; m++) {
            x[m] = RANDOM(&c->b, type, DENSE, T * K, k);
            dy[m] = RANDOM(&c->b, type, DENSE, T * K, n);
            w[m] = RANDOM(&c->b, type, DENSE, E, n, k);
        }
        for (int m = 0; m < 3; m++) out[m] = RANDOM(&c->b, type, DENSE, T * K, n);
        const Tensor dx = RANDOM(&c->b, type, DENSE, T * K, k);
        const Tensor dgate = RANDOM(&c->b, type, DENSE, T * K, k);
        const Call swiglu = {.in = {x[0], w[0], w[1], offsets},
                             .n_in = 4,
                             .out = {out[0], out[1], out[2]},
                             .n_out = 3,
                             .attr.gemm = {.tb = true}};
        const Call dswiglu = {
            .in = {dy[0], w[0], offsets, x[0], x[1]}, .n_in = 5, .out = {dgate, dx}, .n_out = 2};
        const Call pair = {
            .in = {dy[0], w[0], dy[1], w[1], offsets}, .n_in = 5, .out = {dx}, .n_out = 1};
        against_ref(c, KERNEL_grouped_gemm_swiglu, &swiglu, 2 * tol_sum(type, (double)k));
        against_ref(c, KERNEL_grouped_gemm_dswiglu, &dswiglu, 2 * tol_sum(type, (double)n));
        against_ref(c, KERNEL_grouped_gemm_pair, &pair, tol_sum(type, (double)(2 * n)));
    }
}

static void pointwise(void **state)
{
    CpuBench *c = *state;
    for (int i = 0; i < 8; i++) {
        bench_clear(&c->b);
        const DType type = i % 2 ? BF16 : F32;
        const int64_t width = i / 2 % 2 ? 1100 : 37;
        const Tensor offsets = offsets_of(&c->b, i % 3);
        Tensor x[5];
        for (int k = 0; k < 5; k++)
            x[k] = RANDOM(&c->b, type, i / 4 ? PADDED : DENSE, T * K, width);
        const Tensor s = RANDOM(&c->b, type, DENSE, T * K, 1),
                     ds = NEW(&c->b, type, DENSE, T * K, 1);
        const Call act = {.in = {x[0], x[1], offsets}, .n_in = 3, .out = {x[3]}, .n_out = 1};
        const Call back = {
            .in = {x[2], x[0], x[1], offsets}, .n_in = 4, .out = {x[3], x[4]}, .n_out = 2};
        const Call gate = {.in = {x[0], s}, .n_in = 2, .out = {x[3]}, .n_out = 1};
        const Call gate_dx = {.in = {x[0], x[1], s}, .n_in = 3, .out = {x[3], ds}, .n_out = 2};
        against_ref(c, KERNEL_grouped_swiglu, &act, tol_sum(type, 16));
        against_ref(c, KERNEL_grouped_swiglu_dx, &back, tol_sum(type, 16));
        against_ref(c, KERNEL_sigmoid_gate, &gate, tol_sum(type, 16));
        against_ref(c, KERNEL_sigmoid_gate_dx, &gate_dx, tol_sum(type, (double)width));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(permutes),      cmocka_unit_test(grouped_gemms),
        cmocka_unit_test(large_experts), cmocka_unit_test(few_rows),
        cmocka_unit_test(fused_gemms),   cmocka_unit_test(pointwise),
    };
    return cmocka_run_group_tests_name("cpu: experts", tests, cpu_setup, cpu_teardown);
}
