/* test_graph_faults.c -- graph_check finds faults. Each row breaks one thing of a layer that has
 * been through all passes, and the message must name the node or the value and the fault.
 * Builders with shapes that do not fit report the op and the operand. */
#include "support/graph_test.h"

#include "model/config.h"

/* A llama layer with its backward part, GEMMs fused, some of it recomputed, mid on the host. */
static void open_layer(GraphTest *b)
{
    ModelConfig config;
    Model model;
    graph_test_open(b, "");
    DO(model_config_load("llama-tiny", NULL, 0, &b->arena, &config));
    DO(model_build(&config, F32, (BatchShape){2, 8}, &b->arena, &model));
    b->g = model.kind[1];
    graph_test_prepare(b, true);
    DO(fuse(&b->g));
    DO(recompute(&b->g,
                 &(CompileOptions){.recompute = RECOMPUTE_SELECTIVE, .offload_names = "mid"}));
    DO(phases(&b->g));
}

static Value named(GraphTest *b, const char *name)
{
    for (Value v = 0; v < b->g.n_values; v++)
        if (strcmp(b->g.value[v].name, name) == 0) return v;
    fail_msg("no value %s", name);
    return NO_VALUE;
}

static ValueInfo *info(GraphTest *b, const char *name) { return &b->g.value[named(b, name)]; }

static Node *first(GraphTest *b, OpId op)
{
    for (int i = 0; i < b->g.n_nodes; i++)
        if (b->g.node[i].op == op) return &b->g.node[i];
    fail_msg("no node %s", op_info(op)->name);
    return NULL;
}

