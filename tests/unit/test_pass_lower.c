/* test_pass_lower.c -- lower: the values that share bytes, and those that must not. Places are
 * given as region, byte offset and strides; f64, so an element has 8 bytes. */
#include "support/graph_test.h"

#include <stdio.h>

enum { BYTES = 8 };

static const Attr rotation = {.rope = {.theta = 10}};

static Program lowered(GraphTest *b, bool back)
{
    Program p;
    graph_test_prepare(b, back);
    DO(fuse(&b->g));
    DO(phases(&b->g));
    DO(lower(&b->g, &b->arena, &p));
    return p;
}

static Value find(const GraphTest *b, const char *name)
{
    for (Value v = 0; v < b->g.n_values; v++)
        if (strcmp(b->g.value[v].name, name) == 0) return v;
    fail_msg("no value %s", name);
    return NO_VALUE;
}

/* True if two values have one address, in both modes. */
static bool share(const Program *p, Value a, Value b)
{
    const Place x = p->tensor[a].at[SPLIT], y = p->tensor[b].at[SPLIT];
    const bool same = x.region == y.region && x.offset == y.offset;
    assert_int_equal(same, p->tensor[a].at[MERGED].region == p->tensor[b].at[MERGED].region &&
                               p->tensor[a].at[MERGED].offset == p->tensor[b].at[MERGED].offset);
    return same;
}

static void expect_view(const Program *p, Value v, Value root, int64_t from, int64_t s0, int64_t s1)
{
    const ProgTensor *t = &p->tensor[v];
    assert_int_equal(t->view_of, root);
    assert_int_equal(t->at[SPLIT].offset - p->tensor[root].at[SPLIT].offset, from * BYTES);
    assert_int_equal(t->stride[0], s0);
    assert_int_equal(t->stride[1], s1);
    assert_int_equal(t->stride[t->ndim - 1], 1);
}

/* x -> q [T,2,2], k v [T,1,2], rotated, attended -> y */
static void build_attention(GraphTest *b)
{
    graph_test_open(b, "u");
    Graph *g = &b->g;
    const Value x = graph_test_x(b), wq = graph_test_w(b, "wq", 4, D),
                wk = graph_test_w(b, "wk", 2, D);
    const Value wv = graph_test_w(b, "wv", 2, D), wo = graph_test_w(b, "wo", D, 4);
    const Value pos = input(g, INPUT_POSITIONS, dim_of(T));
    const Value q = graph_name(g, heads(g, linear(g, x, wq, NO_VALUE), 2), "q");
    const Value k = graph_name(g, heads(g, linear(g, x, wk, NO_VALUE), 2), "k");
    const Value v = graph_name(g, heads(g, linear(g, x, wv, NO_VALUE), 2), "v");
    const Value qr = graph_name(g, rope(g, q, pos, &rotation), "q.rope");
    const Value kr = graph_name(g, rope(g, k, pos, &rotation), "k.rope");
    const Value ranges = input(g, INPUT_RANGES, dim_of(T));
    const Value o = attention(g, qr, kr, v, ranges, 0.7, T);
    stream_out(g, linear(g, merge(g, o), wo, NO_VALUE));
}

static void parts_of_one_gemm(void **state)
{
    GraphTest b;
    (void)state;
    build_attention(&b);
    const Program p = lowered(&b, true);
    const Value q = find(&b, "q"), k = find(&b, "k"), v = find(&b, "v");
    const Value all = p.tensor[q].view_of; /* [T,8] */
    assert_int_equal(p.tensor[all].dim[1].cap, 8);
    expect_view(&p, q, all, 0, 8, 2);
    expect_view(&p, k, all, 4, 8, 2);
    expect_view(&p, v, all, 6, 8, 2);
    expect_view(&p, find(&b, "q.rope"), all, 0, 8, 2); /* rotated in place */
    expect_view(&p, find(&b, "k.rope"), all, 4, 8, 2);
    assert_int_equal(p.tensor[all].at[SPLIT].region, REGION_FRAME_I);
    graph_test_close(&b);
}

