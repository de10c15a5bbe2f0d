/* test_pass_place_vocab.c -- place on a sharded vocabulary, two ranks: an embedding is a sum to
 * which each rank contributes the rows of its own words; the loss reduces maxima and sums over
 * ranks, never logits. */
#include "place_units.h"

typedef struct {
    const char *name;
    void (*build)(GraphTest *b);
    const Strategy *strategy; /* NULL: before place */
    int rank;
    const char *want;
} Case;

static const Case cases[] = {
    {"embed, before", build_embed, NULL, 0,
     "  %0 tokens [6] i32: input\n"
     "  %1 positions [6] i32: input\n"
     "  %2 wte.weight [5,4]: parameter 0\n"
     "  %4 wpe.weight [3,4]: parameter 1\n"
     "  %7 d.y [6,4]: gradient from the unit after\n"
     "  F  %3 [6,4] = embedding %0 %2\n"
     "  F  %5 [6,4] = embedding %1 %4\n"
     "  F  %6 y [6,4] = add %3 %5\n"
     "  F  %8 d.wpe.weight [3,4] += embedding_dw %7 %1 {port 1}\n"
     "  F  %9 d.wte.weight [5,4] += embedding_dw %7 %0 {port 0}\n"},
    {"embed, plain, rank 1", build_embed, &strategy_tp, 1,
     "  %0 tokens [6] i32: input\n"
     "  %1 positions [6] i32: input\n"
     "  %2 wte.weight [2,4]: parameter 0\n"
     "  %4 wpe.weight [3,4]: parameter 1\n"
     "  %7 d.y [6,4]: gradient from the unit after\n"
     "  F  %3 [6,4] = embedding %0 %2 {vocabulary from 3}\n"
     "  F  %5 [6,4] = embedding %1 %4\n"
     "  F  %10 [6,4] = all_reduce %3 {2 ranks} on comm\n"
     "  F  %11 [6,4] = wait %10\n"
     "  F  %6 y [6,4] = add %11 %5\n"
     "  F  %8 d.wpe.weight [3,4] += embedding_dw %7 %1 {port 1}\n"
     "  F  %9 d.wte.weight [2,4] += embedding_dw %7 %0 {vocabulary from 3} {port 0}\n"},
    {"embed, sequence, rank 1", build_embed, &strategy_tp_sequence, 1,
     "  %0 tokens [6] i32: input\n"
     "  %1 positions [6] i32: input\n"
     "  %2 wte.weight [2,4]: parameter 0\n"
     "  %4 wpe.weight [3,4]: parameter 1\n"
     "  %7 d.y [3,4]: gradient from the unit after\n"
     "  F  %3 [6,4] = embedding %0 %2 {vocabulary from 3}\n"
     "  F  %5 [6,4] = embedding %1 %4\n"
     "  F  %10 [3,4] = reduce_scatter %3 {2 ranks} on comm\n"
     "  F  %11 [3,4] = wait %10\n"
     "  F  %12 [3,4] = part %5 {dim 0 from 3}\n"
     "  F  %6 y [3,4] = add %11 %12\n"
     "  F  %13 [6,4] = all_gather %7 {2 ranks} on comm\n"
     "  F  %14 [6,4] = wait %13\n"
     "  F  %8 d.wpe.weight [3,4] += embedding_dw %14 %1 {port 1}\n"
     "  F  %9 d.wte.weight [2,4] += embedding_dw %14 %0 {vocabulary from 3} {port 0}\n"},
    {"head, before", build_head, NULL, 0,
     "  %0 x [6,4]: stream from the unit before\n"
     "  %1 norm.weight [4]: parameter 0\n"
     "  %2 lm_head.weight [5,4]: parameter 1\n"
     "  %5 targets [6] i32: input\n"
     "  %6 weights [6]: input\n"
     "  F  %3 head.in [6,4], %4 [6] = rmsnorm %0 %1 {eps 1e-05}\n"
     "  F  %7 logits [6,5] = linear %3 %2 chunk 1\n"
     "  F  %8 logits.max [6] = row_max %7 chunk 1\n"
     "  F  %9 logits.sums [6,2] = row_sums %7 %8 %5 chunk 1\n"
     "  F  %10 loss [1] += loss %9 %6 chunk 1\n"
     "  F  %11 d.logits [6,5] = loss_dx %7 %8 %9 %5 %6 chunk 1\n"
     "  F  %12 d.head.in [6,4] = linear_dx %11 %2 chunk 1\n"
     "  F  %13 d.lm_head.weight [5,4] += linear_dw %11 %3 {port 1} chunk 1\n"
     "  F  %14 d.x [6,4] = rmsnorm_dx %12 %0 %1 %4\n"
     "  F  %15 d.norm.weight [4] += rmsnorm_dw %12 %0 %4 {port 0}\n"},
    {"head, plain, rank 0", build_head, &strategy_tp, 0,
     "  %0 x [6,4]: stream from the unit before\n"
     "  %1 norm.weight [4]: parameter 0\n"
     "  %2 lm_head.weight [3,4]: parameter 1\n"
     "  %5 targets [6] i32: input\n"
     "  %6 weights [6]: input\n"
     "  F  %3 head.in [6,4], %4 [6] = rmsnorm %0 %1 {eps 1e-05}\n"
     "  F  %7 logits [6,3] = linear %3 %2 chunk 1\n"
     "  F  %8 logits.max [6] = row_max %7 chunk 1\n"
     "  F  %16 [6] = all_reduce %8 {maximum, 2 ranks} on comm chunk 1\n"
     "  F  %17 [6] = wait %16 chunk 1\n"
     "  F  %9 logits.sums [6,2] = row_sums %7 %17 %5 chunk 1\n"
     "  F  %18 [6,2] = all_reduce %9 {2 ranks} on comm chunk 1\n"
     "  F  %19 [6,2] = wait %18 chunk 1\n"
     "  F  %10 loss [1] += loss %19 %6 chunk 1\n"
     "  F  %11 d.logits [6,3] = loss_dx %7 %17 %19 %5 %6 chunk 1\n"
     "  F  %12 d.head.in [6,4] = linear_dx %11 %2 chunk 1\n"
     "  F  %13 d.lm_head.weight [3,4] += linear_dw %11 %3 {port 1} chunk 1\n"
     "  F  %20 [6,4] = all_reduce %12 {2 ranks} on comm\n"
     "  F  %21 [6,4] = wait %20\n"
     "  F  %14 d.x [6,4] = rmsnorm_dx %21 %0 %1 %4\n"
     "  F  %15 d.norm.weight [4] += rmsnorm_dw %21 %0 %4 {port 0}\n"},
    {"head, sequence, rank 0", build_head, &strategy_tp_sequence, 0,
     "  %0 x [3,4]: stream from the unit before\n"
     "  %1 norm.weight [4]: parameter 0\n"
     "  %2 lm_head.weight [3,4]: parameter 1\n"
     "  %5 targets [6] i32: input\n"
     "  %6 weights [6]: input\n"
     "  F  %3 head.in [3,4], %4 [3] = rmsnorm %0 %1 {eps 1e-05}\n"
     "  F  %17 [6,4] = all_gather %3 {2 ranks} on comm\n"
     "  F  %18 [6,4] = wait %17\n"
     "  F  %7 logits [6,3] = linear %18 %2 chunk 1\n"
     "  F  %8 logits.max [6] = row_max %7 chunk 1\n"
     "  F  %19 [6] = all_reduce %8 {maximum, 2 ranks} on comm chunk 1\n"
     "  F  %20 [6] = wait %19 chunk 1\n"
     "  F  %9 logits.sums [6,2] = row_sums %7 %20 %5 chunk 1\n"
     "  F  %21 [6,2] = all_reduce %9 {2 ranks} on comm chunk 1\n"
     "  F  %22 [6,2] = wait %21 chunk 1\n"
     "  F  %10 loss [1] += loss %22 %6 chunk 1\n"
     "  F  %11 d.logits [6,3] = loss_dx %7 %20 %22 %5 %6 chunk 1\n"
     "  F  %16 [6,4] = linear_dx %11 %2 chunk 1\n"
     "  F  %23 [3,4] = reduce_scatter %16 {2 ranks} on comm\n"
     "  F  %12 d.head.in [3,4] = wait %23\n"
     "  F  %13 d.lm_head.weight [3,4] += linear_dw %11 %18 {port 1} chunk 1\n"
     "  F  %14 d.x [3,4] = rmsnorm_dx %12 %0 %1 %4\n"
     "  F  %15 d.norm.weight [4] += rmsnorm_dw %12 %0 %4 {port 0}\n"},
    {"head, sequence, rank 1", build_head, &strategy_tp_sequence, 1,
     "  %0 x [3,4]: stream from the unit before\n"
     "  %1 norm.weight [4]: parameter 0\n"
     "  %2 lm_head.weight [2,4]: parameter 1\n"
     "  %5 targets [6] i32: input\n"
     "  %6 weights [6]: input\n"
     "  F  %3 head.in [3,4], %4 [3] = rmsnorm %0 %1 {eps 1e-05}\n"
     "  F  %17 [6,4] = all_gather %3 {2 ranks} on comm\n"
     "  F  %18 [6,4] = wait %17\n"
     "  F  %7 logits [6,2] = linear %18 %2 chunk 1\n"
     "  F  %8 logits.max [6] = row_max %7 chunk 1\n"
     "  F  %19 [6] = all_reduce %8 {maximum, 2 ranks} on comm chunk 1\n"
     "  F  %20 [6] = wait %19 chunk 1\n"
     "  F  %9 logits.sums [6,2] = row_sums %7 %20 %5 {vocabulary from 3} chunk 1\n"
     "  F  %21 [6,2] = all_reduce %9 {2 ranks} on comm chunk 1\n"
     "  F  %22 [6,2] = wait %21 chunk 1\n"
     "  F  %10 loss [1] += loss %22 %6 chunk 1\n"
     "  F  %11 d.logits [6,2] = loss_dx %7 %20 %22 %5 %6 {vocabulary from 3} chunk 1\n"
     "  F  %16 [6,4] = linear_dx %11 %2 chunk 1\n"
     "  F  %23 [3,4] = reduce_scatter %16 {2 ranks} on comm\n"
     "  F  %12 d.head.in [3,4] = wait %23\n"
     "  F  %13 d.lm_head.weight [2,4] += linear_dw %11 %18 {port 1} chunk 1\n"
     "  F  %14 d.x [3,4] = rmsnorm_dx %12 %0 %1 %4\n"
     "  F  %15 d.norm.weight [4] += rmsnorm_dw %12 %0 %4 {port 0}\n"},
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
