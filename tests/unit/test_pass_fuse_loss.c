/* test_pass_fuse_loss.c -- fuse: the loss in one op if the vocabulary is whole, in its steps if
 * it is sharded. */
#include "place_units.h"

static int count(const Graph *g, OpId op)
{
    int n = 0;
    for (int i = 0; i < g->n_nodes; i++) n += g->node[i].op == op;
    return n;
}

static void expect_whole(const Graph *g, bool back)
{
    static const OpId gone[] = {OP_row_max, OP_row_sums, OP_loss, OP_loss_dx};
    for (int i = 0; i < 4; i++) assert_int_equal(count(g, gone[i]), 0);
    assert_int_equal(count(g, OP_token_loss_dx), back);
    assert_int_equal(count(g, OP_token_loss), !back);
}

static void with_gradient(void **state)
{
    GraphTest b;
    (void)state;
    build_head(&b);
    graph_test_prepare(&b, true);
    DO(fuse(&b.g));
    graph_test_expect(&b, "after",
                      "  F  %3 head.in [6,4], %4 [6] = rmsnorm %0 %1 {eps 1e-05}\n"
                      "  F  %7 logits [6,5] = linear %3 %2 chunk 1\n"
                      "  F  %11 d.logits [6,5], %10 loss [1] += token_loss_dx %7 %5 %6 chunk 1\n"
                      "  F  %12 d.head.in [6,4] = linear_dx %11 %2 chunk 1\n"
                      "  F  %13 d.lm_head.weight [5,4] += linear_dw %11 %3 {port 1} chunk 1\n"
                      "  F  %14 d.x [6,4] = rmsnorm_dx %12 %0 %1 %4\n"
                      "  F  %15 d.norm.weight [4] += rmsnorm_dw %12 %0 %4 {port 0}\n");
    graph_test_close(&b);
}

static void loss_alone(void **state)
{
    GraphTest b;
    (void)state;
    build_head(&b);
    graph_test_prepare(&b, false);
    DO(fuse(&b.g));
    expect_whole(&b.g, false);
    assert_int_equal(b.g.value[b.g.node[b.g.n_nodes - 1].out[0]].role, ROLE_LOSS);
    graph_test_close(&b);
}

/* Chunks of rows continue the loss; d.logits overwrites logits. */
static void in_chunks(void **state)
{
    GraphTest b;
    Program p;
    int n = 0;
    (void)state;
    build_head(&b);
    graph_test_prepare(&b, true);
    DO(fuse(&b.g));
    DO(chunk(&b.g, &(ChunkRule){.elements = 4 * F, .min_rows = 1})); /* four rows, then two */
    DO(phases(&b.g));
    DO(lower(&b.g, &b.arena, &p));
    for (int i = p.first[PHASE_F]; i < p.first[PHASE_F + 1]; i++) {
        const Instr *in = &p.instr[i];
        if (in->op != OP_token_loss_dx) continue;
        assert_int_equal(in->keep[0], SLOT_ZERO);
        assert_int_equal(in->keep[1], n++ ? SLOT_ONE : SLOT_ZERO);
        assert_int_equal(p.tensor[in->in[0]].view_of, p.tensor[in->out[0]].view_of);
    }
    assert_int_equal(n, 2);
    graph_test_close(&b);
}

/* Maxima and sums are reduced over ranks: the steps stay. Sharded rows change nothing. */
static void cut_vocabulary(void **state)
{
    const Strategy *const strategy[] = {&strategy_tp, &strategy_tp_sequence, &odd[2], &odd[4]};
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int rank = 0; rank < 2; rank++) {
            GraphTest b;
            build_head(&b);
            b.mesh = mesh_tp(2);
            DO(graph_err(&b.g));
            DO(differentiate(&b.g));
            DO(place(&b.g,
                     &(CompileOptions){.strategy = strategy[i], .mesh = &b.mesh, .rank = rank}));
            DO(fuse(&b.g));
            if (i >= 2) {
                expect_whole(&b.g, true);
            } else {
                assert_int_equal(count(&b.g, OP_row_max), 1);
                assert_int_equal(count(&b.g, OP_row_sums), 1);
                assert_int_equal(count(&b.g, OP_loss), 1);
                assert_int_equal(count(&b.g, OP_loss_dx), 1);
                assert_int_equal(count(&b.g, OP_token_loss_dx), 0);
            }
            graph_test_close(&b);
        }
}

/* Another reader of the sums keeps the steps as they are. */
static void read_by_others(void **state)
{
    GraphTest b;
    (void)state;
    build_head(&b);
    graph_test_prepare(&b, true);
    const Value z = graph_test_node(&b, "loss")->in[0];
    assert_true(cast(&b.g, z, F32) != NO_VALUE);
    DO(fuse(&b.g));
    assert_int_equal(count(&b.g, OP_row_sums), 1);
    assert_int_equal(count(&b.g, OP_token_loss_dx), 0);
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_gradient),  cmocka_unit_test(loss_alone),
        cmocka_unit_test(in_chunks),      cmocka_unit_test(cut_vocabulary),
        cmocka_unit_test(read_by_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
