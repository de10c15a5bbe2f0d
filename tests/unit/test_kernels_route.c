/* test_kernels_route.c -- the router against brute force, with ties, all experts chosen, one
 * expert, groups and a selection bias; its gradient and those of its losses against finite
 * differences. */
#include "kernel_test.h"

static Bench bench;

enum { MAX_E = 16 };

typedef struct {
    int64_t t, e, k;
    Attr attr;
    bool bias;
} RouteCase;

static const RouteCase cases[] = {
    {7, 5, 2, {.route = {.score = ROUTE_SOFTMAX, .scaling = 1}}, false},
    {9, 5, 3, {.route = {.score = ROUTE_SOFTMAX, .renormalize = true, .scaling = 1}}, false},
    {8, 6, 2, {.route = {.score = ROUTE_SOFTMAX_CHOSEN, .scaling = 1.5}}, false},
    {6, 4, 4, {.route = {.score = ROUTE_SOFTMAX, .renormalize = true, .scaling = 2}}, false},
    {5, 1, 1, {.route = {.score = ROUTE_SOFTMAX, .renormalize = true, .scaling = 1}}, false},
    {9, 8, 3, {.route = {.score = ROUTE_SIGMOID, .renormalize = true, .scaling = 2.5}}, true},
    {7, 7, 2, {.route = {.score = ROUTE_SIGMOID, .scaling = 1}}, false},
    {9,
     12,
     4,
     {.route = {.score = ROUTE_SIGMOID,
                .renormalize = true,
                .scaling = 2.5,
                .groups = 4,
                .chosen_groups = 2}},
     true},
    {11,
     12,
     3,
     {.route = {.score = ROUTE_SIGMOID,
                .renormalize = true,
                .scaling = 1.5,
                .groups = 3,
                .chosen_groups = 2,
                .group_best = 2}},
     true},
    {9,
     12,
     3,
     {.route = {.score = ROUTE_SOFTMAX, .scaling = 1, .groups = 3, .chosen_groups = 2}},
     false},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* Scores of all experts, as the formulas say them; no order of sums matters to the choice. */
static void brute_scores(const RouteCase *c, const double *s, double *p)
{
    long double sum = 0;
    for (int64_t e = 0; e < c->e; e++) sum += expl((long double)s[e]);
    for (int64_t e = 0; e < c->e; e++)
        p[e] = c->attr.route.score == ROUTE_SIGMOID ? 1 / (1 + exp(-s[e]))
                                                    : (double)(expl((long double)s[e]) / sum);
}

/* The number of entries that precede entry i: larger, or equal and earlier. */
static int before(const double *x, const bool *open, int64_t n, int64_t i)
{
    int count = 0;
    for (int64_t j = 0; j < n; j++)
        count += (!open || open[j]) && (x[j] > x[i] || (x[j] == x[i] && j < i));
    return count;
}

static void brute_open(const RouteCase *c, const double *value, bool *open)
{
    const int64_t groups = c->attr.route.groups, keep = c->attr.route.chosen_groups;
    double sum[MAX_E] = {0};
    for (int64_t e = 0; e < c->e; e++) open[e] = true;
    if (groups < 2) return;
    const int64_t each = c->e / groups;
    const int64_t best = c->attr.route.group_best ? c->attr.route.group_best : c->k / keep;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < each; i++)
            if (before(value + g * each, NULL, each, i) < best) sum[g] += value[g * each + i];
    for (int64_t e = 0; e < c->e; e++) open[e] = before(sum, NULL, groups, e / each) < keep;
}

