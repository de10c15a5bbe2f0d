/* test_call.c -- CALL: the middle of a unit is a sub-program that the step binds, run in a region
 * of fixed size. A call gives the same bits as the unit with the sub-program inlined. */
#include "support/expect.h"
#include "support/tiny.h"

enum { T = 9, D = 18, REGION = 3 * 9 * 18 * 8 };

/* The sub-programs, as functions of two values; inlined, they are the oracle. */
typedef Value (*Middle)(Graph *g, Dim rows, Value a, Value b);

static Value middle_gelu(Graph *g, Dim rows, Value a, Value b)
{
    (void)rows;
    return add(g, gelu(g, a), b);
}

static Value middle_swiglu(Graph *g, Dim rows, Value a, Value b)
{
    (void)rows;
    return scale(g, swiglu(g, gelu(g, a), b), -0.3);
}

/* Reads its argument through a view, and an input of the micro-batch. */
static Value middle_rope(Graph *g, Dim rows, Value a, Value b)
{
    const Attr attr = {.rope = {.theta = 30.0, .factor = 1.0}};
    const Value rotated = rope(g, heads(g, a, 6), input(g, INPUT_POSITIONS, rows), &attr);
    return add(g, merge(g, rotated), b);
}

/* Six values of 1344 bytes (aligned) live at once: more than the region has. */
static Value middle_large(Graph *g, Dim rows, Value a, Value b)
{
    (void)rows;
    Value v[6], sum = b;
    for (int i = 0; i < 6; i++) v[i] = scale(g, a, 0.1 * i);
    for (int i = 0; i < 6; i++) sum = add(g, sum, gelu(g, v[i]));
    return sum;
}

/* The unit around the middle. A TinyBody takes no arguments, so each middle has its own body. */
static Value body_of(Graph *g, Dim rows, Value x, Middle middle)
{
    const Value a = rmsnorm(g, x, tiny_param(g, "n", D, 0), 1e-5);
    const Value b = linear(g, x, tiny_param(g, "w", D, D), NO_VALUE);
    const Dims out = dims2(rows, dim_of(D));
    const Value c = middle ? middle(g, rows, a, b) : call(g, 2, (Value[]){a, b}, out, 0, REGION);
    return add(g, x, c);
}

/* Declares the inputs of all middles: those of a program that is bound later are not known. */
static Value body_call(Graph *g, Dim r, Value x)
{
    input(g, INPUT_POSITIONS, r);
    return body_of(g, r, x, NULL);
}

static Value body_without_inputs(Graph *g, Dim r, Value x) { return body_of(g, r, x, NULL); }
static Value body_gelu(Graph *g, Dim r, Value x) { return body_of(g, r, x, middle_gelu); }
static Value body_swiglu(Graph *g, Dim r, Value x) { return body_of(g, r, x, middle_swiglu); }
static Value body_rope(Graph *g, Dim r, Value x) { return body_of(g, r, x, middle_rope); }

/* Operands that are parts of one GEMM's output: their rows are strided. */
static Value parts_of(Graph *g, Dim rows, Value x, bool called)
{
    const Value wa = tiny_param(g, "a", D, D), wb = tiny_param(g, "b", D, D);
    const Value a = linear(g, x, wa, NO_VALUE), b = linear(g, x, wb, NO_VALUE);
    if (!called) return middle_gelu(g, rows, a, b);
    input(g, INPUT_POSITIONS, rows);
    return call(g, 2, (Value[]){a, b}, dims2(rows, dim_of(D)), 0, REGION);
}

static Value body_parts(Graph *g, Dim r, Value x) { return parts_of(g, r, x, true); }
static Value body_parts_out(Graph *g, Dim r, Value x) { return parts_of(g, r, x, false); }

static TinySpec spec_of(TinyBody body)
{
    return (TinySpec){.body = body, .bodies = 2, .dtype = F64, .rows = T, .width = D, .micros = 2};
}

static double run_once(Rank *r)
{
    StepResult result;
    DO(rank_step(r, &(StepSettings){.step = 1, .lr = 0}, &result));
    return result.loss_sum;
}

static double inlined(TinyBody body)
{
    Tiny t;
    const TinySpec spec = spec_of(body);
    DO(tiny_open(&t, &spec));
    const double loss = run_once(&t.rank);
    tiny_close(&t);
    return loss;
}

static Value argument(Graph *g, int index, int64_t width)
{
    const Dims dims = dims2(dim_rows(T, SLOT_ROWS), dim_of(width));
    const Value v = graph_value(g, ROLE_ARG, "", F64, dims);
    g->value[v].index = index;
    return v;
}

static Program sub_program(const char *kind, Middle middle, int64_t width, int result, Arena *a)
{
    Graph g;
    Program p;
    graph_init(&g, kind, F64, a);
    const Value x = argument(&g, 0, width), y = argument(&g, 1, width);
    const Value z = own(&g, middle(&g, dim_rows(T, SLOT_ROWS), x, y));
    g.value[z].role = ROLE_ARG;
    g.value[z].index = result;
    DO(graph_check(&g));
    DO(lower(&g, a, &p));
    return p;
}

static void open_call(Tiny *t, TinyBody body)
{
    TinySpec spec = spec_of(body);
    spec.bind = true;
    DO(tiny_open(t, &spec));
}

