/* test_cpu_attention.c -- attention of device/cpu against ref: all masks, shared key heads,
 * blocks of keys, odd sizes. */
#include "cpu_test.h"
#include "attention_test.h"

/* Rounding errors of a score of size x are relative errors of its weight, in proportion to x. */
static double tol_attention(const Case *c, double size)
{
    const double score = 0.4 * size * size * (double)c->c;
    return tol_sum(c->type, 2 * score + (double)c->s);
}

/* delta, and the gradient from it. Of one key, dq would be the rounding error of delta. */
static void by_delta(CpuBench *cb, const Case *c, double tolerance)
{
    Bench *b = &cb->b;
    Call part = attention_dx_call(b, c, (const double[]){1, 0, 1});
    const Call delta = {.in = {part.in[4], part.in[6]},
                        .n_in = 2,
                        .out = {NEW(b, F32, c->strides, c->t, c->h)},
                        .n_out = 1};
    against_ref(cb, KERNEL_attention_delta, &delta, tol_sum(c->type, (double)c->c));
    assert_int_equal(device_ref.kernel[KERNEL_attention_delta](&delta), OK);
    part.in[6] = delta.out[0];
    against_ref(cb, KERNEL_attention_dx, &part, tolerance);
}

/* Forward, then the gradient from ref's o and lse. */
static void try_case(CpuBench *cb, Case c, Mask mask, double size, int64_t key_at)
{
    Bench *b = &cb->b;
    const double keeps[2][3] = {{0, 1, 0}, {1, 0, 1}};
    case_open(b, &c, mask, size);
    c.attr.attention.key_at = key_at;
    const Call forward = attention_call(&c);
    against_ref(cb, KERNEL_attention, &forward, tol_attention(&c, size));
    const Call carried = attention_carry_call(b, &c, (int)mask % 2);
    against_ref(cb, KERNEL_attention, &carried, 2 * tol_attention(&c, size));
    assert_int_equal(device_ref.kernel[KERNEL_attention](&forward), OK);
    const int64_t readers =
        c.attr.attention.group ? c.attr.attention.group : c.h / larger(1, (int)c.g);
    const Call back = attention_dx_call(b, &c, keeps[(int)mask % 2]);
    against_ref(cb, KERNEL_attention_dx, &back,
                tol_attention(&c, size) + tol_sum(c.type, (double)(c.t * readers)));
    if (c.s > 1)
        by_delta(cb, &c, tol_attention(&c, size) + tol_sum(c.type, (double)(c.t * readers)));
    expect_gaps(b);
    bench_clear(b);
}

static void all_masks(void **state)
{
    for (Mask mask = FULL; mask < N_MASKS; mask++)
        for (int t = 0; t < N_CPU_TYPES; t++) {
            const Case c = {.type = cpu_types[t],
                            .strides = (Strides)((int)mask % N_STRIDES),
                            .t = 79,
                            .s = 79,
                            .h = 4,
                            .g = 2,
                            .c = mask % 2 ? 16 : 10};
            try_case(*state, c, mask, 1, 0);
        }
}

/* More keys than queries, several blocks, channels that need padding or exceed a panel. */
static void sizes(void **state)
{
    const int64_t size[][5] = {
        /* t, s, h, g, c */
        {1, 1, 1, 1, 1},      {64, 64, 2, 2, 64},  {65, 130, 3, 1, 33}, {33, 150, 2, 1, 128},
        {128, 128, 2, 1, 64}, {20, 40, 2, 2, 256}, {0, 10, 2, 1, 8},    {10, 0, 2, 1, 8},
        {9, 12, 2, 1, 300},   {70, 80, 2, 1, 0},
    };
    for (int i = 0; i < (int)(sizeof size / sizeof *size); i++)
        for (int t = 0; t < N_CPU_TYPES; t++) {
            const int64_t *n = size[i];
            const Case c = {.type = cpu_types[t],
                            .strides = (Strides)((i + t) % N_STRIDES),
                            .t = n[0],
                            .s = n[1],
                            .h = n[2],
                            .g = n[3],
                            .c = n[4]};
            try_case(*state, c, n[1] ? CAUSAL : FULL, 0.7, 0);
        }
}

