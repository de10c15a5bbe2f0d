/* test_ops.c -- the table of ops: every signature and every row prints as it is written, has
 * letters of the op, and leads to a kernel of ref; flops; and the errors of op_infer for shapes
 * that do not fit. test_ops_rows.c checks that the rows hold. */
#include "support/expect.h"

#include <ctype.h>
#include <stdio.h>

#include "base/text.h"
#include "ir/build.h"

static void print_operand(Text *t, const Operand *o)
{
    text_add(t, "%s%s%s%s%s%s[", o->name, o->optional ? "?" : "", o->wide ? "~" : "",
             o->integer ? "#" : "", o->fp8 ? "%" : "", o->added ? "+" : "");
    if (o->ndim < 0) text_add(t, o->ndim == -1 ? "*" : "!");
    for (int i = 0; i < o->ndim; i++) {
        text_add(t, i ? "," : "");
        text_add(t, o->second[i] ? "(%c%c" : "%c", o->letter[i], o->second[i]);
        if (o->third[i]) text_add(t, "%c", o->third[i]);
        if (o->second[i]) text_add(t, ")");
    }
    text_add(t, "]");
}

static void signatures_round_trip(void **state)
{
    Arena arena;
    (void)state;
    DO(arena_open(&arena, "ops", (size_t)1 << 20));
    for (int op = 0; op < N_OPS; op++) {
        const Signature sig = op_signature((OpId)op);
        const char *text;
        Text t = text_in(&arena);
        for (int i = 0; i < sig.n_in; i++) {
            print_operand(&t, &sig.in[i]);
            text_add(&t, " ");
        }
        text_add(&t, "->");
        for (int i = 0; i < sig.n_out; i++) {
            text_add(&t, " ");
            print_operand(&t, &sig.out[i]);
        }
        DO(text_done(&t, &text));
        assert_string_equal(text, op_info((OpId)op)->signature);
        assert_in_range(sig.n_in, 1, MAX_IN);
        assert_in_range(sig.n_out, 1, MAX_OUT);
    }
    arena_close(&arena);
}

static bool has_letter(const Signature *sig, char letter)
{
    for (int i = 0; i < sig->n_in + sig->n_out; i++) {
        const Operand *o = i < sig->n_in ? &sig->in[i] : &sig->out[i - sig->n_in];
        if (letter == '*' ? o->ndim == -1 : operand_dim(o, letter) >= 0) return true;
    }
    return false;
}

static void rows_round_trip(void **state)
{
    (void)state;
    for (int op = 0; op < N_OPS; op++) {
        OpRow row[MAX_ROWS];
        char text[64] = "";
        const Signature sig = op_signature((OpId)op);
        const int n = op_rows((OpId)op, row);
        for (int r = 0; r < n; r++) {
            char word[8] = {row[r].letter};
            if (row[r].with) snprintf(word, sizeof word, "%c=%c", row[r].letter, row[r].with);
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s%.1s", r ? " " : "",
                     word, row[r].partial ? &row[r].partial : "");
            assert_true(has_letter(&sig, row[r].letter));
            if (row[r].with) assert_true(has_letter(&sig, row[r].with));
        }
        assert_string_equal(text, op_info((OpId)op)->rows);
    }
}

static void kernels_exist(void **state)
{
    (void)state;
    for (int op = 0; op < N_OPS; op++) {
        const OpInfo *info = op_info((OpId)op);
        const bool none = info->class == CLASS_VIEW || op == OP_wait || op == OP_call ||
                          op_transfers((OpId)op) || op_loops((OpId)op); /* run their bodies */
        if (none != (info->kernel == KERNEL_NONE)) fail_msg("%s: has it a kernel?", info->name);
        if (!none && !device_ref.kernel[info->kernel]) fail_msg("%s: ref has none", info->name);
    }
}

static Dims d1(int64_t a) { return dims1(dim_of(a)); }
static Dims d2(int64_t a, int64_t b) { return dims2(dim_of(a), dim_of(b)); }
static Dims d3(int64_t a, int64_t b, int64_t c)
{
    return (Dims){3, {dim_of(a), dim_of(b), dim_of(c)}};
}

