/* test_kernels_tokens.c -- kernels that depend on a token's position or id: rope and the
 * embedding. */
#include "kernel_test.h"

static Bench bench;

static Tensor integers(const int *values, int64_t n, Strides strides)
{
    const Tensor t = NEW(&bench, I32, strides, n);
    for (int64_t i = 0; i < n; i++) put(&t, i, values[i]);
    return t;
}

static const int positions[] = {0, 5, 1, 4000, 7, 7, 123, 2, 31, 90000, 3, 17, 64, 1023, 9, 11, 8};
enum { TOKENS = 17, HEADS = 3, C = 10 };

/* The angle per position of pair i, as Hugging Face's rope utilities define it. */
static long double frequency(const Attr *a, int64_t i, int64_t channels)
{
    const long double factor = (long double)a->rope.factor;
    const long double f =
        1 / powl((long double)a->rope.theta, (long double)(2 * i) / (long double)channels);
    if (a->rope.scaling == ROPE_PLAIN) return f;
    if (a->rope.scaling == ROPE_LINEAR) return f / factor;
    const long double length = 2 * acosl(-1.0L) / f, old = (long double)a->rope.original;
    const long double low = old / (long double)a->rope.low, high = old / (long double)a->rope.high;
    if (length > low) return f / factor;
    if (length < high) return f;
    const long double smooth = (old / length - (long double)a->rope.low) /
                               ((long double)a->rope.high - (long double)a->rope.low);
    return (1 - smooth) * f / factor + smooth * f;
}

static void check_rope(const Call *call)
{
    const Tensor *x = &call->in[0], *y = &call->out[0];
    const int64_t c = x->n[2], half = c / 2;
    long double *want = kept(y, 0);
    for (int64_t t = 0; t < x->n[0]; t++)
        for (int64_t h = 0; h < x->n[1]; h++)
            for (int64_t i = 0; i < half; i++) {
                const int64_t at = (t * x->n[1] + h) * c + i;
                const long double u = (long double)get(x, at), v = (long double)get(x, at + half);
                const long double angle = (long double)positions[t] * frequency(&call->attr, i, c) *
                                          (call->attr.rope.back ? -1 : 1);
                want[at] = u * cosl(angle) - v * sinl(angle);
                want[at + half] = v * cosl(angle) + u * sinl(angle);
            }
    run_twice(&bench, KERNEL_rope, call);
    expect_close("rope", y, want, x->dtype == F64 ? 1e-10 : 1e-6); /* angles up to 9e4 */
    expect_gaps(&bench);
    free(want);
}

static void rope_values(void **state)
{
    (void)state;
    const int64_t widths[] = {C, 2, 516}; /* 516: more pairs than a chunk */
    for (int c = 0; c < 36; c++) {
        bench_clear(&bench);
        const DType type = c % 2 ? F32 : F64;
        const int64_t width = widths[c / 2 % 3], heads = width > C ? 2 : HEADS;
        Call call = {.n_in = 2, .n_out = 1};
        /* llama3: waves of 6 to 3e5 positions against a context of 400: all three cases occur */
        call.attr.rope.theta = 5e4;
        call.attr.rope.factor = 8;
        call.attr.rope.low = 1;
        call.attr.rope.high = 4;
        call.attr.rope.original = 400;
        call.attr.rope.scaling = (RopeScaling)(c / 6 % 3);
        call.attr.rope.back = c >= 18;
        call.in[0] = RANDOM(&bench, type, (Strides)(c % N_STRIDES), TOKENS, heads, width);
        call.in[1] = integers(positions, TOKENS, PADDED);
        call.out[0] = NEW(&bench, type, (Strides)((c + 1) % N_STRIDES), TOKENS, heads, width);
        check_rope(&call);
        call.out[0] = call.in[0]; /* in place */
        bench.n_made--;
        check_rope(&call);
    }
}

static void rope_gradient(void **state)
{
    (void)state;
    bench_clear(&bench);
    Probe p = {.id = KERNEL_rope, .call = {.n_in = 2, .n_out = 1}};
    p.call.attr.rope.theta = 100;
    const Tensor x = p.call.in[0] = RANDOM(&bench, F64, COLUMN_MAJOR, 5, HEADS, C);
    const Tensor pos = p.call.in[1] = integers(positions, 5, DENSE);
    const Tensor dy = p.dy[0] = RANDOM(&bench, F64, PADDED, 5, HEADS, C);
    p.call.out[0] = NEW(&bench, F64, DENSE, 5, HEADS, C);
    const Tensor dx = NEW(&bench, F64, PADDED, 5, HEADS, C);
    Call back = {.in = {dy, pos}, .n_in = 2, .out = {dx}, .n_out = 1, .attr = p.call.attr};
    back.attr.rope.back = true;
    run_twice(&bench, KERNEL_rope, &back);
    expect_gradient("rope dx", probe_value, &p, &x, &dx, NULL);
}

