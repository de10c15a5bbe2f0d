/* Rope, embedding, its gradient and the loss on the GPU: vocabulary shards, far positions, frequent
 * ids, dead rows. */
#include "gpu_test.h"

enum { BASE = 5 };

static Tensor ints(Strides strides, int64_t n, int64_t below)
{
    const Tensor t = NEW(&gpu.b, I32, strides, n);
    for (int64_t i = 0; i < n; i++)
        put(&t, i, floor((bench_random(&gpu.b) + 1) / 2 * (double)below));
    return t;
}

static void rope(void **state)
{
    (void)state;
    static const int64_t size[][3] = {{7, 3, 4}, {33, 5, 64}, {20, 1, 128}, {9, 12, 6},
                                      {0, 2, 8}, {5, 0, 8},   {3, 2, 256}};
    for (int i = 0; i < 7; i++)
        for (int variant = 0; variant < 12; variant++) {
            const DType type = gpu_types[variant % 2];
            Call c = {.n_in = 2, .n_out = 1};
            c.attr.rope.theta = 10000;
            c.attr.rope.scaling = (RopeScaling)(variant % 3);
            c.attr.rope.factor = 8, c.attr.rope.low = 1, c.attr.rope.high = 4;
            c.attr.rope.original = 8192;
            c.attr.rope.back = variant % 4 == 3;
            c.in[0] = RANDOM(&gpu.b, type, (Strides)(variant / 2 % 3), size[i][0], size[i][1],
                             size[i][2]);
            c.in[1] = ints(DENSE, size[i][0], 500000);
            c.out[0] = variant < 6 ? c.in[0]
                                   : NEW(&gpu.b, type, (Strides)(variant % 3), size[i][0],
                                         size[i][1], size[i][2]);
            expect_like_ref(KERNEL_rope, &c, gpu_terms(4), 0);
        }
}

static void embedding(void **state)
{
    (void)state;
    static const int64_t size[][3] = {{7, 11, 5}, {100, 30, 64}, {33, 9, 40},
                                      {0, 5, 8},  {5, 0, 8},     {5, 8, 0}};
    for (int i = 0; i < 6; i++)
        for (int variant = 0; variant < 6; variant++) {
            const DType type = gpu_types[variant % 2];
            Call c = {.n_in = 2, .n_out = 1, .attr = {.vocab = {BASE}}};
            c.in[0] = ints((Strides)(variant % 2), size[i][0], size[i][1] + 9);
            c.in[1] = RANDOM(&gpu.b, type, (Strides)(variant / 2), size[i][1], size[i][2]);
            c.out[0] = NEW(&gpu.b, type, (Strides)(variant / 2), size[i][0], size[i][2]);
            expect_like_ref(KERNEL_embedding, &c, 0, 0);
        }
}

/* Last column: number of ids; 1: all tokens have the same. */
static void embedding_dw(void **state)
{
    (void)state;
    static const int64_t size[][4] = {
        {7, 11, 5, 20}, {300, 30, 40, 30}, {1000, 50, 24, 1},   {1000, 9, 300, 4}, {31, 9, 8, 3},
        {32, 9, 8, 1},  {33, 9, 8, 1},     {64, 9, 8, 2},       {97, 5, 8, 100},   {0, 5, 8, 5},
        {5, 0, 8, 5},   {5, 8, 0, 5},      {3000, 700, 16, 900}};
    for (int i = 0; i < 13; i++)
        for (int variant = 0; variant < 6; variant++) {
            const DType type = gpu_types[variant % 2];
            const double keep = gpu_keeps[variant % 3];
            Call c = {.n_in = 2,
                      .n_out = 1,
                      .attr = {.vocab = {variant == 5 ? 0 : BASE}},
                      .number = {keep}};
            c.in[0] = RANDOM(&gpu.b, type, (Strides)(variant / 2), size[i][0], size[i][2]);
            c.in[1] = ints(DENSE, size[i][0], size[i][3]);
            for (int64_t t = 0; t < size[i][0]; t += 3) /* mostly in this shard */
                put(&c.in[1], t, ((const int32_t *)c.in[1].data)[t] + BASE);
            c.out[0] = accumulator(
                &gpu.b, NEW(&gpu.b, F32, (Strides)(variant / 2), size[i][1], size[i][2]), keep);
            expect_like_ref(KERNEL_embedding_dw, &c, gpu_terms((double)size[i][0]), 0);
        }
}

static Call loss_call(int64_t t, int64_t v, DType type, int variant)
{
    Call c = {.attr = {.vocab = {variant % 2 ? BASE : 0}}};
    c.in[0] = RANDOM(&gpu.b, type, (Strides)(variant % N_STRIDES), t, v);
    fill(&gpu.b, &c.in[0], variant % 4 == 1 ? 80 : 4);
    c.in[1] = NEW(&gpu.b, F32, (Strides)(variant % 2), t);
    c.in[2] = ints(DENSE, t, v + 9);
    c.in[3] = NEW(&gpu.b, F32, (Strides)(variant % N_STRIDES), t, 2);
    c.in[4] = RANDOM(&gpu.b, F32, DENSE, t);
    for (int64_t i = 0; i < t; i += 4) { /* a dead row: any target and values */
        put(&c.in[4], i, 0);
        put(&c.in[2], i, -7);
    }
    return c;
}