static void op_unknown(GraphTest *b) { graph_test_node(b, "mid")->op = N_OPS; }
static void in_unknown(GraphTest *b) { graph_test_node(b, "mid")->in[1] = 9999; }
static void in_negative(GraphTest *b) { graph_test_node(b, "mid")->in[1] = NO_VALUE; }
static void out_unknown(GraphTest *b) { graph_test_node(b, "mlp.act")->out[0] = 9999; }
static void role_unknown(GraphTest *b) { info(b, "mid")->role = N_ROLES; }
static void second_x(GraphTest *b) { info(b, "positions")->role = ROLE_X; }
static void extent_negative(GraphTest *b) { info(b, "mid")->dims.dim[1].cap = -1; }
static void slot_of_extent(GraphTest *b) { info(b, "mid")->dims.dim[0].slot = N_SLOTS; }
static void name_twice(GraphTest *b) { info(b, "mid")->name = "mlp.act"; }
static void param_unknown(GraphTest *b) { info(b, "mlp.down_proj.weight")->index = 9; }
static void param_span(GraphTest *b) { info(b, "self_attn.q_proj.weight..3")->span = 2; }
static void param_shape(GraphTest *b) { info(b, "input_layernorm.weight")->dims.dim[0].cap = 63; }
static void param_inner(GraphTest *b) { info(b, "mlp.down_proj.weight")->dims.dim[1].cap = 175; }
static void given_written(GraphTest *b) { graph_test_node(b, "mlp.act")->out[0] = named(b, "x"); }
static void written_twice(GraphTest *b)
{
    graph_test_node(b, "mlp.act")->out[0] = named(b, "mlp.gate");
}
static void sum_read(GraphTest *b)
{
    graph_test_node(b, "mid")->in[1] = named(b, "d.mlp.down_proj.weight");
}
static void never_written(GraphTest *b) { graph_test_node(b, "mid")->n_out = 0; }
static void y_missing(GraphTest *b) { graph_test_node(b, "y")->n_out = 0; }
static void dx_missing(GraphTest *b) { graph_test_node(b, "d.x")->n_out = 0; }
static void shape_wrong(GraphTest *b) { info(b, "y")->dims.dim[1].cap = 63; }
static void bound_lost(GraphTest *b) { info(b, "y")->dims.dim[0].slot = NO_SLOT; }
static void dims_wrong(GraphTest *b)
{
    info(b, "y")->dims.ndim = 3;
    info(b, "y")->dims.dim[2] = dim_of(1);
}
static void inputs_disagree(GraphTest *b) { graph_test_node(b, "y")->in[1] = named(b, "mlp.gate"); }
static void input_dims(GraphTest *b) { graph_test_node(b, "y")->in[1] = named(b, "attn.q"); }
static void too_few(GraphTest *b) { graph_test_node(b, "mlp.act")->n_in = 1; }
static void too_many(GraphTest *b)
{
    static Value in[3] = {0, 0, 0};
    graph_test_node(b, "mid")->n_in = 3;
    graph_test_node(b, "mid")->in = in;
}
static void not_wide(GraphTest *b)
{
    b->g.value[graph_test_node(b, "attn.out")->out[1]].dtype = BF16;
}
static void view_type(GraphTest *b) { info(b, "attn.q")->dtype = BF16; }
static void on_host(GraphTest *b) { info(b, "mlp.act")->space = SPACE_HOST; }
static void keep_unknown(GraphTest *b)
{
    graph_test_node(b, "d.mlp.down_proj.weight")->keep[0] = N_SLOTS;
}
static void keep_of_no_sum(GraphTest *b) { graph_test_node(b, "mlp.act")->keep[0] = SLOT_ONE; }
static void sum_not_kept(GraphTest *b)
{
    static Value in[3];
    Node *n = graph_test_node(b, "d.mlp.act");
    memcpy(in, n->in, 2 * sizeof *in);
    in[2] = named(b, "mlp.gate");
    n->in = in;
    n->n_in = 3;
}
static void queue_wrong(GraphTest *b) { first(b, OP_copy_out)->queue = QUEUE_COMPUTE; }
static void queue_of_compute(GraphTest *b) { graph_test_node(b, "mid")->queue = QUEUE_COMM; }
static void copied_to_device(GraphTest *b) { b->g.value[first(b, OP_copy_out)->out[0]].space = 0; }
static void before_wait(GraphTest *b)
{
    const Value begun = first(b, OP_copy_in)->out[0], waited = begun + 1; /* it comes right after */
    for (int i = 0; i < b->g.n_nodes; i++)
        for (int j = 0; j < b->g.node[i].n_in; j++)
            if (b->g.node[i].in[j] == waited) b->g.node[i].in[j] = begun;
}
static void wait_for_nothing(GraphTest *b) { first(b, OP_wait)->in[0] = named(b, "mlp.in"); }
static void part_outside(GraphTest *b) { graph_test_node(b, "mlp.up")->attr.part.from += 1; }
static void part_dim(GraphTest *b) { graph_test_node(b, "mlp.up")->attr.part.dim = 2; }
static void join_short(GraphTest *b) { first(b, OP_join)->n_in--; }
static void phase_merged(GraphTest *b) { graph_test_node(b, "d.x")->phase = PHASE_B; }
static void recomputed_in_f(GraphTest *b) { graph_test_node(b, "attn.in'")->phase = PHASE_F; }
static void made_later(GraphTest *b) { graph_test_node(b, "mid")->phase = PHASE_I; }
static void depends_on_itself(GraphTest *b)
{
    graph_test_node(b, "mid")->in[1] = named(b, "mlp.in");
}
static void stream_and_loss(GraphTest *b)
{
    graph_value(&b->g, ROLE_LOSS, "aux", dtype_wide(b->g.dtype), dims1(dim_of(1)));
}
static void floating_positions(GraphTest *b) { info(b, "positions")->dtype = b->g.dtype; }
static void integer_output(GraphTest *b) { info(b, "y")->dtype = I32; }
static void view_handed_on(GraphTest *b)
{
    info(b, "y")->role = ROLE_LOCAL;
    info(b, "attn.q")->role = ROLE_Y;
}
static void two_sums(GraphTest *b)
{
    const ValueInfo *whole = info(b, "d.mlp.down_proj.weight");
    const Value v = graph_value(&b->g, ROLE_DPARAM, "other", whole->dtype, whole->dims);
    b->g.value[v].index = info(b, "mlp.down_proj.weight")->index;
    b->g.value[v].span = 1;
    const Node n = *graph_test_node(b, "d.mlp.down_proj.weight");
    b->g.node[b->g.n_nodes] = n; /* the table has space: recompute made it grow */
    b->g.node[b->g.n_nodes++].out[0] = v;
}

