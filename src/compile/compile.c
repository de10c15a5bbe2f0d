/* compile.c -- the table of passes, and the driver that runs them in order. */
#include "compile/compile.h"

#include "ir/pairs.h"

/* State of one compilation. */
typedef struct {
    const CompileOptions *options;
    Arena *arena;
    Graph g;
    int64_t all_rows; /* rows of a micro-batch, where `g` has those of a slice */
    Program *program; /* written by `lower` */
} CompileContext;

typedef struct {
    const char *name;
    Err (*run)(CompileContext *c);
    bool (*applies)(const CompileOptions *o); /* NULL: always */
    bool lowers;                              /* makes the program; the graph does not change */
} Pass;

/* True if keys are sharded by tokens over several ranks, which a plan moves them between. */
static bool has_context(const CompileOptions *o)
{
    if (!o->context.row) return false;
    const unsigned cp = mesh_axes(o->mesh, VIEW_DENSE, "cp");
    const unsigned heads = mesh_axes(o->mesh, VIEW_DENSE, "cp_heads");
    return mesh_parts(o->mesh, VIEW_DENSE, cp & ~heads) > 1;
}

static bool has_weights(const CompileOptions *o)
{
    return o->mesh->n_views > VIEW_WEIGHT &&
           mesh_parts(o->mesh, VIEW_DENSE, mesh_axes(o->mesh, VIEW_DENSE, "cp")) > 1;
}

static bool has_tensor_scales(const CompileOptions *o)
{
    return o->fp8.names && o->fp8.scaling == SCALING_TENSOR;
}

static bool has_block_scales(const CompileOptions *o)
{
    return o->fp8.names && o->fp8.scaling == SCALING_BLOCK;
}

static bool has_delayed_scales(const CompileOptions *o)
{
    return o->fp8.names && o->fp8.scaling == SCALING_DELAYED;
}

static bool has_fp8_experts(const CompileOptions *o) { return o->fp8.names && o->fp8.experts; }

static bool has_slices(const CompileOptions *o) { return o->slice_rows > 0; }
static bool has_session(const CompileOptions *o) { return o->session_rows > 0; }
static bool has_backward(const CompileOptions *o) { return o->backward; }
static bool has_prepack(const CompileOptions *o) { return o->prepack != NULL; }

/* The graph that the model built, with the rows of one slice where programs run slices. */
static Err run_build(CompileContext *c)
{
    if (!has_slices(c->options)) return OK;
    for (int i = 0; i < c->g.n_nodes && c->options->slice_tokens; i++)
        if (op_attends(c->g.node[i].op))
            c->g.node[i].attr.kernel.attention.query_at = c->options->slice_at;
    return slice_rows(&c->g, c->options->slice_rows, &c->all_rows);
}

/* ERR_CHECK if a parameter has no gradient: weight decay alone would move it, which is a mistake in
 * the model. */
static Err check_gradients(const Graph *g)
{
    for (int p = 0; p < g->n_params; p++) {
        bool found = false;
        for (Value v = 0; v < g->n_values; v++)
            found = found || (g->value[v].role == ROLE_DPARAM && g->value[v].index == p);
        if (!found)
            return err_fail(
                ERR_CHECK,
                "graph %s: parameter %s does not reach the output, so it has no gradient; "
                "leave it out",
                g->kind, g->param[p].name);
    }
    return OK;
}

static Err run_differentiate(CompileContext *c)
{
    TRY(differentiate(&c->g));
    return check_gradients(&c->g);
}

static Err run_place(CompileContext *c)
{
    c->g.in_order = c->options->in_order;
    return place(&c->g, c->options);
}

/* True if experts are sharded over axes of their own. */
static bool has_experts(const CompileOptions *o)
{
    const unsigned ep = mesh_axes(o->mesh, VIEW_EXPERT, "ep");
    return mesh_parts(o->mesh, VIEW_EXPERT, ep | mesh_axes(o->mesh, VIEW_EXPERT, "etp")) > 1;
}

