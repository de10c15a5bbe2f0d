/* test_kernels_attention.c -- attention against its definition: masks, shared key heads, blocks
 * of keys, large logits. */
#include "attention_test.h"

static Bench bench;

static void check_forward(const Case *c, double tolerance)
{
    long double *o = kept(&c->o, 0), *p = calloc((size_t)c->s + 1, sizeof *p);
    assert_non_null(p);
    for (int64_t row = 0; row < c->t * c->h; row++) {
        const int64_t t = row / c->h, h = row % c->h, g = source_of(c, h);
        const long double lse = weights_of(c, t, h, p);
        for (int64_t i = 0; i < c->c; i++)
            for (int64_t j = 0; j < c->s; j++)
                if (p[j] != 0)
                    o[row * c->c + i] += p[j] * (long double)get(&c->v, (j * c->g + g) * c->c + i);
        const double off = get(&c->lse, row) - (double)lse;
        if (!(fabs(off) <= tolerance * fabs((double)lse) + tolerance) &&
            get(&c->lse, row) != (double)lse)
            fail_msg("lse[%d]: %.17g, want %.17g", (int)row, get(&c->lse, row), (double)lse);
    }
    expect_close("o", &c->o, o, tolerance);
    free(o);
    free(p);
}

static void values(void **state)
{
    (void)state;
    for (int n = 0; n < N_SIZES; n++)
        for (int mask = 0; mask < N_MASKS; mask++)
            for (int type = F64; type <= F32; type++) {
                bench_clear(&bench);
                Case c = attention_sizes[n];
                c.type = (DType)type;
                c.strides = (Strides)((n + mask + 2) % N_STRIDES);
                case_open(&bench, &c, (Mask)mask, 1.5);
                const Call call = attention_call(&c);
                run_twice(&bench, KERNEL_attention, &call);
                check_forward(&c, rounding(c.type));
                expect_gaps(&bench);
            }
}

/* Scores from -800 to 800, where exp alone gives 0 or infinity. */
static void large_logits(void **state)
{
    (void)state;
    for (int mask = 0; mask < N_MASKS; mask++) {
        bench_clear(&bench);
        Case c = {.t = 37, .s = 70, .h = 2, .g = 1, .c = 3, .strides = PADDED};
        case_open(&bench, &c, (Mask)mask, 30);
        for (int64_t i = 0; i < c.c; i++) { /* the first query against its first keys */
            put(&c.q, i, 26);
            put(&c.k, i, 26);
            put(&c.k, c.c + i, -26);
        }
        const Call call = attention_call(&c);
        run_twice(&bench, KERNEL_attention, &call);
        check_forward(&c, 1e-12);
        expect_gaps(&bench);
    }
}

/* Keys that no query attends to may hold anything, whether single keys or a whole tile, and so may
 * queries that attend to no key: none of it reaches the output. */
static void masked_keys_are_not_read(void **state)
{
    (void)state;
    bench_clear(&bench);
    Case c = {.t = 40, .s = 140, .h = 2, .g = 1, .c = 5, .strides = COLUMN_MAJOR};
    case_open(&bench, &c, FULL, 1);
    for (int64_t t = 0; t < c.t; t++) { /* no row attends to keys 20 to 23 and 30 to 99 */
        const int live[4] = {3, 20, 100, 100 + (int)t}, none[4] = {24, 24, 0, 0};
        const int in_tile[4] = {24, 30, 0, 2};
        const int *range = t == 9 ? none : t % 2 ? in_tile : live;
        for (int r = 0; r < 4; r++) put(&c.ranges, 4 * t + r, range[r]);
    }
    for (int64_t j = 0; j < c.s * c.c; j++) {
        const int64_t key = j / c.c;
        if (key < 2 || (key >= 3 && key < 20) || (key >= 24 && key < 30)) continue;
        if (key >= 100 && key < 138) continue; /* row 38 is the last of these */
        put(&c.k, j, (double)NAN);
        put(&c.v, j, (double)NAN);
    }
    for (int64_t i = 0; i < c.h * c.c; i++) put(&c.q, 9 * c.h * c.c + i, (double)NAN);
    const Call call = attention_call(&c);
    run_twice(&bench, KERNEL_attention, &call);
    check_forward(&c, 1e-13);
    for (int64_t i = 0; i < c.h * c.c; i++) assert_true(get(&c.o, 9 * c.h * c.c + i) == 0);
    assert_true(get(&c.lse, 9 * c.h) == -HUGE_VAL);
}

/* Case `c` with only the keys [from, from + n). */
static Case key_block(const Case *c, int64_t from, int64_t n, int strides)
{
    Case part = *c;
    const int64_t bytes = (int64_t)dtype_bytes(c->type);
    part.k.data = (char *)c->k.data + from * c->k.stride[0] * bytes;
    part.v.data = (char *)c->v.data + from * c->v.stride[0] * bytes;
    part.s = part.k.n[0] = part.v.n[0] = n;
    part.attr.attention.key_at = from;
    part.o = NEW(&bench, c->type, (Strides)strides, c->t, c->h, c->c);
    part.lse = NEW(&bench, dtype_wide(c->type), (Strides)strides, c->t, c->h);
    const Call call = attention_call(&part);
    run_twice(&bench, KERNEL_attention, &call);
    check_forward(&part, rounding(c->type));
    return part;
}

/* Blocks of keys, merged one after the other into the first, give the whole. Many rows attend to no
 * key of some block, or of all. */
