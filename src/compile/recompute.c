/* recompute.c -- the forward values that the backward phases read: kept, recomputed or offloaded.
 *
 *   before:  h = swiglu gate up;  ...  d.w += linear_dw d.y h          h is kept from F to W
 *   after:   h = swiglu gate up;  ...  h' = swiglu gate up;  d.w += linear_dw d.y h'
 *
 *   none        every value that is read is kept
 *   selective   cheap ops are recomputed, if all their operands are available anyway
 *   full        everything is recomputed, from the unit's input
 *   names       the ops that make these values are recomputed
 *   full,-name  everything but the ops that make these values. full,-attn.out,-attn.lse never runs
 *               attention again, the checkpoint that LightSeq proposes
 *
 * The choices of a router are kept: other experts might be chosen again where scores are close.
 * Values that hold the rows of all slices are kept: other slices read and write them too. Values
 * gathered from other ranks are always regathered, unless keep_gathered is set.
 *
 * Copies are the same ops on the same operands, so the numbers are the same bits. A kept value that
 * matches an offload pattern is stored in host memory until backward. */
#include "compile/compile.h"

#include <string.h>
#include "compile/names.h"
#include "ir/build.h"

typedef struct {
    Graph *g;
    const CompileOptions *options;
    int n_nodes; /* before this pass */
    Value n_values;
    bool *backward;   /* [n_nodes]: depends on dy, or was made to run with such nodes */
    bool *recomputed; /* [n_nodes]: is recomputed */
    bool *needed;     /* [n_values]: a backward node reads it, or a copy that one needs */
    Value *copy;      /* [n_values]: recomputed, or copied back in; NO_VALUE: as it is */
    int *maker;       /* [n_values] */
    bool *listed;     /* [n_values]: NAMED: a pattern matches it */
} RecomputePlan;

static void mark_backward(RecomputePlan *p)
{
    bool *after = p->needed; /* borrowed: cleared again below */
    const Value dy = graph_find(p->g, ROLE_DY);
    if (dy == NO_VALUE) return;
    after[dy] = true;
    for (int i = 0; i < p->n_nodes; i++) { /* makers precede readers */
        const Node *n = &p->g->node[i];
        /* of the pass context, whose readers depend on dy anyway; or a sum of W */
        p->backward[i] = n->recomputed || n->op == OP_mark_amax;
        for (int j = 0; j < n->n_in; j++) p->backward[i] = p->backward[i] || after[n->in[j]];
        for (int j = 0; j < n->n_out && p->backward[i]; j++) after[n->out[j]] = true;
    }
    memset(after, 0, (size_t)p->n_values * sizeof *after);
}

/* Marks the values that backward nodes read, the values behind views of them, and operands of
 * recomputed nodes whose results are needed. */
static void mark_needed(RecomputePlan *p)
{
    for (int i = p->n_nodes - 1; i >= 0; i--) { /* readers before makers */
        const Node *n = &p->g->node[i];
        bool reads = p->backward[i];
        if (op_info(n->op)->class == CLASS_VIEW || p->recomputed[i])
            for (int j = 0; j < n->n_out; j++) reads = reads || p->needed[n->out[j]];
        for (int j = 0; j < n->n_in && reads; j++) p->needed[n->in[j]] = true;
    }
}

/* True if the value exists in the backward phases, kept or recomputed. */
static bool is_available(const RecomputePlan *p, Value v)
{
    if (role_given(p->g->value[v].role)) return true;
    return p->needed[v] || (p->maker[v] != NO_NODE && p->recomputed[p->maker[v]]);
}

/* True if the value is stored in host memory. Known once its maker is decided. */
static bool is_offloaded(const RecomputePlan *p, Value v)
{
    const int maker = p->maker[v];
    if (p->g->value[v].role != ROLE_LOCAL || maker == NO_NODE || !p->needed[v]) return false;
    return !p->backward[maker] && !p->recomputed[maker] &&
           names_listed_copy(p->options->offload_names, p->g->value[v].name);
}

static bool makes_listed(const RecomputePlan *p, const Node *n)
{
    bool any = false;
    for (int j = 0; j < n->n_out; j++) any = any || p->listed[n->out[j]];
    return any;
}

/* True for a GEMM whose only reader is a listed sum. `epilogues` fuses the two into one op, which
 * rounds once. A GEMM result that was kept for a recomputed sum would be rounded twice, and is no
 * smaller than the sum. */
static bool fuses_into_listed(const RecomputePlan *p, const Node *gemm)
{
    const Value v = gemm->n_out ? gemm->out[0] : NO_VALUE;
    if (gemm->op != OP_linear || graph_readers(p->g, v) != 1) return false;
    for (int i = 0; i < p->n_nodes; i++) {
        const Node *n = &p->g->node[i];
        if (n->op == OP_add && (n->in[0] == v || n->in[1] == v)) return makes_listed(p, n);
    }
    return false;
}

/* Marks values that a pattern matches, values with a view that it matches (after fuse, q is a part
 * of q, k, v), GEMMs that fuse with a match, and the moves of shards of a weight that a match is
 * made of: they travel again rather than being kept. */
