/* test_fp8.c -- conversion to and from the types of 8 bits, against the definition: the 256 codes
 * in order, of which the nearest wins, and of two equally near ones the even code. */
#include "kernel_test.h"

#include "base/philox.h"
#include "support/expect.h"

/* The magnitudes of a type by code, from its definition; returns the number of finite ones. */
static int magnitudes(DType t, double *value)
{
    const int fraction = t == E4M3 ? 3 : 2, bias = t == E4M3 ? 7 : 15;
    const int finite = t == E4M3 ? 0x7f : 0x7c;
    for (int c = 0; c < finite; c++) {
        const int exponent = c >> fraction, rest = c & ((1 << fraction) - 1);
        value[c] = exponent ? ldexp(1 + ldexp(rest, -fraction), exponent - bias)
                            : ldexp(rest, 1 - bias - fraction);
    }
    return finite;
}

static uint8_t nearest(const double *value, int finite, float x)
{
    const double size = fabs((double)x);
    int lo = 0, hi = finite - 1;
    if (isnan(x)) return 0x7f;
    while (hi - lo > 1) { /* value[lo] <= size, or lo is 0 */
        const int mid = (lo + hi) / 2;
        if (value[mid] <= size)
            lo = mid;
        else
            hi = mid;
    }
    const double down = size - value[lo], up = value[hi] - size;
    const int code = down < up ? lo : up < down ? hi : lo % 2 ? hi : lo;
    return (uint8_t)(code | (signbit(x) ? 0x80 : 0));
}

static void expect_code(DType t, const double *value, int finite, float x)
{
    const uint8_t got = fp8_of(t, x), want = nearest(value, finite, x);
    if (got != want)
        fail_msg("%s of %.9g: code %02x, not %02x", dtype_name(t), (double)x, got, want);
}

static void rounds(void **state)
{
    static const DType types[] = {E4M3, E5M2};
    (void)state;
    for (int k = 0; k < 2; k++) {
        double value[128];
        const int finite = magnitudes(types[k], value);
        for (uint32_t h = 0; h < 1 << 16; h++) /* every bf16, infinities and NaN too */
            expect_code(types[k], value, finite, fp8_float_of(h << 16));
        const Random random = random_named(7, "fp8");
        for (uint64_t i = 0; i < 1000000; i += 64) {
            uint64_t index[64];
            double x[64];
            for (uint64_t j = 0; j < 64; j++) index[j] = i + j;
            random_normals(&random, index, 64, x);
            for (int j = 0; j < 64; j++) /* magnitudes from far below the smallest to the largest */
                expect_code(types[k], value, finite,
                            (float)(x[j] * ldexp(1, (int)((i + (uint64_t)j) % 40) - 22)));
        }
        for (int c = 0; c + 1 < finite; c++) { /* ties, and their neighbours */
            const float tie = (float)((value[c] + value[c + 1]) / 2);
            expect_code(types[k], value, finite, tie);
            expect_code(types[k], value, finite, nextafterf(tie, 0));
            expect_code(types[k], value, finite, -nextafterf(tie, INFINITY));
        }
    }
}

static void reads_back(void **state)
{
    static const DType types[] = {E4M3, E5M2};
    (void)state;
    for (int k = 0; k < 2; k++) {
        double value[128];
        const int finite = magnitudes(types[k], value);
        for (int c = 0; c < 256; c++) {
            const double got = (double)fp8_get(types[k], (uint8_t)c);
            if ((c & 0x7f) >= finite) {
                assert_true((c & 0x7f) == 0x7c && types[k] == E5M2 ? isinf(got) : isnan(got));
                continue;
            }
            assert_true(fabs(got) == value[c & 0x7f] && !!signbit(got) == c >> 7);
            assert_int_equal(fp8_of(types[k], (float)got), c);
        }
    }
}

static void scales(void **state)
{
    (void)state;
    const Fp8Scale none = fp8_scale(E4M3, 0), some = fp8_scale(E4M3, 3.5f),
                   tiny = fp8_scale(E5M2, 1e-44f), inf = fp8_scale(E4M3, INFINITY);
    assert_true(none.scale == 1 && none.inverse == 1);
    assert_true(some.scale == 3.5f / 448 && some.inverse == 448 / 3.5f);
    assert_true(isfinite(tiny.inverse) && tiny.scale > 0);
    /* An infinity makes every product NaN, so that the step is skipped. */
    assert_true(isnan(fp8_get(E4M3, fp8_of(E4M3, INFINITY * inf.inverse)) * inf.scale));
    assert_true(isnan(fp8_get(E4M3, fp8_of(E4M3, 1 * inf.inverse)) * inf.scale));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds),
        cmocka_unit_test(reads_back),
        cmocka_unit_test(scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