/* Few queries, many keys, every mask: the decode path up to eight queries, tiles from nine on. */
static void decode_queries(void **state)
{
    for (int i = 0; i < 9 * (int)N_MASKS; i++)
        for (int t = 0; t < N_CPU_TYPES; t++) {
            const Case c = {.type = cpu_types[t],
                            .strides = (Strides)((i + t) % N_STRIDES),
                            .t = 1 + i % 9,
                            .s = 20 + i * 7 % 300,
                            .h = 6,
                            .g = i % 2 ? 2 : 3,
                            .c = i % 3 == 0   ? 64
                                 : i % 3 == 1 ? 7
                                              : 33};
            try_case(*state, c, (Mask)(i / 9), 0.8, i % 4 == 3 ? 5 : 0);
        }
}

/* Shards of the heads that are split within a group, and empty shards. */
static void parts_of_heads(void **state)
{
    for (int i = 0; i < N_SIZES; i++)
        for (int t = 0; t < N_CPU_TYPES; t++) {
            Case c = attention_sizes[i];
            c.type = cpu_types[t];
            c.strides = (Strides)((i + t) % N_STRIDES);
            try_case(*state, c, c.s ? CAUSAL : FULL, 0.7, 0);
        }
}

/* A block of keys in the middle of the positions of `ranges`. */
static void key_blocks_at_an_offset(void **state)
{
    for (int i = 0; i < N_MASKS * N_CPU_TYPES; i++) {
        const Case c = {.type = cpu_types[i % N_CPU_TYPES],
                        .strides = DENSE,
                        .t = 90,
                        .s = 70,
                        .h = 2,
                        .g = 1,
                        .c = 12};
        try_case(*state, c, (Mask)(FULL + i / N_CPU_TYPES), 1, 17);
    }
}

/* Scores so far apart that all weights but the largest vanish: no overflow, no NaN. There are
 * several blocks of keys, and later ones have the largest scores. */
static void extreme_scores(void **state)
{
    for (int t = 0; t < N_CPU_TYPES; t++) {
        const Case c = {
            .type = cpu_types[t], .strides = DENSE, .t = 200, .s = 200, .h = 2, .g = 2, .c = 32};
        try_case(*state, c, CAUSAL, 12, 0);
        try_case(*state, c, CAUSAL, 2.5, 0);
    }
}

/* Packed sequences: on and off the borders of blocks, one with a row that attends across a border,
 * and more rows than the workspace of one pass holds. Few threads take one pass, many threads two,
 * and both give the same bits. Forward, few threads take four blocks of queries per task. */
static void sequences(void **state)
{
    CpuBench *cb = *state;
    const int64_t size[][4] = {/* t, length, h, c */
                               {320, 64, 2, 16},  {384, 128, 1, 64},  {300, 100, 2, 9},
                               {320, -64, 2, 16}, {640, 320, 1, 256}, {600, 200, 3, 24}};
    for (int i = 0; i < 12; i++) {
        const int64_t *n = size[i / 2], t = n[0], length = llabs(n[1]);
        Case c = {.type = cpu_types[i % 2], .t = t, .s = t, .h = n[2], .g = 1, .c = n[3]};
        const double keep[3] = {i % 3 == 0 ? 1 : 0, 0, 1};
        case_open(&cb->b, &c, FULL, 0.6);
        for (int64_t row = 0; row < t; row++) {
            const bool back = n[1] < 0 && row == t - 70; /* attends to a key of the first, too */
            const int64_t range[4] = {row - row % length, row + 1, 5, back ? 9 : 5};
            for (int r = 0; r < 4; r++) put(&c.ranges, 4 * row + r, (double)range[r]);
        }
        const Call forward = attention_call(&c);
        against_ref(cb, KERNEL_attention, &forward, tol_attention(&c, 0.6));
        assert_int_equal(device_ref.kernel[KERNEL_attention](&forward), OK);
        const Call back = attention_dx_call(&cb->b, &c, keep);
        against_ref(cb, KERNEL_attention_dx, &back,
                    tol_attention(&c, 0.6) + tol_sum(c.type, (double)(t * c.h)));
        bench_clear(&cb->b);
    }
}

/* Masked keys, and queries that attend to no key, may hold anything. Only queries that attend to a
 * NaN have one in their output. */
