/* row.c -- conversion of rows of f64, f32, bf16 and 8 bits to doubles and back: the only code that
 * branches on a type. */
#include "base/fp8.h"
#include "device/ref/ref.h"

#include <math.h>
#include <string.h>

static double bf16_load(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &wide, sizeof f);
    return (double)f;
}

/* Rounds once, to nearest, ties to even. The f32 in between is rounded to odd, so that the sticky
 * bit of what f32 cannot hold decides ties of bf16. */
static uint16_t bf16_store(double x)
{
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    /* The conversion to f32 made a NaN quiet: its top bit is set. */
    if (isnan(x)) return (uint16_t)(bits >> 16);
    if ((double)f != x) {
        if (fabs((double)f) > fabs(x)) bits--; /* f32 rounded away from zero: one step back */
        bits |= 1;
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void row_load(RowRef r, int64_t from, int64_t n, double *x)
{
    if (r.dtype == F64) {
        const double *at = (const double *)r.at + from * r.stride;
        for (int64_t i = 0; i < n; i++) x[i] = at[i * r.stride];
    } else if (r.dtype == F32) {
        const float *at = (const float *)r.at + from * r.stride;
        for (int64_t i = 0; i < n; i++) x[i] = (double)at[i * r.stride];
    } else if (dtype_is_fp8(r.dtype)) {
        const uint8_t *at = (const uint8_t *)r.at + from * r.stride;
        for (int64_t i = 0; i < n; i++) x[i] = (double)fp8_get(r.dtype, at[i * r.stride]);
    } else {
        MUST(r.dtype == BF16, "a row of %s is no row of floats", dtype_name(r.dtype));
        const uint16_t *at = (const uint16_t *)r.at + from * r.stride;
        for (int64_t i = 0; i < n; i++) x[i] = bf16_load(at[i * r.stride]);
    }
}

void row_store(RowRef r, int64_t from, int64_t n, const double *x)
{
    if (r.dtype == F64) {
        double *at = (double *)r.at + from * r.stride;
        for (int64_t i = 0; i < n; i++) at[i * r.stride] = x[i];
    } else if (r.dtype == F32) {
        float *at = (float *)r.at + from * r.stride;
        for (int64_t i = 0; i < n; i++) at[i * r.stride] = (float)x[i];
    } else if (dtype_is_fp8(r.dtype)) { /* f32 in between: quantize scales in f32 */
        uint8_t *at = (uint8_t *)r.at + from * r.stride;
        for (int64_t i = 0; i < n; i++) at[i * r.stride] = fp8_of(r.dtype, (float)x[i]);
    } else {
        MUST(r.dtype == BF16, "a row of %s is no row of floats", dtype_name(r.dtype));
        uint16_t *at = (uint16_t *)r.at + from * r.stride;
        for (int64_t i = 0; i < n; i++) at[i * r.stride] = bf16_store(x[i]);
    }
}

/* Rounds each x to the value that a row of this type stores. */
static void round_to(DType dtype, int64_t n, double *x)
{
    if (dtype == F32)
        for (int64_t i = 0; i < n; i++) x[i] = (double)(float)x[i];
    else if (dtype == BF16)
        for (int64_t i = 0; i < n; i++) x[i] = bf16_load(bf16_store(x[i]));
}

void row_keep(RowRef r, int64_t from, int64_t n, double keep, const double *g)
{
    if (keep == 0) { /* the old content may be NaN */
        row_store(r, from, n, g);
        return;
    }
    double old[REF_CHUNK], sum[REF_CHUNK];
    memcpy(sum, g, (size_t)n * sizeof *sum);
    round_to(r.dtype, n, sum);
    row_load(r, from, n, old);
    for (int64_t i = 0; i < n; i++) sum[i] += keep * old[i];
    row_store(r, from, n, sum);
}

double tensor_get(const Tensor *t, int64_t index)
{
    double x;
    row_load(row_at(t, tensor_offset(t, t->ndim, index), 1), 0, 1, &x);
    return x;
}

void tensor_set(const Tensor *t, int64_t index, double x)
{
    row_store(row_at(t, tensor_offset(t, t->ndim, index), 1), 0, 1, &x);
}
