/* Products of bf16 on device/cpu against ref, by every unit that multiplies them: types, transposes,
 * strides, blocks and their edges; how far off they are; the parts that can be timed. */
#include "support/gemm_cases.h"

static void bf16_products(void **state)
{
    for (int i = 0; i < 16; i++) {
        try_gemm(*state, (Size){37, 53, 29}, way_of(i, BF16));
        try_gemm(*state, (Size){41, 258, 300}, way_of(i, BF16));
    }
}

/* Several strips, several tiles of one, several blocks of k by every unit; edges of all. */
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

static void bf16_parts(void **state) { try_parts(*state, BF16, 127, 83); }

/* Parts that can be timed: all of it is the product; packing and multiplying leave c alone, storing does not. */
static void parts_of_a_product(void **state)
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

/* c[m,n] of a[m,k] and b[n,k], dense: sums of f32 in index order, as plain code has them. */
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

/* Of bf16 operands and f32 sums: no unit errs more than 1.5 times what plain code does. */
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

/* Where AMX is, the tests above have run it. Elsewhere its loops in C have stood for it. */
static void amx_is_there(void **state)
{
    (void)state;
    if (microkernel_available(MICROKERNEL_AMX)) return;
    print_message("AMX is not granted on this machine: its instructions are NOT tested here, only "
                  "all that is around them\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_products), cmocka_unit_test(bf16_blocks),
        cmocka_unit_test(bf16_parts),    cmocka_unit_test(parts_of_a_product),
        cmocka_unit_test(bf16_error),    cmocka_unit_test(amx_is_there),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}
