/* merge.c -- merges the (o, lse) of two disjoint sets of keys: two blocks of a ring. */
#include "device/cpu/simd/simd.h"

/* Returns the lse of both parts together, and the share of each: exp(a), exp(b) over their sum. A
 * part without keys has lse -inf and share 0; that may be both parts. */
static double merge_shares(double a, double b, double share[2])
{
    share[0] = a == -HUGE_VAL ? 0 : b == -HUGE_VAL ? 1 : 1 / (1 + exp(b - a));
    share[1] = b == -HUGE_VAL ? 0 : a == -HUGE_VAL ? 1 : 1 / (1 + exp(a - b));
    if (a == -HUGE_VAL || b == -HUGE_VAL) return a > b ? a : b;
    return (a > b ? a : b) + log1p(exp(-fabs(a - b)));
}

/* y = a x1 + b x2. A part with share 0 is not read, so it may hold NaN. */
static void mix_row(const Call *call, int64_t row, float a, float b)
{
    const RowRef to = tensor_row(&call->out[0], row);
    const int64_t channels = row_length(&call->out[0]);
    float buffer[3][PIECE];
    for (int64_t from = 0; from < channels; from += PIECE) {
        const int64_t n = min_i64(channels - from, PIECE);
        const float *x1 = read_piece(tensor_row(&call->in[0], row), from, n, buffer[0]);
        const float *x2 = read_piece(tensor_row(&call->in[2], row), from, n, buffer[1]);
        float *y = write_piece(to, from, buffer[2]);
        for (int64_t i = 0; i < n; i += W) {
            const V first = a == 0 ? v_set(0) : a * v_load_to(x1 + i, n - i);
            v_store_to(y + i, n - i, b == 0 ? first : first + b * v_load_to(x2 + i, n - i));
        }
        end_piece(to, from, n, y);
    }
}

static void merge_row(const void *work, int64_t row)
{
    const Call *call = work;
    double share[2];
    const double lse =
        merge_shares(tensor_get(&call->in[1], row), tensor_get(&call->in[3], row), share);
    tensor_set(&call->out[1], row, lse);
    mix_row(call, row, (float)share[0], (float)share[1]);
}

Err CPU_NAME(attention_merge)(const Call *call)
{
    const Tensor *o = &call->out[0];
    run_rows(call->team, row_count(o), row_length(o), merge_row, call);
    return OK;
}