static void rope_of_no_tokens(void **state)
{
    (void)state;
    bench_clear(&bench);
    for (int c = 0; c < 3; c++) {
        Call call = {.n_in = 2, .n_out = 1};
        call.in[1] = integers(positions, c != 0, DENSE);
        call.in[0] = NEW(&bench, F64, DENSE, c != 0, c != 1, 2 * (c != 2));
        call.out[0] = NEW(&bench, F64, DENSE, c != 0, c != 1, 2 * (c != 2));
        check_rope(&call);
    }
}

enum { VOCAB = 300, WIDTH = 261, IDS = 19 }; /* more entries, and columns, than a tile */
static const int ids[IDS] = {3,   299, 7,  3,   0, 150, 3,   255, 256, 7,
                             257, 3,   41, 150, 0, 3,   298, 1,   7};

/* Checks part [base, base + rows) of the table; the sum over the parts is the whole. */
static void check_embedding(const Call *call, int64_t rows)
{
    const Tensor *w = &call->in[1], *y = &call->out[0];
    for (int64_t t = 0; t < y->n[0]; t++)
        for (int64_t d = 0; d < y->n[1]; d++) {
            const int64_t id = ids[t] - call->attr.vocab.base;
            const double want = id >= 0 && id < rows ? get(w, id * y->n[1] + d) : 0;
            assert_true(get(y, t * y->n[1] + d) == want);
        }
}

static void embedding_in_parts(void **state)
{
    (void)state;
    const int64_t base[] = {0, 0, 130}, rows[] = {VOCAB, 130, 170};
    for (int c = 0; c < 2 * N_STRIDES; c++) {
        bench_clear(&bench);
        const DType type = c < N_STRIDES ? F64 : F32;
        const Tensor w = RANDOM(&bench, type, (Strides)(c % N_STRIDES), VOCAB, WIDTH);
        const Tensor id = integers(ids, IDS, PADDED);
        Tensor y[3];
        for (int p = 0; p < 3; p++) {
            Tensor part = w;
            part.n[0] = rows[p];
            part.data = (char *)w.data + (size_t)(base[p] * w.stride[0]) * dtype_bytes(type);
            y[p] = NEW(&bench, type, (Strides)((c + 1) % N_STRIDES), IDS, WIDTH);
            Call call = {.in = {id, part}, .n_in = 2, .out = {y[p]}, .n_out = 1};
            call.attr.vocab.base = base[p];
            run_twice(&bench, KERNEL_embedding, &call);
            check_embedding(&call, rows[p]);
        }
        for (int64_t i = 0; i < IDS * WIDTH; i++)
            assert_true(get(&y[0], i) == get(&y[1], i) + get(&y[2], i));
        expect_gaps(&bench);
    }
}

/* A row of dw is the sum from zero of its tokens' rows, in their order: the same bits, not a
 * bound. */
static void check_embedding_dw(const Call *call, int64_t n_ids)
{
    const Tensor *dy = &call->in[0], *dw = &call->out[0];
    const int64_t width = dw->n[1];
    double *want = calloc((size_t)tensor_count(dw) + 1, sizeof *want);
    assert_non_null(want);
    for (int64_t t = 0; t < n_ids; t++) {
        const int64_t id = ids[t] - call->attr.vocab.base;
        if (id < 0 || id >= dw->n[0]) continue;
        for (int64_t d = 0; d < width; d++) want[id * width + d] += get(dy, t * width + d);
    }
    for (int64_t i = 0; i < tensor_count(dw); i++) {
        if (dw->dtype == F32) want[i] = (double)(float)want[i];
        if (call->number[0] != 0) want[i] += call->number[0] * get(dw, i);
        if (dw->dtype == F32) want[i] = (double)(float)want[i];
    }
    run_twice(&bench, KERNEL_embedding_dw, call);
    for (int64_t i = 0; i < tensor_count(dw); i++)
        if (!(get(dw, i) == want[i])) fail_msg("dw[%d]: %a != %a", (int)i, get(dw, i), want[i]);
    expect_gaps(&bench);
    free(want);
}

static void embedding_dw(void **state)
{
    (void)state;
    const double keeps[] = {0, 1, 0.5};
    const int64_t n_ids[] = {IDS, 0}, rows[] = {VOCAB, 170, 0}, base[] = {0, 130, 40};
    for (int c = 0; c < 36; c++) {
        bench_clear(&bench);
        const DType type = c % 2 ? F32 : F64;
        const double keep = keeps[c / 2 % 3];
        const int part = c / 6 % 3;
        Call call = {.n_in = 2, .n_out = 1, .number = {keep}};
        call.attr.vocab.base = base[part];
        call.in[0] = RANDOM(&bench, type, (Strides)(c % N_STRIDES), n_ids[c / 18], WIDTH);
        call.in[1] = integers(ids, n_ids[c / 18], PADDED);
        call.out[0] = accumulator(
            &bench, NEW(&bench, type, (Strides)((c + 1) % N_STRIDES), rows[part], WIDTH), keep);
        check_embedding_dw(&call, n_ids[c / 18]);
    }
}

