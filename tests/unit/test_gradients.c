/* Every op with a gradient, through graph, passes, program, list and executor, against f64 finite
 * differences: relative error below 1e-6 of the tensor's largest entry. Two micro-batches of
 * different sizes, so that sums accumulate; merged and split backward; nothing, the cheap ops and
 * everything recomputed. */
#include <math.h>

#include "support/expect.h"
#include "support/slopes.h"
#include "support/tiny.h"

enum { T = 11, MAX_SLOPES = 512, EACH = 20 };

typedef struct {
    const char *name;
    TinyBody body;
    int64_t width;
    int bodies;
    bool squares;
    int64_t fixed; /* rows, all live; 0: T at most */
} Case;

static Value body_linear(Graph *g, Dim rows, Value x)
{
    (void)rows;
    const Value y = linear(g, x, tiny_param(g, "w", 7, 15), NO_VALUE);
    return linear(g, y, tiny_param(g, "v", 15, 7), tiny_param(g, "b", 15, 0));
}

/* x reaches the output by three paths, one of them twice. */
static Value body_add_scale(Graph *g, Dim rows, Value x)
{
    (void)rows;
    const Value twice = add(g, x, x);
    return add(g, scale(g, twice, -0.7), linear(g, x, tiny_param(g, "w", 15, 15), NO_VALUE));
}

/* The unit's dx is its dy. */
static Value body_pass(Graph *g, Dim rows, Value x)
{
    (void)rows;
    return scale(g, x, 1.0);
}

static Value body_cast(Graph *g, Dim rows, Value x)
{
    (void)rows;
    return cast(g, linear(g, cast(g, x, F64), tiny_param(g, "w", 15, 15), NO_VALUE), F64);
}

static Value body_gelu(Graph *g, Dim rows, Value x)
{
    (void)rows;
    const Value up = linear(g, x, tiny_param(g, "up", 19, 15), tiny_param(g, "b", 19, 0));
    return linear(g, gelu(g, up), tiny_param(g, "down", 15, 19), NO_VALUE);
}

/* gate and up are fused into one GEMM, since their weights are adjacent. */
static Value body_swiglu(Graph *g, Dim rows, Value x)
{
    (void)rows;
    const Value wg = tiny_param(g, "gate", 9, 15), wu = tiny_param(g, "up", 9, 15);
    const Value h = swiglu(g, linear(g, x, wg, NO_VALUE), linear(g, x, wu, NO_VALUE));
    return add(g, x, linear(g, h, tiny_param(g, "down", 15, 9), NO_VALUE));
}

static Value body_layernorm(Graph *g, Dim rows, Value x)
{
    (void)rows;
    return layernorm(g, x, tiny_param(g, "w", 15, 0), tiny_param(g, "b", 15, 0), 1e-5);
}

static Value body_rmsnorm(Graph *g, Dim rows, Value x)
{
    (void)rows;
    return rmsnorm(g, x, tiny_param(g, "w", 15, 0), 1e-5);
}

static Value body_headnorm(Graph *g, Dim rows, Value x)
{
    (void)rows;
    return merge(g, rmsnorm(g, heads(g, x, 5), tiny_param(g, "w", 5, 0), 1e-5));
}

static Value turn(Graph *g, Dim rows, Value x, RopeScaling scaling)
{
    const Attr attr = {.rope = {.theta = 50.0,
                                .factor = 3.0,
                                .low = 1.0,
                                .high = 4.0,
                                .original = 16,
                                .scaling = scaling}};
    return rope(g, x, input(g, INPUT_POSITIONS, rows), &attr);
}

static Value body_rope(Graph *g, Dim rows, Value x)
{
    for (int s = ROPE_PLAIN; s <= ROPE_LLAMA3; s++)
        x = merge(g, turn(g, rows, heads(g, x, 6), (RopeScaling)s));
    return x;
}

/* Grouped-query attention: four query heads on two key heads; two key ranges per row,
 * within documents. */
