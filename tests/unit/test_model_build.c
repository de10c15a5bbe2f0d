/* Invalid models are refused with a reason, instead of training something else. */
#include "support/expect.h"

#include <string.h>

#include "compile/compile.h"
#include "model/build.h"

enum { T = 6, D = 4, V = 9 };

static void refused(Err err, Err want, const char *message)
{
    if (err != want || !strstr(err_text(), message))
        fail_msg("%d: %s; not %d: %s", (int)err, err_text(), (int)want, message);
}

/* A unit that ends in a loss, like a head. */
static void build_loss(Graph *g, Arena *a)
{
    graph_init(g, "head", F64, a);
    const Value x = stream_in(g, dim_of(T), D);
    const Value w = weight2(g, "w", V, D, 0.1);
    const Value targets = input(g, INPUT_TARGETS, dim_of(T));
    token_loss(g, x, w, targets, input(g, INPUT_WEIGHTS, dim_of(T)));
}

/* Two losses would share one cell: the second would overwrite the first. */
static void two_losses(void **state)
{
    (void)state;
    Arena a;
    Model m;
    DO(arena_open(&a, "test", ARENA_PLENTY));
    DO(model_open(&m, "test", 3, 8, &a));
    build_loss(&m.kind[0], &a);
    m.n_kinds = 1;
    DO(model_add_unit(&m, 0, "first", "first."));
    refused(model_add_unit(&m, 0, "second", "second."), ERR_CHECK,
            "unit second: unit first has a loss already");
    arena_close(&a);
}

/* A parameter without readers would decay, and its undefined gradient sum would enter the norm. */
static void idle_parameter(void **state)
{
    (void)state;
    Arena a;
    Graph g;
    Program p;
    const Mesh mesh = mesh_single();
    const CompileOptions o = {.backward = true, .strategy = &strategy_tp, .mesh = &mesh};
    DO(arena_open(&a, "test", ARENA_PLENTY));
    graph_init(&g, "body", F64, &a);
    const Value x = stream_in(&g, dim_of(T), D);
    const Value w = weight2(&g, "used", D, D, 0.1);
    weight2(&g, "idle", D, D, 0.1);
    stream_out(&g, linear(&g, x, w, NO_VALUE));
    refused(compile_unit(&g, &o, NULL, NULL, &a, &p), ERR_CHECK,
            "parameter idle does not reach the output");
    arena_close(&a);
}

static void sizes(void **state)
{
    (void)state;
    Arena a;
    ModelConfig c;
    Model m;
    DO(arena_open(&a, "test", ARENA_PLENTY));
    DO(model_config_load("llama-tiny", NULL, 0, &a, &c));
    refused(model_build(&c, F32, (BatchShape){0, 8}, &a, &m), ERR_CONFIG,
            "both must be at least 1");
    refused(model_build(&c, F32, (BatchShape){1, c.max_positions + 1}, &a, &m), ERR_CONFIG,
            "has positions for");
    refused(model_build(&c, F32, (BatchShape){INT32_MAX / 512, 1024}, &a, &m), ERR_CONFIG,
            "the limit of 32-bit positions");
    DO(model_build(&c, F32, (BatchShape){3, 7}, &a, &m));
    assert_int_equal(m.rows, 21);
    arena_close(&a);
}

/* Two attentions in one unit: the model must give the names. */
static void two_attentions(void **state)
{
    (void)state;
    Arena a;
    Graph g;
    Program p;
    const Mesh mesh = mesh_single();
    const CompileOptions o = {.backward = true, .strategy = &strategy_tp, .mesh = &mesh};
    DO(arena_open(&a, "test", ARENA_PLENTY));
    graph_init(&g, "body", F64, &a);
    const Value x = stream_in(&g, dim_of(T), D), ranges = input(&g, INPUT_RANGES, dim_of(T));
    Value y = x;
    for (int i = 0; i < 2; i++) {
        const Value q =
            heads(&g, linear(&g, y, weight2(&g, i ? "w1" : "w0", D, D, 0.1), NO_VALUE), 2);
        y = add(&g, y, merge(&g, attention(&g, q, q, q, ranges, 0.5, T)));
    }
    stream_out(&g, y);
    DO(compile_unit(&g, &o, NULL, NULL, &a, &p));
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_losses),
                                       cmocka_unit_test(idle_parameter), cmocka_unit_test(sizes),
                                       cmocka_unit_test(two_attentions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