static void embedding_gradient(void **state)
{
    (void)state;
    bench_clear(&bench);
    Probe p = {.id = KERNEL_embedding, .call = {.n_in = 2, .n_out = 1}};
    const int few[] = {2, 4, 2, 0, 9, 2};
    const Tensor id = p.call.in[0] = integers(few, 6, DENSE);
    const Tensor w = p.call.in[1] = RANDOM(&bench, F64, PADDED, 5, 3);
    p.call.out[0] = NEW(&bench, F64, COLUMN_MAJOR, 6, 3);
    const Tensor dy = p.dy[0] = RANDOM(&bench, F64, COLUMN_MAJOR, 6, 3);
    const Tensor dw = accumulator(&bench, NEW(&bench, F64, PADDED, 5, 3), 1);
    long double *old = kept(&dw, 1);
    run_twice(&bench, KERNEL_embedding_dw,
              &(Call){.in = {dy, id}, .n_in = 2, .out = {dw}, .n_out = 1, .number = {1}});
    expect_gradient("embedding dw", probe_value, &p, &w, &dw, old);
    free(old);
}

/* y[at[t]] = x[t], and no other row; a row with a negative place goes nowhere. */
static void put_rows_at(void **state)
{
    (void)state;
    enum { T = 6, S = 7, G = 3, D = 5 };
    const int place[T] = {5, -1, 0, 6, -3, 2};
    for (int c = 0; c < 12; c++) {
        bench_clear(&bench);
        const DType type = c % 2 ? F32 : F64;
        const Tensor x = RANDOM(&bench, type, (Strides)(c % 3), T, G, D);
        const Tensor at = integers(place, T, c % 2 ? PADDED : DENSE);
        const Tensor y = RANDOM(&bench, type, (Strides)(c / 3 % 3), S, G, D);
        long double *want = kept(&y, 1);
        for (int t = 0; t < T; t++)
            for (int i = 0; i < G * D && place[t] >= 0; i++)
                want[place[t] * G * D + i] = (long double)get(&x, t * G * D + i);
        const Call call = {.n_in = 2, .n_out = 1, .in = {x, at}, .out = {y}};
        run_twice(&bench, KERNEL_put_rows_at, &call);
        expect_close("put_rows_at", &y, want, 0);
        expect_gaps(&bench);
        free(want);
    }
}

/* Each number becomes the count of the block's rows below it: by spans, and row by row. */
static void local_ranges(void **state)
{
    (void)state;
    enum { T = 5, ROWS = 24 };
    static const int64_t span[] = {1, 4, 1, 6, 15, 4, 18, 19, 1, 20, 24, 3};
    static const bool held[ROWS] = {[1] = true,  [2] = true,  [3] = true,  [6] = true, [10] = true,
                                    [14] = true, [18] = true, [20] = true, [23] = true};
    const int range[T * 4] = {0, 24, 0, 0, 1, 2, 3, 7, 4, 6, 14, 15, 11, 18, 19, 23, 24, 24, 2, 21};
    for (int c = 0; c < 4; c++) {
        bench_clear(&bench);
        Tensor x = integers(range, T * 4, DENSE),
               y = NEW(&bench, I32, c % 2 ? PADDED : DENSE, T, 4);
        long double want[T * 4] = {0};
        x.ndim = 2;
        x.n[0] = T, x.n[1] = 4;
        x.stride[0] = 4, x.stride[1] = 1;
        for (int i = 0; i < T * 4; i++)
            for (int row = 0; row < range[i]; row++) want[i] += held[row];
        Call call = {.n_in = 1, .n_out = 1, .in = {x}, .out = {y}};
        call.attr.rows.span = span;
        call.attr.rows.n = 4;
        run_twice(&bench, KERNEL_local_ranges, &call);
        for (int i = 0; i < T * 4; i++)
            assert_int_equal(((int32_t *)y.data)[i / 4 * y.stride[0] + i % 4 * y.stride[1]],
                             (int)want[i]);
        expect_gaps(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_values),       cmocka_unit_test(rope_gradient),
        cmocka_unit_test(rope_of_no_tokens), cmocka_unit_test(embedding_in_parts),
        cmocka_unit_test(embedding_dw),      cmocka_unit_test(embedding_gradient),
        cmocka_unit_test(put_rows_at),       cmocka_unit_test(local_ranges),
    };
    bench_open(&bench);
    const int failed = cmocka_run_group_tests_name("kernels: tokens", tests, NULL, NULL);
    bench_close(&bench);
    return failed;
}