static Value body_attention(Graph *g, Dim rows, Value x)
{
    const Value wq = tiny_param(g, "q", 12, 15), wk = tiny_param(g, "k", 6, 15),
                wv = tiny_param(g, "v", 6, 15);
    const Value q = heads(g, linear(g, x, wq, NO_VALUE), 3);
    const Value k = heads(g, linear(g, x, wk, NO_VALUE), 3);
    const Value v = heads(g, linear(g, x, wv, NO_VALUE), 3);
    const Value o = attention(g, q, k, v, input(g, INPUT_RANGES, rows), 0.9, T);
    return linear(g, merge(g, o), tiny_param(g, "o", 15, 12), NO_VALUE);
}

static Value along(Graph *g, Value x, const char *const name[4], int64_t length, int64_t inner)
{
    const Value q = heads(g, linear(g, x, tiny_param(g, name[0], 12, 15), NO_VALUE), 3);
    const Value k = heads(g, linear(g, x, tiny_param(g, name[1], 6, 15), NO_VALUE), 3);
    const Value v = heads(g, linear(g, x, tiny_param(g, name[2], 6, 15), NO_VALUE), 3);
    const Value o = attention_along(g, q, k, v, length, inner, 0.9);
    return linear(g, merge(g, o), tiny_param(g, name[3], 15, 12), NO_VALUE);
}

/* Tokens (2 frames, 3 rows, 2 columns): attention along columns, rows and frames. */
static Value body_along(Graph *g, Dim rows, Value x)
{
    static const char *const name[3][4] = {
        {"q", "k", "v", "o"}, {"q2", "k2", "v2", "o2"}, {"q3", "k3", "v3", "o3"}};
    (void)rows;
    x = add(g, x, along(g, x, name[0], 2, 1));
    x = add(g, x, along(g, x, name[1], 3, 2));
    return add(g, x, along(g, x, name[2], 2, 6));
}

static Value body_transpose(Graph *g, Dim rows, Value x)
{
    (void)rows;
    const Value y = linear(g, x, tiny_param(g, "w", 15, 15), NO_VALUE);
    const Value z = fold_rows(g, gelu(g, transpose_rows(g, unfold_rows(g, y, 3))));
    return linear(g, fold_rows(g, unfold_rows(g, z, 4)), tiny_param(g, "v", 15, 15), NO_VALUE);
}

/* One matrix in two GEMMs, one vector in two norms: their gradients have two terms. */
static Value body_shared(Graph *g, Dim rows, Value x)
{
    (void)rows;
    const Value w = tiny_param(g, "w", 15, 15), n = tiny_param(g, "n", 15, 0);
    const Value a = rmsnorm(g, linear(g, x, w, NO_VALUE), n, 1e-5);
    return add(g, x, rmsnorm(g, linear(g, gelu(g, a), w, NO_VALUE), n, 1e-5));
}

static Value stack(Graph *g, const char *name, int64_t n, int64_t out, int64_t in)
{
    return graph_param(g, (ParamInfo){.name = name,
                                      .ndim = 3,
                                      .n = {n, out, in},
                                      .init = INIT_NORMAL,
                                      .std = 0.3,
                                      .decay = true});
}

/* Four experts, two of each token, with both losses of the router; a shared expert with a gate. */
static Value mixture(Graph *g, Value x, const Attr *attr, double capacity)
{
    enum { D = 15, F = 9, N = 4, K = 2 };
    const Value logits = linear_wide(g, x, tiny_param(g, "router", N, D));
    const Routing r = route(g, logits, NO_VALUE, K, attr);
    const Attr limit = {.limit = {capacity, N, false}};
    const Value kept = capacity > 0 ? limit_choices(g, &r, &limit) : r.expert;
    const RowAssignment rows = assign_rows(g, kept, N);
    const Value in = permute(g, x, rows.at, NO_VALUE);
    const Value gate = grouped_linear(g, in, stack(g, "gate", N, F, D), rows.offsets);
    const Value up = grouped_linear(g, in, stack(g, "up", N, F, D), rows.offsets);
    const Value h = grouped_swiglu(g, gate, up, rows.offsets);
    const Value out = grouped_linear(g, h, stack(g, "down", N, D, F), rows.offsets);
    const Value shared = linear(g, x, tiny_param(g, "shared", D, D), NO_VALUE);
    const Value s = linear(g, x, tiny_param(g, "shared_gate", 1, D), NO_VALUE);
    return add(g, unpermute(g, rows.at, out, r.gate), sigmoid_gate(g, shared, s));
}

