/* test_pass_place.c -- place on an mlp over two ranks, before and after: plain tensor
 * parallelism sums y and d.x over the ranks. With sequence parallelism the stream is sharded by
 * tokens: x is all-gathered and y is reduce-scattered. The bias of the second GEMM is an operand
 * on part 0 alone. */
#include "place_units.h"

typedef struct {
    const char *name;
    void (*build)(GraphTest *b);
    const Strategy *strategy; /* NULL: before place */
    int rank;
    const char *want;
} Case;

static const Case cases[] = {
    {"mlp, before", build_mlp, NULL, 0,
     "  %0 x [6,4]: stream from the unit before\n"
     "  %1 mlp.up_proj.weight [5,4]: parameter 0\n"
     "  %2 mlp.up_proj.bias [5]: parameter 1\n"
     "  %5 mlp.down_proj.weight [4,5]: parameter 2\n"
     "  %6 mlp.down_proj.bias [4]: parameter 3\n"
     "  %9 d.y [6,4]: gradient from the unit after\n"
     "  F  %3 [6,5] = linear %0 %1 %2\n"
     "  F  %4 act [6,5] = gelu %3\n"
     "  F  %7 [6,4] = linear %4 %5 %6\n"
     "  F  %8 y [6,4] = add %0 %7\n"
     "  F  %10 d.act [6,5] = linear_dx %9 %5\n"
     "  F  %11 d.mlp.down_proj.weight [4,5] += linear_dw %9 %4 {port 2}\n"
     "  F  %12 d.mlp.down_proj.bias [4] += bias_dw %9 {port 3}\n"
     "  F  %13 [6,5] = gelu_dx %10 %3\n"
     "  F  %14 [6,4] = linear_dx %13 %1\n"
     "  F  %15 d.x [6,4] = add %9 %14\n"
     "  F  %16 d.mlp.up_proj.weight [5,4] += linear_dw %13 %0 {port 0}\n"
     "  F  %17 d.mlp.up_proj.bias [5] += bias_dw %13 {port 1}\n"},
    {"mlp, plain, rank 0", build_mlp, &strategy_tp, 0,
     "  %0 x [6,4]: stream from the unit before\n"
     "  %1 mlp.up_proj.weight [3,4]: parameter 0\n"
     "  %2 mlp.up_proj.bias [3]: parameter 1\n"
     "  %5 mlp.down_proj.weight [4,3]: parameter 2\n"
     "  %6 mlp.down_proj.bias [4]: parameter 3\n"
     "  %9 d.y [6,4]: gradient from the unit after\n"
     "  F  %3 [6,3] = linear %0 %1 %2\n"
     "  F  %4 act [6,3] = gelu %3\n"
     "  F  %7 [6,4] = linear %4 %5 %6\n"
     "  F  %18 [6,4] = all_reduce %7 {2 ranks} on comm\n"
     "  F  %19 [6,4] = wait %18\n"
     "  F  %8 y [6,4] = add %0 %19\n"
     "  F  %10 d.act [6,3] = linear_dx %9 %5\n"
     "  F  %11 d.mlp.down_proj.weight [4,3] += linear_dw %9 %4 {port 2}\n"
     "  F  %12 d.mlp.down_proj.bias [4] += bias_dw %9 {port 3}\n"
     "  F  %13 [6,3] = gelu_dx %10 %3\n"
     "  F  %14 [6,4] = linear_dx %13 %1\n"
     "  F  %20 [6,4] = all_reduce %14 {2 ranks} on comm\n"
     "  F  %21 [6,4] = wait %20\n"
     "  F  %15 d.x [6,4] = add %9 %21\n"
     "  F  %16 d.mlp.up_proj.weight [3,4] += linear_dw %13 %0 {port 0}\n"
     "  F  %17 d.mlp.up_proj.bias [3] += bias_dw %13 {port 1}\n"},
    {"mlp, plain, rank 1", build_mlp, &strategy_tp, 1,
     "  %0 x [6,4]: stream from the unit before\n"
     "  %1 mlp.up_proj.weight [2,4]: parameter 0\n"
     "  %2 mlp.up_proj.bias [2]: parameter 1\n"
     "  %5 mlp.down_proj.weight [4,2]: parameter 2\n"
     "  %6 mlp.down_proj.bias [4]: parameter 3\n"
     "  %9 d.y [6,4]: gradient from the unit after\n"
     "  F  %3 [6,2] = linear %0 %1 %2\n"
     "  F  %4 act [6,2] = gelu %3\n"
     "  F  %7 [6,4] = linear %4 %5\n"
     "  F  %18 [6,4] = all_reduce %7 {2 ranks} on comm\n"
     "  F  %19 [6,4] = wait %18\n"
     "  F  %8 y [6,4] = add %0 %19\n"
     "  F  %10 d.act [6,2] = linear_dx %9 %5\n"
     "  F  %11 d.mlp.down_proj.weight [4,2] += linear_dw %9 %4 {port 2}\n"
     "  F  %12 d.mlp.down_proj.bias [4] += bias_dw %9 {port 3}\n"
     "  F  %13 [6,2] = gelu_dx %10 %3\n"
     "  F  %14 [6,4] = linear_dx %13 %1\n"
     "  F  %20 [6,4] = all_reduce %14 {2 ranks} on comm\n"
     "  F  %21 [6,4] = wait %20\n"
     "  F  %15 d.x [6,4] = add %9 %21\n"
     "  F  %16 d.mlp.up_proj.weight [2,4] += linear_dw %13 %0 {port 0}\n"
     "  F  %17 d.mlp.up_proj.bias [2] += bias_dw %13 {port 1}\n"},
    {"mlp, sequence, rank 0", build_mlp, &strategy_tp_sequence, 0,
     "  %0 x [3,4]: stream from the unit before\n"
     "  %1 mlp.up_proj.weight [3,4]: parameter 0\n"
     "  %2 mlp.up_proj.bias [3]: parameter 1\n"
     "  %5 mlp.down_proj.weight [4,3]: parameter 2\n"
     "  %6 mlp.down_proj.bias [4]: parameter 3\n"
     "  %9 d.y [3,4]: gradient from the unit after\n"
     "  F  %18 [6,4] = all_gather %0 {2 ranks} on comm\n"
     "  F  %19 [6,4] = wait %18\n"
     "  F  %3 [6,3] = linear %19 %1 %2\n"
     "  F  %4 act [6,3] = gelu %3\n"
     "  F  %7 [6,4] = linear %4 %5 %6\n"
     "  F  %20 [3,4] = reduce_scatter %7 {2 ranks} on comm\n"
     "  F  %21 [3,4] = wait %20\n"
     "  F  %8 y [3,4] = add %0 %21\n"
     "  F  %22 [6,4] = all_gather %9 {2 ranks} on comm\n"
     "  F  %23 [6,4] = wait %22\n"
     "  F  %10 d.act [6,3] = linear_dx %23 %5\n"
     "  F  %11 d.mlp.down_proj.weight [4,3] += linear_dw %23 %4 {port 2}\n"
     "  F  %12 d.mlp.down_proj.bias [4] += bias_dw %9 {port 3}\n"
     "  F  %13 [6,3] = gelu_dx %10 %3\n"
     "  F  %14 [6,4] = linear_dx %13 %1\n"
     "  F  %24 [3,4] = reduce_scatter %14 {2 ranks} on comm\n"
     "  F  %25 [3,4] = wait %24\n"
     "  F  %15 d.x [3,4] = add %9 %25\n"
     "  F  %16 d.mlp.up_proj.weight [3,4] += linear_dw %13 %19 {port 0}\n"
     "  F  %17 d.mlp.up_proj.bias [3] += bias_dw %13 {port 1}\n"},
    {"mlp, sequence, rank 1", build_mlp, &strategy_tp_sequence, 1,
     "  %0 x [3,4]: stream from the unit before\n"
     "  %1 mlp.up_proj.weight [2,4]: parameter 0\n"
     "  %2 mlp.up_proj.bias [2]: parameter 1\n"
     "  %5 mlp.down_proj.weight [4,2]: parameter 2\n"
     "  %6 mlp.down_proj.bias [4]: parameter 3\n"
     "  %9 d.y [3,4]: gradient from the unit after\n"
     "  F  %18 [6,4] = all_gather %0 {2 ranks} on comm\n"
     "  F  %19 [6,4] = wait %18\n"
     "  F  %3 [6,2] = linear %19 %1 %2\n"
     "  F  %4 act [6,2] = gelu %3\n"
     "  F  %7 [6,4] = linear %4 %5\n"
     "  F  %20 [3,4] = reduce_scatter %7 {2 ranks} on comm\n"
     "  F  %21 [3,4] = wait %20\n"
     "  F  %8 y [3,4] = add %0 %21\n"
     "  F  %22 [6,4] = all_gather %9 {2 ranks} on comm\n"
     "  F  %23 [6,4] = wait %22\n"
     "  F  %10 d.act [6,2] = linear_dx %23 %5\n"
     "  F  %11 d.mlp.down_proj.weight [4,2] += linear_dw %23 %4 {port 2}\n"
     "  F  %12 d.mlp.down_proj.bias [4] += bias_dw %9 {port 3}\n"
     "  F  %13 [6,2] = gelu_dx %10 %3\n"
     "  F  %14 [6,4] = linear_dx %13 %1\n"
     "  F  %24 [3,4] = reduce_scatter %14 {2 ranks} on comm\n"
     "  F  %25 [3,4] = wait %24\n"
     "  F  %15 d.x [3,4] = add %9 %25\n"
     "  F  %16 d.mlp.up_proj.weight [2,4] += linear_dw %13 %19 {port 0}\n"
     "  F  %17 d.mlp.up_proj.bias [2] += bias_dw %13 {port 1}\n"},
};

static void test_drawings(void **state)
{
    (void)state;
    const Mesh mesh = mesh_tp(2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        GraphTest b;
        const char *got;
        c->build(&b);
        DO(graph_err(&b.g));
        DO(differentiate(&b.g));
        if (c->strategy)
            DO(place(&b.g,
                     &(CompileOptions){.strategy = c->strategy, .mesh = &mesh, .rank = c->rank}));
        DO(graph_print(&b.g, &b.arena, &got));
        expect_text(c->name, strchr(got, '\n') + 1, c->want);
        graph_test_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_drawings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