static void brute_row(const RouteCase *c, const double *s, const double *bias, int *expert,
                      double *gate)
{
    double p[MAX_E], value[MAX_E], sum = 0;
    bool open[MAX_E];
    brute_scores(c, s, p);
    for (int64_t e = 0; e < c->e; e++) value[e] = p[e] + (bias ? bias[e] : 0);
    brute_open(c, value, open);
    for (int64_t e = 0; e < c->e; e++)
        if (open[e] && before(value, open, c->e, e) < c->k)
            expert[before(value, open, c->e, e)] = (int)e;
    for (int64_t i = 0; i < c->k; i++) sum += p[expert[i]];
    const bool divide = c->attr.route.renormalize || c->attr.route.score == ROUTE_SOFTMAX_CHOSEN;
    for (int64_t i = 0; i < c->k; i++)
        gate[i] = c->attr.route.scaling * p[expert[i]] / (divide ? sum : 1);
}

static Call make_route(const RouteCase *c, DType type, Strides strides)
{
    Call call = {.n_in = 1 + c->bias, .n_out = 3, .attr = c->attr};
    call.in[0] = RANDOM(&bench, type, strides, c->t, c->e);
    call.in[1] = RANDOM(&bench, type, DENSE, c->e);
    call.out[0] = NEW(&bench, type, strides, c->t, c->k);
    call.out[1] = NEW(&bench, I32, strides, c->t, c->k);
    call.out[2] = NEW(&bench, type, DENSE, c->e);
    return call;
}

static void check_route(const RouteCase *c, const Call *call)
{
    double load[MAX_E] = {0}, bias[MAX_E], s[MAX_E], gate[MAX_E];
    int expert[MAX_E];
    run_twice(&bench, KERNEL_route, call);
    for (int64_t e = 0; e < c->e; e++) bias[e] = get(&call->in[1], e);
    for (int64_t t = 0; t < c->t; t++) {
        for (int64_t e = 0; e < c->e; e++) s[e] = get(&call->in[0], t * c->e + e);
        brute_row(c, s, c->bias ? bias : NULL, expert, gate);
        for (int64_t i = 0; i < c->k; i++) {
            assert_int_equal((int)get(&call->out[1], t * c->k + i), expert[i]);
            assert_true(fabs(get(&call->out[0], t * c->k + i) - gate[i]) <=
                        4 * rounding(call->out[0].dtype));
            load[expert[i]]++;
        }
    }
    for (int64_t e = 0; e < c->e; e++) assert_true(get(&call->out[2], e) == load[e]);
}

static void choices_and_gates(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * N_CASES; i++) {
        bench_clear(&bench);
        const RouteCase *c = &cases[i % N_CASES];
        const Call call =
            make_route(c, i < 2 * N_CASES ? F64 : F32, i / N_CASES % 2 ? PADDED : DENSE);
        check_route(c, &call);
        expect_gaps(&bench);
    }
}

/* Equal logits: the lower experts. One expert far above the others: all tokens go there. */
static void ties_and_a_hot_expert(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_CASES; i++) {
        bench_clear(&bench);
        const RouteCase *c = &cases[i % N_CASES];
        const Call call = make_route(c, F64, DENSE);
        for (int64_t e = 0; e < c->e; e++) put(&call.in[1], e, 0);
        for (int64_t t = 0; t < c->t; t++)
            for (int64_t e = 0; e < c->e; e++)
                put(&call.in[0], t * c->e + e,
                    i < N_CASES ? 0.25 * (double)(t % 3) : (e == c->e - 1 ? 9 : 0.1));
        check_route(c, &call);
        const int last = (int)c->e - 1;
        for (int64_t t = 0; t < c->t; t++)
            for (int64_t k = 0; k < c->k; k++)
                if (i < N_CASES || k == 0)
                    assert_int_equal((int)get(&call.out[1], t * c->k + k), i < N_CASES ? k : last);
        if (i >= N_CASES) assert_true(get(&call.out[2], last) == (double)c->t);
    }
}

static void no_tokens(void **state)
{
    (void)state;
    bench_clear(&bench);
    RouteCase c = cases[0];
    c.t = 0;
    const Call call = make_route(&c, F64, DENSE);
    check_route(&c, &call);
}

/* The scalar whose gradient route_dx computes: sum of dy gate + aux * balance + z * squared lse,
 * with choices and load fixed. */
