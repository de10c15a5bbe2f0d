/* test_pass_slice.c -- slice, before and after: the values that live across the slices of a
 * sequence. The pass does what the drawing at the head of compile/slice.c shows; recomputing
 * leaves the rows of other slices alone; they have regions of their own; a broken graph is
 * reported. */
#include "support/graph_test.h"

#include <stdio.h>

#ifndef SHEAF_SOURCE_DIR
#define SHEAF_SOURCE_DIR "."
#endif

enum { ROWS = 17, LONGEST = 6, HEADS = 4, KEY_HEADS = 2, SIZE = 3 };

/* Attention between GEMMs: q, k and v of x, out to y. */
static void build(GraphTest *b, DType dtype)
{
    graph_test_open(b, "u");
    Graph *g = &b->g;
    g->dtype = dtype;
    const Dim rows = dim_rows(LONGEST, SLOT_ROWS);
    const Value x = stream_in(g, rows, D);
    const Value q = linear(g, x, graph_test_w(b, "wq", HEADS * SIZE, D), NO_VALUE);
    const Value k = linear(g, x, graph_test_w(b, "wk", KEY_HEADS * SIZE, D), NO_VALUE);
    const Value v = linear(g, x, graph_test_w(b, "wv", KEY_HEADS * SIZE, D), NO_VALUE);
    const Value o =
        attention(g, graph_name(g, heads(g, q, SIZE), "q"), graph_name(g, heads(g, k, SIZE), "k"),
                  graph_name(g, heads(g, v, SIZE), "v"), input(g, INPUT_RANGES, rows), 0.5, ROWS);
    graph_name(g, second_output(g, o), "lse");
    graph_name(g, o, "out");
    stream_out(g, linear(g, merge(g, o), graph_test_w(b, "wo", D, HEADS * SIZE), NO_VALUE));
    graph_test_prepare(b, true);
}

/* The attention nodes of the graph and those that move rows, by names. */
static void draw(const Graph *g, char *text, size_t cap)
{
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *a = &g->node[i];
        if (a->op != OP_attention && a->op != OP_attention_dx && a->op != OP_put_rows &&
            a->op != OP_get_rows)
            continue;
        bool adds = false;
        for (int k = 0; k < a->n_out; k++) {
            n += (size_t)snprintf(text + n, cap - n, "%s%s", k ? ", " : "",
                                  g->value[a->out[k]].name);
            adds = adds || a->keep[k] == SLOT_BEFORE_LAST;
        }
        n += (size_t)snprintf(text + n, cap - n, " %s %s", adds ? "+=" : "=", op_info(a->op)->name);
        for (int k = 0; k < a->n_in; k++)
            n += (size_t)snprintf(text + n, cap - n, " %s", g->value[a->in[k]].name);
        n += (size_t)snprintf(text + n, cap - n, "\n");
    }
}

/* The lines after " *   `word`:" in the head comment, without their prefix. */
static void read_drawing(const char *word, char *text, size_t cap)
{
    char line[256], mark[32];
    size_t n = 0;
    bool on = false;
    FILE *f = fopen(SHEAF_SOURCE_DIR "/src/compile/slice.c", "r");
    assert_non_null(f);
    snprintf(mark, sizeof mark, " *   %s:", word);
    text[0] = '\0';
    while (fgets(line, sizeof line, f)) {
        const bool first = strncmp(line, mark, strlen(mark)) == 0;
        const bool more = on && strncmp(line, " *            ", 14) == 0;
        if (on && !more) break;
        on = on || first;
        if (on) n += (size_t)snprintf(text + n, cap - n, "%s", line + 14);
    }
    fclose(f);
}

static void pass_matches_drawing(void **state)
{
    GraphTest b;
    char got[1024], want[1024];
    (void)state;
    build(&b, F64);
    draw(&b.g, got, sizeof got);
    read_drawing("before", want, sizeof want);
    expect_text("before", got, want);
    DO(slice(&b.g, ROWS, false));
    draw(&b.g, got, sizeof got);
    read_drawing("after", want, sizeof want);
    expect_text("after", got, want);
    graph_test_close(&b);
}

static Value named(const GraphTest *b, const char *name)
{
    for (Value v = 0; v < b->g.n_values; v++)
        if (strcmp(b->g.value[v].name, name) == 0) return v;
    fail_msg("no value %s", name);
    return NO_VALUE;
}

/* Whole rows, live up to the slice's end; sums are wide. */
static void shapes(void **state)
{
    GraphTest b;
    (void)state;
    build(&b, F64);
    DO(slice(&b.g, ROWS, false));
    static const char *const name[] = {"k.all", "v.all", "d.k.all", "d.v.all"};
    for (int i = 0; i < 4; i++) {
        const ValueInfo *v = &b.g.value[named(&b, name[i])];
        assert_int_equal(v->role, ROLE_MICRO);
        assert_int_equal(v->dims.dim[0].cap, ROWS);
        assert_int_equal(v->dims.dim[0].slot, SLOT_SEEN);
        assert_int_equal(v->dims.dim[1].cap, KEY_HEADS);
        assert_int_equal(v->dims.dim[2].cap, SIZE);
    }
    graph_test_close(&b);
}

/* Sums over several slices are kept in f32, and rounded once: when they are read. */
static void sums_are_wide(void **state)
{
    GraphTest b;
    (void)state;
    build(&b, BF16);
    DO(slice(&b.g, ROWS, false));
    assert_int_equal(b.g.value[named(&b, "k.all")].dtype, BF16);
    assert_int_equal(b.g.value[named(&b, "d.v.all")].dtype, F32);
    assert_int_equal(b.g.value[named(&b, "d.v")].dtype, BF16);
    graph_test_close(&b);
}