static const struct {
    const char *name;
    void (*breaks)(GraphTest *b);
    const char *message;
} faults[] = {
    {"an op that is none", op_unknown, "there is no op"},
    {"a stream and a loss", stream_and_loss,
     "aux: a unit hands on a stream or ends in a loss, not both"},
    {"positions that are no integers", floating_positions, "positions: the op wants integers"},
    {"an output of integers", integer_output, "y: the op wants floating-point numbers"},
    {"an input that is none", in_unknown, "add, value %9999 : there is no such value"},
    {"no input", in_negative, "add, value %-1 : there is no such value"},
    {"an output that is none", out_unknown, "swiglu, value %9999 : there is no such value"},
    {"a role that is none", role_unknown, "mid: its role is not one"},
    {"two streams in", second_x, "positions: a second value of a role that a unit has once"},
    {"a negative extent", extent_negative, "mid: an extent is negative"},
    {"a bound without slot", slot_of_extent, "mid: the slot of a bounded extent does not exist"},
    {"a name twice", name_twice, "mlp.act: two values have this name"},
    {"no such parameter", param_unknown, "mlp.down_proj.weight: the unit has no such parameter"},
    {"a span too short", param_span,
     "self_attn.q_proj.weight..3: its shape is not the parameter's"},
    {"a parameter's shape", param_shape, "input_layernorm.weight: its shape is not the parameter"},
    {"a parameter's rows", param_inner, "mlp.down_proj.weight: its shape is not the parameter"},
    {"x is written", given_written, "x: it is given from outside, yet a node writes it"},
    {"two writers", written_twice, "mlp.gate: two nodes write it"},
    {"a sum is read", sum_read, "d.mlp.down_proj.weight: it is a sum that outlives the program"},
    {"no writer", never_written, "mid: it is read, but no node writes it"},
    {"no y", y_missing, "y: the unit must make it, but no node does"},
    {"no dx", dx_missing, "d.x: the unit must make it, but no node does"},
    {"another shape", shape_wrong, "add, value %33 y: its shape is not what the op makes"},
    {"another bound", bound_lost, "add, value %33 y: its shape is not what the op makes"},
    {"another number of dims", dims_wrong, "y: it has the wrong number of dims"},
    {"inputs that disagree", inputs_disagree, "add: b has another shape than the operands before"},
    {"an input of other dims", input_dims, "add: b has another shape than the operands before it"},
    {"too few inputs", too_few, "swiglu: 1 inputs, the op wants 2 to 2"},
    {"too many inputs", too_many, "add: 3 inputs, the op wants 2 to 2"},
    {"statistics not wide", not_wide, "attn.lse: statistics and sums have the wide type"},
    {"a view of another type", view_type, "attn.q: it has another type than what it shows"},
    {"read from the host", on_host, "mlp.act: it is in host memory; copy it in first"},
    {"keep without slot", keep_unknown, "d.mlp.down_proj.weight: its slot does not exist"},
    {"keep of no sum", keep_of_no_sum, "mlp.act: it is no sum, yet its old content is kept"},
    {"a sum not kept", sum_not_kept, "it adds to an input, yet does not keep it"},
    {"a copy on compute", queue_wrong, "copy_out, value %"},
    {"compute on comm", queue_of_compute, "add, value %22 mid: the op runs on another queue"},
    {"copied out to the device", copied_to_device, "copied out, it must be in host memory"},
    {"read before the wait", before_wait, "it is read before the wait"},
    {"a wait for nothing", wait_for_nothing, "mlp.in: there is nothing to wait for"},
    {"a part outside", part_outside, "part, value %29 mlp.up: the part is outside of its whole"},
    {"a part of no dim", part_dim, "mlp.up: there is no such dim"},
    {"a join too short", join_short, "the parts do not make the whole"},
    {"a node in B", phase_merged, "d.x: a node is in F, I or W"},
    {"recomputed in F", recomputed_in_f, "attn.in': recomputed in F"},
    {"made too late", made_later, "mid: it is made in a later phase than it is read"},
    {"depends on itself", depends_on_itself, "it depends on itself"},
    {"a view handed on", view_handed_on, "attn.q: a view cannot be handed on; copy it first"},
    {"two sums", two_sums, "other: another value sums the gradient of this parameter too"},
};

