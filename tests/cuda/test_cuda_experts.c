/* test_cuda_experts.c -- the router, rows of experts, their exchange and grouped GEMMs on the GPU:
 * ties, groups, a bias, capacity, a hot expert, experts without rows, choices without a row. */
#include "gpu_test.h"

/* ---- the router ---- */

typedef struct {
    int64_t t, e, k;
    Attr attr;
    bool bias;
} RouterCase;

#define ROUTER(...)                                                                                \
    {                                                                                              \
        .route = { __VA_ARGS__ }                                                                   \
    }

static const RouterCase routers[] = {
    {7, 5, 2, ROUTER(.score = ROUTE_SOFTMAX, .scaling = 1, .aux = 0.5), false},
    {300, 64, 8, ROUTER(.score = ROUTE_SOFTMAX, .renormalize = true, .scaling = 1, .z = 0.1),
     false},
    {1001, 8, 2, ROUTER(.score = ROUTE_SOFTMAX_CHOSEN, .scaling = 1.5, .aux = 1, .z = 1), false},
    {6, 4, 4, ROUTER(.score = ROUTE_SOFTMAX, .renormalize = true, .scaling = 2), false},
    {5, 1, 1, ROUTER(.score = ROUTE_SOFTMAX, .renormalize = true, .scaling = 1, .aux = 1), false},
    {90, 8, 3, ROUTER(.score = ROUTE_SIGMOID, .renormalize = true, .scaling = 2.5, .aux = 1), true},
    {70, 7, 2, ROUTER(.score = ROUTE_SIGMOID, .scaling = 1, .aux = 0.25, .z = 0.5), false},
    {90, 12, 4,
     ROUTER(.score = ROUTE_SIGMOID, .renormalize = true, .scaling = 2.5, .groups = 4,
            .chosen_groups = 2),
     true},
    {500, 160, 6,
     ROUTER(.score = ROUTE_SIGMOID, .renormalize = true, .scaling = 1.5, .groups = 8,
            .chosen_groups = 3, .group_best = 2),
     true},
    {9, 12, 3, ROUTER(.score = ROUTE_SOFTMAX, .scaling = 1, .groups = 3, .chosen_groups = 2),
     false},
    {33, 1024, 8, ROUTER(.score = ROUTE_SOFTMAX, .scaling = 1, .aux = 1), false},
};
enum { N_ROUTERS = sizeof routers / sizeof *routers };

/* Distinct logits: rounding to f32 must not change a choice. */
static Tensor logits_of(const RouterCase *c, bool ties)
{
    const Tensor s = RANDOM(&gpu.b, F32, c->t % 2 ? DENSE : PADDED, c->t, c->e);
    for (int64_t i = 0; i < c->t * c->e; i++)
        put(&s, i, ties ? (double)(i * 7 % 3) : 3 * get(&s, i));
    return s;
}

static void router(void **state)
{
    (void)state;
    for (int i = 0; i < N_ROUTERS; i++)
        for (int ties = 0; ties < 2; ties++) {
            const RouterCase *c = &routers[i];
            if (ties && (c->bias || c->attr.route.groups > 1)) continue;
            Call call = {.n_in = 1, .n_out = 3, .attr = c->attr};
            call.in[0] = logits_of(c, ties);
            if (c->bias) call.in[call.n_in++] = RANDOM(&gpu.b, F32, DENSE, c->e);
            call.out[0] = NEW(&gpu.b, F32, DENSE, c->t, c->k);
            call.out[1] = NEW(&gpu.b, I32, PADDED, c->t, c->k);
            call.out[2] = NEW(&gpu.b, F32, DENSE, c->e);
            expect_like_ref(KERNEL_route, &call, gpu_terms((double)c->e), 0);
        }
}