static void blocks_merge(void **state)
{
    (void)state;
    const int64_t cut[] = {0, 21, 22, 50, 50, 77};
    for (int mask = 0; mask < N_MASKS; mask++)
        for (int type = F64; type <= F32; type++) {
            bench_clear(&bench);
            Case c = {
                .type = (DType)type, .t = 45, .s = 77, .h = 4, .g = 2, .c = 5, .strides = PADDED};
            case_open(&bench, &c, (Mask)mask, 3);
            const Case first = key_block(&c, cut[0], cut[1], COLUMN_MAJOR);
            for (int b = 1; b < 5; b++) {
                const Case next = key_block(&c, cut[b], cut[b + 1] - cut[b], b % N_STRIDES);
                const Call call = {.in = {first.o, first.lse, next.o, next.lse},
                                   .n_in = 4,
                                   .out = {first.o, first.lse},
                                   .n_out = 2};
                run_twice(&bench, KERNEL_attention_merge, &call);
            }
            c.o = first.o;
            c.lse = first.lse;
            check_forward(&c, rounding(c.type));
        }
}

/* The same blocks, each carried on from those before it. */
static void blocks_carry_on(void **state)
{
    (void)state;
    const int64_t cut[] = {0, 21, 22, 50, 50, 77};
    for (int mask = 0; mask < N_MASKS; mask++)
        for (int type = F64; type <= F32; type++)
            for (int wide = 0; wide < 2; wide++) {
                bench_clear(&bench);
                Case c = {.type = (DType)type,
                          .t = 45,
                          .s = 77,
                          .h = 4,
                          .g = 2,
                          .c = wide ? 133 : 5, /* parts of the channels read what one writes */
                          .strides = PADDED};
                case_open(&bench, &c, (Mask)mask, wide ? 0.5 : 3);
                for (int b = 0; b < 5; b++) {
                    Case part = c;
                    const int64_t from = cut[b], bytes = (int64_t)dtype_bytes(c.type);
                    part.k.data = (char *)c.k.data + from * c.k.stride[0] * bytes;
                    part.v.data = (char *)c.v.data + from * c.v.stride[0] * bytes;
                    part.k.n[0] = part.v.n[0] = cut[b + 1] - from;
                    part.attr.attention.key_at = from;
                    Call call = attention_call(&part);
                    call.number[0] = b > 0;
                    run_twice(&bench, KERNEL_attention, &call);
                }
                check_forward(&c, 2 * rounding(c.type));
                expect_gaps(&bench);
            }
}

/* Carried on from sums far away: they win, or count for nothing. */
static void extremes_carry_on(void **state)
{
    (void)state;
    const double carried[] = {800, -800, -HUGE_VAL};
    for (int k = 0; k < 3; k++) {
        bench_clear(&bench);
        Case c = {.type = F64, .t = 37, .s = 70, .h = 2, .g = 1, .c = 3, .strides = PADDED};
        case_open(&bench, &c, CAUSAL, 1);
        Call call = attention_call(&c);
        run(KERNEL_attention, &call);
        const double o = get(&c.o, 1), lse = get(&c.lse, 0);
        for (int64_t i = 0; i < tensor_count(&c.o); i++)
            put(&c.o, i, k == 2 ? (double)NAN : 7); /* of no key: not read */
        for (int64_t i = 0; i < tensor_count(&c.lse); i++) put(&c.lse, i, carried[k]);
        call.number[0] = 1;
        run_twice(&bench, KERNEL_attention, &call);
        assert_true(get(&c.o, 1) == (k ? o : 7));
        assert_true(get(&c.lse, 0) == (k ? lse : 800));
    }
}

/* Parts whose sums differ by more than the range of exp, and parts that hold only NaN. */
static void merge_extremes(void **state)
{
    (void)state;
    enum { N = 6, C = 300 };
    const double none = -HUGE_VAL, nan = (double)NAN;
    const double a[N] = {800, -800, none, 2, none, 700}, b[N] = {-800, 800, 3, none, none, 700};
    const double oa[N] = {1, 1, nan, 1, nan, 1}, ob[N] = {5, 5, 5, nan, nan, 5};
    const double lse[N] = {800, 800, 3, 2, none, 700 + log(2)}, o[N] = {1, 5, 5, 1, 0, 3};
    bench_clear(&bench);
    const Tensor o1 = NEW(&bench, F64, PADDED, 2, 3, C), l1 = NEW(&bench, F64, COLUMN_MAJOR, 2, 3);
    const Tensor o2 = NEW(&bench, F64, COLUMN_MAJOR, 2, 3, C), l2 = NEW(&bench, F64, DENSE, 2, 3);
    const Tensor oo = NEW(&bench, F64, PADDED, 2, 3, C), ll = NEW(&bench, F64, DENSE, 2, 3);
    for (int64_t i = 0; i < N * C; i++) {
        put(&o1, i, oa[i / C]);
        put(&o2, i, ob[i / C]);
        put(&l1, i / C, a[i / C]);
        put(&l2, i / C, b[i / C]);
    }
    run_twice(&bench, KERNEL_attention_merge,
              &(Call){.in = {o1, l1, o2, l2}, .n_in = 4, .out = {oo, ll}, .n_out = 2});
    for (int64_t i = 0; i < N * C; i++) assert_true(get(&oo, i) == o[i / C]);
    for (int64_t i = 0; i < N; i++)
        assert_true(get(&ll, i) == lse[i] || fabs(get(&ll, i) - lse[i]) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(large_logits),
        cmocka_unit_test(masked_keys_are_not_read),
        cmocka_unit_test(blocks_merge),
        cmocka_unit_test(blocks_carry_on),
        cmocka_unit_test(extremes_carry_on),
        cmocka_unit_test(merge_extremes),
    };
    bench_open(&bench);
    const int failed = cmocka_run_group_tests_name("kernels: attention", tests, NULL, NULL);
    bench_close(&bench);
    return failed;
}
