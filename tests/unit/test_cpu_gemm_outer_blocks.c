/* Products on device/cpu that are packed in pieces, against ref: along k, with sums that wait, where it is
 * deeper than 4,096 words (a word is one term of f32, or two of bf16); of columns, and of rows, where 2 or
 * 4 million words are less.
 *
 *     words along k          pieces of k       a strip of a
 *     <= 1,408               1                 stays in its seat
 *     <= 4,096               1                 block after block; tiles: a is packed by the team, in pieces
 *     more                   of 2,048          so, and pieces of rows, as sums of all of them wait
 */
#include "support/gemm_cases.h"

static const How adds = {.in = F32, .out = F32, .ta = true, .bias = true, .keep = 1};
static const How narrow = {.in = BF16, .out = BF16, .tb = true, .bias = true, .keep = 0.5};

/* Three pieces, the last a shorter one. */
static void along_k(void **state)
{
    try_gemm(*state, (Size){37, 70, 4109}, adds);
    try_gemm(*state, (Size){35, 67, 8221}, narrow);
}

/* Of 768 columns, where a is packed again for each, and of 2,816, where strips of it stay. */
static void of_columns(void **state)
{
    try_gemm(*state, (Size){9, 801, 4093}, adds);
    try_gemm(*state, (Size){9, 2851, 731}, (How){.in = F32, .out = F32, .tb = true});
}

/* Of 1,320 rows, as k comes in pieces. */
static void of_rows(void **state) { try_gemm(*state, (Size){1409, 3, 4109}, adds); }

/* By tiles alone, those in C, which are slow: once. */
static void try_tiles(CpuBench *c, Size s, Team *team)
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
    wanted_compare(&w, KERNEL_gemm, &call, tol_sum(F32, (double)s.k), "tiles in C");
    free(w.value[0]);
    bench_clear(b);
}

/* Of 1,792 columns, and of as many rows, where the team packs both: a that is one piece serves all
 * pieces of b, and b all of a. */
static void of_tiles(void **state)
{
    CpuBench *c = *state;
    if (!cpu_has(CPU_AVX512)) skip();
    try_tiles(c, (Size){9, 1830, 4101}, NULL);
    try_tiles(c, (Size){1831, 5, 4103}, c->team[3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(along_k),
        cmocka_unit_test(of_columns),
        cmocka_unit_test(of_rows),
        cmocka_unit_test(of_tiles),
    };
    return cmocka_run_group_tests(tests, cpu_setup_own, cpu_teardown);
}