/* attention_dx writes dq and dk at the addresses where rope rotates them back, and dv, side by
 * side; one GEMM for dx and one for the weights read them as one. */
static void gradients_joined(void **state)
{
    GraphTest b;
    (void)state;
    build_attention(&b);
    const Program p = lowered(&b, true);
    const Node *dw = graph_test_node(&b, "d.wq..3");
    const Value all = dw->in[0];
    const Value dq = find(&b, "d.q"), dk = find(&b, "d.k"), dv = find(&b, "d.v");
    assert_int_equal(p.tensor[all].view_of, all);
    expect_view(&p, dq, all, 0, 8, 2);
    expect_view(&p, dk, all, 4, 8, 2);
    expect_view(&p, dv, all, 6, 8, 2);
    expect_view(&p, find(&b, "d.q.rope"), all, 0, 8, 2);
    expect_view(&p, find(&b, "d.k.rope"), all, 4, 8, 2);
    assert_int_equal(p.tensor[all].at[SPLIT].region, REGION_CARRY);
    assert_int_equal(p.tensor[all].at[MERGED].region, REGION_SCRATCH);
    graph_test_close(&b);
}

/* A GEMM that adds to a sum finds it in its own output. */
static void sums_in_place(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "w", D, D);
    const Value p = gelu(g, linear(g, x, w, NO_VALUE)), q = gelu(g, x);
    stream_out(g, add(g, p, q));
    const Program program = lowered(&b, true);
    const Node *dx = graph_test_node(&b, "d.x");
    assert_int_equal(dx->n_in, 3);
    assert_true(share(&program, dx->in[2], dx->out[0]));
    for (int i = 0; i < program.n_instr; i++) /* no operand of the instruction */
        if (program.instr[i].out[0] == dx->out[0]) assert_int_equal(program.instr[i].n_in, 2);
    graph_test_close(&b);
}

/* A small forward unit around a GEMM a = w x; some node may or may not overwrite a. */
typedef Value (*Around)(GraphTest *b, Value x, Value a);

static Value rotated(GraphTest *b, Value x)
{
    Graph *g = &b->g;
    const Value pos = input(g, INPUT_POSITIONS, dim_of(T));
    return graph_name(g, rope(g, x, pos, &rotation), "r");
}

static Value dies(GraphTest *b, Value x, Value a)
{
    (void)x;
    return gelu(&b->g, graph_name(&b->g, scale(&b->g, a, 2), "r"));
}

static Value dies_as_a_view(GraphTest *b, Value x, Value a)
{
    (void)x;
    const Value r = rotated(b, heads(&b->g, a, 2));
    return gelu(&b->g, merge(&b->g, r));
}

static Value read_later(GraphTest *b, Value x, Value a)
{
    (void)x;
    const Value r = graph_name(&b->g, scale(&b->g, a, 2), "r"), later = gelu(&b->g, a);
    return swiglu(&b->g, r, later);
}

static Value read_before(GraphTest *b, Value x, Value a)
{
    (void)x;
    const Value before = gelu(&b->g, a), r = graph_name(&b->g, scale(&b->g, a, 2), "r");
    return swiglu(&b->g, r, before);
}

static Value shown_later(GraphTest *b, Value x, Value a)
{
    (void)x;
    const Value r = graph_name(&b->g, scale(&b->g, a, 2), "r"), view = heads(&b->g, a, 2);
    const Value other = rmsnorm(&b->g, view, vector(&b->g, "n", 2, INIT_ONES), 1e-5);
    return swiglu(&b->g, r, merge(&b->g, other));
}

static Value shown_twice(GraphTest *b, Value x, Value a)
{
    (void)x;
    const Value one = heads(&b->g, a, 2), two = heads(&b->g, a, 2), r = rotated(b, one);
    const Value other = rmsnorm(&b->g, two, vector(&b->g, "n", 2, INIT_ONES), 1e-5);
    return swiglu(&b->g, merge(&b->g, r), merge(&b->g, other));
}