/* A diverged router chooses experts that exist: its step is skipped, and the run goes on. */
static void router_of_nan(void **state)
{
    (void)state;
    for (int i = 0; i < N_ROUTERS; i++)
        for (int all = 0; all < 2; all++) {
            const RouterCase *c = &routers[i];
            bench_clear(&gpu.b);
            Call call = {.n_in = 1, .n_out = 3, .attr = c->attr};
            call.in[0] = logits_of(c, false);
            for (int64_t j = 0; j < c->t * c->e; j++)
                if (all || j % 3 == 1) put(&call.in[0], j, NAN);
            if (c->bias) call.in[call.n_in++] = RANDOM(&gpu.b, F32, DENSE, c->e);
            call.out[0] = NEW(&gpu.b, F32, DENSE, c->t, c->k);
            call.out[1] = NEW(&gpu.b, I32, PADDED, c->t, c->k);
            call.out[2] = NEW(&gpu.b, F32, DENSE, c->e);
            const Tensor *expert = &call.out[1];
            const size_t bytes = gpu.b.arena.used_bytes;
            char *before = malloc(bytes), *after = malloc(bytes);
            assert_true(before && after);
            memcpy(before, gpu.b.arena.base, bytes);
            run_on_gpu(KERNEL_route, &call, before, after);
            const int32_t *got =
                (const int32_t *)(void *)(after + ((char *)expert->data - gpu.b.arena.base));
            for (int64_t j = 0; j < c->t * c->k; j++) {
                const int32_t e = got[offset_of(expert, j)];
                if (e < 0 || e >= c->e)
                    fail_msg("%lld experts: choice %lld is %d", (long long)c->e, (long long)j, e);
            }
            free(before);
            free(after);
        }
}

/* k different experts for each token. hot: all tokens choose the same ones. dropped: some choices
 * have no expert. */
static Tensor choices_of(int64_t t, int64_t k, int64_t e, bool hot, bool dropped)
{
    const Tensor x = NEW(&gpu.b, I32, t % 2 ? DENSE : PADDED, t, k);
    for (int64_t i = 0; i < t * k; i++) {
        const int64_t first = hot ? 3 : i / k * 5 + i / k % 3;
        put(&x, i, dropped && i % 11 == 4 ? -1 : (double)((first + i % k) % e));
    }
    return x;
}

static void router_dx(void **state)
{
    (void)state;
    for (int i = 0; i < N_ROUTERS; i++)
        for (int keep = 0; keep < 3; keep++) {
            const RouterCase *c = &routers[i];
            Call call = {.n_in = 4, .n_out = 2, .attr = c->attr, .number = {0, gpu_keeps[keep]}};
            call.in[0] = RANDOM(&gpu.b, F32, DENSE, c->t, c->k);
            call.in[1] = logits_of(c, false);
            call.in[2] = choices_of(c->t, c->k, c->e, keep == 1, false);
            call.in[3] = NEW(&gpu.b, F32, DENSE, c->e);
            for (int64_t e = 0; e < c->e; e++) put(&call.in[3], e, (double)(e % 5 * c->t / 3));
            call.out[0] = NEW(&gpu.b, F32, DENSE, c->t, c->e);
            call.out[1] = accumulator(&gpu.b, NEW(&gpu.b, F32, DENSE, 2 + c->e), gpu_keeps[keep]);
            expect_like_ref(KERNEL_route_dx, &call, gpu_terms((double)(4 * c->e)), 0);
        }
}

static void choices(void **state)
{
    (void)state;
    static const int64_t size[][3] = {{1, 1, 1},    {37, 2, 5},   {700, 8, 64},
                                      {513, 4, 33}, {40, 1, 300}, {0, 2, 4}};
    for (int i = 0; i < 6; i++)
        for (int hot = 0; hot < 2; hot++) {
            const int64_t t = size[i][0], k = size[i][1], e = size[i][2];
            Call assign = {.n_in = 1, .n_out = 2};
            assign.in[0] = choices_of(t, k, e, hot, t % 2);
            assign.out[0] = NEW(&gpu.b, I32, PADDED, t, k);
            assign.out[1] = NEW(&gpu.b, I32, DENSE, e + 1);
            expect_like_ref(KERNEL_assign_rows, &assign, 0, 0);
            Call excess = {.n_in = 1, .n_out = 1, .number = {hot}};
            excess.in[0] = choices_of(t, k, e, hot, t % 2);
            excess.out[0] = accumulator(&gpu.b, NEW(&gpu.b, F32, DENSE, e), hot);
            expect_like_ref(KERNEL_expert_excess, &excess, gpu_terms(1), 0);
            Call limit = {.n_in = 2, .n_out = 1};
            limit.attr.limit.capacity = i % 2 ? 1.25 : 0.5;
            limit.attr.limit.experts = (int32_t)e, limit.attr.limit.by_gate = i / 2 % 2;
            limit.in[0] = choices_of(t, k, e, hot, false);
            limit.in[1] = RANDOM(&gpu.b, F32, DENSE, t, k);
            limit.out[0] = NEW(&gpu.b, I32, DENSE, t, k);
            expect_like_ref(KERNEL_limit_choices, &limit, 0, 0);
        }
}

