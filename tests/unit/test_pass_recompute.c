/* test_pass_recompute.c -- recompute, phases and order on one small unit:
 *
 *     h = up x;  act = gelu h;  y = down act
 *
 * Values that backward reads are kept, recomputed, or copied back from the host. A node is in F, I
 * or W by its operands and its readers. A recomputed node stands right before its first reader. */
#include "support/graph_test.h"

#include <stdio.h>

static void build(GraphTest *b)
{
    graph_test_open(b, "u");
    Graph *g = &b->g;
    const Value x = graph_test_x(b), up = graph_test_w(b, "up", F, D),
                down = graph_test_w(b, "down", D, F);
    const Value h = graph_name(g, linear(g, x, up, NO_VALUE), "h");
    const Value act = graph_name(g, gelu(g, h), "act");
    stream_out(g, linear(g, act, down, NO_VALUE));
    graph_test_prepare(b, true);
}

#define FORWARD                                                                                    \
    "  F  %3 h [6,5] = linear %0 %1\n"                                                             \
    "  F  %4 act [6,5] = gelu %3\n"                                                                \
    "  F  %5 y [6,4] = linear %4 %2\n"                                                             \
    "  I  %7 d.act [6,5] = linear_dx %6 %2\n"

/* The graph after both passes, and the order of each phase by the names of ops. */
typedef struct {
    const char *name;
    CompileOptions options;
    const char *graph, *f, *i, *w, *b;
} Case;

static const Case cases[] = {
    {"none",
     {.recompute = RECOMPUTE_NONE},
     FORWARD "  W  %8 d.down [4,5] += linear_dw %6 %4 {port 1}\n"
             "  I  %9 d.h [6,5] = gelu_dx %7 %3\n"
             "  I  %10 d.x [6,4] = linear_dx %9 %1\n"
             "  W  %11 d.up [5,4] += linear_dw %9 %0 {port 0}\n",
     "linear gelu linear",
     "linear_dx gelu_dx linear_dx",
     "linear_dw linear_dw",
     "linear_dx linear_dw gelu_dx linear_dx linear_dw"},
    {"selective: gelu is cheap, and h is there",
     {.recompute = RECOMPUTE_SELECTIVE},
     FORWARD "  W  %8 d.down [4,5] += linear_dw %6 %12 {port 1}\n"
             "  I  %9 d.h [6,5] = gelu_dx %7 %3\n"
             "  I  %10 d.x [6,4] = linear_dx %9 %1\n"
             "  W  %11 d.up [5,4] += linear_dw %9 %0 {port 0}\n"
             "  W' %12 act' [6,5] = gelu %3\n",
     "linear gelu linear",
     "linear_dx gelu_dx linear_dx",
     "gelu linear_dw linear_dw",
     "linear_dx gelu linear_dw gelu_dx linear_dx linear_dw"},
    {"full: from x; h' is made for I, act' for W",
     {.recompute = RECOMPUTE_FULL},
     FORWARD "  W  %8 d.down [4,5] += linear_dw %6 %13 {port 1}\n"
             "  I  %9 d.h [6,5] = gelu_dx %7 %12\n"
             "  I  %10 d.x [6,4] = linear_dx %9 %1\n"
             "  W  %11 d.up [5,4] += linear_dw %9 %0 {port 0}\n"
             "  I' %12 h' [6,5] = linear %0 %1\n"
             "  W' %13 act' [6,5] = gelu %12\n",
     "linear gelu linear",
     "linear_dx linear gelu_dx linear_dx",
     "gelu linear_dw linear_dw",
     "linear_dx linear gelu linear_dw gelu_dx linear_dx linear_dw"},
    {"by name: h alone",
     {.recompute = RECOMPUTE_NAMED, .recompute_names = "mlp.*,h"},
     FORWARD "  W  %8 d.down [4,5] += linear_dw %6 %4 {port 1}\n"
             "  I  %9 d.h [6,5] = gelu_dx %7 %12\n"
             "  I  %10 d.x [6,4] = linear_dx %9 %1\n"
             "  W  %11 d.up [5,4] += linear_dw %9 %0 {port 0}\n"
             "  I' %12 h' [6,5] = linear %0 %1\n",
     "linear gelu linear",
     "linear_dx linear gelu_dx linear_dx",
     "linear_dw linear_dw",
     "linear_dx linear_dw linear gelu_dx linear_dx linear_dw"},
    {"offload: act waits on the host",
     {.offload_names = "a*"},
     FORWARD "  W  %8 d.down [4,5] += linear_dw %6 %15 {port 1}\n"
             "  I  %9 d.h [6,5] = gelu_dx %7 %3\n"
             "  I  %10 d.x [6,4] = linear_dx %9 %1\n"
             "  W  %11 d.up [5,4] += linear_dw %9 %0 {port 0}\n"
             "  F  %12 [6,5] on host = copy_out %4 on d2h\n"
             "  F  %13 [6,5] on host = wait %12\n"
             "  W' %14 [6,5] = copy_in %13 on h2d\n"
             "  W' %15 [6,5] = wait %14\n",
     "linear gelu linear copy_out wait",
     "linear_dx gelu_dx linear_dx",
     "copy_in wait linear_dw linear_dw",
     "linear_dx copy_in wait linear_dw gelu_dx linear_dx linear_dw"},
    {"offload the input of a recomputed gelu",
     {.recompute = RECOMPUTE_SELECTIVE, .offload_names = "h"},
     FORWARD "  W  %8 d.down [4,5] += linear_dw %6 %16 {port 1}\n"
             "  I  %9 d.h [6,5] = gelu_dx %7 %15\n"
             "  I  %10 d.x [6,4] = linear_dx %9 %1\n"
             "  W  %11 d.up [5,4] += linear_dw %9 %0 {port 0}\n"
             "  F  %12 [6,5] on host = copy_out %3 on d2h\n"
             "  F  %13 [6,5] on host = wait %12\n"
             "  I' %14 [6,5] = copy_in %13 on h2d\n"
             "  I' %15 [6,5] = wait %14\n"
             "  W' %16 act' [6,5] = gelu %15\n",
     "linear gelu linear copy_out wait",
     "linear_dx copy_in wait gelu_dx linear_dx",
     "gelu linear_dw linear_dw",
     "linear_dx copy_in wait gelu linear_dw gelu_dx linear_dx linear_dw"},
};

