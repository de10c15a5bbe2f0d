/* panels_finish.c -- what is done to a tile of a product while its sums are still in the first cache:
 * the bias, what is kept of c, the type of c. */
#include "device/cpu/simd/gemm/panels.h"

typedef struct {
    int64_t n;
    float keep; /* of old; 0: it may be NaN, and is not read */
    const float *sum, *bias;
} Sums;

static void row_f32(float *to, const float *old, const Sums *s)
{
    for (int64_t j = 0; j < s->n; j += W) {
        V x = v_load(s->sum + j) + v_load(s->bias + j);
        if (s->keep != 0) x += s->keep * v_load_to(old + j, s->n - j);
        v_store_to(to + j, s->n - j, x);
    }
}

static void row_bf16(uint16_t *to, const uint16_t *old, const Sums *s)
{
    int64_t j = 0;
    for (; j + W <= s->n; j += W) {
        V x = v_load(s->sum + j) + v_load(s->bias + j);
        if (s->keep != 0) x += s->keep * v_load_bf16(old + j);
        v_store_bf16(to + j, x);
    }
    if (j == s->n) return;
    uint16_t last[W] = {0};
    const size_t bytes = (size_t)(s->n - j) * sizeof *to;
    V x = v_load(s->sum + j) + v_load(s->bias + j);
    if (s->keep != 0) {
        memcpy(last, old + j, bytes);
        x += s->keep * v_load_bf16(last);
    }
    v_store_bf16(last, x);
    memcpy(to + j, last, bytes);
}

static void row_any(RowRef to, RowRef old, const Sums *s)
{
    float x[MAX_COLUMNS], kept[MAX_COLUMNS] = {0};
    if (s->keep != 0) load_piece(old, 0, s->n, kept);
    for (int64_t j = 0; j < s->n; j++) x[j] = s->sum[j] + s->bias[j] + s->keep * kept[j];
    store_piece(to, 0, s->n, x);
}

static RowRef row_of(const Tensor *t, int64_t row, int64_t column)
{
    return row_at(t, row * t->stride[0] + column * t->stride[1], t->stride[1]);
}

void panels_bias(Finish *f, Box box)
{
    memset(f->bias, 0, sizeof f->bias);
    if (f->call->n_in > 2) load_piece(tensor_row(&f->call->in[2], 0), box.column, box.n, f->bias);
}

void panels_finish(const Finish *f, int64_t row, int64_t rows)
{
    const Tensor *c = &f->call->out[0], *old = f->old;
    const bool plain = c->stride[1] == 1 && old->stride[1] == 1 && c->dtype == old->dtype;
    Sums s = {f->box.n, (float)f->call->number[0], f->sum + row * f->step, f->bias};
    for (int64_t i = row; i < row + rows; i++, s.sum += f->step) {
        const RowRef to = row_of(c, f->box.row + i, f->box.column);
        const RowRef from = row_of(old, f->box.row + i, f->box.column);
        if (plain && c->dtype == F32)
            row_f32((float *)(void *)to.at, (const float *)(const void *)from.at, &s);
        else if (plain && c->dtype == BF16)
            row_bf16((uint16_t *)(void *)to.at, (const uint16_t *)(const void *)from.at, &s);
        else
            row_any(to, from, &s);
    }
}