/* ---- rows of experts ---- */

enum { T = 185, K = 2, E = 5, ROWS = T * K };

/* Every choice has a row of its own; dropped: some have none. */
static Tensor row_numbers(bool dropped)
{
    const Tensor at = NEW(&gpu.b, I32, PADDED, T, K);
    for (int i = 0; i < ROWS; i++) put(&at, i, dropped && i % 7 == 3 ? -1 : i * 11 % ROWS);
    return at;
}

enum { N_OFFSETS = 5 };

/* Offsets of E experts: even, odd, a hot one, only one, none. Rows past the last are dead. */
static Tensor offsets_of_rows(int which)
{
    static const int offset[N_OFFSETS][E + 1] = {{0, 64, 128, 192, 256, 320},
                                                 {0, 10, 10, 131, 260, 370},
                                                 {0, 0, 0, 350, 351, 370},
                                                 {0, 0, 0, 0, 0, 193},
                                                 {0, 0, 0, 0, 0, 0}};
    const Tensor t = NEW(&gpu.b, I32, DENSE, E + 1);
    for (int e = 0; e <= E; e++) put(&t, e, offset[which][e]);
    return t;
}

/* Rows of experts; the dead ones stay NaN. */
static Tensor rows_of(DType type, Strides strides, int64_t width, const Tensor *offsets)
{
    const Tensor x = NEW(&gpu.b, type, strides, ROWS, width);
    const int64_t live = (int64_t)get(offsets, E) * width;
    for (int64_t i = 0; i < live; i++) put(&x, i, bench_random(&gpu.b));
    return x;
}

static void permutes(void **state)
{
    (void)state;
    for (int i = 0; i < 32; i++) {
        const DType type = gpu_types[i % 2];
        const Strides strides = i / 16 ? PADDED : DENSE;
        const int64_t width = i / 8 % 2 ? 1104 : 37;
        const bool dropped = i / 4 % 2, gated = i / 2 % 2;
        Call there = {.n_in = 2 + gated, .n_out = 1}, back = there, dot = {.n_in = 3, .n_out = 1};
        there.in[0] = RANDOM(&gpu.b, type, strides, T, width);
        there.in[1] = row_numbers(dropped);
        there.in[2] = RANDOM(&gpu.b, F32, DENSE, T, K);
        there.out[0] = NEW(&gpu.b, type, DENSE, ROWS, width);
        expect_like_ref(KERNEL_permute, &there, gpu_terms(1), 0);
        back.in[0] = row_numbers(dropped);
        back.in[1] = RANDOM(&gpu.b, type, strides, ROWS, width);
        back.in[2] = RANDOM(&gpu.b, F32, DENSE, T, K);
        back.out[0] = NEW(&gpu.b, type, DENSE, T, width);
        expect_like_ref(KERNEL_unpermute, &back, gpu_terms(K), 0);
        dot.in[0] = RANDOM(&gpu.b, type, strides, T, width);
        dot.in[1] = row_numbers(dropped);
        dot.in[2] = RANDOM(&gpu.b, type, DENSE, ROWS, width);
        dot.out[0] = NEW(&gpu.b, F32, DENSE, T, K);
        expect_like_ref(KERNEL_permute_dgate, &dot, gpu_terms((double)width), 0);
    }
}

