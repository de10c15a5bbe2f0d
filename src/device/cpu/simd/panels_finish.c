/* panels_finish.c -- what is done to a tile of a product while its sums are still in the first cache:
 * the bias, what is kept of c, the type of c. */
#include "device/cpu/simd/panels.h"

enum { MOST_COLUMNS = 64 }; /* of a tile */

static void row_f32(float *to, int64_t n, float keep, const float *sum, const float *bias)
{
    for (int64_t j = 0; j < n; j += W) {
        V x = v_load(sum + j) + v_load(bias + j);
        if (keep != 0) x += keep * v_load_to(to + j, n - j); /* what is not kept may be NaN */
        v_store_to(to + j, n - j, x);
    }
}

static void row_bf16(uint16_t *to, int64_t n, float keep, const float *sum, const float *bias)
{
    for (int64_t j = 0; j < n; j += W) {
        V x = v_load(sum + j) + v_load(bias + j);
        if (n - j >= W) {
            if (keep != 0) x += keep * v_load_bf16(to + j);
            v_store_bf16(to + j, x);
            continue;
        }
        uint16_t last[W] = {0};
        memcpy(last, to + j, (size_t)(n - j) * sizeof *to);
        if (keep != 0) x += keep * v_load_bf16(last);
        v_store_bf16(last, x);
        memcpy(to + j, last, (size_t)(n - j) * sizeof *to);
    }
}

static void row_any(Row to, int64_t n, float keep, const float *sum, const float *bias)
{
    float x[MOST_COLUMNS];
    for (int64_t j = 0; j < n; j++) x[j] = sum[j] + bias[j];
    keep_piece(to, 0, n, keep, x);
}

void panels_finish(const Finish *f)
{
    const Tensor *c = &f->call->out[0];
    const float keep = (float)f->call->number[0];
    const bool plain = c->stride[1] == 1;
    float bias[MOST_COLUMNS] = {0};
    if (f->call->n_in > 2) load_piece(tensor_row(&f->call->in[2], 0), f->column, f->n, bias);
    for (int64_t i = 0; i < f->m; i++) {
        const float *sum = f->sum + i * f->step;
        const Row to =
            row_at(c, (f->row + i) * c->stride[0] + f->column * c->stride[1], c->stride[1]);
        if (plain && c->dtype == F32)
            row_f32((float *)(void *)to.at, f->n, keep, sum, bias);
        else if (plain && c->dtype == BF16)
            row_bf16((uint16_t *)(void *)to.at, f->n, keep, sum, bias);
        else
            row_any(to, f->n, keep, sum, bias);
    }
}
