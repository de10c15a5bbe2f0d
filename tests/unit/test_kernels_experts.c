/* test_kernels_experts.c -- rows of experts against brute force: assignment, dropless and with a
 * capacity; permutation and back, to the bit; grouped GEMMs expert by expert; gradients. */
#include "kernel_test.h"

static Bench bench;

enum { T = 11, K = 3, E = 5, D = 9, O = 7, R = T * K };

static int expert_of(const Tensor *t, int64_t i) { return (int)get(t, i); }

/* Different experts of each token. hot: all tokens choose expert 3 first; expert 1 has none. */
static Tensor choices(bool hot, Strides strides)
{
    static const int order[4] = {0, 2, 3, 4};
    const Tensor t = NEW(&bench, I32, strides, T, K);
    for (int i = 0; i < T; i++)
        for (int k = 0; k < K; k++) {
            const int free_choice = order[(i * 3 + k) % 4];
            put(&t, i * K + k, hot ? (k == 0 ? 3 : k == 1 ? 0 : 4) : free_choice);
        }
    return t;
}

/* The rank of choice i among those of its expert: by gate, then token; or by token. */
static int rank_of(const Tensor *expert, const Tensor *gate, bool by_gate, int64_t i)
{
    int before = 0;
    for (int64_t j = 0; j < T * K; j++) {
        if (expert_of(expert, j) != expert_of(expert, i)) continue;
        const double a = get(gate, j), b = get(gate, i);
        before += by_gate ? a > b || (a == b && j < i) : j < i;
    }
    return before;
}

static void check_limit(const Call *call)
{
    const Tensor *expert = &call->in[0], *kept = &call->out[0];
    const int cap = (int)ceil(call->attr.limit.capacity * T * K / E);
    for (int i = 0; i < T * K; i++) {
        const bool keep = rank_of(expert, &call->in[1], call->attr.limit.by_gate, i) < cap;
        assert_int_equal(expert_of(kept, i), keep ? expert_of(expert, i) : -1);
    }
}

/* By expert, then token; choices of expert -1 have no row. */
static void check_assignment(const Call *call)
{
    const Tensor *expert = &call->in[0], *at = &call->out[0];
    int next = 0;
    for (int e = 0; e < E; e++) {
        assert_int_equal((int)get(&call->out[1], e), next);
        for (int i = 0; i < T * K; i++)
            if (expert_of(expert, i) == e) assert_int_equal((int)get(at, i), next++);
    }
    assert_int_equal((int)get(&call->out[1], E), next);
    for (int i = 0; i < T * K; i++)
        if (expert_of(expert, i) < 0) assert_int_equal((int)get(at, i), -1);
}

static void rows_are_sorted(void **state)
{
    (void)state;
    static const double factor[] = {0, 0.5, 1, 1.25};
    for (int c = 0; c < 32; c++) {
        bench_clear(&bench);
        const Strides strides = c / 16 ? PADDED : DENSE;
        Call limit = {.n_in = 2, .n_out = 1}, call = {.n_in = 1, .n_out = 2};
        limit.attr.limit.capacity = factor[c % 4];
        limit.attr.limit.by_gate = c / 4 % 2;
        limit.attr.limit.experts = E;
        limit.in[0] = call.in[0] = choices(c / 8 % 2, strides);
        limit.in[1] = RANDOM(&bench, c % 3 ? F32 : F64, PADDED, T, K);
        for (int i = 0; i < T * K; i += 4) put(&limit.in[1], i, 0.5); /* ties */
        if (factor[c % 4] > 0) {
            limit.out[0] = call.in[0] = NEW(&bench, I32, strides, T, K);
            run_twice(&bench, KERNEL_limit_choices, &limit);
            check_limit(&limit);
        }
        call.out[0] = NEW(&bench, I32, strides, T, K);
        call.out[1] = NEW(&bench, I32, strides, E + 1);
        run_twice(&bench, KERNEL_assign_rows, &call);
        check_assignment(&call);
    }
}

/* E times the choices of an expert, less all choices, added to what is there. */
static void excess_of_load(void **state)
{
    (void)state;
    for (int c = 0; c < 8; c++) {
        bench_clear(&bench);
        const double keep = c / 4;
        const Tensor expert = choices(c % 2, c / 2 % 2 ? PADDED : DENSE);
        const Tensor db = accumulator(&bench, NEW(&bench, c % 2 ? F32 : F64, DENSE, E), keep);
        long double *want = kept(&db, keep), sum = 0;
        for (int e = 0; e < E; e++) want[e] -= T * K;
        for (int i = 0; i < T * K; i++) want[expert_of(&expert, i)] += E;
        run_twice(&bench, KERNEL_expert_excess,
                  &(Call){.in = {expert}, .n_in = 1, .out = {db}, .n_out = 1, .number = {keep}});
        expect_close("excess", &db, want, rounding(db.dtype));
        for (int e = 0; e < E && keep == 0; e++) sum += (long double)get(&db, e);
        assert_true(sum == 0);
        free(want);
    }
}

