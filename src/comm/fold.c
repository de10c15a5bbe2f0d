/* fold.c -- left folds, a block at a time.
 *
 * The partial sum alternates between two blocks on the stack, so that no loop reads the memory that
 * it writes: the compiler vectorizes without checks for overlapping pointers. */
#include "comm/fold.h"

#include <string.h>

/* out = a op b, element by element; `out` overlaps neither a nor b. */
typedef void FoldStep(const void *a, const void *b, int64_t n, void *restrict out);

static void sum_f64(const void *a, const void *b, int64_t n, void *restrict out)
{
    const double *x = a, *y = b;
    double *restrict z = out;
    for (int64_t i = 0; i < n; i++) z[i] = x[i] + y[i];
}

static void sum_f32(const void *a, const void *b, int64_t n, void *restrict out)
{
    const float *x = a, *y = b;
    float *restrict z = out;
    for (int64_t i = 0; i < n; i++) z[i] = x[i] + y[i];
}

/* Unsigned, because signed overflow is undefined; the bits are the same. */
static void sum_i32(const void *a, const void *b, int64_t n, void *restrict out)
{
    const uint32_t *x = a, *y = b;
    uint32_t *restrict z = out;
    for (int64_t i = 0; i < n; i++) z[i] = x[i] + y[i];
}

static void sum_i64(const void *a, const void *b, int64_t n, void *restrict out)
{
    const uint64_t *x = a, *y = b;
    uint64_t *restrict z = out;
    for (int64_t i = 0; i < n; i++) z[i] = x[i] + y[i];
}

/* A NaN in a stays, since no comparison with it is true; a NaN in b is taken explicitly. */
static void max_f64(const void *a, const void *b, int64_t n, void *restrict out)
{
    const double *x = a, *y = b;
    double *restrict z = out;
    for (int64_t i = 0; i < n; i++) z[i] = y[i] > x[i] || y[i] != y[i] ? y[i] : x[i];
}

static void max_f32(const void *a, const void *b, int64_t n, void *restrict out)
{
    const float *x = a, *y = b;
    float *restrict z = out;
    for (int64_t i = 0; i < n; i++) z[i] = y[i] > x[i] || y[i] != y[i] ? y[i] : x[i];
}

static void max_i32(const void *a, const void *b, int64_t n, void *restrict out)
{
    const int32_t *x = a, *y = b;
    int32_t *restrict z = out;
    for (int64_t i = 0; i < n; i++) z[i] = y[i] > x[i] ? y[i] : x[i];
}

static void max_i64(const void *a, const void *b, int64_t n, void *restrict out)
{
    const int64_t *x = a, *y = b;
    int64_t *restrict z = out;
    for (int64_t i = 0; i < n; i++) z[i] = y[i] > x[i] ? y[i] : x[i];
}

static FoldStep *const step_of[N_DTYPES][2] = {
    [F64] = {sum_f64, max_f64},
    [F32] = {sum_f32, max_f32},
    [BF16] = {sum_f32, max_f32}, /* operands are widened to f32 before */
    [I32] = {sum_i32, max_i32},
    [I64] = {sum_i64, max_i64}};

static void widen(const uint16_t *x, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)x[i] << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

static void narrow(const float *x, int64_t n, uint16_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
        out[i] = (uint16_t)(is_nan ? bits >> 16 | 0x40
                                   : rounded); /* quiet NaN: rounding could turn it into inf */
    }
}

static void fold_bf16(const Fold *f, int64_t start, int64_t count, uint16_t *out)
{
    float block[2][MAX_FOLD_ELEMENTS], next[MAX_FOLD_ELEMENTS];
    widen((const uint16_t *)(const void *)f->x[0] + start, count, block[0]);
    for (int i = 1; i < f->n; i++) {
        widen((const uint16_t *)(const void *)f->x[i] + start, count, next);
        step_of[BF16][f->reduce](block[(i - 1) & 1], next, count, block[i & 1]);
    }
    narrow(block[(f->n - 1) & 1], count, out);
}

void fold(const Fold *f, int64_t start, int64_t count, void *out)
{
    _Alignas(ARENA_ALIGN) char block[MAX_FOLD_ELEMENTS * sizeof(double)];
    const size_t each = dtype_bytes(f->dtype), at = (size_t)start * each;
    if (f->n == 1) {
        memcpy(out, f->x[0] + at, (size_t)count * each);
        return;
    }
    if (dtype_is_narrow(f->dtype)) {
        fold_bf16(f, start, count, out);
        return;
    }
    /* The last step writes `out`. Steps alternate between `out` and `block`, so step i writes `out`
     * if the number of steps after it is even. */
    const void *so_far = f->x[0] + at;
    for (int i = 1; i < f->n; i++) {
        void *to = (f->n - 1 - i) & 1 ? (void *)block : out;
        step_of[f->dtype][f->reduce](so_far, f->x[i] + at, count, to);
        so_far = to;
    }
}
