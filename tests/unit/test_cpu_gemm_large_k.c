/* test_cpu_gemm_large_k.c -- GEMM with large k on device/cpu against ref: a block of A exceeds
 * the packing buffer in L2 and is packed one k block at a time. That happens from 1,408 or 1,536
 * dwords on, by the micro-kernel; a dword is one f32 or a pair of bf16. */
#include "support/gemm_cases.h"

static How transposed(int t, DType in)
{
    return (How){.in = in,
                 .out = F32,
                 .a = t == 3 ? PADDED : DENSE,
                 .b = t == 3 ? COLUMN_MAJOR : DENSE,
                 .ta = t & 1,
                 .tb = t >> 1,
                 .bias = t == 2,
                 .keep = t == 1};
}

/* More than 768 columns, so A is packed again; the last panels are partly empty. */
static void repacked_columns(void **state)
{
    try_gemm(*state, (Size){26, 801, 1601}, transposed(1, F32));
    try_gemm(*state, (Size){26, 803, 1603}, transposed(2, F32));
}

/* Several A blocks; numbers of dwords that are no multiple of four. */
static void many_rows(void **state)
{
    for (int t = 0; t < 4; t++) try_gemm(*state, (Size){157, 37, 1601}, transposed(t, F32));
}

static void large_k_bf16(void **state)
{
    for (int t = 0; t < 4; t++) try_gemm(*state, (Size){25, 70, 3001}, transposed(t, BF16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repacked_columns),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(large_k_bf16),
    };
    return cmocka_run_group_tests(tests, cpu_setup_no_library, cpu_teardown);
}
