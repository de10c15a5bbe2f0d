/* test_context_plans.c -- attention plans: every row of the table passes the checker, forward and
 * backward, for all numbers of ranks, tokens and masks that it is defined for. Other shapes are
 * refused. The drawings in the head comments are those of the program. */
#include "support/test_arena.h"

#include <stdio.h>
#include <string.h>
#include "base/text.h"
#include "compile/context/check.h"

#ifndef SHEAF_SOURCE_DIR
#define SHEAF_SOURCE_DIR "."
#endif

static void both_pass(const ContextRow *row, const ContextShape *s, Arena *a)
{
    ContextPlan forward, backward;
    ContextCounts f, b;
    DO(context_plan(row, s, a, &forward));
    DO(context_check(&forward, a, &f));
    DO(context_backward(&forward, a, &backward));
    DO(context_check(&backward, a, &b));
    assert_int_equal(f.max_work, b.max_work);
}

/* All-gather moves between every two ranks, which takes the checker the most memory. */
static void the_largest_plan_is_checked(void **state)
{
    const ContextShape s = {MAX_CONTEXT_RANKS, 1, TOKENS_ZIGZAG, true};
    const ContextRow *row;
    Arena arena;
    (void)state;
    DO(arena_open(&arena, "test", (size_t)1 << 30));
    DO(context_row("gather", &arena, &row));
    both_pass(row, &s, &arena);
    arena_close(&arena);
}

static void every_row_passes(void **state)
{
    int n, plans = 0;
    const ContextRow *row = context_rows(&n);
    for (int i = 0; i < n; i++)
        for (int ranks = 1; ranks <= 13; ranks++)
            for (int inner = 1; inner <= (row[i].inner ? ranks : 1); inner++)
                for (int tokens = 0; tokens < N_TOKEN_MAPS; tokens++)
                    for (int causal = row[i].causal; causal < 2 - row[i].passes; causal++) {
                        const ContextShape s = {ranks, inner, tokens, causal};
                        const size_t mark = arena_mark(*state);
                        if (ranks % inner || !(row[i].tokens >> tokens & 1)) continue;
                        both_pass(&row[i], &s, *state);
                        arena_rewind(*state, mark);
                        plans++;
                    }
    assert_true(plans > 300);
}

/* Elements that all ranks send for one sequence of P tokens with H = 10 and K = 4, without lse and
 * delta; formulas of the publications, written out. */
static double elements(const ContextCounts *f, const ContextCounts *b)
{
    const double H = 10, K = 4, half = 0.5;
    return half * ((double)(f->sent.halves[PAYLOAD_KV] + b->sent.halves[PAYLOAD_KV] +
                            b->sent.halves[PAYLOAD_DKV]) *
                       2 * K +
                   (double)(f->sent.halves[PAYLOAD_Q] + f->sent.halves[PAYLOAD_O] +
                            2 * b->sent.halves[PAYLOAD_Q] + b->sent.halves[PAYLOAD_DQ] +
                            f->sent.halves[PAYLOAD_K] + f->sent.halves[PAYLOAD_V] +
                            b->sent.halves[PAYLOAD_K] + b->sent.halves[PAYLOAD_V] +
                            b->sent.halves[PAYLOAD_DK] + b->sent.halves[PAYLOAD_DV]) *
                       H); /* keys of a plan in passes are as wide as queries */
}

static void bytes_are_those_of_the_methods(void **state)
{
    const struct {
        const char *name;
        TokenMap tokens;
        double elements; /* 8 tokens on 8 ranks: f BS = 7 */
    } row[] = {
        {"gather", TOKENS_ZIGZAG, 6 * 7 * 4.0},
        {"ring", TOKENS_CONTIGUOUS, 6 * 7 * 4.0},
        {"ring", TOKENS_STRIPED, 6 * 7 * 4.0},
        {"double-ring", TOKENS_ZIGZAG, 6 * 7 * 4.0},
        {"token-ring", TOKENS_CONTIGUOUS, 5 * 7 * 10.0},
        {"token-ring", TOKENS_ZIGZAG, 5 * 7 * 10.0 * 3 / 4},
        /* keys 3/8 - 1/4P of the pairs, queries 1/8 - 1/4P; 2 + 4 of K, 2 + 3 of H with delta */
        {"lightseq", TOKENS_CONTIGUOUS,
         64 * ((3.0 / 8 - 1.0 / 32) * 6 * 4 + (1.0 / 8 - 1.0 / 32) * 5 * 10) / 8},
        {"rsa", TOKENS_CONTIGUOUS, 6 * 7 * 10.0},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const ContextRow *of;
        ContextPlan forward, backward;
        ContextCounts f, b;
        DO(context_row(row[i].name, *state, &of));
        const ContextShape s = {8, 4, row[i].tokens, !of->passes};
        DO(context_plan(of, &s, *state, &forward));
        DO(context_check(&forward, *state, &f));
        DO(context_backward(&forward, *state, &backward));
        DO(context_check(&backward, *state, &b));
        /* blocks of one token: `elements` is over all ranks; per rank it is 1/8 */
        assert_float_equal(elements(&f, &b) / 8, row[i].elements, 1e-9);
    }
}