static void mark_listed(RecomputePlan *p)
{
    for (Value v = 0; v < p->n_values; v++)
        p->listed[v] = names_listed(p->options->recompute_names, p->g->value[v].name);
    for (int i = p->n_nodes - 1; i >= 0; i--) { /* readers before makers */
        const Node *n = &p->g->node[i];
        if (fuses_into_listed(p, n)) p->listed[n->out[0]] = true;
        if (n->op == OP_linear_part && makes_listed(p, n)) p->listed[n->in[1]] = true;
        if (n->op == OP_wait && makes_listed(p, n)) p->listed[n->in[0]] = true;
        if (op_quantizes(n->op) || n->op == OP_quantize_blocks || n->op == OP_grouped_quantize)
            p->listed[n->out[0]] = p->listed[n->out[0]] || p->listed[n->in[0]];
        if (op_info(n->op)->class != CLASS_VIEW) continue;
        for (int j = 0; j < n->n_in && makes_listed(p, n); j++) p->listed[n->in[j]] = true;
    }
}

/* True if the node packs a message for a gather that is recomputed: then the packed copy is not
 * kept either. */
static bool feeds_gather(const RecomputePlan *p, int index)
{
    const Value packed = p->g->node[index].out[0];
    for (int i = index; i < p->n_nodes; i++)
        if (p->g->node[i].op == OP_all_gather && p->g->node[i].in[0] == packed)
            return !p->options->keep_gathered;
    return false;
}

/* True if backward has another copy of an operand of the node: recomputed, or copied back in. A
 * view that orders its readers after something must follow that too. */
static bool reads_copy(const RecomputePlan *p, const Node *n)
{
    bool any = false;
    for (int j = 0; j < n->n_in; j++)
        any = any || ((!op_only_orders(n->op, j) || n->op == OP_after) &&
                      (is_offloaded(p, n->in[j]) ||
                       (p->maker[n->in[j]] != NO_NODE && p->recomputed[p->maker[n->in[j]]])));
    return any;
}

static bool is_recomputed(const RecomputePlan *p, int index)
{
    const Node *n = &p->g->node[index];
    const OpClass class = op_info(n->op)->class;
    const bool changed = reads_copy(p, n);
    bool there = true;
    /* Other slices use a value of the micro-batch too. */
    if (n->n_out && p->g->value[n->out[0]].role == ROLE_MICRO) return false;
    const bool but =
        p->options->recompute == RECOMPUTE_NAMED && names_all_but(p->options->recompute_names);
    if (but && class != CLASS_VIEW && makes_listed(p, n)) return false;
    for (int j = 0; j < n->n_in; j++) there = there && is_available(p, n->in[j]);
    if (class == CLASS_VIEW) return changed; /* follows the value that it shows */
    if (class == CLASS_ROUTE) return false;  /* a second routing might send tokens elsewhere */
    if (n->op == OP_wait) return p->recomputed[p->maker[n->in[0]]];
    /* Offsets that ranks exchange are as small as the choices, and kept like them. */
    if (op_transfers(n->op) && p->g->value[n->out[0]].dtype == I32) return false;
    /* So is an amax: the values that it scales must get the same scale again. */
    if (op_transfers(n->op) && dims_count(&p->g->value[n->out[0]].dims) == 1) return false;
    if (n->op == OP_all_gather && !p->options->keep_gathered) return true;
    if (n->op == OP_pack) return changed || feeds_gather(p, index);
    switch (p->options->recompute) {
    case RECOMPUTE_NONE:
        return false;
    case RECOMPUTE_SELECTIVE:
        return there && (class == CLASS_CHEAP || class == CLASS_SUM);
    case RECOMPUTE_FULL:
        return true;
    case RECOMPUTE_NAMED:
        return but || makes_listed(p, n);
    }
    return false;
}

/* Decides for every forward node. Values that only recomputed nodes need (keys that are regathered)
 * are known after that. They may be offloaded too, and views and packs follow them. */
static void decide(RecomputePlan *p)
{
    for (int i = 0; i < p->n_nodes; i++)
        if (!p->backward[i]) p->recomputed[i] = is_recomputed(p, i);
    mark_needed(p);
    for (int i = 0; i < p->n_nodes; i++) {
        const Node *n = &p->g->node[i];
        const bool follows = op_info(n->op)->class == CLASS_VIEW || n->op == OP_pack;
        if (follows && !p->backward[i] && !p->recomputed[i]) p->recomputed[i] = is_recomputed(p, i);
    }
}

static Value recomputed_value(RecomputePlan *p, Value v);