static void expect_order(GraphTest *b, const char *name, Phase phase, const char *want)
{
    char text[256] = "";
    int *list, n;
    DO(order(&b->g, phase, &b->arena, &list, &n));
    for (int i = 0; i < n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "",
                 op_info(b->g.node[list[i]].op)->name);
    if (strcmp(text, want) != 0)
        fail_msg("%s: %s is \"%s\", not \"%s\"", name, phase_name(phase), text, want);
}

static void kept_recomputed_or_offloaded(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        GraphTest b;
        build(&b);
        DO(recompute(&b.g, &c->options));
        DO(phases(&b.g));
        graph_test_expect(&b, c->name, c->graph);
        expect_order(&b, c->name, PHASE_F, c->f);
        expect_order(&b, c->name, PHASE_I, c->i);
        expect_order(&b, c->name, PHASE_W, c->w);
        expect_order(&b, c->name, PHASE_B, c->b);
        graph_test_close(&b);
    }
}

/* Cheap, but its operand would be kept for it alone: keeping the input saves nothing. */
static void selective_needs_its_inputs(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "w", F, D),
                down = graph_test_w(&b, "down", D, F);
    const Value s = scale(g, linear(g, x, w, NO_VALUE), 2); /* no backward node reads s's input */
    stream_out(g, linear(g, s, down, NO_VALUE));
    graph_test_prepare(&b, true);
    DO(recompute(g, &(CompileOptions){.recompute = RECOMPUTE_SELECTIVE}));
    for (int i = 0; i < g->n_nodes; i++) assert_false(g->node[i].recomputed);
    graph_test_close(&b);
}

/* Even if everything is recomputed, tokens stay with the experts of the first routing. */
static void routing_is_kept(void **state)
{
    const Attr attr = {.route = {.scaling = 1}}, limit = {.limit = {0.9, 3, true}};
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), router = graph_test_w(&b, "router", 3, D);
    const Value w = graph_param(g, (ParamInfo){.name = "w", .ndim = 3, .n = {3, D, D}});
    const Routing r = route(g, linear_wide(g, x, router), NO_VALUE, 2, &attr);
    const RowAssignment rows = assign_rows(g, limit_choices(g, &r, &limit), 3);
    const Value in = permute(g, x, rows.at, NO_VALUE);
    stream_out(g, unpermute(g, rows.at, grouped_linear(g, in, w, rows.offsets), r.gate));
    graph_test_prepare(&b, true);
    DO(recompute(g, &(CompileOptions){.recompute = RECOMPUTE_FULL}));
    assert_int_equal(count_nodes(g, OP_route), 1);
    assert_int_equal(count_nodes(g, OP_limit_choices), 1);
    assert_int_equal(count_nodes(g, OP_assign_rows), 1);
    assert_int_equal(count_nodes(g, OP_grouped_linear), 2); /* the rows are made again */
    graph_test_close(&b);
}