/* 11 choices of a token, an odd number for the sum by pairs. */
static void many_choices(void **state)
{
    (void)state;
    Call back = {.n_in = 3, .n_out = 1};
    back.in[0] = NEW(&gpu.b, I32, DENSE, 30, 11);
    for (int i = 0; i < 330; i++) put(&back.in[0], i, 329 - i);
    back.in[1] = RANDOM(&gpu.b, BF16, DENSE, 330, 256);
    back.in[2] = RANDOM(&gpu.b, F32, DENSE, 30, 11);
    back.out[0] = NEW(&gpu.b, BF16, DENSE, 30, 256);
    expect_like_ref(KERNEL_unpermute, &back, gpu_terms(11), 0);
}

static void pointwise(void **state)
{
    (void)state;
    for (int i = 0; i < 8 * N_OFFSETS; i++) {
        const DType type = gpu_types[i % 2];
        const Strides strides = i / 4 % 2 ? PADDED : DENSE;
        const int64_t width = i / 2 % 2 ? 1104 : 37;
        Call act = {.n_in = 3, .n_out = 1}, back = {.n_in = 4, .n_out = 2};
        act.in[2] = offsets_of_rows(i / 8);
        act.in[0] = rows_of(type, strides, width, &act.in[2]);
        act.in[1] = rows_of(type, strides, width, &act.in[2]);
        act.out[0] = NEW(&gpu.b, type, strides, ROWS, width);
        expect_like_ref(KERNEL_grouped_swiglu, &act, gpu_terms(16), 0);
        back.in[3] = offsets_of_rows(i / 8);
        for (int k = 0; k < 3; k++) back.in[k] = rows_of(type, strides, width, &back.in[3]);
        back.out[0] = NEW(&gpu.b, type, strides, ROWS, width);
        back.out[1] = NEW(&gpu.b, type, strides, ROWS, width);
        expect_like_ref(KERNEL_grouped_swiglu_dx, &back, gpu_terms(16), 0);
        Call gate = {.n_in = 2, .n_out = 1}, gate_dx = {.n_in = 3, .n_out = 2};
        gate.in[0] = RANDOM(&gpu.b, type, strides, T, width);
        gate.in[1] = RANDOM(&gpu.b, type, DENSE, T, 1);
        gate.out[0] = NEW(&gpu.b, type, DENSE, T, width);
        expect_like_ref(KERNEL_sigmoid_gate, &gate, gpu_terms(16), 0);
        for (int k = 0; k < 2; k++) gate_dx.in[k] = RANDOM(&gpu.b, type, strides, T, width);
        gate_dx.in[2] = RANDOM(&gpu.b, type, DENSE, T, 1);
        gate_dx.out[0] = NEW(&gpu.b, type, DENSE, T, width);
        gate_dx.out[1] = NEW(&gpu.b, type, DENSE, T, 1);
        expect_like_ref(KERNEL_sigmoid_gate_dx, &gate_dx, gpu_terms((double)width), 0);
    }
}

/* ---- grouped GEMMs ---- */

/* Widths that no instruction of the tensor cores has, and those of the ping-pong kernel: less than
 * a tile, a tile, more than a pair of tiles, a ragged depth. */
static const int64_t widths[][2] = {{33, 70},   {129, 37}, {8, 8},     {128, 64},
                                    {256, 192}, {72, 200}, {520, 136}, {264, 328}};
enum { N_WIDTHS = sizeof widths / sizeof *widths };

static void grouped_gemms(void **state)
{
    (void)state;
    for (int i = 0; i < N_WIDTHS * N_OFFSETS * 4; i++) {
        const DType type = gpu_types[i % 2];
        const bool tb = i / 2 % 2;
        const int64_t n = widths[i / 4 % N_WIDTHS][0], k = widths[i / 4 % N_WIDTHS][1];
        const double keep = gpu_keeps[i % 3];
        Call c = {.n_in = 3, .n_out = 1, .attr = {.gemm = {.tb = tb}}, .number = {keep}};
        c.in[2] = offsets_of_rows(i / 4 / N_WIDTHS);
        c.in[0] = rows_of(type, DENSE, k, &c.in[2]);
        c.in[1] = tb ? RANDOM(&gpu.b, type, DENSE, E, n, k) : RANDOM(&gpu.b, type, DENSE, E, k, n);
        c.out[0] =
            keep == 0 ? NEW(&gpu.b, type, DENSE, ROWS, n) : rows_of(type, DENSE, n, &c.in[2]);
        expect_like_ref(KERNEL_grouped_gemm, &c, gpu_terms((double)k), 0);
    }
}