/* Adds a copy of the node, and of its operands that are recomputed. */
static Err recompute_node(RecomputePlan *p, int index)
{
    Node old = p->g->node[index];
    Value in[MAX_IN], *many = in;
    if (old.n_in > MAX_IN) TRY(ARENA_NEW(p->g->arena, old.n_in, &many));
    for (int j = 0; j < old.n_in; j++) many[j] = recomputed_value(p, old.in[j]);
    TRY(graph_err(p->g));
    Dims given[MAX_OUT];
    for (int j = 0; j < old.n_out; j++) given[j] = p->g->value[old.out[j]].dims;
    Node *n = graph_node(p->g, old.op, &old.attr, old.n_in, many, given, old.n_out);
    if (!n) return graph_err(p->g);
    n->recomputed = true;
    n->queue = old.queue;
    for (int j = 0; j < old.n_out; j++) {
        const ValueInfo was = p->g->value[old.out[j]];
        p->copy[old.out[j]] = n->out[j];
        n->keep[j] = old.keep[j];
        p->g->value[n->out[j]].dtype = was.dtype;
    }
    for (int j = 0; j < old.n_out; j++) { /* after the node is complete: naming moves no node */
        const char *name = p->g->value[old.out[j]].name;
        if (*name) graph_name(p->g, p->copy[old.out[j]], "%s'", name);
    }
    return graph_err(p->g);
}

static Value recomputed_value(RecomputePlan *p, Value v)
{
    if (p->copy[v] != NO_VALUE) return p->copy[v];
    const int maker = p->maker[v];
    if (role_given(p->g->value[v].role) || maker == NO_NODE || !p->recomputed[maker]) return v;
    return recompute_node(p, maker) == OK ? p->copy[v] : NO_VALUE;
}

/* Offloads a kept value: copied out after it is made, copied in before it is read. */
static Err offload(RecomputePlan *p, Value v)
{
    const Value out = wait_for(p->g, copy_out(p->g, v));
    const Value begun = copy_in(p->g, out);
    if (begun == NO_VALUE) return graph_err(p->g);
    p->g->node[p->g->n_nodes - 1].recomputed = true; /* runs in the phase that reads it */
    const Value back = wait_for(p->g, begun);
    if (back == NO_VALUE) return graph_err(p->g);
    p->g->node[p->g->n_nodes - 1].recomputed = true;
    p->copy[v] = back;
    return OK;
}

static Err open_plan(RecomputePlan *p)
{
    Graph *g = p->g;
    TRY(ARENA_NEW(g->arena, p->n_nodes + 1, &p->backward));
    TRY(ARENA_NEW(g->arena, p->n_nodes + 1, &p->recomputed));
    TRY(ARENA_NEW(g->arena, p->n_values + 1, &p->needed));
    TRY(ARENA_NEW(g->arena, p->n_values + 1, &p->copy));
    TRY(ARENA_NEW(g->arena, p->n_values + 1, &p->listed));
    TRY(graph_makers(g, g->arena, &p->maker));
    for (Value v = 0; v < p->n_values; v++) p->copy[v] = NO_VALUE;
    mark_backward(p);
    mark_needed(p);
    if (p->options->recompute == RECOMPUTE_NAMED) mark_listed(p);
    return OK;
}

/* Drops forward gathers and transposed copies of 8 bits without readers: only backward nodes read
 * the result, which is now made there. */
static Err drop_unread(RecomputePlan *p)
{
    Graph *g = p->g;
    bool dropped = false;
    for (int i = p->n_nodes - 1; i >= 0; i--) { /* readers before makers */
        Node *n = &g->node[i];
        const bool moves = op_transfers(n->op) || n->op == OP_pack || n->op == OP_wait;
        const bool drops =
            moves ? n->n_out == 1 : n->op == OP_quantize_turned || n->op == OP_quantize_by_turned;
        if (!drops || g->value[n->out[0]].role != ROLE_LOCAL) continue;
        if (p->backward[i] || !p->recomputed[i] || graph_readers(g, n->out[0])) continue;
        if (n->n_out > 1 && graph_readers(g, n->out[1])) continue;
        n->n_out = n->n_in = 0;
        dropped = true;
    }
    return dropped ? graph_tidy(g) : OK;
}

/* True if a view of backward shows a value that is recomputed: copies stand at the end, but views
 * are placed in the order of the nodes (lower_bytes.c). */
static bool shows_copy(const RecomputePlan *p)
{
    for (int i = 0; i < p->n_nodes; i++) {
        const Node *n = &p->g->node[i];
        if (op_info(n->op)->class != CLASS_VIEW || !n->n_out || !p->backward[i]) continue;
        for (int j = 0; j < n->n_in; j++)
            if (n->in[j] >= p->n_values) return true;
    }
    return false;
}

Err recompute(Graph *g, const CompileOptions *options)
{
    RecomputePlan p = {.g = g, .options = options, .n_nodes = g->n_nodes, .n_values = g->n_values};
    TRY(open_plan(&p));
    decide(&p);
    for (Value v = 0; v < p.n_values; v++)
        if (is_offloaded(&p, v)) TRY(offload(&p, v));
    for (int i = 0; i < p.n_nodes; i++) {
        for (int j = 0; j < g->node[i].n_in && p.backward[i]; j++) {
            const Value v = recomputed_value(&p, g->node[i].in[j]);
            TRY(graph_err(g));
            g->node[i].in[j] = v; /* after: making it may have moved the table */
        }
    }
    const bool late = shows_copy(&p);
    TRY(drop_unread(&p));
    if (late) TRY(graph_tidy(g));
    return graph_check(g);
}