/* Backward reads a view of q: it becomes a view of the copy from the host, so the device's copy
 * dies. */
static void views_of_offloaded(void **state)
{
    const Attr rotation = {.rope = {.theta = 10}};
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "w", D, D),
                wo = graph_test_w(&b, "o", D, D);
    const Value split = heads(g, linear(g, x, w, NO_VALUE), 2);
    const Value positions = input(g, INPUT_POSITIONS, dim_of(T));
    const Value q = graph_name(g, rope(g, split, positions, &rotation), "q");
    stream_out(g, linear(g, merge(g, q), wo, NO_VALUE));
    graph_test_prepare(&b, true);
    DO(recompute(g, &(CompileOptions){.offload_names = "q"}));
    DO(phases(g));
    graph_test_expect(&b, "offloaded",
                      "  F  %3 [6,4] = linear %0 %1\n"
                      "  F  %4 [6,2,2] = heads %3\n"
                      "  F  %6 q [6,2,2] = rope %4 %5 {theta 10}\n"
                      "  F  %7 [6,4] = merge %6\n"
                      "  F  %8 y [6,4] = linear %7 %2\n"
                      "  I  %10 [6,4] = linear_dx %9 %2\n"
                      "  W  %11 d.o [4,4] += linear_dw %9 %21 {port 1}\n"
                      "  I  %12 d.q [6,2,2] = heads %10\n"
                      "  I  %13 [6,2,2] = rope %12 %5 {back theta 10}\n"
                      "  I  %14 [6,4] = merge %13\n"
                      "  I  %15 d.x [6,4] = linear_dx %14 %1\n"
                      "  W  %16 d.w [4,4] += linear_dw %14 %0 {port 0}\n"
                      "  F  %17 [6,2,2] on host = copy_out %6 on d2h\n"
                      "  F  %18 [6,2,2] on host = wait %17\n"
                      "  W' %19 [6,2,2] = copy_in %18 on h2d\n"
                      "  W' %20 [6,2,2] = wait %19\n"
                      "  W' %21 [6,4] = merge %20\n");
    Program p;
    DO(lower(g, &b.arena, &p));
    assert_int_equal(p.bytes[REGION_FRAME_W], 0);
    assert_int_equal(p.bytes[REGION_HOST], T * D * 8);
    graph_test_close(&b);
}

/* No dy: all of a head is F. No x: nothing of an embedding is I. */
static void phases_of_the_ends(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "head");
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "v", 9, D);
    const Value targets = input(&b.g, INPUT_TARGETS, dim_of(T));
    token_loss(&b.g, x, w, targets, input(&b.g, INPUT_WEIGHTS, dim_of(T)));
    DO(differentiate(&b.g));
    DO(recompute(&b.g, &(CompileOptions){.recompute = RECOMPUTE_FULL}));
    DO(phases(&b.g));
    assert_int_equal(b.g.n_nodes, 7); /* nothing is recomputed either */
    for (int i = 0; i < b.g.n_nodes; i++) assert_int_equal(b.g.node[i].phase, PHASE_F);
    graph_test_close(&b);
    graph_test_open(&b, "embed");
    const Value e = graph_test_w(&b, "e", 9, D), p = graph_test_w(&b, "p", 7, D);
    const Value tokens = embedding(&b.g, input(&b.g, INPUT_TOKENS, dim_of(T)), e);
    stream_out(&b.g,
               add(&b.g, tokens, embedding(&b.g, input(&b.g, INPUT_POSITIONS, dim_of(T)), p)));
    DO(differentiate(&b.g));
    DO(phases(&b.g));
    graph_test_expect(&b, "embed",
                      "  F  %3 [6,4] = embedding %2 %0\n"
                      "  F  %5 [6,4] = embedding %4 %1\n"
                      "  F  %6 y [6,4] = add %3 %5\n"
                      "  W  %8 d.p [7,4] += embedding_dw %7 %4 {port 1}\n"
                      "  W  %9 d.e [9,4] += embedding_dw %7 %2 {port 0}\n");
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_recomputed_or_offloaded),
        cmocka_unit_test(selective_needs_its_inputs),
        cmocka_unit_test(routing_is_kept),
        cmocka_unit_test(views_of_offloaded),
        cmocka_unit_test(phases_of_the_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