static Value body_experts(Graph *g, Dim rows, Value x)
{
    const Attr attr = {.route = {.score = ROUTE_SOFTMAX, .renormalize = true, .scaling = 1}};
    (void)rows;
    return mixture(g, x, &attr, 0);
}

static Value body_sigmoid_experts(Graph *g, Dim rows, Value x)
{
    const Attr attr = {.route = {.score = ROUTE_SIGMOID,
                                 .renormalize = true,
                                 .scaling = 2.5,
                                 .groups = 2,
                                 .chosen_groups = 1}};
    (void)rows;
    return mixture(g, x, &attr, 0);
}

static Value body_dropping_experts(Graph *g, Dim rows, Value x)
{
    const Attr attr = {.route = {.score = ROUTE_SOFTMAX_CHOSEN, .scaling = 1}};
    (void)rows;
    return mixture(g, x, &attr, 0.8);
}

static Value clip_vector(Graph *g, Value features, const char *w, const char *b)
{
    return linear(g, features, tiny_param(g, w, 15, 8), tiny_param(g, b, 15, 0));
}

/* A block of a diffusion transformer, without attention. */
static Value body_modulate(Graph *g, Dim rows, Value x)
{
    const Value clips = input(g, INPUT_CLIPS, rows);
    const Value t = sinusoid(g, input(g, INPUT_TIMES, dim_of(TINY_CLIPS)), 8, 3.0);
    const Value scale = clip_vector(g, t, "scale.w", "scale.b");
    const Value shift = clip_vector(g, t, "shift.w", "shift.b");
    const Value gate = clip_vector(g, t, "gate.w", "gate.b");
    const Value a = modulate(g, x, scale, shift, clips, 1e-3);
    return gate_add(g, linear(g, a, tiny_param(g, "w", 15, 15), NO_VALUE), gate, clips, x);
}

static const Case cases[] = {
    {"linear", body_linear, 15, 1, false, false},
    {"add, scale", body_add_scale, 15, 2, false, false},
    {"pass", body_pass, 15, 2, false, false},
    {"cast", body_cast, 15, 1, false, false},
    {"gelu", body_gelu, 15, 1, false, false},
    {"swiglu", body_swiglu, 15, 2, false, false},
    {"layernorm", body_layernorm, 15, 2, false, false},
    {"rmsnorm", body_rmsnorm, 15, 2, false, false},
    {"headnorm", body_headnorm, 15, 1, false, false},
    {"rope", body_rope, 18, 1, false, false},
    {"attention", body_attention, 15, 1, false, false},
    {"shared", body_shared, 15, 1, false, false},
    {"experts", body_experts, 15, 1, false, false},
    {"sigmoid", body_sigmoid_experts, 15, 1, false, false},
    {"capacity", body_dropping_experts, 15, 1, false, false},
    {"modulate", body_modulate, 15, 2, false, false},
    {"squares", body_linear, 15, 1, .squares = true},
    {"along", body_along, 15, 1, .fixed = 12},
    {"transpose", body_transpose, 15, 2, .fixed = 12},
};

static void compare_all_ways(const TinySpec *spec, const Case *c, const Slope *slope, int n)
{
    for (int way = 0; way < 8; way++) {
        Tiny t;
        StepResult result;
        int worst = 0;
        TinySpec s = *spec;
        s.compile = (CompileOptions){.backward = true,
                                     .recompute = (Recompute)(way % 3),
                                     .chunk_elements = way % 2 ? 3 * TINY_VOCAB : 0};
        s.split = way / 2 % 2;
        s.one_by_one = way / 4;
        DO(tiny_open(&t, &s));
        DO(rank_step(&t.rank, &(StepSettings){.step = 1, .lr = 0}, &result));
        const double off = slopes_compare(&t.rank, slope, n, &worst);
        const Slope *at = &slope[worst];
        const Tensor dw = rank_param(&t.rank, at->param, PART_GRAD);
        if (!(off < 1e-6))
            fail_msg("%s, way %d: d.%s[%lld] is %.15g, the slope %.15g: off by %g", c->name, way,
                     t.model.param[at->param].name, (long long)at->at, real_get(&dw, at->at),
                     at->slope, off);
        tiny_close(&t);
    }
}