static void loss(void **state)
{
    (void)state;
    static const int64_t size[][2] = {{5, 7}, {33, 64}, {17, 1000}, {9, 4104},
                                      {0, 9}, {6, 0},   {3, 5001},  {1500, 3}};
    for (int i = 0; i < 8; i++)
        for (int variant = 0; variant < 6; variant++) {
            const int64_t t = size[i][0], v = size[i][1];
            const DType type = gpu_types[variant / 3];
            const double tolerance = gpu_terms(128 + sqrt((double)v));
            Call all = loss_call(t, v, type, variant), c;
            c = (Call){.in = {all.in[0]}, .n_in = 1, .out = {all.in[1]}, .n_out = 1};
            expect_like_ref(KERNEL_row_max, &c, 0, 0);

            all = loss_call(t, v, type, variant);
            c = (Call){.in = {all.in[0]}, .n_in = 1, .out = {all.in[1]}, .n_out = 1};
            run(KERNEL_row_max, &c);
            c = (Call){.in = {all.in[0], all.in[1], all.in[2]},
                       .n_in = 3,
                       .out = {all.in[3]},
                       .n_out = 1,
                       .attr = all.attr};
            if (v > 0) expect_like_ref(KERNEL_row_sums, &c, tolerance, 0);
            if (v == 0) bench_clear(&gpu.b);

            all = loss_call(t, v, type, variant);
            for (int64_t r = 0; r < t; r++) { /* of a live row */
                const bool dead = get(&all.in[4], r) == 0;
                put(&all.in[1], r, dead ? (double)NAN : 4);
                put(&all.in[3], 2 * r, dead ? (double)NAN : 3 + fabs(bench_random(&gpu.b)));
                put(&all.in[3], 2 * r + 1, bench_random(&gpu.b));
            }
            const double keep = gpu_keeps[variant % 3];
            const Tensor sum = accumulator(&gpu.b, NEW(&gpu.b, F32, DENSE, 1), keep);
            c = (Call){.in = {all.in[3], all.in[4]},
                       .n_in = 2,
                       .out = {sum},
                       .n_out = 1,
                       .number = {keep}};
            expect_like_ref(KERNEL_loss, &c, gpu_terms(16), 0);

            all = loss_call(t, v, type, variant);
            for (int64_t r = 0; r < t; r++) {
                const bool dead = get(&all.in[4], r) == 0;
                put(&all.in[1], r, dead ? (double)NAN : variant % 4 == 1 ? 80 : 4);
                put(&all.in[3], 2 * r, dead ? (double)NAN : 3 + fabs(bench_random(&gpu.b)));
            }
            c = (Call){.in = {all.in[0], all.in[1], all.in[3], all.in[2], all.in[4]},
                       .n_in = 5,
                       .n_out = 1,
                       .attr = all.attr};
            c.out[0] =
                variant % 2 ? all.in[0] : NEW(&gpu.b, type, (Strides)(variant % N_STRIDES), t, v);
            expect_like_ref(KERNEL_loss_dx, &c, tolerance, 0);
        }
}

/* Weights of one sign, so that the sum does not cancel. */
static Call at_once_call(int64_t t, int64_t v, DType type, int variant)
{
    const Call all = loss_call(t, v, type, variant);
    Call c = {.in = {all.in[0], all.in[2], all.in[4]}, .n_in = 3};
    for (int64_t i = 0; i < t; i++) { /* more dead rows: a block has both kinds */
        if (i % 7 == 3) put(&c.in[2], i, 0);
        if (get(&c.in[2], i) != 0) put(&c.in[2], i, 0.5 + fabs(get(&c.in[2], i)));
    }
    return c;
}

static Tensor kept_loss(double keep)
{
    const Tensor sum = NEW(&gpu.b, F32, DENSE, 1);
    if (keep != 0) put(&sum, 0, 2.25);
    return sum;
}

/* The fused loss: rows that fit shared memory, and longer ones; in place or not. */
static void token_loss(void **state)
{
    (void)state;
    static const int64_t size[][2] = {{5, 7},    {33, 64},   {17, 1000}, {600, 4104}, {0, 9},
                                      {3, 5001}, {9, 50304}, {5, 70000}, {4, 128256}};
    for (int i = 0; i < 9; i++)
        for (int variant = 0; variant < (i < 6 ? 6 : 2); variant++) {
            const int64_t t = size[i][0], v = size[i][1];
            const DType type = gpu_types[i < 6 ? variant / 3 : variant];
            const double keep = gpu_keeps[variant % 3],
                         tolerance = gpu_terms(128 + sqrt((double)v));
            Call c = at_once_call(t, v, type, variant);
            c.number[1] = keep;
            c.out[c.n_out++] =
                variant % 2 ? c.in[0] : NEW(&gpu.b, type, (Strides)(variant % N_STRIDES), t, v);
            c.out[c.n_out++] = kept_loss(keep);
            expect_like_ref(KERNEL_token_loss_dx, &c, tolerance, 0);

            c = at_once_call(t, v, type, variant);
            c.number[0] = keep;
            c.out[c.n_out++] = kept_loss(keep);
            expect_like_ref(KERNEL_token_loss, &c, tolerance, 0);
        }
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(rope), cmocka_unit_test(embedding),
                                          cmocka_unit_test(embedding_dw), cmocka_unit_test(loss),
                                          cmocka_unit_test(token_loss)};

GPU_MAIN(tests)