static void faults_are_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        GraphTest b;
        open_layer(&b);
        DO(graph_check(&b.g));
        faults[i].breaks(&b);
        expect_error(faults[i].name, graph_check(&b.g), ERR_CHECK, faults[i].message);
        if (!strstr(err_text(), "graph layer: ")) fail_msg("%s: which graph?", faults[i].name);
        graph_test_close(&b);
    }
}

/* ---- builders ---- */

static void bad_linear(Graph *g, Value x) { linear(g, x, weight2(g, "w", F, D + 1, 1), NO_VALUE); }
static void bad_bias(Graph *g, Value x)
{
    const Value w = weight2(g, "w", F, D, 1);
    linear(g, x, w, vector(g, "b", F + 1, INIT_ZEROS));
}
static void bad_add(Graph *g, Value x) { add(g, x, linear(g, x, weight2(g, "w", F, D, 1), -1)); }
static void bad_norm(Graph *g, Value x) { rmsnorm(g, x, vector(g, "n", D - 1, INIT_ONES), 1e-5); }
static void bad_heads(Graph *g, Value x) { heads(g, x, 3); }
static void bad_ranges(Graph *g, Value x)
{
    const Value h = heads(g, x, 2);
    attention(g, h, h, h, graph_value(g, ROLE_INPUT, "r", I32, dims2(dim_of(T), dim_of(3))), 1, T);
}
static void bad_rows(Graph *g, Value x)
{
    rope(g, heads(g, x, 2), input(g, INPUT_POSITIONS, dim_of(T + 1)),
         &(Attr){.rope = {.theta = 10}});
}
static void long_name(Graph *g, Value x)
{
    graph_name(g, gelu(g, x), "%0127d", 1); /* the longest name */
    graph_name(g, gelu(g, x), "%0128d", 1);
}
static void bad_rope(Graph *g, Value x)
{
    rope(g, x, input(g, INPUT_POSITIONS, dim_of(T)), &(Attr){.rope = {.theta = 10}});
}

static void builders_refuse(void **state)
{
    static const struct {
        const char *name;
        void (*build)(Graph *g, Value x);
        const char *message;
    } table[] = {
        {"width of a weight", bad_linear, "linear: extent i of w is 5, of another operand 4"},
        {"width of a bias", bad_bias, "linear: extent o of bias is 6, of another operand 5"},
        {"terms of a sum", bad_add, "add: b has another shape than the operands before it"},
        {"width of a norm", bad_norm, "rmsnorm: extent d of w is 3, of another operand 4"},
        {"size of a head", bad_heads, "heads: extent 4 of x is no multiple of the head size 3"},
        {"ranges of three", bad_ranges, "attention: ranges has extent 3 where the op wants 4"},
        {"rows of positions", bad_rows, "rope: extent t of pos is 7, of another operand 6"},
        {"a long name", long_name, "has 128 bytes; the most is 127"},
        {"dims of x", bad_rope, "rope: x has 2 dims, the op wants 3"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        GraphTest b;
        graph_test_open(&b, "u");
        table[i].build(&b.g, graph_test_x(&b));
        expect_error(table[i].name, graph_err(&b.g), ERR_CHECK, table[i].message);
        const int n = b.g.n_nodes; /* after a failure builders do nothing, and the error stays */
        assert_int_equal(gelu(&b.g, 0), NO_VALUE);
        assert_int_equal(b.g.n_nodes, n);
        expect_error(table[i].name, graph_check(&b.g), ERR_CHECK, table[i].message);
        graph_test_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_are_found),
        cmocka_unit_test(builders_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