enum { T = 7, I = 5, O = 9, H = 6, G = 3, C = 4, V = 11, SPAN = 13 };

/* Shapes are inferred, outputs that no input determines are given; the flops follow. */
static void flops_are_counted(void **state)
{
    const OpAttr none = {.heads = {.size = C}}, seen = {.kernel.attention = {.span = SPAN}};
    const Dims q = d3(T, H, C), k = d3(2 * T, G, C), r = d2(T, 4), s = d2(T, H), tv = d2(T, V);
    const struct {
        OpId op;
        OpAttr attr;
        int n_in, n_out;
        Dims in[MAX_IN], given[MAX_OUT];
        double flops;
    } table[] = {
        {OP_linear, none, 2, 1, {d2(T, I), d2(O, I)}, {{0}}, 2.0 * T * I * O},
        {OP_linear, none, 3, 1, {d2(T, I), d2(O, I), d1(O)}, {{0}}, 2.0 * T * I * O},
        {OP_linear_add, none, 3, 1, {d2(T, I), d2(O, I), d2(T, O)}, {{0}}, 2.0 * T * I * O + T * O},
        {OP_linear_gelu, none, 2, 2, {d2(T, I), d2(O, I)}, {{0}}, 2.0 * T * I * O + 10.0 * T * O},
        {OP_linear_dgelu_bias,
         none,
         3,
         2,
         {d2(T, O), d2(O, I), d2(T, I)},
         {{0}},
         2.0 * T * I * O + 17.0 * T * I},
        {OP_linear_dswiglu,
         none,
         4,
         2,
         {d2(T, O), d2(O, I), d2(T, I), d2(T, I)},
         {{0}},
         2.0 * T * I * O + 12.0 * T * I},
        {OP_linear_dx, none, 2, 1, {d2(T, O), d2(O, I)}, {{0}}, 2.0 * T * I * O},
        {OP_linear_dw, none, 2, 1, {d2(T, O), d2(T, I)}, {{0}}, 2.0 * T * I * O},
        {OP_bias_dw, none, 1, 1, {d2(T, O)}, {{0}}, 1.0 * T * O},
        {OP_add, none, 2, 1, {q, q}, {{0}}, 1.0 * T * H * C},
        {OP_swiglu, none, 2, 1, {tv, tv}, {{0}}, 6.0 * T * V},
        {OP_cast, none, 1, 1, {tv}, {{0}}, 0},
        {OP_rmsnorm, none, 2, 2, {tv, d1(V)}, {{0}}, 5.0 * T * V},
        {OP_headnorm, none, 2, 2, {q, d1(C)}, {{0}}, 5.0 * T * H * C},
        {OP_embedding_dw, none, 2, 1, {d2(T, I), d1(T)}, {d2(V, I)}, 1.0 * T * I},
        {OP_attention, seen, 4, 2, {q, k, k, r}, {{0}}, 4.0 * T * H * C * SPAN},
        {OP_attention_dx, seen, 7, 3, {q, k, k, r, q, s, q}, {{0}}, 10.0 * T * H * C * SPAN},
        {OP_row_sums, none, 3, 1, {tv, d1(T), d1(T)}, {{0}}, 4.0 * T * V},
        {OP_loss, none, 2, 1, {d2(T, 2), d1(T)}, {{0}}, 4.0 * T},
        {OP_heads, none, 1, 1, {d2(T, H * C)}, {{0}}, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        Dims out[MAX_OUT];
        DO(op_infer(table[i].op, &table[i].attr, table[i].n_in, table[i].in, table[i].given,
                    table[i].n_out, out));
        const Flops got =
            op_flops(table[i].op, &table[i].attr, table[i].n_in, table[i].in, table[i].n_out, out);
        if (got.all != table[i].flops)
            fail_msg("%s: %g flops, not %g", op_info(table[i].op)->name, got.all, table[i].flops);
        const bool epilogue = table[i].op == OP_linear_add || table[i].op == OP_linear_gelu ||
                              table[i].op == OP_linear_dgelu_bias ||
                              table[i].op == OP_linear_dswiglu;
        const bool heavy = op_info(table[i].op)->class == CLASS_HEAVY;
        assert_true(got.heavy == (epilogue ? 2.0 * T * I * O : heavy ? got.all : 0));
    }
}

/* Letters of the flops are letters of the op: one that it lacks would count as 0. */
static void flops_name_letters(void **state)
{
    (void)state;
    for (int op = 0; op < N_OPS; op++) {
        const Signature sig = op_signature((OpId)op);
        for (const char *s = op_info((OpId)op)->flops; *s; s++)
            if (!isdigit((unsigned char)*s) && *s != '@' && *s != '+' && !has_letter(&sig, *s))
                fail_msg("%s: flops name %c", op_info((OpId)op)->name, *s);
    }
}

static void shapes_are_inferred(void **state)
{
    const OpAttr heads_of = {.heads = {.size = C}};
    const Dim bounded = {.cap = T, .slot = 2, .from = 3};
    Dims out[MAX_OUT];
    (void)state;
    DO(op_infer(OP_heads, &heads_of, 1, (Dims[]){dims2(bounded, dim_of(H * C))}, NULL, 1, out));
    assert_int_equal(out[0].ndim, 3);
    assert_true(dim_same(out[0].dim[0], bounded)); /* a bound passes through */
    assert_int_equal(out[0].dim[1].cap, H);
    assert_int_equal(out[0].dim[2].cap, C);
    DO(op_infer(OP_merge, &heads_of, 1, (Dims[]){d3(T, H, C)}, NULL, 1, out));
    assert_int_equal(out[0].ndim, 2);
    assert_int_equal(out[0].dim[1].cap, H * C);
    DO(op_infer(OP_row_sums, &heads_of, 3, (Dims[]){d2(T, V), d1(T), d1(T)}, NULL, 1, out));
    assert_int_equal(out[0].dim[1].cap, 2);
    DO(op_infer(OP_layernorm, &heads_of, 3, (Dims[]){d2(T, V), d1(V), d1(V)}, NULL, 3, out));
    assert_int_equal(out[0].dim[1].cap, V);
    assert_int_equal(out[1].ndim, 1);
    assert_int_equal(out[2].dim[0].cap, T);
}

/* The heads that share a key head follow from the shapes, or from attributes for a part of the
 * heads. No head may read past the last key head. */
static void heads_have_key_heads(void **state)
{
    static const struct {
        int64_t heads, key_heads, group, head_at;
        const char *wrong; /* or NULL */
    } table[] = {
        {6, 3, 0, 0, NULL},
        {3, 2, 4, 3, NULL},
        {0, 2, 0, 0, NULL},
        {3, 0, 0, 0, NULL},
        {4, 3, 0, 0, "4 heads from place 0 on cannot share 3 key heads evenly"},
        {6, 3, 0, 1, "6 heads from place 1 on cannot share 3 key heads evenly"},
        {6, 2, 4, 3, "6 heads from place 3 of a group of 4 on read past the last of 2 key heads"},
        {1, 2, 4, 4, "1 heads from place 4 of a group of 4"},
        {1, 2, 4, -1, "1 heads from place -1 of a group of 4"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const OpAttr attr = {
            .kernel.attention = {.group = table[i].group, .head_at = table[i].head_at}};
        const Dims q = d3(T, table[i].heads, C), k = d3(2 * T, table[i].key_heads, C);
        Dims out[MAX_OUT];
        const Err err = op_infer(OP_attention, &attr, 4, (Dims[]){q, k, k, d2(T, 4)}, NULL, 2, out);
        if (table[i].wrong)
            expect_error("attention", err, ERR_CHECK, table[i].wrong);
        else
            DO(err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signatures_round_trip), cmocka_unit_test(rows_round_trip),
        cmocka_unit_test(kernels_exist),         cmocka_unit_test(flops_are_counted),
        cmocka_unit_test(flops_name_letters),    cmocka_unit_test(shapes_are_inferred),
        cmocka_unit_test(heads_have_key_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