static Value overlapping_parts(GraphTest *b, Value x, Value a)
{
    (void)x;
    const Value low = part(&b->g, a, 1, 0, dim_of(3)), high = part(&b->g, a, 1, 1, dim_of(3));
    const Value r = graph_name(&b->g, scale(&b->g, low, 2), "r");
    return linear(&b->g, swiglu(&b->g, r, high), graph_test_w(b, "o", D, 3), NO_VALUE);
}

static Value parts_apart(GraphTest *b, Value x, Value a)
{
    (void)x;
    const Value low = part(&b->g, a, 1, 0, dim_of(2)), high = part(&b->g, a, 1, 2, dim_of(2));
    const Value r = graph_name(&b->g, scale(&b->g, low, 2), "r");
    return linear(&b->g, swiglu(&b->g, r, high), graph_test_w(b, "o", D, 2), NO_VALUE);
}

static Value being_copied(GraphTest *b, Value x, Value a)
{
    (void)x;
    const Value begun = copy_out(&b->g, a), r = graph_name(&b->g, scale(&b->g, a, 2), "r");
    wait_for(&b->g, begun);
    return gelu(&b->g, r);
}

static Value copied(GraphTest *b, Value x, Value a)
{
    (void)x;
    wait_for(&b->g, copy_out(&b->g, a));
    return gelu(&b->g, graph_name(&b->g, scale(&b->g, a, 2), "r"));
}

static void written_over_or_not(void **state)
{
    static const struct {
        const char *name;
        Around around;
        bool back, over; /* r overwrites a */
    } table[] = {
        {"a dies", dies, false, true},
        {"a dies, seen as heads", dies_as_a_view, false, true},
        {"another part of a is read later", parts_apart, false, true},
        {"a was copied", copied, false, true},
        {"a is read later", read_later, false, false},
        {"a view of a is read later", shown_later, false, false},
        {"another view of a is read later", shown_twice, false, false},
        {"an overlapping part is read later", overlapping_parts, false, false},
        {"a is being copied", being_copied, false, false},
        {"a was read before", read_before, false, true},
        {"a is read in I", read_before, true, false},
        {"a norm reads a in W", shown_later, true, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        GraphTest b;
        graph_test_open(&b, "u");
        const Value x = graph_test_x(&b), w = graph_test_w(&b, "w", D, D),
                    out = graph_test_w(&b, "out", D, D);
        const Value a = graph_name(&b.g, linear(&b.g, x, w, NO_VALUE), "a");
        stream_out(&b.g, linear(&b.g, table[i].around(&b, x, a), out, NO_VALUE));
        const Program p = lowered(&b, table[i].back);
        if (share(&p, find(&b, "a"), find(&b, "r")) != table[i].over)
            fail_msg("%s: written over: %d", table[i].name, !table[i].over);
        graph_test_close(&b);
    }
}

/* Values from outside are never overwritten, not through a view either; outputs of the unit may be
 * made in place. */
static void inputs_and_outputs(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "w", D, D);
    const Value r = rotated(&b, heads(g, x, 2));
    const Value a = graph_name(g, linear(g, merge(g, r), w, NO_VALUE), "a");
    const Value s = graph_name(g, scale(g, a, 3), "s");
    stream_out(g, rope(g, heads(g, s, 2), input(g, INPUT_POSITIONS, dim_of(T)), &rotation));
    const Program p = lowered(&b, true);
    assert_int_not_equal(p.tensor[r].at[SPLIT].region, REGION_X);
    for (int i = 0; i < p.n_instr; i++)
        for (int k = 0; k < p.instr[i].n_out; k++) {
            const uint8_t region = p.tensor[p.instr[i].out[k]].at[SPLIT].region;
            assert_true(region != REGION_X && region != REGION_DY && region != REGION_PARAM);
        }
    assert_true(share(&p, find(&b, "a"), find(&b, "s")));
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_one_gemm),  cmocka_unit_test(gradients_joined),
        cmocka_unit_test(sums_in_place),      cmocka_unit_test(written_over_or_not),
        cmocka_unit_test(inputs_and_outputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
