/* test_pass_epilogues.c -- epilogues, before and after: a pointwise op is fused into the
 * adjacent GEMM, and nodes that must stay apart do; with everything kept or recomputed, sharded
 * over ranks, in slices and in sessions. It costs no memory. */
#include "place_test.h"

/* y = x + down gelu(up x + b) + c */
static void build(GraphTest *b)
{
    graph_test_open(b, "u");
    Graph *g = &b->g;
    const Value x = graph_test_x(b), up = graph_test_w(b, "up", F, D),
                down = graph_test_w(b, "down", D, F);
    const Value u = graph_name(g, linear(g, x, up, vector(g, "b", F, INIT_ZEROS)), "u");
    const Value h = graph_name(g, gelu(g, u), "h");
    stream_out(g, add(g, x, linear(g, h, down, vector(g, "c", D, INIT_ZEROS))));
}

static void after(GraphTest *b, bool back, Recompute how)
{
    build(b);
    graph_test_prepare(b, back);
    DO(fuse(&b->g));
    DO(recompute(&b->g, &(CompileOptions){.recompute = how}));
    DO(epilogues(&b->g));
    DO(phases(&b->g));
}

static void recompute_none(void **state)
{
    GraphTest b;
    (void)state;
    after(&b, true, RECOMPUTE_NONE);
    graph_test_expect(&b, "none",
                      "  F  %5 h [6,5], %4 u [6,5] = linear_gelu %0 %1 %3\n"
                      "  F  %8 y [6,4] = linear_add %5 %2 %0 %6\n"
                      "  W  %11 d.down [4,5] += linear_dw %9 %5 {port 1}\n"
                      "  W  %12 d.c [4] += bias_dw %9 {port 3}\n"
                      "  I  %13 d.u [6,5] = linear_dgelu %9 %2 %4\n"
                      "  I  %14 [6,4] = linear_dx %13 %1\n"
                      "  I  %15 d.x [6,4] = add %9 %14\n"
                      "  W  %16 d.up [5,4] += linear_dw %13 %0 {port 0}\n"
                      "  W  %17 d.b [5] += bias_dw %13 {port 2}\n");
    graph_test_close(&b);
}

/* h is recomputed from the u that is kept: u is there for it, h is not kept. */
static void recompute_cheap(void **state)
{
    GraphTest b;
    Program p;
    (void)state;
    after(&b, true, RECOMPUTE_SELECTIVE);
    const Node *h = graph_test_node(&b, "h"), *recomputed = graph_test_node(&b, "h'");
    assert_int_equal(h->op, OP_linear_gelu);
    assert_int_equal(h->phase, PHASE_F);
    assert_int_equal(recomputed->op, OP_gelu);
    assert_int_equal(recomputed->in[0], h->out[1]);
    DO(lower(&b.g, &b.arena, &p));
    assert_int_equal(p.bytes[REGION_FRAME_W], align_up(T * F * 8)); /* u */
    assert_int_equal(p.bytes[REGION_FRAME_I], 0);
    graph_test_close(&b);
}

/* Recomputed, u is for I and h for W. */
static void recompute_all(void **state)
{
    GraphTest b;
    Program p;
    (void)state;
    after(&b, true, RECOMPUTE_FULL);
    assert_int_equal(graph_test_node(&b, "h")->op,
                     OP_gelu); /* u is not kept: it need not be stored */
    assert_int_equal(graph_test_node(&b, "u'")->op, OP_linear);
    assert_int_equal(graph_test_node(&b, "h'")->op, OP_gelu);
    assert_int_equal(graph_test_node(&b, "u'")->phase, PHASE_I);
    assert_int_equal(graph_test_node(&b, "h'")->phase, PHASE_W);
    assert_int_equal(graph_test_node(&b, "d.u")->op, OP_linear_dgelu);
    assert_int_equal(graph_test_node(&b, "y")->op, OP_linear_add);
    DO(lower(&b.g, &b.arena, &p));
    assert_int_equal(p.bytes[REGION_FRAME_W], 0);
    graph_test_close(&b);
}

static void forward_alone(void **state)
{
    GraphTest b;
    (void)state;
    after(&b, false, RECOMPUTE_NONE);
    graph_test_expect(&b, "forward",
                      "  F  %4 u [6,5] = linear %0 %1 %3\n"
                      "  F  %5 h [6,5] = gelu %4\n"
                      "  F  %8 y [6,4] = linear_add %5 %2 %0 %6\n");
    graph_test_close(&b);
}

/* GEMMs with other readers, GEMMs added to themselves, or chunks of rows that differ. */
static void stays_apart(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "w", D, D),
                w2 = graph_test_w(&b, "w2", D, D);
    const Value p = linear(g, x, w, NO_VALUE), twice = add(g, p, p);
    const Value q = linear(g, twice, w2, NO_VALUE), r = add(g, q, x);
    stream_out(g, add(g, r, gelu(g, q)));
    graph_test_prepare(&b, true);
    DO(fuse(g));
    DO(recompute(g, &(CompileOptions){.recompute = RECOMPUTE_NONE}));
    DO(epilogues(g));
    assert_int_equal(count_nodes(g, OP_linear_add), 0);
    assert_int_equal(count_nodes(g, OP_linear_dgelu), 0); /* gelu_dx reads no GEMM's output */
    assert_int_equal(count_nodes(g, OP_linear_gelu), 1);  /* u is stored: others may read it */
    graph_test_close(&b);
    graph_test_open(&b, "u");
    const Value z = graph_test_x(&b), v = graph_test_w(&b, "v", D, D);
    g->chunk = 1;
    const Value some = linear(g, z, v, NO_VALUE);
    g->chunk = 0;
    stream_out(g, add(g, z, some));
    graph_test_prepare(&b, false);
    DO(epilogues(g));
    assert_int_equal(count_nodes(g, OP_linear_add), 0);
    graph_test_close(&b);
}