static void masked_keys_are_not_read(void **state)
{
    CpuBench *cb = *state;
    for (int i = 0; i < 2 * N_CPU_TYPES; i++) {
        Case c = {.type = cpu_types[i / 2], .t = 90, .s = 150, .h = 2, .g = 1, .c = 20};
        c.strides = i % 2 ? DENSE : COLUMN_MAJOR;
        case_open(&cb->b, &c, FULL, 1);
        for (int64_t t = 0; t < c.t; t++) {
            const int live[4] = {3, 20, 100, 100 + (int)t / 2}, none[4] = {24, 24, 0, 0};
            for (int r = 0; r < 4; r++) put(&c.ranges, 4 * t + r, t == 9 ? none[r] : live[r]);
        }
        /* Row 62 is the first that attends to the last of these keys, 130. */
        const int64_t nonfinite[] = {0, 2, 20, 70, 99, 149, 130};
        for (int k = 0; k < 7; k++)
            for (int64_t j = 0; j < c.c; j++) {
                put(&c.k, nonfinite[k] * c.c + j, (double)NAN);
                put(&c.v, nonfinite[k] * c.c + j, k % 2 ? HUGE_VAL : (double)NAN);
            }
        for (int64_t j = 0; j < c.h * c.c; j++) put(&c.q, 9 * c.h * c.c + j, (double)NAN);
        const Call forward = attention_call(&c);
        against_ref(cb, KERNEL_attention, &forward, tol_attention(&c, 1));
        assert_int_equal(device_ref.kernel[KERNEL_attention](&forward), OK);
        assert_true(isnan(get(&c.o, 62 * c.h * c.c)) && !isnan(get(&c.o, 61 * c.h * c.c)));
        const Call back = attention_dx_call(&cb->b, &c, (const double[]){0, 0, 0});
        for (int64_t j = 0; j < c.h * c.c; j++) put(&back.in[4], 9 * c.h * c.c + j, (double)NAN);
        against_ref(cb, KERNEL_attention_dx, &back, tol_attention(&c, 1) + tol_sum(c.type, 180));
        bench_clear(&cb->b);
    }
}

/* A query whose scores are all NaN has a NaN in o and lse, unlike one that attends to no key, on
 * the decode path and on tiles. Other queries have one only if they attend to key 0. */
static void nan_propagates(void **state)
{
    CpuBench *cb = *state;
    for (int i = 0; i < 2 * N_CPU_TYPES; i++) {
        Case c = {.type = cpu_types[i / 2], .t = i % 2 ? 3 : 40, .s = 45, .h = 2, .g = 1, .c = 20};
        case_open(&cb->b, &c, WINDOW, 1);
        for (int64_t j = 0; j < c.h * c.c; j++) put(&c.q, c.h * c.c + j, (double)NAN);
        put(&c.k, 0, (double)NAN);
        const Call forward = attention_call(&c);
        against_ref(cb, KERNEL_attention, &forward, tol_attention(&c, 1));
        assert_true(isnan(get(&c.o, c.h * c.c)) && isnan(get(&c.lse, c.h)));
        assert_false(isnan(get(&c.o, 2 * c.h * c.c)) && c.t == 3);
        bench_clear(&cb->b);
    }
}

/* Rows of dout that are not finite, with a sliding window: such a row attends to two blocks of
 * keys, and both tiles are partial. All its keys have the NaN, those of the second tile too. */
static void nonfinite_rows_propagate(void **state)
{
    CpuBench *cb = *state;
    for (int i = 0; i < 2 * N_CPU_TYPES; i++) {
        Case c = {
            .type = cpu_types[i / 2], .t = 200, .s = 200, .h = 2, .g = 1, .c = i % 2 ? 64 : 20};
        case_open(&cb->b, &c, FULL, 1);
        for (int64_t t = 0; t < c.t; t++) {
            const int64_t range[4] = {t < 70 ? 0 : t - 70, t + 1, 0, 0};
            for (int r = 0; r < 4; r++) put(&c.ranges, 4 * t + r, (double)range[r]);
        }
        const Call forward = attention_call(&c);
        assert_int_equal(device_ref.kernel[KERNEL_attention](&forward), OK);
        const Call back = attention_dx_call(&cb->b, &c, (const double[]){0, 0, 0});
        for (int64_t j = 0; j < c.c; j++) put(&back.in[4], 100 * c.h * c.c + j, (double)NAN);
        against_ref(cb, KERNEL_attention_dx, &back, tol_attention(&c, 1) + tol_sum(c.type, 400));
        for (int64_t key = 20; key < 110; key++)
            assert_true(isnan(get(&back.out[2], key * c.c)) == (key >= 30 && key <= 100));
        bench_clear(&cb->b);
    }
}

