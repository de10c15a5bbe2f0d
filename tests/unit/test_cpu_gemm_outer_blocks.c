/* test_cpu_gemm_outer_blocks.c -- GEMM on device/cpu in several outer blocks, against ref: along
 * k, with partial sums, from 4,096 dwords on (a dword is one f32 or a pair of bf16); of columns
 * and of rows, beyond 2 or 4 million dwords.
 *
 *     dwords along k     outer blocks of k     A
 *     <= 1,408           1                     a block of A stays in the packing buffer
 *     <= 4,096           1                     packed per k block; for AMX by the team
 *     more               of 2,048              the same, and outer blocks of rows, which bound the
 *                                              partial sums */
#include "support/gemm_cases.h"

static const How adds = {.in = F32, .out = F32, .ta = true, .bias = true, .keep = 1};
static const How narrow = {.in = BF16, .out = BF16, .tb = true, .bias = true, .keep = 0.5};

/* Three outer blocks; the last one is shorter. */
static void split_k(void **state)
{
    try_gemm(*state, (Size){37, 70, 4109}, adds);
    try_gemm(*state, (Size){35, 67, 8221}, narrow);
}

/* Outer blocks of 768 columns, where A is packed again, and of 2,816, where A blocks stay. */
static void split_columns(void **state)
{
    try_gemm(*state, (Size){9, 801, 4093}, adds);
    try_gemm(*state, (Size){9, 2851, 731}, (How){.in = F32, .out = F32, .tb = true});
}

/* Outer blocks of 1,320 rows, because k is split. */
static void split_rows(void **state) { try_gemm(*state, (Size){1409, 3, 4109}, adds); }

/* Only by emulated AMX, and once: it is slow. */
static void try_amx_emulated(CpuBench *c, Size s, Team *team)
{
    Bench *b = &c->b;
    const CpuMicrokernel in_use = microkernel_in_use();
    Call call = {.n_in = 2, .n_out = 1};
    Wanted w;
    call.attr.gemm.tb = true;
    call.in[0] = RANDOM(b, BF16, DENSE, s.m, s.k);
    call.in[1] = RANDOM(b, BF16, DENSE, s.n, s.k);
    call.out[0] = NEW(b, F32, DENSE, s.m, s.n);
    call.team = c->team[MAX_THREADS];
    run(KERNEL_gemm, &call);
    wanted_take(&call, &w);
    memset(call.out[0].data, 0xff, sizeof(float) * (size_t)(s.m * s.n));
    call.team = team;
    microkernel_use(MICROKERNEL_AMX_EMULATED);
    assert_int_equal(device_cpu_simd(CPU_AVX512)->kernel[KERNEL_gemm](&call), OK);
    microkernel_use(in_use);
    wanted_compare(&w, KERNEL_gemm, &call, tol_sum(F32, (double)s.k), "emulated AMX");
    free(w.value[0]);
    bench_clear(b);
}

/* Outer blocks of 1,792 columns or rows, where the team packs both operands. A single outer block
 * of A is reused for all of B, and the reverse. */
static void by_emulated_amx(void **state)
{
    CpuBench *c = *state;
    if (!cpu_has(CPU_AVX512)) skip();
    try_amx_emulated(c, (Size){9, 1830, 4101}, NULL);
    try_amx_emulated(c, (Size){1831, 5, 4103}, c->team[3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_k),
        cmocka_unit_test(split_columns),
        cmocka_unit_test(split_rows),
        cmocka_unit_test(by_emulated_amx),
    };
    return cmocka_run_group_tests(tests, cpu_setup_no_library, cpu_teardown);
}