static void work_is_balanced(void **state)
{
    const struct {
        const char *name;
        int ranks;
        TokenMap tokens;
        double balance;
    } row[] = {
        {"ring", 4, TOKENS_CONTIGUOUS, 7.0 / 4},
        {"ring", 4, TOKENS_ZIGZAG, 1},
        {"ring", 5, TOKENS_ZIGZAG, 1},
        {"ring", 8, TOKENS_STRIPED, 1},
        {"lightseq", 8, TOKENS_CONTIGUOUS, 9.0 / 8},
        {"lightseq", 7, TOKENS_CONTIGUOUS, 1},
        {"token-ring", 6, TOKENS_ZIGZAG, 1},
        {"rsa", 4, TOKENS_CONTIGUOUS, 1},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const ContextRow *of;
        ContextPlan p;
        ContextCounts counts;
        DO(context_row(row[i].name, *state, &of));
        const ContextShape s = {row[i].ranks, 1, row[i].tokens, !of->passes};
        DO(context_plan(of, &s, *state, &p));
        DO(context_check(&p, *state, &counts));
        assert_float_equal(counts.balance, row[i].balance, 1e-12);
    }
}

static void refuses(Err err, const char *part)
{
    assert_int_equal(err, ERR_CONFIG);
    if (!strstr(err_text(), part)) fail_msg("\"%s\" lacks \"%s\"", err_text(), part);
}

static void other_shapes_are_refused(void **state)
{
    const ContextRow *row;
    ContextPlan p;
    refuses(context_row("rings", *state, &row), "did you mean ring?");
    DO(context_row("lightseq", *state, &row));
    refuses(context_plan(row, &(ContextShape){4, 1, TOKENS_ZIGZAG, true}, *state, &p),
            "tokens that work: contiguous");
    refuses(context_plan(row, &(ContextShape){4, 1, TOKENS_CONTIGUOUS, false}, *state, &p),
            "causal mask");
    DO(context_row("token-ring", *state, &row));
    refuses(context_plan(row, &(ContextShape){4, 1, TOKENS_STRIPED, true}, *state, &p),
            "tokens that work: contiguous, zigzag");
    DO(context_row("double-ring", *state, &row));
    refuses(context_plan(row, &(ContextShape){6, 4, TOKENS_ZIGZAG, true}, *state, &p),
            "3 per ring works");
    refuses(context_plan(row, &(ContextShape){0, 1, TOKENS_ZIGZAG, true}, *state, &p),
            "a plan has 1 to 256");
    DO(context_row("rsa", *state, &row));
    refuses(context_plan(row, &(ContextShape){4, 1, TOKENS_CONTIGUOUS, true}, *state, &p),
            "not defined for a causal mask");
    refuses(context_plan(row, &(ContextShape){4, 1, TOKENS_ZIGZAG, false}, *state, &p),
            "tokens that work: contiguous");
    refuses(context_row_heads(row, 8, 2), "not defined for 2 key heads that 8 query heads share");
    DO(context_row_heads(row, 8, 8));
}

static void expect_in_file(const char *file, const char *drawing, Arena *a)
{
    char path[256];
    const char *text;
    size_t length;
    snprintf(path, sizeof path, "%s/src/compile/context/%s", SHEAF_SOURCE_DIR, file);
    DO(text_read_file(path, 1 << 20, a, &text, &length));
    if (!strstr(text, drawing)) fail_msg("%s does not show\n%s", file, drawing);
}

static void head_comments_are_drawn(void **state)
{
    const struct {
        const char *name, *file;
        ContextShape shape;
    } row[] = {
        {"gather", "gather.c", {3, 1, TOKENS_ZIGZAG, true}},
        {"ring", "ring.c", {3, 1, TOKENS_ZIGZAG, true}},
        {"double-ring", "double_ring.c", {4, 2, TOKENS_ZIGZAG, true}},
        {"lightseq", "lightseq.c", {5, 1, TOKENS_CONTIGUOUS, true}},
        {"token-ring", "token_ring.c", {3, 1, TOKENS_CONTIGUOUS, true}},
        {"rsa", "rsa.c", {3, 1, TOKENS_CONTIGUOUS, false}},
    };
    int n;
    context_rows(&n);
    assert_int_equal(n, sizeof row / sizeof *row);
    for (int i = 0; i < n; i++) {
        const ContextRow *of;
        ContextPlan p;
        const char *drawing;
        DO(context_row(row[i].name, *state, &of));
        DO(context_plan(of, &row[i].shape, *state, &p));
        DO(context_draw(&p, " *   ", *state, &drawing));
        expect_in_file(row[i].file, drawing, *state);
    }
}

static void backward_of_a_ring_is_drawn(void **state)
{
    const ContextRow *of;
    ContextPlan f, b;
    const char *drawing;
    DO(context_row("ring", *state, &of));
    DO(context_plan(of, &(ContextShape){3, 1, TOKENS_ZIGZAG, true}, *state, &f));
    DO(context_backward(&f, *state, &b));
    DO(context_draw(&b, " *     ", *state, &drawing));
    expect_in_file("backward.c", drawing, *state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_passes),
        cmocka_unit_test(the_largest_plan_is_checked),
        cmocka_unit_test(bytes_are_those_of_the_methods),
        cmocka_unit_test(work_is_balanced),
        cmocka_unit_test(other_shapes_are_refused),
        cmocka_unit_test(head_comments_are_drawn),
        cmocka_unit_test(backward_of_a_ring_is_drawn),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