static bool balances(const CompileOptions *o)
{
    return o->balance_global &&
           mesh_parts(o->mesh, VIEW_DENSE, mesh_axes(o->mesh, VIEW_DENSE, "dp")) > 1;
}

static Err run_balance(CompileContext *c) { return balance_loads(&c->g, c->options); }
static Err run_route(CompileContext *c) { return route_rows(&c->g, c->options); }
static Err run_context(CompileContext *c)
{
    bool along = false;
    for (int i = 0; i < c->g.n_nodes; i++) along = along || op_attends_along(c->g.node[i].op);
    return along ? context_along(&c->g, c->options) : context(&c->g, c->options);
}
static Err run_weights(CompileContext *c) { return stream_weights(&c->g, c->options); }

static Err run_quantize(CompileContext *c) { return quantize(&c->g, c->options); }
static Err run_quantize_experts(CompileContext *c) { return quantize_experts(&c->g, c->options); }

static Err run_chunk(CompileContext *c)
{
    const CompileOptions *o = c->options;
    const ChunkRule given = {.elements = o->chunk_elements, .min_rows = 1};
    const ChunkRule rule = o->chunk_elements  ? given
                           : o->device_memory ? COMPILE_CHUNK_DEVICE
                                              : COMPILE_CHUNK_RULE;
    return chunk(&c->g, &rule);
}

static bool fuses(const CompileOptions *o) { return !o->unfused; }
static Err run_fuse(CompileContext *c)
{
    return fuses(c->options) ? fuse(&c->g) : fuse_packed(&c->g);
}
static Err run_slice(CompileContext *c)
{
    return slice(&c->g, c->all_rows, has_context(c->options));
}
static Err run_session(CompileContext *c) { return session(&c->g, c->options); }
static Err run_recompute(CompileContext *c) { return recompute(&c->g, c->options); }
static Err run_epilogues(CompileContext *c) { return epilogues(&c->g); }
static Err run_phases(CompileContext *c) { return phases(&c->g); }
static Err run_lower(CompileContext *c) { return lower(&c->g, c->arena, c->program); }

static Err run_prepack(CompileContext *c)
{
    return prepack(c->options->prepack, c->arena, c->program);
}

/* In the order in which they run. `lower` orders the nodes of each phase (order.c). */
static const Pass passes[] = {
    {"build", run_build, NULL, false},
    {"differentiate", run_differentiate, has_backward, false},
    {"quantize", run_quantize, has_tensor_scales, false},
    {"place", run_place, NULL, false},
    {"balance", run_balance, balances, false},
    {"route", run_route, has_experts, false},
    {"weights", run_weights, has_weights, false},
    {"context", run_context, has_context, false},
    {"quantize", run_quantize, has_block_scales, false},
    {"quantize_experts", run_quantize_experts, has_fp8_experts, false},
    {"fuse", run_fuse, NULL, false},
    {"quantize", run_quantize, has_delayed_scales, false},
    {"chunk", run_chunk, NULL, false},
    {"slice", run_slice, has_slices, false},
    {"session", run_session, has_session, false},
    {"recompute", run_recompute, NULL, false},
    {"epilogues", run_epilogues, fuses, false},
    {"phases", run_phases, NULL, false},
    {"lower", run_lower, NULL, true},
    {"prepack", run_prepack, has_prepack, true},
};

Err compile_unit(const Graph *unit, const CompileOptions *options, CompileWatch watch,
                 void *context, Arena *arena, Program *out)
{
    CompileContext c = {.options = options, .arena = arena, .program = out};
    TRY(graph_check(unit));
    TRY(graph_clone(unit, arena, &c.g));
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        const Pass *pass = &passes[i];
        if (pass->applies && !pass->applies(options)) continue;
        TRY(pass->run(&c));
        if (watch && !pass->lowers) TRY(watch(context, pass->name, &c.g));
    }
    return OK;
}