static void grouped_gemms_dw(void **state)
{
    (void)state;
    for (int i = 0; i < N_WIDTHS * N_OFFSETS * 6; i++) {
        const DType type = gpu_types[i % 2];
        const int64_t m = widths[i / 6 % N_WIDTHS][0], n = widths[i / 6 % N_WIDTHS][1];
        const double keep = gpu_keeps[i % 3];
        Call c = {.n_in = 3, .n_out = 1, .number = {keep}};
        c.in[2] = offsets_of_rows(i / 6 / N_WIDTHS);
        c.in[0] = rows_of(type, DENSE, m, &c.in[2]);
        c.in[1] = rows_of(type, DENSE, n, &c.in[2]);
        c.out[0] = accumulator(&gpu.b, NEW(&gpu.b, F32, DENSE, E, m, n), keep);
        expect_like_ref(KERNEL_grouped_gemm_dw, &c, gpu_terms(ROWS), 0);
    }
}

static Call fused_swiglu(DType type, int offsets, int64_t n, int64_t k)
{
    Call c = {.n_in = 4, .n_out = 3, .attr = {.gemm = {.tb = true}}};
    c.in[3] = offsets_of_rows(offsets);
    c.in[0] = rows_of(type, DENSE, k, &c.in[3]);
    for (int i = 1; i < 3; i++) c.in[i] = RANDOM(&gpu.b, type, DENSE, E, n, k);
    for (int i = 0; i < 3; i++) c.out[i] = NEW(&gpu.b, type, DENSE, ROWS, n);
    return c;
}

static Call fused_dswiglu(DType type, int offsets, int64_t n, int64_t k)
{
    Call c = {.n_in = 5, .n_out = 2};
    c.in[2] = offsets_of_rows(offsets);
    c.in[0] = rows_of(type, DENSE, k, &c.in[2]);
    c.in[1] = RANDOM(&gpu.b, type, DENSE, E, k, n);
    for (int i = 3; i < 5; i++) c.in[i] = rows_of(type, DENSE, n, &c.in[2]);
    for (int i = 0; i < 2; i++) c.out[i] = NEW(&gpu.b, type, DENSE, ROWS, n);
    return c;
}

static Call fused_pair(DType type, int offsets, int64_t n, int64_t k)
{
    Call c = {.n_in = 5, .n_out = 1};
    c.in[4] = offsets_of_rows(offsets);
    for (int i = 0; i < 4; i += 2) {
        c.in[i] = rows_of(type, DENSE, k, &c.in[4]);
        c.in[i + 1] = RANDOM(&gpu.b, type, DENSE, E, k, n);
    }
    c.out[0] = NEW(&gpu.b, type, DENSE, ROWS, n);
    return c;
}

static void fused_gemms(void **state)
{
    (void)state;
    for (int i = 0; i < N_WIDTHS * N_OFFSETS * 2; i++) {
        const DType type = gpu_types[i % 2];
        const int64_t n = widths[i / 2 % N_WIDTHS][0], k = widths[i / 2 % N_WIDTHS][1];
        const int offsets = i / 2 / N_WIDTHS;
        gpu.m->deterministic(gpu.context, i % 16 == 9); /* a swiglu is not fused then */
        const double inside = type == BF16 ? ldexp(1, -8) : 0;
        const Call swiglu = fused_swiglu(type, offsets, n, k);
        expect_like_ref(KERNEL_grouped_gemm_swiglu, &swiglu, gpu_terms((double)k), inside);
        const Call dswiglu = fused_dswiglu(type, offsets, n, k);
        expect_like_ref(KERNEL_grouped_gemm_dswiglu, &dswiglu, gpu_terms((double)k), inside);
        const Call pair = fused_pair(type, offsets, n, k);
        expect_like_ref(KERNEL_grouped_gemm_pair, &pair, gpu_terms((double)(2 * k)), inside);
    }
    gpu.m->deterministic(gpu.context, true);
}