typedef struct {
    Tensor expert, gate, at, offsets;
} Rows;

static Rows make_rows(bool hot, double capacity)
{
    Rows r = {.expert = choices(hot, DENSE),
              .gate = RANDOM(&bench, F64, DENSE, T, K),
              .at = NEW(&bench, I32, DENSE, T, K),
              .offsets = NEW(&bench, I32, DENSE, E + 1)};
    Call limit = {.in = {r.expert, r.gate}, .n_in = 2, .out = {r.expert}, .n_out = 1};
    limit.attr.limit.capacity = capacity;
    limit.attr.limit.experts = E;
    if (capacity > 0) run(KERNEL_limit_choices, &limit);
    run(KERNEL_assign_rows,
        &(Call){.in = {r.expert}, .n_in = 1, .out = {r.at, r.offsets}, .n_out = 2});
    return r;
}

/* Identity experts and gates 1/k return the input: to the bit for powers of two. */
static void there_and_back(void **state)
{
    (void)state;
    static const int64_t width[] = {1, 2, 4, 8, 3, 7};
    for (int c = 0; c < 12; c++) {
        bench_clear(&bench);
        const int64_t k = width[c % 6], n = 9;
        const DType type = c < 6 ? F64 : F32;
        const Tensor x = RANDOM(&bench, type, PADDED, T, D), y = NEW(&bench, type, DENSE, T * k, D);
        const Tensor back = NEW(&bench, type, PADDED, T, D), expert = NEW(&bench, I32, DENSE, T, k);
        const Tensor gate = NEW(&bench, F64, DENSE, T, k), at = NEW(&bench, I32, DENSE, T, k);
        const Tensor offsets = NEW(&bench, I32, DENSE, n + 1);
        for (int64_t i = 0; i < T * k; i++) {
            put(&expert, i, (double)((i / k * 5 + i % k) % n));
            put(&gate, i, 1.0 / (double)k);
        }
        run(KERNEL_assign_rows,
            &(Call){.in = {expert}, .n_in = 1, .out = {at, offsets}, .n_out = 2});
        run_twice(&bench, KERNEL_permute,
                  &(Call){.in = {x, at}, .n_in = 2, .out = {y}, .n_out = 1});
        run_twice(&bench, KERNEL_unpermute,
                  &(Call){.in = {at, y, gate}, .n_in = 3, .out = {back}, .n_out = 1});
        const double ulp = type == F64 ? ldexp(1, -52) : ldexp(1, -23);
        for (int64_t i = 0; i < T * D; i++) {
            const double off = fabs(get(&back, i) - get(&x, i));
            if (!(off <= (c % 6 < 4 ? 0 : (double)k * ulp * fabs(get(&x, i)))))
                fail_msg("%d choices: off by %g of %g", (int)k, off, get(&x, i));
        }
        expect_gaps(&bench);
    }
}

static void permute_and_gates(void **state)
{
    (void)state;
    for (int c = 0; c < 4; c++) {
        bench_clear(&bench);
        const Rows r = make_rows(c % 2, c / 2 ? 0.5 : 0);
        const int64_t live = (int64_t)get(&r.offsets, E);
        const Tensor x = RANDOM(&bench, F64, COLUMN_MAJOR, T, D),
                     y = NEW(&bench, F64, PADDED, R, D);
        const Tensor back = NEW(&bench, F64, DENSE, T, D), dgate = NEW(&bench, F64, PADDED, T, K);
        run_twice(&bench, KERNEL_permute,
                  &(Call){.in = {x, r.at, r.gate}, .n_in = 3, .out = {y}, .n_out = 1});
        assert_true(live == R || (live < R && isnan(get(&y, live * D)))); /* no row is made up */
        run_twice(&bench, KERNEL_unpermute,
                  &(Call){.in = {r.at, y}, .n_in = 2, .out = {back}, .n_out = 1});
        run_twice(&bench, KERNEL_permute_dgate,
                  &(Call){.in = {x, r.at, y}, .n_in = 3, .out = {dgate}, .n_out = 1});
        for (int t = 0; t < T; t++) {
            double square = 0;
            for (int d = 0; d < D; d++) square += get(&x, t * D + d) * get(&x, t * D + d);
            double sum = 0;
            for (int k = 0; k < K; k++) {
                const int row = (int)get(&r.at, t * K + k);
                const double gate = row < 0 ? 0 : get(&r.gate, t * K + k);
                sum += gate;
                for (int d = 0; d < D && row >= 0; d++)
                    assert_true(get(&y, row * D + d) == gate * get(&x, t * D + d));
                assert_true(fabs(get(&dgate, t * K + k) - gate * square) < 1e-13);
            }
            for (int d = 0; d < D; d++)
                assert_true(fabs(get(&back, t * D + d) - sum * get(&x, t * D + d)) < 1e-13);
        }
    }
}