/* exp in every instruction set: row t attends only to key t, with score x and lse 0, so dv is e^x.
 * The bound is that of math.h. */
static void exponentials(void **state)
{
    enum { T = 4096 };
    Bench *b = &((CpuBench *)*state)->b;
    Case c = {.type = F32, .strides = DENSE, .t = T, .s = T, .h = 1, .g = 1, .c = 1};
    case_open(b, &c, FULL, 1);
    c.attr.attention.scale = 1;
    Call call = attention_dx_call(b, &c, (const double[]){0, 0, 0});
    for (int64_t t = 0; t < T; t++) {
        const double x = -87.3 + 175.3 * (double)t / T;
        const int64_t range[4] = {t, t + 1, 0, 0};
        for (int r = 0; r < 4; r++) put(&c.ranges, 4 * t + r, (double)range[r]);
        put(&c.q, t, t % 8 == 0 ? x / 80 : x);
        put(&c.k, t, 1);
        put(&c.v, t, 0);
        put(&c.o, t, 0);
        put(&c.lse, t, 0);
        put(&call.in[4], t, 1);
    }
    put(&c.q, 0, -87.4);
    put(&c.q, 1, -HUGE_VAL);
    for (CpuSimd s = CPU_BASE; s < N_CPU_SIMD; s++) {
        if (!cpu_has(s)) continue;
        assert_int_equal(device_cpu_simd(s)->kernel[KERNEL_attention_dx](&call), OK);
        for (int64_t t = 0; t < T; t++) {
            const double got = get(&call.out[2], t), x = get(&c.q, t);
            const double want = x < -87.33 ? 0 : exp(x);
            if (!(fabs(got - want) <= 0.76 * ldexp(want, -23)))
                fail_msg("set %d: exp(%.9g) is %.9g, not %.9g", (int)s, x, got, want);
        }
    }
    bench_clear(b);
}

/* 2^x in every instruction set: row t attends to a key of score 0 and one of score x, in units of
 * log 2; its o is the weight of the second. math.h states the error of 2^x; sum, division and
 * product round once each. */
static void powers(void **state)
{
    enum { T = 2048 };
    Bench *b = &((CpuBench *)*state)->b;
    Case c = {.type = F32, .strides = DENSE, .t = T, .s = 2 * T, .h = 1, .g = 1, .c = 1};
    case_open(b, &c, FULL, 1);
    c.attr.attention.scale = log(2);
    for (int64_t t = 0; t < T; t++) {
        const int64_t range[4] = {2 * t, 2 * t + 2, 0, 0};
        for (int r = 0; r < 4; r++) put(&c.ranges, 4 * t + r, (double)range[r]);
        for (int k = 0; k < 2; k++) {
            put(&c.k, 2 * t + k, k);
            put(&c.v, 2 * t + k, k);
        }
        put(&c.q, t, -126.0 * (double)t / T * (t % 8 == 0 ? 0.01 : 1));
    }
    put(&c.q, 1, -127);
    put(&c.q, 2, -1e30);
    const Call call = attention_call(&c);
    for (CpuSimd s = CPU_BASE; s < N_CPU_SIMD; s++) {
        if (!cpu_has(s)) continue;
        assert_int_equal(device_cpu_simd(s)->kernel[KERNEL_attention](&call), OK);
        for (int64_t t = 0; t < T; t++) {
            const double x = get(&c.q, t), p = x < -126 ? 0 : exp2(x), want = p / (1 + p);
            const double bound = 2.1 + 2.1 * want + 1.5, got = get(&c.o, t);
            if (!(fabs(got - want) <= bound * ldexp(want, -23)))
                fail_msg("set %d: the weight of %.9g is %.9g, not %.9g", (int)s, x, got, want);
        }
    }
    bench_clear(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_masks),
        cmocka_unit_test(sizes),
        cmocka_unit_test(decode_queries),
        cmocka_unit_test(parts_of_heads),
        cmocka_unit_test(key_blocks_at_an_offset),
        cmocka_unit_test(extreme_scores),
        cmocka_unit_test(sequences),
        cmocka_unit_test(masked_keys_are_not_read),
        cmocka_unit_test(nan_propagates),
        cmocka_unit_test(exponentials),
        cmocka_unit_test(powers),
        cmocka_unit_test(nonfinite_rows_propagate),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}