/* ---- rows of other ranks ---- */

enum { D = 40, EXPERTS = 12, TOKENS = 50 };

typedef struct {
    int ep, etp;
    int64_t room;
} Mesh;

static Attr exchange_attr(Mesh m, int part)
{
    return (Attr){.exchange = {.ep = m.ep, .etp = m.etp, .part = part, .room = m.room}};
}

/* Offsets of all ranks: rank r has TOKENS rows, more for some experts than for others; rank 1
 * none. */
static Tensor all_offsets(Mesh m)
{
    const Tensor all = NEW(&gpu.b, I32, DENSE, m.ep * m.etp, EXPERTS + 1);
    for (int r = 0; r < m.ep * m.etp; r++)
        for (int e = 0, next = 0; e <= EXPERTS; e++) {
            put(&all, r * (EXPERTS + 1) + e, next);
            if (r != 1) next += (e + r) % 3 * (TOKENS / EXPERTS);
        }
    return all;
}

static void exchange(void **state)
{
    (void)state;
    static const Mesh mesh[] = {{1, 1, 60}, {2, 1, 40}, {4, 1, 60}, {3, 2, 30}, {12, 1, 9}};
    for (int i = 0; i < 5; i++)
        for (int part = 0; part < mesh[i].ep; part++) {
            const Mesh m = mesh[i];
            const int64_t rooms = m.ep * m.etp * m.room;
            Call sum = {.n_in = 1, .n_out = 1, .attr = exchange_attr(m, part)};
            sum.in[0] = all_offsets(m);
            sum.out[0] = NEW(&gpu.b, I32, DENSE, EXPERTS / m.ep + 1);
            expect_like_ref(KERNEL_sum_offsets, &sum, 0, 0);
            for (int way = 0; way < 4; way++) {
                Call copy = {.n_in = 2, .n_out = 1, .attr = exchange_attr(m, part)};
                copy.in[0] = RANDOM(&gpu.b, gpu_types[way % 2], DENSE, rooms, D);
                copy.in[1] = all_offsets(m);
                copy.out[0] = NEW(&gpu.b, gpu_types[way % 2], DENSE, rooms, D);
                expect_like_ref(way / 2 ? KERNEL_spread_rows : KERNEL_collect_rows, &copy, 0, 0);
            }
        }
}

static void send_rows(void **state)
{
    (void)state;
    static const Mesh mesh[] = {{1, 1, 200}, {2, 1, 100}, {4, 3, 100}, {12, 1, 100}};
    for (int i = 0; i < 4; i++) {
        Call assign = {.n_in = 1, .n_out = 2}, send = {.n_in = 2, .n_out = 1};
        assign.in[0] = choices_of(TOKENS, 3, EXPERTS, i == 1, i % 2);
        send.in[0] = assign.out[0] = NEW(&gpu.b, I32, DENSE, TOKENS, 3);
        send.in[1] = assign.out[1] = NEW(&gpu.b, I32, DENSE, EXPERTS + 1);
        run(KERNEL_assign_rows, &assign);
        send.attr = exchange_attr(mesh[i], 0);
        if (i == 1) send.attr.exchange.room = 150; /* all tokens choose the same part */
        send.out[0] = NEW(&gpu.b, I32, PADDED, TOKENS, 3);
        expect_like_ref(KERNEL_send_rows, &send, 0, 0);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(router),           cmocka_unit_test(router_of_nan),
    cmocka_unit_test(router_dx),        cmocka_unit_test(choices),
    cmocka_unit_test(permutes),         cmocka_unit_test(many_choices),
    cmocka_unit_test(pointwise),        cmocka_unit_test(grouped_gemms),
    cmocka_unit_test(grouped_gemms_dw), cmocka_unit_test(fused_gemms),
    cmocka_unit_test(exchange),         cmocka_unit_test(send_rows),
};

GPU_MAIN(tests)
