/* Products with deep sums on device/cpu against ref: so many terms that a strip of a does not stay in the
 * second cache and is packed block by block. That is from 1,408 words on, or 1,536, by the unit; a word
 * is one term of f32, or two of bf16. */
#include "support/gemm_cases.h"

static How turned(int t, DType in)
{
    return (How){.in = in,
                 .out = F32,
                 .a = t == 3 ? PADDED : DENSE,
                 .b = t == 3 ? TURNED : DENSE,
                 .ta = t & 1,
                 .tb = t >> 1,
                 .bias = t == 2,
                 .keep = t == 1};
}

/* A strip is packed again for more columns than 768; the last panels have lines missing. */
static void many_columns(void **state)
{
    try_gemm(*state, (Size){26, 801, 1601}, turned(1, F32));
    try_gemm(*state, (Size){26, 803, 1603}, turned(2, F32));
}

/* Several strips; rows of words by fours and some over. */
static void many_rows(void **state)
{
    for (int t = 0; t < 4; t++) try_gemm(*state, (Size){157, 37, 1601}, turned(t, F32));
}

static void deep_bf16(void **state)
{
    for (int t = 0; t < 4; t++) try_gemm(*state, (Size){25, 70, 3001}, turned(t, BF16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_columns),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(deep_bf16),
    };
    return cmocka_run_group_tests(tests, cpu_setup_own, cpu_teardown);
}