typedef struct {
    const RouteCase *c;
    Call call;
    Tensor dgate;
    double load[MAX_E];
    long double losses[2];
} RouteProbe;

static long double balance_score(const RouteCase *c, const double *s, int64_t e)
{
    double p[MAX_E], sum = 0;
    brute_scores(c, s, p);
    for (int64_t i = 0; i < c->e; i++) sum += p[i];
    return (long double)(p[e] / sum);
}

static long double route_value(void *work)
{
    RouteProbe *p = work;
    const RouteCase *c = p->c;
    long double value = 0, choices = 0;
    p->losses[0] = p->losses[1] = 0;
    run(KERNEL_route, &p->call);
    for (int64_t i = 0; i < c->t * c->k; i++)
        value += (long double)get(&p->dgate, i) * (long double)get(&p->call.out[0], i);
    for (int64_t e = 0; e < c->e; e++) choices += (long double)p->load[e];
    for (int64_t t = 0; t < c->t; t++) {
        double s[MAX_E];
        long double sum = 0;
        for (int64_t e = 0; e < c->e; e++) s[e] = get(&p->call.in[0], t * c->e + e);
        for (int64_t e = 0; e < c->e; e++) sum += expl((long double)s[e]);
        p->losses[1] += logl(sum) * logl(sum);
        for (int64_t e = 0; e < c->e; e++)
            p->losses[0] +=
                (long double)c->e / choices * (long double)p->load[e] * balance_score(c, s, e);
    }
    return value + (long double)c->attr.route.aux * p->losses[0] +
           (long double)c->attr.route.z * p->losses[1];
}

/* Logits far enough apart that a step of the differences changes no choice. */
static void spread_logits(const Tensor *s, int64_t experts)
{
    for (int64_t i = 0; i < tensor_count(s); i++)
        put(s, i, 0.11 * (double)(i * 7 % (4 * experts)) + 0.003 * (double)(i % 5));
}

static void gradients(void **state)
{
    (void)state;
    for (int i = 0; i < 3 * N_CASES; i++) {
        bench_clear(&bench);
        RouteCase c = cases[i % N_CASES];
        c.attr.route.aux = i / N_CASES == 1 ? 0.7 : 0;
        c.attr.route.z = i / N_CASES == 2 ? 0.4 : 0;
        RouteProbe p = {.c = &c, .call = make_route(&c, F64, DENSE)};
        spread_logits(&p.call.in[0], c.e);
        p.dgate = RANDOM(&bench, F64, PADDED, c.t, c.k);
        const Tensor load = NEW(&bench, F64, DENSE, c.e), ds = NEW(&bench, F64, PADDED, c.t, c.e);
        const Tensor stat = accumulator(&bench, NEW(&bench, F64, DENSE, c.e + 2), 1);
        for (int64_t e = 0; e < c.e; e++) put(&load, e, p.load[e] = (double)(3 + e * e % 7));
        run(KERNEL_route, &p.call);
        long double *old = kept(&stat, 1);
        const Call back = {.in = {p.dgate, p.call.in[0], p.call.out[1], load},
                           .n_in = 4,
                           .out = {ds, stat},
                           .n_out = 2,
                           .attr = c.attr,
                           .number = {0, 1}};
        run_twice(&bench, KERNEL_route_dx, &back);
        expect_gradient("route dx", route_value, &p, &p.call.in[0], &ds, NULL);
        route_value(&p);
        for (int64_t e = 0; e < c.e; e++) old[2 + e] += (long double)get(&p.call.out[2], e);
        old[0] += p.losses[0];
        old[1] += p.losses[1];
        expect_close("stat", &stat, old, 1e-12);
        free(old);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_and_gates),
        cmocka_unit_test(ties_and_a_hot_expert),
        cmocka_unit_test(no_tokens),
        cmocka_unit_test(gradients),
    };
    bench_open(&bench);
    const int failed = cmocka_run_group_tests_name("kernels: route", tests, NULL, NULL);
    bench_close(&bench);
    return failed;
}
