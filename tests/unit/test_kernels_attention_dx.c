/* test_kernels_attention_dx.c -- the backward pass of attention: against its formulas, finite
 * differences, and blocks of keys. */
#include "attention_test.h"

static Bench bench;

typedef struct {
    Tensor dout, dq, dk, dv;
} Grads;

static Grads grads_open(const Case *c, const double *keep)
{
    const DType wide = dtype_wide(c->type);
    const Strides l1 = (Strides)((c->strides + 1) % N_STRIDES),
                  l2 = (Strides)((c->strides + 2) % N_STRIDES);
    Grads g = {.dout = RANDOM(&bench, c->type, l2, c->t, c->h, c->c)};
    g.dq = accumulator(&bench, NEW(&bench, c->type, l1, c->t, c->h, c->c), keep[0]);
    g.dk = accumulator(&bench, NEW(&bench, wide, c->strides, c->s, c->g, c->c), keep[1]);
    g.dv = accumulator(&bench, NEW(&bench, c->type, l2, c->s, c->g, c->c), keep[2]);
    return g;
}

static Call backward_call(const Case *c, const Grads *g, const double *keep)
{
    return (Call){.in = {c->q, c->k, c->v, c->ranges, g->dout, c->lse, c->o},
                  .n_in = 7,
                  .out = {g->dq, g->dk, g->dv},
                  .n_out = 3,
                  .attr = c->attr,
                  .number = {keep[0], keep[1], keep[2]}};
}

/* Runs forward: the backward pass reads its o and lse. */
static void prepare(const Case *c)
{
    const Call call = attention_call(c);
    run(KERNEL_attention, &call);
}

/* Adds one row's contribution to the three gradients, from weights by the definition. */
static void add_row(const Case *c, const Grads *g, int64_t row, const long double *p,
                    long double *want[3])
{
    const int64_t t = row / c->h, h = row % c->h, kh = source_of(c, h);
    long double mean = 0; /* of dout . v under p: equals delta */
    for (int64_t j = 0; j < c->s; j++)
        if (p[j] != 0) mean += p[j] * dot(&g->dout, t, h, &c->v, j, kh);
    for (int64_t j = 0; j < c->s; j++) {
        if (p[j] == 0) continue;
        const long double dp = dot(&g->dout, t, h, &c->v, j, kh);
        const long double ds = p[j] * (dp - mean) * (long double)c->attr.attention.scale;
        for (int64_t i = 0; i < c->c; i++) {
            const int64_t query = row * c->c + i, key = (j * c->g + kh) * c->c + i;
            want[0][query] += ds * (long double)get(&c->k, key);
            want[1][key] += ds * (long double)get(&c->q, query);
            want[2][key] += p[j] * (long double)get(&g->dout, query);
        }
    }
}

static void check_backward(const Case *c, const Grads *g, const double *keep, double tolerance)
{
    long double *want[3] = {kept(&g->dq, keep[0]), kept(&g->dk, keep[1]), kept(&g->dv, keep[2])};
    long double *p = calloc((size_t)c->s + 1, sizeof *p);
    assert_non_null(p);
    for (int64_t row = 0; row < c->t * c->h; row++) {
        weights_of(c, row / c->h, row % c->h, p);
        add_row(c, g, row, p, want);
    }
    const Call call = backward_call(c, g, keep);
    run_twice(&bench, KERNEL_attention_dx, &call);
    expect_close("dq", &g->dq, want[0], tolerance);
    expect_close("dk", &g->dk, want[1], tolerance);
    expect_close("dv", &g->dv, want[2], tolerance);
    for (int k = 0; k < 3; k++) free(want[k]);
    free(p);
}

static const double keeps[][3] = {{0, 1, 0.5}, {1, 0, 0}, {0.5, 0, 1}, {0, 0, 0}};

static void formula(void **state)
{
    (void)state;
    for (int n = 0; n < N_SIZES; n++)
        for (int mask = 0; mask < N_MASKS; mask++)
            for (int type = F64; type <= F32; type++) {
                bench_clear(&bench);
                Case c = attention_sizes[n];
                c.type = (DType)type;
                c.strides = (Strides)((n + mask + 2) % N_STRIDES);
                const double *keep = keeps[(mask + type) % 4];
                case_open(&bench, &c, (Mask)mask, 1.5);
                const Grads g = grads_open(&c, keep);
                prepare(&c);
                check_backward(&c, &g, keep, rounding(c.type));
                expect_gaps(&bench);
            }
}