static void each_step_binds_its_own(void **state)
{
    (void)state;
    Tiny t;
    open_call(&t, body_call);
    const Program a = sub_program("gelu", middle_gelu, D, 2, &t.arena);
    const Program b = sub_program("swiglu", middle_swiglu, D, 2, &t.arena);
    const Program c = sub_program("rope", middle_rope, D, 2, &t.arena);
    const Program *step[] = {&a, &b, &c, &a};
    const TinyBody want[] = {body_gelu, body_swiglu, body_rope, body_gelu};
    assert_true(b.scratch_bytes[PHASE_F] > 0); /* the region is used */
    for (int i = 0; i < 4; i++) {
        DO(rank_bind(&t.rank, 0, step[i]));
        const double got = run_once(&t.rank), oracle = inlined(want[i]);
        if (got != oracle) fail_msg("step %d: loss %.17g, not %.17g", i, got, oracle);
    }
    tiny_close(&t);
}

static void operands_may_be_views(void **state)
{
    (void)state;
    Tiny t;
    open_call(&t, body_parts);
    const Program a = sub_program("gelu", middle_gelu, D, 2, &t.arena);
    const Program c = sub_program("rope", middle_rope, D, 2, &t.arena);
    DO(rank_bind(&t.rank, 0, &a));
    assert_true(run_once(&t.rank) == inlined(body_parts_out));
    expect_error("a view of a part", rank_bind(&t.rank, 0, &c), ERR_CONFIG, "copy it first");
    tiny_close(&t);
}

/* The size of a region is part of the program; a sub-program that needs more is refused. */
static void larger_sub_program_is_refused(void **state)
{
    (void)state;
    Tiny t;
    open_call(&t, body_call);
    const Program a = sub_program("gelu", middle_gelu, D, 2, &t.arena);
    const Program big = sub_program("large", middle_large, D, 2, &t.arena);
    DO(rank_bind(&t.rank, 0, &a));
    expect_error("large", rank_bind(&t.rank, 0, &big), ERR_CONFIG,
                 "needs a region of 8064 bytes, the call in body leaves it 3888");
    assert_true(run_once(&t.rank) == inlined(body_gelu)); /* the old binding stays */
    tiny_close(&t);
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    Tiny t;
    open_call(&t, body_call);
    const Program narrow = sub_program("narrow", middle_gelu, D - 6, 2, &t.arena);
    const Program extra = sub_program("extra", middle_gelu, D, 3, &t.arena);
    const Program writer = sub_program("writer", middle_gelu, D, 1, &t.arena);
    expect_error("narrow", rank_bind(&t.rank, 0, &narrow), ERR_CONFIG, "type or shape");
    expect_error("extra", rank_bind(&t.rank, 0, &extra), ERR_CONFIG,
                 "argument 3: the call in body");
    expect_error("writer", rank_bind(&t.rank, 0, &writer), ERR_CONFIG, "writes argument 1");
    expect_error("nest", rank_bind(&t.rank, 0, &t.program[1]), ERR_CONFIG, "calls another");
    expect_error("slot", rank_bind(&t.rank, MAX_CALLS, &extra), ERR_CONFIG, "slots 0 to 7");
    tiny_close(&t);
}

static void missing_inputs_are_refused(void **state)
{
    (void)state;
    Tiny t;
    open_call(&t, body_without_inputs);
    const Program a = sub_program("rope", middle_rope, D, 2, &t.arena);
    expect_error("positions", rank_bind(&t.rank, 0, &a), ERR_CONFIG,
                 "reads the input positions, which no unit of the model declares");
    tiny_close(&t);
}

static void unbound_is_an_error(void **state)
{
    (void)state;
    Tiny t;
    StepResult result;
    const StepSettings step = {.step = 1, .lr = 0};
    open_call(&t, body_call);
    expect_error("unbound", rank_step(&t.rank, &step, &result), ERR_CHECK,
                 "nothing is bound to call slot 0");
    tiny_close(&t);

    const TinySpec spec = spec_of(body_call); /* no BIND in the list: never bound */
    DO(tiny_open(&t, &spec));
    const Program a = sub_program("gelu", middle_gelu, D, 2, &t.arena);
    DO(rank_bind(&t.rank, 0, &a));
    expect_error("no BIND", rank_step(&t.rank, &step, &result), ERR_CHECK, "bind.0 in its list");
    tiny_close(&t);
}

/* Slots that do not exist are refused by rank_open. */
static Value body_bad_slot(Graph *g, Dim rows, Value x)
{
    return call(g, 1, &x, dims2(rows, dim_of(D)), MAX_CALLS, 64);
}

static void missing_slots_are_refused(void **state)
{
    (void)state;
    Tiny t;
    Rank r;
    const TinySpec bad = spec_of(body_bad_slot);
    expect_error("call", tiny_open(&t, &bad), ERR_CONFIG, "body: call slot 8");
    tiny_close(&t);
    open_call(&t, body_call);
    t.linked.list[0].action.unit = MAX_CALLS;
    expect_error("bind", rank_open(&r, &t.rank.settings), ERR_CONFIG, "a BIND of the list");
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_step_binds_its_own),
        cmocka_unit_test(operands_may_be_views),
        cmocka_unit_test(larger_sub_program_is_refused),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(missing_inputs_are_refused),
        cmocka_unit_test(unbound_is_an_error),
        cmocka_unit_test(missing_slots_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