/* c[r,o] of each expert's rows; rows past the last stay as they are. */
static void grouped_gemm(void **state)
{
    (void)state;
    for (int c = 0; c < 16; c++) {
        bench_clear(&bench);
        const Rows r = make_rows(c % 2, c / 2 % 2 ? 0.5 : 0);
        const bool tb = c / 4 % 2;
        const double keep = c / 8 ? 0.5 : 0;
        const int64_t live = (int64_t)get(&r.offsets, E);
        const Tensor a = RANDOM(&bench, F64, PADDED, R, D);
        const Tensor b =
            tb ? RANDOM(&bench, F64, PADDED, E, O, D) : RANDOM(&bench, F64, DENSE, E, D, O);
        const Tensor y = accumulator(&bench, NEW(&bench, F64, DENSE, R, O), keep);
        long double *want = kept(&y, keep);
        for (int e = 0; e < E; e++)
            for (int64_t i = (int64_t)get(&r.offsets, e); i < (int64_t)get(&r.offsets, e + 1); i++)
                for (int o = 0; o < O; o++)
                    for (int d = 0; d < D; d++)
                        want[i * O + o] +=
                            (long double)get(&a, i * D + d) *
                            (long double)get(&b, tb ? (e * O + o) * D + d : (e * D + d) * O + o);
        run_twice(&bench, KERNEL_grouped_gemm,
                  &(Call){.in = {a, b, r.offsets},
                          .n_in = 3,
                          .out = {y},
                          .n_out = 1,
                          .attr.gemm = {.tb = tb},
                          .number = {keep}});
        Tensor rows = y;
        rows.n[0] = live;
        expect_close("grouped gemm", &rows, want, 1e-13);
        if (live < R && keep == 0) assert_true(isnan(get(&y, live * O)));
        free(want);
    }
}

/* An expert without rows has a gradient of exactly 0, added to what is there. */
static void grouped_gemm_dw(void **state)
{
    (void)state;
    for (int c = 0; c < 8; c++) {
        bench_clear(&bench);
        const Rows r = make_rows(c % 2, c / 2 % 2 ? 0.5 : 0);
        const double keep = c / 4 ? 1 : 0;
        const Tensor a = RANDOM(&bench, F64, PADDED, R, O), b = RANDOM(&bench, F64, DENSE, R, D);
        const Tensor dw = accumulator(&bench, NEW(&bench, F64, PADDED, E, O, D), keep);
        long double *want = kept(&dw, keep);
        for (int e = 0; e < E; e++)
            for (int64_t i = (int64_t)get(&r.offsets, e); i < (int64_t)get(&r.offsets, e + 1); i++)
                for (int o = 0; o < O * D; o++)
                    want[e * O * D + o] +=
                        (long double)get(&a, i * O + o / D) * (long double)get(&b, i * D + o % D);
        run_twice(
            &bench, KERNEL_grouped_gemm_dw,
            &(Call){.in = {a, b, r.offsets}, .n_in = 3, .out = {dw}, .n_out = 1, .number = {keep}});
        expect_close("grouped gemm dw", &dw, want, 1e-13);
        for (int i = 0; i < O * D && keep == 0; i++) assert_true(get(&dw, O * D + i) == 0);
        expect_gaps(&bench);
        free(want);
    }
}

/* Rows past the last expert's are neither read nor written. */
static void grouped_swiglu(void **state)
{
    (void)state;
    bench_clear(&bench);
    const Rows r = make_rows(true, 0.5);
    const int64_t live = (int64_t)get(&r.offsets, E);
    Tensor in[3], out[2];
    for (int i = 0; i < 3; i++) in[i] = RANDOM(&bench, F64, PADDED, R, D);
    for (int i = 0; i < 2; i++) out[i] = NEW(&bench, F64, DENSE, R, D);
    assert_true(live > 0 && live < R);
    run_twice(&bench, KERNEL_grouped_swiglu,
              &(Call){.in = {in[0], in[1], r.offsets}, .n_in = 3, .out = {out[0]}, .n_out = 1});
    for (int64_t i = 0; i < R * D; i++) {
        const double g = get(&in[0], i), want = g / (1 + exp(-g)) * get(&in[1], i);
        if (i < live * D) assert_true(fabs(get(&out[0], i) - want) < 1e-14);
        if (i >= live * D) assert_true(isnan(get(&out[0], i)));
    }
    run_twice(
        &bench, KERNEL_grouped_swiglu_dx,
        &(Call){
            .in = {in[2], in[0], in[1], r.offsets}, .n_in = 4, .out = {in[2], out[1]}, .n_out = 2});
    for (int64_t i = 0; i < R * D; i++) {
        const double g = get(&in[0], i), s = 1 / (1 + exp(-g));
        if (i >= live * D) assert_true(isnan(get(&out[1], i)));
        if (i < live * D && fabs(g * s) > 1e-3) /* in place: dgate / dup is independent of dy */
            assert_true(fabs(get(&in[2], i) / get(&out[1], i) -
                             get(&in[1], i) * (1 + g * (1 - s)) / g) < 1e-9);
    }
}

