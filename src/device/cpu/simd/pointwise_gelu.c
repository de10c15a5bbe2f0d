/* pointwise_gelu.c -- gelu and its gradient.
 *
 *     gelu(x) = x/2 (1 + tanh u) = x / (1 + e),  e = exp(-2u),  u = GELU_A (x + GELU_B x^3)
 *
 * Small values at negative x keep their digits, since nothing is subtracted from 1. The relative
 * error of a value is under (5 |2u| + 8) 2^-24. Most of it is the rounding error of 2u, which exp
 * multiplies by |2u|.
 *
 * |x| is clamped to GELU_MAX: beyond it e is below 1e-36 or above 1e36, and 1 + e rounds to 1 or
 * e. */
#include "device/cpu/simd/math.h"
#include "device/cpu/simd/pointwise.h"

#define GELU_A 0.797884560802865f /* sqrt(2 / pi) */
#define GELU_B 0.044715f
#define GELU_MAX 9.9f
#define LOG2_E 1.44269504f

/* e for |x| <= GELU_MAX */
static inline V gelu_rest(V x)
{
    return v_power(x * (-2 * GELU_A * LOG2_E - 2 * GELU_A * GELU_B * LOG2_E * (x * x)));
}

static inline V gelu_of(V x)
{
    const V v = v_max(v_set(-GELU_MAX), x);
    return v * v_reciprocal(1 + gelu_rest(v_min(v_set(GELU_MAX), v)));
}

/* With s = 1 / (1 + e): d/dx (x s) = s (1 + 2 u' x e s) */
static inline V gelu_slope(V x)
{
    const V v = v_min(v_set(GELU_MAX), v_max(v_set(-GELU_MAX), x));
    const V e = gelu_rest(v), s = v_reciprocal(1 + e);
    const V two_du = 2 * GELU_A + 6 * GELU_A * GELU_B * (v * v);
    return s * (1 + v * two_du * (e * s));
}

static void gelu_formula(const Call *call, int64_t n, const float *const *x, float *const *y)
{
    (void)call;
    for (int64_t i = 0; i < n; i += W)
        v_store_to(y[0] + i, n - i, gelu_of(v_load_to(x[0] + i, n - i)));
}

EACH_FORM int64_t gelu_as(ElementForm form, int64_t n, const void *x, void *y)
{
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W)
        v_store_pair_as(form, y, i, gelu_of(v_load_as(form, x, i)),
                        gelu_of(v_load_as(form, x, i + W)));
    return i;
}

static int64_t gelu_direct(ElementForm form, int64_t n, const void *const *x, void *const *y)
{
    if (form == AS_F32) return gelu_as(AS_F32, n, x[0], y[0]);
    if (form == AS_BF16) return gelu_as(AS_BF16, n, x[0], y[0]);
    return gelu_as(AS_BF16_HW, n, x[0], y[0]);
}

Err CPU_NAME(gelu)(const Call *call)
{
    pointwise_direct(call, gelu_formula, gelu_direct);
    return OK;
}

/* in: dy, x */
static void gelu_dx_formula(const Call *call, int64_t n, const float *const *x, float *const *y)
{
    (void)call;
    for (int64_t i = 0; i < n; i += W)
        v_store_to(y[0] + i, n - i,
                   v_load_to(x[0] + i, n - i) * gelu_slope(v_load_to(x[1] + i, n - i)));
}

EACH_FORM int64_t gelu_dx_as(ElementForm form, int64_t n, const void *dy, const void *x, void *dx)
{
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        const V a = v_load_as(form, dy, i) * gelu_slope(v_load_as(form, x, i));
        const V b = v_load_as(form, dy, i + W) * gelu_slope(v_load_as(form, x, i + W));
        v_store_pair_as(form, dx, i, a, b);
    }
    return i;
}

static int64_t gelu_dx_direct(ElementForm form, int64_t n, const void *const *x, void *const *y)
{
    if (form == AS_F32) return gelu_dx_as(AS_F32, n, x[0], x[1], y[0]);
    if (form == AS_BF16) return gelu_dx_as(AS_BF16, n, x[0], x[1], y[0]);
    return gelu_dx_as(AS_BF16_HW, n, x[0], x[1], y[0]);
}

Err CPU_NAME(gelu_dx)(const Call *call)
{
    pointwise_direct(call, gelu_dx_formula, gelu_dx_direct);
    return OK;
}