/* Rows are put once under every kind of recomputation, and attention reads them in place. */
static void put_once(void **state)
{
    static const Recompute mode[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    (void)state;
    for (int w = 0; w < 3; w++) {
        GraphTest b;
        int puts = 0, attentions = 0;
        Program p;
        build(&b, F64);
        DO(slice(&b.g, ROWS, false));
        DO(recompute(&b.g, &(CompileOptions){.recompute = mode[w], .offload_names = "k*,v*"}));
        DO(phases(&b.g));
        for (int i = 0; i < b.g.n_nodes; i++) {
            const Node *n = &b.g.node[i];
            puts += n->op == OP_put_rows;
            if (n->op == OP_put_rows) assert_int_equal(n->phase, PHASE_F);
            if (n->op == OP_get_rows) assert_int_equal(n->phase, PHASE_I);
            if (n->op != OP_attention) continue;
            attentions++;
            assert_int_equal(n->in[1], named(&b, "k.all"));
        }
        assert_int_equal(puts, 2);
        assert_int_equal(attentions, mode[w] == RECOMPUTE_FULL ? 2 : 1);
        DO(lower(&b.g, &b.arena, &p));
        const size_t one = align_up(ROWS * KEY_HEADS * SIZE * 8);
        assert_int_equal(p.bytes[REGION_MICRO], 2 * one);
        assert_int_equal(p.bytes[REGION_DMICRO], 2 * one);
        assert_int_equal(p.tensor[named(&b, "d.k.all")].scope, SCOPE_MICRO);
        graph_test_close(&b);
    }
}

/* The first part of the loss starts it in the first slice alone. */
static void loss_continues(void **state)
{
    GraphTest b;
    int starts = 0;
    const Dim rows = dim_rows(T, SLOT_ROWS);
    (void)state;
    graph_test_open(&b, "head");
    const Value x = stream_in(&b.g, rows, D), w = graph_test_w(&b, "v", 9, D);
    const Value targets = input(&b.g, INPUT_TARGETS, rows);
    token_loss(&b.g, x, w, targets, input(&b.g, INPUT_WEIGHTS, rows));
    graph_test_prepare(&b, true);
    DO(chunk(&b.g, &(ChunkRule){.elements = 9 * 2, .min_rows = 1}));
    DO(slice(&b.g, ROWS, false));
    for (int i = 0; i < b.g.n_nodes; i++) {
        if (b.g.node[i].op != OP_loss) continue;
        assert_int_equal(b.g.node[i].keep[0], starts++ ? SLOT_ONE : SLOT_AFTER_FIRST);
    }
    assert_int_equal(starts, 3);
    graph_test_close(&b);
}

/* ---- faults, each reported with its node ---- */

static Node *first(GraphTest *b, OpId op)
{
    for (int i = 0; i < b->g.n_nodes; i++)
        if (b->g.node[i].op == op) return &b->g.node[i];
    fail_msg("no node %s", op_info(op)->name);
    return NULL;
}

static void keeps_always(GraphTest *b) { first(b, OP_attention_dx)->keep[1] = SLOT_ONE; }
static void keeps_never(GraphTest *b) { first(b, OP_attention_dx)->keep[2] = SLOT_ZERO; }
static void put_adds(GraphTest *b) { first(b, OP_put_rows)->keep[0] = SLOT_BEFORE_LAST; }
static void put_elsewhere(GraphTest *b) { b->g.value[named(b, "k.all")].role = ROLE_LOCAL; }
static void got_from_elsewhere(GraphTest *b) { first(b, OP_get_rows)->in[0] = named(b, "k"); }
static void read_whole(GraphTest *b)
{
    for (int i = 0; i < b->g.n_nodes; i++)
        if (b->g.node[i].op == OP_merge && b->g.node[i].in[0] == named(b, "d.k"))
            b->g.node[i].in[0] = named(b, "d.k.all");
}

static void faults(void **state)
{
    static const struct {
        void (*breaks)(GraphTest *b);
        const char *message;
    } fault[] = {
        {keeps_always, "attention_dx"}, {keeps_never, "attention_dx"},    {put_adds, "put_rows"},
        {put_elsewhere, "put_rows"},    {got_from_elsewhere, "get_rows"}, {read_whole, "d.k.all"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof fault / sizeof *fault; i++) {
        GraphTest b;
        build(&b, F64);
        DO(slice(&b.g, ROWS, false));
        fault[i].breaks(&b);
        assert_int_equal(graph_check(&b.g), ERR_CHECK);
        if (!strstr(err_text(), fault[i].message))
            fail_msg("fault %zu: \"%s\" does not say %s", i, err_text(), fault[i].message);
        graph_test_close(&b);
    }
}

/* Keys of which a rank has only a part of the rows cannot be put. */
static void keys_without_all_rows(void **state)
{
    GraphTest b;
    (void)state;
    build(&b, F64);
    b.g.value[named(&b, "k")].dims.dim[0].from = 3;
    assert_int_equal(slice(&b.g, ROWS, false), ERR_CHECK);
    assert_non_null(strstr(err_text(), "has not all rows"));
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pass_matches_drawing),  cmocka_unit_test(shapes),
        cmocka_unit_test(sums_are_wide),         cmocka_unit_test(put_once),
        cmocka_unit_test(loss_continues),        cmocka_unit_test(faults),
        cmocka_unit_test(keys_without_all_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
