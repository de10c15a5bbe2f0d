/* store.c -- stores a micro-tile of C while its sums are in L1: adds bias and addend, converts to
 * the type of C. */
#include "device/cpu/simd/gemm/store.h"

typedef struct {
    int64_t n;
    float keep; /* 0: the addend may be NaN and is not read */
    const float *sum, *bias;
} SumsRow;

static void row_f32(float *to, const float *addend, const SumsRow *s)
{
    for (int64_t j = 0; j < s->n; j += W) {
        V x = v_load(s->sum + j) + v_load(s->bias + j);
        if (s->keep != 0) x += s->keep * v_load_to(addend + j, s->n - j);
        v_store_to(to + j, s->n - j, x);
    }
}

static void row_bf16(uint16_t *to, const uint16_t *addend, const SumsRow *s)
{
    int64_t j = 0;
    for (; j + W <= s->n; j += W) {
        V x = v_load(s->sum + j) + v_load(s->bias + j);
        if (s->keep != 0) x += s->keep * v_load_bf16(addend + j);
        v_store_bf16(to + j, x);
    }
    if (j == s->n) return;
    uint16_t last[W] = {0};
    const size_t bytes = (size_t)(s->n - j) * sizeof *to;
    V x = v_load(s->sum + j) + v_load(s->bias + j);
    if (s->keep != 0) {
        memcpy(last, addend + j, bytes);
        x += s->keep * v_load_bf16(last);
    }
    v_store_bf16(last, x);
    memcpy(to + j, last, bytes);
}

static void row_any(RowRef to, RowRef addend, const SumsRow *s)
{
    float x[MAX_NR], kept[MAX_NR] = {0};
    if (s->keep != 0) load_piece(addend, 0, s->n, kept);
    for (int64_t j = 0; j < s->n; j++) x[j] = s->sum[j] + s->bias[j] + s->keep * kept[j];
    store_piece(to, 0, s->n, x);
}

static RowRef row_of(const Tensor *t, int64_t row, int64_t column)
{
    return row_at(t, row * t->stride[0] + column * t->stride[1], t->stride[1]);
}

void tile_store_bias(TileStore *s, CBlock block)
{
    memset(s->bias, 0, sizeof s->bias);
    if (s->call->n_in > 2)
        load_piece(tensor_row(&s->call->in[2], 0), block.column, block.n, s->bias);
}

void tile_store_rows(const TileStore *s, int64_t row, int64_t rows)
{
    const Tensor *c = &s->call->out[0], *addend = s->addend;
    const bool plain = c->stride[1] == 1 && addend->stride[1] == 1 && c->dtype == addend->dtype;
    SumsRow sums = {s->block.n, (float)s->call->number[0], s->sum + row * s->step, s->bias};
    for (int64_t i = row; i < row + rows; i++, sums.sum += s->step) {
        const RowRef to = row_of(c, s->block.row + i, s->block.column);
        const RowRef from = row_of(addend, s->block.row + i, s->block.column);
        if (plain && c->dtype == F32)
            row_f32((float *)(void *)to.at, (const float *)(const void *)from.at, &sums);
        else if (plain && c->dtype == BF16)
            row_bf16((uint16_t *)(void *)to.at, (const uint16_t *)(const void *)from.at, &sums);
        else
            row_any(to, from, &sums);
    }
}