static void finite_differences(void **state)
{
    (void)state;
    const double keep[] = {1, 0.5, 1};
    for (int mask = 0; mask < N_MASKS - 1; mask++) {
        bench_clear(&bench);
        Case c = {.t = 5, .s = 7, .h = 4, .g = 2, .c = 3, .strides = (Strides)(mask % N_STRIDES)};
        if (mask == TWO_RANGES) c.t = 34, c.s = 37, c.h = 2; /* over the edge of a tile */
        case_open(&bench, &c, (Mask)mask, 1);
        const Grads g = grads_open(&c, keep);
        prepare(&c);
        long double *old[] = {kept(&g.dq, keep[0]), kept(&g.dk, keep[1]), kept(&g.dv, keep[2])};
        const Call call = backward_call(&c, &g, keep);
        run(KERNEL_attention_dx, &call);
        Probe p = {.id = KERNEL_attention, .call = attention_call(&c), .dy = {g.dout}};
        expect_gradient("dq", probe_value, &p, &c.q, &g.dq, old[0]);
        expect_gradient("dk", probe_value, &p, &c.k, &g.dk, old[1]);
        expect_gradient("dv", probe_value, &p, &c.v, &g.dv, old[2]);
        for (int k = 0; k < 3; k++) free(old[k]);
    }
}

/* Scores of +-800: the weights are 0 or 1, and gradients stay finite. */
static void large_logits(void **state)
{
    (void)state;
    for (int mask = 0; mask < N_MASKS; mask++) {
        bench_clear(&bench);
        Case c = {.t = 37, .s = 70, .h = 2, .g = 1, .c = 3, .strides = COLUMN_MAJOR};
        case_open(&bench, &c, (Mask)mask, 26);
        const Grads g = grads_open(&c, keeps[3]);
        prepare(&c);
        check_backward(&c, &g, keeps[3], 1e-11); /* exp(800 (1 + 2^-53)) is off by 1e-13 */
        expect_gaps(&bench);
    }
}

/* One block of keys at a time, with the o and lse of all keys: dq is the sum over blocks, dk and dv
 * are their concatenation. */
static void blocks_add_up(void **state)
{
    (void)state;
    const int64_t cut[] = {0, 21, 22, 50, 50, 77};
    for (int mask = 0; mask < N_MASKS; mask++) {
        bench_clear(&bench);
        Case c = {.t = 45, .s = 77, .h = 4, .g = 2, .c = 5, .strides = (Strides)(mask % N_STRIDES)};
        case_open(&bench, &c, (Mask)mask, 2);
        const Grads whole = grads_open(&c, keeps[3]);
        prepare(&c);
        check_backward(&c, &whole, keeps[3], 1e-13);
        const Grads sum = grads_open(&c, keeps[3]);
        for (int b = 0; b < 5; b++) {
            Case part = c;
            Grads g = sum;
            Tensor *moved[] = {&part.k, &part.v, &g.dk, &g.dv};
            for (int k = 0; k < 4; k++) {
                moved[k]->data = (double *)moved[k]->data + cut[b] * moved[k]->stride[0];
                moved[k]->n[0] = cut[b + 1] - cut[b];
            }
            part.attr.attention.key_at = cut[b];
            g.dout = whole.dout;
            const Call call = backward_call(&part, &g, (const double[]){b > 0, 0, 0});
            run_twice(&bench, KERNEL_attention_dx, &call);
        }
        const Tensor *got[] = {&sum.dq, &sum.dk, &sum.dv};
        const Tensor *all[] = {&whole.dq, &whole.dk, &whole.dv};
        for (int k = 0; k < 3; k++) {
            long double *want = kept(all[k], 1);
            expect_close("a gradient in blocks", got[k], want, 1e-13);
            free(want);
        }
    }
}

