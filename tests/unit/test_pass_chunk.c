/* test_pass_chunk.c -- chunk, before and after: the head some rows at a time. */
#include "support/graph_test.h"

enum { V = 9, ROWS = 5 };

static void build(GraphTest *b, Dim rows)
{
    graph_test_open(b, "head");
    const Value x = stream_in(&b->g, rows, D), w = graph_test_w(b, "v", V, D);
    const Value targets = input(&b->g, INPUT_TARGETS, rows);
    token_loss(&b->g, x, w, targets, input(&b->g, INPUT_WEIGHTS, rows));
    graph_test_prepare(b, true);
}

/* Five rows, at most four at a time: chunks of three and of two. */
static void rows_that_do_not_divide(void **state)
{
    GraphTest b;
    (void)state;
    build(&b, dim_of(ROWS));
    graph_test_expect(&b, "before",
                      "  F  %4 logits [5,9] = linear %0 %1 chunk 1\n"
                      "  F  %5 logits.max [5] = row_max %4 chunk 1\n"
                      "  F  %6 logits.sums [5,2] = row_sums %4 %5 %2 chunk 1\n"
                      "  F  %7 loss [1] += loss %6 %3 chunk 1\n"
                      "  F  %8 d.logits [5,9] = loss_dx %4 %5 %6 %2 %3 chunk 1\n"
                      "  F  %9 d.x [5,4] = linear_dx %8 %1 chunk 1\n"
                      "  F  %10 d.v [9,4] += linear_dw %8 %0 {port 0} chunk 1\n");
    DO(chunk(&b.g, &(ChunkRule){.elements = 4 * V + V - 1, .min_rows = 1}));
    graph_test_expect(&b, "after",
                      "  F  %11 [3,4] = part %0 {dim 0 from 0}\n"
                      "  F  %12 [3,9] = linear %11 %1\n"
                      "  F  %13 [3] = row_max %12\n"
                      "  F  %14 [3] i32 = part %2 {dim 0 from 0}\n"
                      "  F  %15 [3,2] = row_sums %12 %13 %14\n"
                      "  F  %16 [3] = part %3 {dim 0 from 0}\n"
                      "  F  %7 loss [1] += loss %15 %16\n"
                      "  F  %18 [3,9] = loss_dx %12 %13 %15 %14 %16\n"
                      "  F  %19 [3,4] = linear_dx %18 %1\n"
                      "  F  %10 d.v [9,4] += linear_dw %18 %11 {port 0}\n"
                      "  F  %21 [2,4] = part %0 {dim 0 from 3}\n"
                      "  F  %22 [2,9] = linear %21 %1\n"
                      "  F  %23 [2] = row_max %22\n"
                      "  F  %24 [2] i32 = part %2 {dim 0 from 3}\n"
                      "  F  %25 [2,2] = row_sums %22 %23 %24\n"
                      "  F  %26 [2] = part %3 {dim 0 from 3}\n"
                      "  F  %7 loss [1] += loss %25 %26\n"
                      "  F  %28 [2,9] = loss_dx %22 %23 %25 %24 %26\n"
                      "  F  %29 [2,4] = linear_dx %28 %1\n"
                      "  F  %10 d.v [9,4] += linear_dw %28 %21\n"
                      "  F  %9 d.x [5,4] = join %19 %29 {dim 0}\n");
    graph_test_close(&b);
}

/* The first chunk starts the loss and, by its port, the gradient; the others continue. */
static void sums_continue(void **state)
{
    GraphTest b;
    int losses = 0, sums = 0;
    (void)state;
    build(&b, dim_of(ROWS));
    DO(chunk(&b.g, &(ChunkRule){.elements = V, .min_rows = 1})); /* a row at a time */
    for (int i = 0; i < b.g.n_nodes; i++) {
        const Node *n = &b.g.node[i];
        if (n->op == OP_loss) assert_int_equal(n->keep[0], losses++ ? SLOT_ONE : SLOT_ZERO);
        if (n->op == OP_linear_dw) assert_int_equal(n->keep[0], sums++ ? SLOT_ONE : SLOT_PORT);
    }
    assert_int_equal(losses, ROWS);
    assert_int_equal(sums, ROWS);
    assert_int_equal(graph_test_node(&b, "d.x")->n_in, ROWS);
    graph_test_close(&b);
}

