/* test_cpu_tokens.c -- embedding, its gradient and rope of device/cpu against ref. */
#include "cpu_test.h"

/* Ids of this shard of the vocabulary, some repeated, and ids of other shards. */
static Tensor ids_of(Bench *b, int64_t tokens, int64_t base, int64_t vocab)
{
    const Tensor t = NEW(b, I32, tokens % 2 ? PADDED : DENSE, tokens);
    for (int64_t i = 0; i < tokens; i++)
        put(&t, i, (double)(base - 3 + (i % 3 ? i * 37 % (vocab + 6) : 5)));
    return t;
}

static void embedding(void **state)
{
    CpuBench *c = *state;
    const int64_t width[] = {1, 30, 64, 1500}, tokens[] = {0, 1, 77};
    for (int i = 0; i < 24; i++) {
        Bench *b = &c->b;
        const DType type = cpu_types[i % 2];
        const Strides strides = (Strides)(i % 3);
        Call call = {.n_in = 2, .n_out = 1};
        call.attr.vocab.base = i % 2 * 1000;
        call.in[0] = ids_of(b, tokens[i / 8], i % 2 * 1000, 50);
        call.in[1] = RANDOM(b, type, strides, 50, width[i / 2 % 4]);
        call.out[0] = NEW(b, type, (Strides)((strides + 1) % 3), tokens[i / 8], width[i / 2 % 4]);
        expect_like_ref(c, KERNEL_embedding, &call, 0);
    }
}

/* Rows to permuted places, some to none; rows in between are unchanged. The strides of both
 * differ. */
static void put_rows_at(void **state)
{
    CpuBench *c = *state;
    const int64_t width[] = {1, 6, 130}, heads[] = {3, 1, 0}, tokens[] = {0, 1, 9};
    for (int i = 0; i < 54; i++) {
        Bench *b = &c->b;
        const DType type = cpu_types[i % 2];
        const int64_t t = tokens[i / 2 % 3], w = width[i / 6 % 3], g = heads[i / 18];
        Call call = {.n_in = 2, .n_out = 1};
        call.in[0] = RANDOM(b, type, (Strides)(i % 3), t, g, w);
        call.in[1] = NEW(b, I32, t % 2 ? PADDED : DENSE, t);
        call.out[0] = RANDOM(b, type, (Strides)((i + 1) % 3), 21, g, w);
        for (int64_t k = 0; k < t; k++)
            put(&call.in[1], k, k % 4 == 3 ? -1 : (double)((k * 8 + 5) % 21));
        expect_like_ref(c, KERNEL_put_rows_at, &call, 0);
    }
}

static void embedding_gradient(void **state)
{
    CpuBench *c = *state;
    const int64_t width[] = {1, 30, 600}, tokens[] = {0, 1, 77}, vocab[] = {9, 700};
    for (int i = 0; i < 36; i++) {
        Bench *b = &c->b;
        const int64_t t = tokens[i % 3], d = width[i / 3 % 3], v = vocab[i / 9 % 2];
        const double keep[] = {0, 1, 0.5};
        Call call = {.n_in = 2, .n_out = 1, .number = {keep[i / 3 % 3]}};
        call.attr.vocab.base = 11;
        call.in[0] = RANDOM(b, cpu_types[i / 18], (Strides)(i % 3), t, d);
        call.in[1] = ids_of(b, t, 11, v);
        call.out[0] = accumulator(b, NEW(b, F32, (Strides)(i / 9 % 3), v, d), call.number[0]);
        expect_like_ref(c, KERNEL_embedding_dw, &call, tol_sum(F32, (double)t));
    }
}

static Attr rope_attr(int which, bool back)
{
    Attr a = {.rope = {.theta = which == 0 ? 10000 : 500000, .back = back}};
    a.rope.scaling = which == 0 ? ROPE_PLAIN : which == 1 ? ROPE_LINEAR : ROPE_LLAMA3;
    a.rope.factor = 8;
    a.rope.low = 1;
    a.rope.high = 4;
    a.rope.original = 512;
    return a;
}

static void rope(void **state)
{
    CpuBench *c = *state;
    const int64_t channels[] = {2, 6, 32, 70, 128, 1026};
    for (int i = 0; i < 72; i++) {
        Bench *b = &c->b;
        const DType type = cpu_types[i % 2];
        const Strides strides = (Strides)(i / 2 % 3);
        const int64_t tokens = i % 5 == 4 ? 0 : 19, n = channels[i / 6 % 6];
        Call call = {.n_in = 2, .n_out = 1, .attr = rope_attr(i % 3, i / 36)};
        call.in[0] = RANDOM(b, type, strides, tokens, 3, n);
        call.in[1] = NEW(b, I32, DENSE, tokens);
        for (int64_t t = 0; t < tokens; t++) /* large positions are as accurate as small ones */
            put(&call.in[1], t, (double)(t < 8 ? t : t * t * t * 1000 + 7));
        const bool over = strides == DENSE;
        call.out[0] = over ? call.in[0] : NEW(b, type, (Strides)((strides + 1) % 3), tokens, 3, n);
        expect_like_ref(c, KERNEL_rope, &call, tol_sum(type, 1));
    }
}

static void local_ranges(void **state)
{
    CpuBench *c = *state;
    static const int64_t span[] = {2, 40, 1, 50, 90, 3};
    for (int rows = 0; rows < 40; rows += 13) {
        bench_clear(&c->b);
        const Tensor x = NEW(&c->b, I32, rows % 2 ? PADDED : DENSE, rows, 4);
        for (int i = 0; i < rows * 4; i++)
            ((int32_t *)x.data)[i / 4 * x.stride[0] + i % 4 * x.stride[1]] = i * 7 % 97;
        const Tensor y = NEW(&c->b, I32, DENSE, rows, 4);
        Call call = {.n_in = 1, .n_out = 1, .in = {x}, .out = {y}};
        call.attr.rows.span = span;
        call.attr.rows.n = 2;
        expect_like_ref(c, KERNEL_local_ranges, &call, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding),    cmocka_unit_test(put_rows_at),
        cmocka_unit_test(local_ranges), cmocka_unit_test(embedding_gradient),
        cmocka_unit_test(rope),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}