/* Masked keys, single or a whole tile, and queries that attend to no key, may be NaN. */
static void masked_keys_are_not_read(void **state)
{
    (void)state;
    bench_clear(&bench);
    Case c = {.t = 40, .s = 110, .h = 2, .g = 1, .c = 5, .strides = PADDED};
    case_open(&bench, &c, FULL, 1);
    const Grads g = grads_open(&c, keeps[3]);
    for (int64_t t = 0; t < c.t; t++) { /* only keys 4 to 9 and 100 to 104 */
        const int live[4] = {4, 10, 100, 105}, none[4] = {0, 0, 50, 50};
        for (int r = 0; r < 4; r++) put(&c.ranges, 4 * t + r, t == 33 ? none[r] : live[r]);
    }
    for (int64_t i = 0; i < c.s * c.c; i++) {
        const int64_t key = i / c.c;
        if ((key >= 4 && key < 10) || (key >= 100 && key < 105)) continue;
        put(&c.k, i, (double)NAN);
        put(&c.v, i, (double)NAN);
    }
    for (int64_t i = 0; i < c.h * c.c; i++) {
        put(&c.q, 33 * c.h * c.c + i, (double)NAN);
        put(&g.dout, 33 * c.h * c.c + i, (double)NAN);
    }
    prepare(&c); /* dout . o of row 33 is NaN */
    check_backward(&c, &g, keeps[3], 1e-13);

    /* The same for a row whose scores were all -inf: it attends to keys, but its lse is -inf. */
    for (int r = 0; r < 4; r++) put(&c.ranges, 4 * 33 + r, r < 2 ? 4 + 6 * r : 0);
    const Grads second = grads_open(&c, keeps[3]);
    Call call = backward_call(&c, &g, keeps[3]);
    call.out[0] = second.dq;
    call.out[1] = second.dk;
    call.out[2] = second.dv;
    run_twice(&bench, KERNEL_attention_dx, &call);
    for (int64_t i = 0; i < tensor_count(&g.dk); i++)
        assert_true(get(&second.dk, i) == get(&g.dk, i) && get(&second.dv, i) == get(&g.dv, i));
    for (int64_t i = 0; i < tensor_count(&g.dq); i++)
        assert_true(get(&second.dq, i) == get(&g.dq, i));
    assert_true(get(&g.dk, 0) == 0 && get(&g.dv, 50 * c.c) == 0);
}

/* delta, computed before, instead of o: the same bits. */
static void delta_stands_for_o(void **state)
{
    (void)state;
    for (int mask = 0; mask < N_MASKS; mask++) {
        const double keep[3] = {1, 0, 1};
        Case c = {.t = 45, .s = 77, .h = 4, .g = 2, .c = 5, .strides = (Strides)(mask % N_STRIDES)};
        bench_clear(&bench);
        case_open(&bench, &c, (Mask)mask, 2);
        prepare(&c);
        const Grads a = grads_open(&c, keep);
        Grads b = grads_open(&c, keep);
        b.dout = a.dout;
        const Tensor *from[] = {&a.dq, &a.dk, &a.dv}, *to[] = {&b.dq, &b.dk, &b.dv};
        for (int k = 0; k < 3; k++)
            for (int64_t i = 0; i < tensor_count(from[k]); i++) put(to[k], i, get(from[k], i));
        const Tensor delta =
            NEW(&bench, dtype_wide(c.type), (Strides)((mask + 1) % N_STRIDES), c.t, c.h);
        run_twice(&bench, KERNEL_attention_delta,
                  &(Call){.in = {a.dout, c.o}, .n_in = 2, .out = {delta}, .n_out = 1});
        Call call = backward_call(&c, &a, keep);
        run(KERNEL_attention_dx, &call);
        call = backward_call(&c, &b, keep);
        call.in[6] = delta;
        run(KERNEL_attention_dx, &call);
        for (int k = 0; k < 3; k++)
            for (int64_t i = 0; i < tensor_count(from[k]); i++)
                assert_true(get(to[k], i) == get(from[k], i));
        expect_gaps(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formula),
        cmocka_unit_test(finite_differences),
        cmocka_unit_test(large_logits),
        cmocka_unit_test(blocks_add_up),
        cmocka_unit_test(delta_stands_for_o),
        cmocka_unit_test(masked_keys_are_not_read),
    };
    bench_open(&bench);
    const int failed = cmocka_run_group_tests_name("kernels: attention_dx", tests, NULL, NULL);
    bench_close(&bench);
    return failed;
}
