/* test_cpu_gemm_bf16.c -- bf16 GEMM of device/cpu against ref, by every micro-kernel: types,
 * transposes, strides, blocks and their edges; the size of errors; the parts that can be timed. */
#include "support/gemm_cases.h"

static void bf16_gemms(void **state)
{
    for (int i = 0; i < 16; i++) {
        try_gemm(*state, (Size){37, 53, 29}, gemm_variant(i, BF16));
        try_gemm(*state, (Size){41, 258, 300}, gemm_variant(i, BF16));
    }
}

/* Several A blocks, several C blocks of one, several k blocks for every micro-kernel; edges of
 * all. */
static void bf16_blocks(void **state)
{
    const How how[] = {{.in = BF16, .out = BF16, .tb = true, .bias = true},
                       {.in = BF16, .out = F32, .b = PADDED, .ta = true, .keep = 1},
                       {.in = BF16, .out = BF16}};
    try_gemm(*state, (Size){270, 263, 773}, how[1]);
    for (int i = 0; i < 3; i++) {
        try_gemm(*state, (Size){270, 35, 775}, how[i]);
        try_gemm(*state, (Size){20, 550, 777}, how[i]);
    }
}

static void bf16_views(void **state) { try_views(*state, BF16, 127, 83); }

/* The whole is the GEMM; packing and multiplying do not write C, storing does. */
static void parts_of_a_gemm(void **state)
{
    Bench *b = &((CpuBench *)*state)->b;
    const Tensor x = RANDOM(b, BF16, DENSE, 70, 130), w = RANDOM(b, BF16, DENSE, 90, 130);
    const Tensor want = NEW(b, F32, DENSE, 70, 90), c = RANDOM(b, F32, DENSE, 70, 90);
    const size_t bytes = 70 * 90 * sizeof(float);
    Call call = {.n_in = 2, .n_out = 1, .in = {x, w}, .out = {want}};
    const Device *cpu;
    call.attr.gemm.tb = true;
    assert_int_equal(device_cpu_open(NULL, &cpu), OK);
    assert_int_equal(cpu->kernel[KERNEL_gemm](&call), OK);
    call.out[0] = c;
    float before[70 * 90];
    memcpy(before, c.data, bytes);
    assert_int_equal(device_cpu_gemm_part(&call, GEMM_PACK), OK);
    assert_int_equal(device_cpu_gemm_part(&call, GEMM_MULTIPLY), OK);
    assert_memory_equal(c.data, before, bytes);
    assert_int_equal(device_cpu_gemm_part(&call, GEMM_STORE), OK);
    assert_memory_not_equal(c.data, before, bytes);
    assert_int_equal(device_cpu_gemm_part(&call, GEMM_WHOLE), OK);
    assert_memory_equal(c.data, want.data, bytes);
    bench_clear(b);
}

/* The error of f32 sums in index order; c[m,n] of a[m,k] and b[n,k], dense. */
static double plain_error(const Tensor *a, const Tensor *b, const Tensor *exact)
{
    double squares = 0;
    for (int64_t i = 0; i < exact->n[0]; i++)
        for (int64_t j = 0; j < exact->n[1]; j++) {
            float sum = 0;
            for (int64_t k = 0; k < a->n[1]; k++)
                sum += (float)get(a, i * a->n[1] + k) * (float)get(b, j * b->n[1] + k);
            const double off = (double)sum - get(exact, i * exact->n[1] + j);
            squares += off * off;
        }
    return sqrt(squares);
}

/* No micro-kernel has more than 1.5 times the error of plain f32 sums. */
static void bf16_error(void **state)
{
    CpuBench *c = *state;
    Bench *b = &c->b;
    const CpuMicrokernel in_use = microkernel_in_use();
    const Tensor x = RANDOM(b, BF16, DENSE, 45, 2050), w = RANDOM(b, BF16, DENSE, 67, 2050);
    const Tensor exact = NEW(b, F64, DENSE, 45, 67), got = NEW(b, F32, DENSE, 45, 67);
    Call call = {.n_in = 2, .n_out = 1, .in = {x, w}, .out = {exact}};
    call.attr.gemm.tb = true;
    run(KERNEL_gemm, &call);
    const double plain = plain_error(&x, &w, &exact);
    call.out[0] = got;
    for (int u = 0; u < N_CPU_MICROKERNELS; u++) {
        if (!microkernel_available((CpuMicrokernel)u)) continue;
        double squares = 0;
        microkernel_use((CpuMicrokernel)u);
        assert_int_equal(device_cpu_simd(u == MICROKERNEL_FMA ? CPU_BASE : CPU_AVX512)
                             ->kernel[KERNEL_gemm](&call),
                         OK);
        for (int64_t i = 0; i < tensor_count(&got); i++)
            squares += (get(&got, i) - get(&exact, i)) * (get(&got, i) - get(&exact, i));
        if (!(sqrt(squares) <= 1.5 * plain))
            fail_msg("%s: error %g, plain f32 %g", microkernel_text((CpuMicrokernel)u),
                     sqrt(squares), plain);
    }
    microkernel_use(in_use);
    bench_clear(b);
}

/* With AMX, the tests above have run it; without, its emulation. */
static void amx_is_available(void **state)
{
    (void)state;
    if (microkernel_available(MICROKERNEL_AMX)) return;
    print_message("AMX is not available on this machine: only its emulation is tested\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_gemms), cmocka_unit_test(bf16_blocks),
        cmocka_unit_test(bf16_views), cmocka_unit_test(parts_of_a_gemm),
        cmocka_unit_test(bf16_error), cmocka_unit_test(amx_is_available),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}