/* The gradient of h, which has another reader, exists. */
static void gradient_that_others_read(void **state)
{
    GraphTest b;
    (void)state;
    build(&b);
    graph_test_prepare(&b, true);
    DO(fuse(&b.g));
    assert_true(cast(&b.g, graph_test_node(&b, "d.u")->in[0], F32) != NO_VALUE);
    DO(epilogues(&b.g));
    assert_int_equal(count_nodes(&b.g, OP_linear_dgelu), 0);
    assert_int_equal(count_nodes(&b.g, OP_gelu_dx), 1);
    graph_test_close(&b);
}

/* A sum in an epilogue overwrites none of its inputs: not the GEMM operands, of which every
 * element is needed, nor the residual that dies with it, so that its bits do not depend on other
 * readers. */
static void over_no_input(void **state)
{
    GraphTest b;
    Program p;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "w", D, D),
                w2 = graph_test_w(&b, "w2", D, D);
    const Value s = graph_name(g, scale(g, x, 2), "s"), t = graph_name(g, scale(g, x, 3), "t");
    const Value r = graph_name(g, add(g, s, linear(g, s, w, NO_VALUE)), "r");
    const Value q = graph_name(g, add(g, t, linear(g, r, w2, NO_VALUE)), "q");
    stream_out(g, scale(g, q, 4));
    graph_test_prepare(&b, false);
    DO(epilogues(g));
    DO(phases(g));
    DO(lower(g, &b.arena, &p));
    assert_int_equal(count_nodes(g, OP_linear_add), 2);
    assert_int_not_equal(p.tensor[r].view_of, p.tensor[s].view_of);
    assert_int_not_equal(p.tensor[q].view_of,
                         p.tensor[t].view_of); /* t dies, and is only added to */
    graph_test_close(&b);
}

/* A layer of this model, on each of tp ranks. */
typedef struct {
    const char *model;
    int tp;
    CompileOptions options;
    int adds, gelus, dgelus, dswiglus; /* in F, in F, in I and B */
} Where;

static void expect_where(const Where *w)
{
    ModelBed m;
    Ranks r;
    model_bed_open(&m, test_model(w->model));
    CompileOptions o = w->options;
    o.strategy = &m.plain;
    ranks_open(&r, &m.model.kind[1], &o, w->tp);
    for (int k = 0; k < w->tp; k++) {
        const Program *p = &r.program[k];
        assert_int_equal(count_instr(p, PHASE_F, OP_linear_add), w->adds);
        assert_int_equal(count_instr(p, PHASE_F, OP_linear_gelu), w->gelus);
        assert_int_equal(count_instr(p, PHASE_I, OP_linear_dgelu), w->dgelus);
        assert_int_equal(count_instr(p, PHASE_W, OP_linear_dgelu), 0);
        assert_int_equal(count_instr(p, PHASE_B, OP_linear_dgelu_bias), w->dgelus);
        assert_int_equal(count_instr(p, PHASE_I, OP_linear_dswiglu), w->dswiglus);
        assert_int_equal(count_instr(p, PHASE_W, OP_linear_dswiglu), 0);
        assert_int_equal(count_instr(p, PHASE_B, OP_linear_dswiglu), w->dswiglus);
    }
    ranks_close(&r);
    model_bed_close(&m);
}

/* A sum over ranks comes between the GEMM and the add; gelu and the gradients need none. */
static void whole_layers(void **state)
{
    static const Where where[] = {
        {"gpt2", 1, {.backward = true}, 2, 1, 1, 0},
        {"gpt2", 1, {.backward = true, .recompute = RECOMPUTE_SELECTIVE}, 2, 1, 1, 0},
        {"gpt2", 1, {.backward = true, .recompute = RECOMPUTE_FULL}, 2, 0, 1, 0},
        {"gpt2", 2, {.backward = true}, 0, 1, 1, 0},
        {"gpt2", 1, {.backward = true, .slice_rows = 5}, 2, 1, 1, 0},
        {"gpt2", 1, {.backward = false}, 2, 0, 0, 0},
        {"gpt2", 1, {.backward = false, .session_rows = 40}, 2, 0, 0, 0},
        {"llama", 1, {.backward = true}, 2, 0, 0, 1},
        {"llama", 1, {.backward = true, .recompute = RECOMPUTE_SELECTIVE}, 2, 0, 0, 1},
        {"llama", 1, {.backward = true, .recompute = RECOMPUTE_FULL}, 2, 0, 0, 1},
        {"llama", 2, {.backward = true}, 0, 0, 0, 1},
        {"llama", 1, {.backward = true, .slice_rows = 5}, 2, 0, 0, 1},
        {"llama", 1, {.backward = false, .session_rows = 40}, 2, 0, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) expect_where(&where[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recompute_none), cmocka_unit_test(recompute_cheap),
        cmocka_unit_test(recompute_all),  cmocka_unit_test(forward_alone),
        cmocka_unit_test(stays_apart),    cmocka_unit_test(over_no_input),
        cmocka_unit_test(whole_layers),   cmocka_unit_test(gradient_that_others_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
