/* test_state_convert.c -- every number of the 16-bit types converts to f32 and f64 and back
 * unchanged; any number rounds to the nearest, ties to even; overflows are counted. */
#include <math.h>
#include <stdio.h>

#include "base/philox.h"
#include "state/convert.h"
#include "support/expect.h"

static const StType narrow[] = {ST_F16, ST_BF16};
enum { ALL = 1 << 16 };

static double value(StType t, uint16_t half)
{
    double x;
    assert_int_equal(convert(t, &half, ST_F64, &x, 1), 0);
    return x;
}

static void there_and_back(void **state)
{
    (void)state;
    static uint16_t half[ALL], back[ALL];
    static union {
        double f64[ALL];
        float f32[ALL];
        uint16_t half[4 * ALL];
    } wide;
    for (int i = 0; i < ALL; i++) half[i] = (uint16_t)i;
    for (int k = 0; k < 2; k++) {
        convert(narrow[k], half, ST_F32, wide.f32, ALL);
        assert_int_equal(convert(ST_F32, wide.f32, narrow[k], back, ALL), 0);
        assert_memory_equal(half, back, sizeof half);
        memcpy(wide.half + ALL, half, sizeof half); /* both end at the same address */
        convert(narrow[k], wide.half + ALL, ST_F32, wide.f32, ALL);
        assert_int_equal(convert(ST_F32, wide.f32, narrow[k], wide.half, ALL), 0);
        assert_memory_equal(half, wide.half, sizeof half);
        convert(narrow[k], half, ST_F64, wide.f64, ALL);
        assert_int_equal(convert(ST_F64, wide.f64, narrow[k], back, ALL), 0);
        for (int i = 0; i < ALL; i++)
            if (half[i] != back[i] && !isnan(wide.f64[i]))
                fail_msg("%s %04x came back %04x", st_type_name(narrow[k]), half[i], back[i]);
    }
    assert_true(value(ST_F16, 0x3C00) == 1 && value(ST_F16, 0x7BFF) == 65504);
    assert_true(value(ST_F16, 0xC001) == -2.001953125 && value(ST_F16, 1) == 0x1p-24);
    assert_true(value(ST_BF16, 0x3F80) == 1 && value(ST_BF16, 0xC040) == -3);
}

/* Positive numbers of a 16-bit type have the order of their bits. */
static void expect_nearest(StType t, double x, uint16_t got)
{
    const double at = value(t, got), off = fabs(at - x);
    assert_true(signbit(x) ? got & 0x8000 : !(got & 0x8000));
    for (int step = -1; step <= 1; step += 2) {
        if ((got & 0x7FFF) == 0 && step < 0) continue;
        const double other = value(t, (uint16_t)(got + step));
        if (isinf(other)) continue;
        if (!(off <= fabs(other - x)) || (off == fabs(other - x) && got & 1))
            fail_msg("%.17g became %s %04x, %.17g; %.17g is as near", x, st_type_name(t), got, at,
                     other);
    }
}

static void to_the_nearest(void **state)
{
    (void)state;
    const Random random = random_named(7, "convert");
    for (int i = 0; i < 200000; i++) {
        const uint64_t bits = random_bits(&random, (uint64_t)i);
        const int exponent = (int)(bits % 45) - 30;
        double x = ldexp((double)(bits >> 20), exponent - 44);
        if (i % 3 == 0) x = ldexp((double)(bits >> 52), exponent - 12); /* includes ties */
        if (i % 5 == 0) x = nextafter(x, 1e300);                        /* almost a tie */
        if (bits >> 63) x = -x;
        const float f = (float)x;
        for (int k = 0; k < 2; k++) {
            uint16_t half;
            if (fabs(x) >= 65504) continue;
            assert_int_equal(convert(ST_F64, &x, narrow[k], &half, 1), 0);
            expect_nearest(narrow[k], x, half);
            assert_int_equal(convert(ST_F32, &f, narrow[k], &half, 1), 0);
            expect_nearest(narrow[k], (double)f, half);
        }
    }
}

static void overflow_is_counted(void **state)
{
    (void)state;
    const float x[] = {65504, 65519.996F, 65520, -65520, INFINITY, 1e38F, NAN, 3.4e38F, -INFINITY};
    const double d[] = {1e39, -1e300, 3.3e38, HUGE_VAL, 1e-320};
    uint16_t half[9];
    float f[5];
    assert_int_equal(convert(ST_F32, x, ST_F16, half, 9), 4);
    assert_int_equal(half[0], 0x7BFF);
    assert_int_equal(half[1], 0x7BFF);
    assert_int_equal(half[2], 0x7C00);
    assert_int_equal(half[3], 0xFC00);
    assert_true((half[6] & 0x7FFF) > 0x7C00);
    assert_int_equal(convert(ST_F32, x, ST_BF16, half, 9), 1);
    assert_int_equal(half[7], 0x7F80);
    assert_int_equal(convert(ST_F64, d, ST_F32, f, 5), 2);
    assert_int_equal(convert(ST_F64, d, ST_BF16, half, 5), 2);
    assert_int_equal(half[4], 0);
    assert_true(convert_supports(ST_F16) && !convert_supports(ST_F8_E4M3) &&
                !convert_supports(ST_I32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(there_and_back),
                                       cmocka_unit_test(to_the_nearest),
                                       cmocka_unit_test(overflow_is_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