static void check_case(const Case *c)
{
    static Slope slope[MAX_SLOPES];
    const TinySpec spec = {.body = c->body,
                           .bodies = c->bodies,
                           .squares = c->squares,
                           .dtype = F64,
                           .rows = c->fixed ? c->fixed : T,
                           .fixed = c->fixed > 0,
                           .width = c->width,
                           .micros = 2};
    Tiny t;
    Err err;
    DO(tiny_open(&t, &spec));
    const int n = slopes_measure(&t.rank, EACH, MAX_SLOPES, slope, &err);
    DO(err);
    tiny_close(&t);
    assert_true(n >= 2 * EACH);
    compare_all_ways(&spec, c, slope, n);
}

static void every_op(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&cases[i]);
}

/* Finite differences cannot see a rounding to f32 in between; its gradient is the identity. */
static Value body_narrow(Graph *g, Dim rows, Value x)
{
    (void)rows;
    const Value y = cast(g, graph_name(g, cast(g, x, F32), "narrow"), F64);
    return linear(g, y, tiny_param(g, "w", 15, 15), NO_VALUE);
}

static Value body_wide(Graph *g, Dim rows, Value x)
{
    (void)rows;
    return linear(g, x, tiny_param(g, "w", 15, 15), NO_VALUE);
}

static void casts_pass_gradients(void **state)
{
    (void)state;
    static Tiny t[2];
    StepResult result;
    for (int i = 0; i < 2; i++) {
        const TinySpec spec = {.body = i ? body_narrow : body_wide,
                               .dtype = F64,
                               .rows = T,
                               .width = 15,
                               .micros = 2,
                               .compile = {.backward = true}};
        DO(tiny_open(&t[i], &spec));
        DO(rank_step(&t[i].rank, &(StepSettings){.step = 1, .lr = 0}, &result));
    }
    for (int p = 0; p < t[0].model.n_params; p++) {
        const Tensor a = rank_param(&t[0].rank, p, PART_GRAD),
                     b = rank_param(&t[1].rank, p, PART_GRAD);
        bool same = true;
        for (int64_t i = 0; i < tensor_count(&a); i++) {
            assert_true(fabs(real_get(&a, i) - real_get(&b, i)) < 1e-5);
            same = same && real_get(&a, i) == real_get(&b, i);
        }
        assert_false(same); /* it did round */
    }
    const Program *narrow = &t[1].program[1]; /* and a gradient has the type of its value */
    int found = 0;
    for (int i = 0; i < narrow->n_tensors; i++)
        if (strcmp(narrow->tensor[i].name, "d.narrow") == 0)
            found += narrow->tensor[i].dtype == F32;
    assert_int_equal(found, 1);
    for (int i = 0; i < 2; i++) tiny_close(&t[i]);
}

/* A gradient that is never accumulated would be lost silently. */
static Value body_lost(Graph *g, Dim rows, Value x)
{
    (void)rows;
    return linear(g, x, scale(g, tiny_param(g, "w", 15, 15), 2.0), NO_VALUE);
}

static void no_gradient_is_lost(void **state)
{
    (void)state;
    const TinySpec spec = {.body = body_lost,
                           .dtype = F64,
                           .rows = T,
                           .width = 15,
                           .micros = 1,
                           .compile = {.backward = true}};
    Tiny t;
    assert_int_equal(tiny_open(&t, &spec), ERR_CHECK);
    assert_non_null(strstr(err_text(), "parameter w"));
    tiny_close(&t);
}

/* A unit's output must be computed in it: a view would leave the next unit without its bytes. */
static void a_view_is_not_handed_on(void **state)
{
    (void)state;
    Arena arena;
    Graph g;
    DO(arena_open(&arena, "views", ARENA_PLENTY));
    graph_init(&g, "views", F64, &arena);
    const Value x = stream_in(&g, dim_of(T), 15);
    const Value y = merge(&g, heads(&g, gelu(&g, x), 5));
    g.value[y].role = ROLE_Y;
    assert_int_equal(graph_check(&g), ERR_CHECK);
    assert_non_null(strstr(err_text(), "a view cannot be handed on"));
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op),
        cmocka_unit_test(casts_pass_gradients),
        cmocka_unit_test(no_gradient_is_lost),
        cmocka_unit_test(a_view_is_not_handed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
