/* test_cpu_open.c -- opening device/cpu: no BLAS library is needed; a missing one that is
 * requested is an error. */
#include "cpu_test.h"

static void without_library(void **state)
{
    (void)state;
    const Device *device;
    const BlasLibrary missing = {.file = "libno-such-blas.so.7"};
    assert_int_equal(device_cpu_open(&missing, &device), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "libno-such-blas.so.7"));
    assert_null(blas_sgemm());
    assert_int_equal(device_cpu_open(NULL, &device), OK);
    assert_int_equal(device_check(device), OK);
    assert_null(blas_sgemm());

    float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, 0, 2, 1, 0, 3}, c[4];
    const Call call = {.in = {{a, F32, 2, {2, 3}, {3, 1}}, {b, F32, 2, {3, 2}, {2, 1}}},
                       .n_in = 2,
                       .out = {{c, F32, 2, {2, 2}, {2, 1}}},
                       .n_out = 1};
    assert_int_equal(device->kernel[KERNEL_gemm](&call), OK);
    const float want[4] = {5, 11, 14, 23};
    assert_memory_equal(c, want, sizeof want);
}

static void widest_of_this_cpu(void **state)
{
    (void)state;
    const Device *device;
    assert_true(cpu_has(CPU_BASE));
    assert_int_equal(device_cpu_open(NULL, &device), OK);
    for (CpuSimd s = CPU_BASE; s < N_CPU_SIMD; s++) {
        if (!cpu_has(s)) continue;
        assert_int_equal(device_check(device_cpu_simd(s)), OK);
        assert_string_equal(device_cpu_simd(s)->name, "cpu");
    }
    const char *const name = cpu_has(CPU_AVX512) ? "AVX-512"
                             : cpu_has(CPU_AVX2) ? "AVX2"
                                                 : "portable";
    char text[CPU_TEXT_BYTES];
    assert_non_null(strstr(device_cpu_text(text), name));
    if (microkernel_in_use() != MICROKERNEL_FMA)
        assert_non_null(strstr(text, microkernel_text(microkernel_in_use())));
    assert_true(microkernel_available(microkernel_in_use()));
    assert_true(device_cpu_peak(BF16) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_library),
        cmocka_unit_test(widest_of_this_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