/* Rows that are bounded: a chunk that begins past the live rows has none. */
static void bounded_rows(void **state)
{
    GraphTest b;
    (void)state;
    build(&b, dim_rows(ROWS, SLOT_ROWS));
    DO(chunk(&b.g, &(ChunkRule){.elements = 4 * V, .min_rows = 1}));
    const Node *dx = graph_test_node(&b, "d.x");
    const Dim first = b.g.value[dx->in[0]].dims.dim[0], second = b.g.value[dx->in[1]].dims.dim[0];
    assert_true(dim_same(first, dim_rows(3, SLOT_ROWS)));
    assert_true(dim_same(second, dim_part(dim_rows(ROWS, SLOT_ROWS), 3, 2)));
    assert_true(dim_same(b.g.value[dx->out[0]].dims.dim[0], dim_rows(ROWS, SLOT_ROWS)));
    graph_test_close(&b);
}

static void one_chunk_is_the_whole(void **state)
{
    GraphTest b;
    (void)state;
    build(&b, dim_of(ROWS));
    const int n = b.g.n_nodes;
    DO(chunk(&b.g, &(ChunkRule){.elements = ROWS * V, .min_rows = 1}));
    assert_int_equal(b.g.n_nodes, n);
    assert_int_equal(graph_test_node(&b, "d.x")->op, OP_linear_dx);
    for (int i = 0; i < n; i++) assert_int_equal(b.g.node[i].chunk, 0);
    graph_test_close(&b);
}

/* A budget below the size that makes a GEMM efficient: the minimum of rows holds. */
static void minimum_rows(void **state)
{
    GraphTest b;
    (void)state;
    build(&b, dim_of(1000));
    DO(chunk(&b.g, &(ChunkRule){.elements = 1, .min_rows = 16}));
    const Node *dx = graph_test_node(&b, "d.x");
    assert_int_equal(dx->n_in, 63); /* of 16 rows; the last has 8 */
    assert_int_equal(b.g.value[dx->in[0]].dims.dim[0].cap, 16);
    assert_int_equal(b.g.value[dx->in[62]].dims.dim[0].cap, 8);
    DO(phases(&b.g));
    Program p;
    DO(lower(&b.g, &b.arena, &p));
    assert_int_equal(p.tensor[dx->in[62]].at[SPLIT].offset, 62 * 16 * D * 8);
    assert_int_equal(p.tensor[dx->in[62]].at[SPLIT].region, REGION_DX);
    graph_test_close(&b);
}

/* Rows of a chunk by the rule for 9 words per row, of 1,000 rows. */
static int64_t rows_by(ChunkRule rule)
{
    GraphTest b;
    build(&b, dim_of(1000));
    DO(chunk(&b.g, &rule));
    const int64_t rows = b.g.value[graph_test_node(&b, "d.x")->in[0]].dims.dim[0].cap;
    graph_test_close(&b);
    return rows;
}

/* More rows than the elements make are wanted, within a bound of elements; a minimum is always
 * there. */
static void target_rows(void **state)
{
    const ChunkRule rule = {.elements = 5 * V, .wanted_rows = 50, .max_elements = 300 * V};
    (void)state;
    assert_int_equal(rows_by(rule), 50);
    ChunkRule r = rule;
    r.elements = 70 * V;
    assert_int_equal(rows_by(r), 67); /* 15 chunks, of one size */
    r.elements = 700 * V + V - 1;
    assert_int_equal(rows_by(r), 512); /* two, of whole tiles */
    r.elements = 300 * V;
    assert_int_equal(rows_by(r), 256);
    r = rule;
    r.max_elements = 20 * V + V - 1;
    assert_int_equal(rows_by(r), 20);
    r.min_rows = 33;
    assert_int_equal(rows_by(r), 33);
}

/* At most MAX_CHUNKS chunks, whatever the rule gives; large ones are whole tiles. */
static void maximum_chunks(void **state)
{
    enum { MOST = 1024 };
    GraphTest b;
    (void)state;
    build(&b, dim_of(200 * MOST));
    DO(chunk(&b.g, &(ChunkRule){.elements = 150 * V, .min_rows = 1}));
    const Node *dx = graph_test_node(&b, "d.x");
    assert_int_equal(dx->n_in, 200 * MOST / 256);
    assert_int_equal(b.g.value[dx->in[0]].dims.dim[0].cap, 256);
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_do_not_divide), cmocka_unit_test(target_rows),
        cmocka_unit_test(sums_continue),           cmocka_unit_test(bounded_rows),
        cmocka_unit_test(one_chunk_is_the_whole),  cmocka_unit_test(minimum_rows),
        cmocka_unit_test(maximum_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