/* A rank without tokens: no expert has rows, and gradients of their weights are 0. */
static void no_tokens(void **state)
{
    (void)state;
    bench_clear(&bench);
    const Tensor expert = NEW(&bench, I32, DENSE, 0, K), gate = NEW(&bench, F64, DENSE, 0, K);
    const Tensor at = NEW(&bench, I32, DENSE, 0, K), offsets = NEW(&bench, I32, DENSE, E + 1);
    const Tensor x = NEW(&bench, F64, DENSE, 0, D), y = NEW(&bench, F64, DENSE, 0, D);
    const Tensor b = RANDOM(&bench, F64, DENSE, E, O, D), out = NEW(&bench, F64, DENSE, 0, O);
    const Tensor dw = NEW(&bench, F64, DENSE, E, O, D);
    run_twice(&bench, KERNEL_assign_rows,
              &(Call){.in = {expert}, .n_in = 1, .out = {at, offsets}, .n_out = 2});
    for (int e = 0; e <= E; e++) assert_int_equal((int)get(&offsets, e), 0);
    run_twice(&bench, KERNEL_permute, &(Call){.in = {x, at}, .n_in = 2, .out = {y}, .n_out = 1});
    run_twice(&bench, KERNEL_unpermute, &(Call){.in = {at, y}, .n_in = 2, .out = {x}, .n_out = 1});
    run_twice(&bench, KERNEL_permute_dgate,
              &(Call){.in = {x, at, y}, .n_in = 3, .out = {gate}, .n_out = 1});
    run_twice(
        &bench, KERNEL_grouped_gemm,
        &(Call){
            .in = {x, b, offsets}, .n_in = 3, .out = {out}, .n_out = 1, .attr.gemm = {.tb = true}});
    run_twice(&bench, KERNEL_grouped_gemm_dw,
              &(Call){.in = {out, x, offsets}, .n_in = 3, .out = {dw}, .n_out = 1});
    for (int i = 0; i < E * O * D; i++) assert_true(get(&dw, i) == 0);
    expect_gaps(&bench);
}

static void sigmoid_gates(void **state)
{
    (void)state;
    bench_clear(&bench);
    Probe p = {.id = KERNEL_sigmoid_gate, .call = {.n_in = 2, .n_out = 1}};
    const Tensor x = p.call.in[0] = RANDOM(&bench, F64, PADDED, T, 300);
    const Tensor s = p.call.in[1] = RANDOM(&bench, F64, DENSE, T, 1);
    p.call.out[0] = NEW(&bench, F64, DENSE, T, 300);
    const Tensor dy = p.dy[0] = RANDOM(&bench, F64, DENSE, T, 300);
    const Tensor dx = NEW(&bench, F64, DENSE, T, 300), ds = NEW(&bench, F64, DENSE, T, 1);
    run_twice(&bench, KERNEL_sigmoid_gate, &p.call);
    for (int i = 0; i < T * 300; i++)
        assert_true(fabs(get(&p.call.out[0], i) - get(&x, i) / (1 + exp(-get(&s, i / 300)))) <
                    1e-14);
    run_twice(&bench, KERNEL_sigmoid_gate_dx,
              &(Call){.in = {dy, x, s}, .n_in = 3, .out = {dx, ds}, .n_out = 2});
    expect_gradient("sigmoid gate dx", probe_value, &p, &x, &dx, NULL);
    expect_gradient("sigmoid gate ds", probe_value, &p, &s, &ds, NULL);
    expect_gaps(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_sorted),   cmocka_unit_test(there_and_back),
        cmocka_unit_test(permute_and_gates), cmocka_unit_test(grouped_gemm),
        cmocka_unit_test(grouped_gemm_dw),   cmocka_unit_test(grouped_swiglu),
        cmocka_unit_test(no_tokens),         cmocka_unit_test(sigmoid_gates),
        cmocka_unit_test(excess_of_load),
    };
    bench_open(&bench);
    const int failed = cmocka_run_group_tests_name("kernels: experts", tests, NULL, NULL);
    bench_close(&bench);
    return failed;
}
