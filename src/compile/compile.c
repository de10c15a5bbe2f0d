/* compile.c -- the passes in their order. */
#include "compile/compile.h"

static Err report(CompileWatch watch, void *context, const char *pass, const Graph *g)
{
    return watch ? watch(context, pass, g) : OK;
}

/* A parameter without a gradient would only decay: whoever built the model meant something else. */
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

Err compile_unit(const Graph *unit, const CompileOptions *options, CompileWatch watch,
                 void *context, Arena *arena, Program *out)
{
    Graph g;
    int64_t all_rows;
    const ChunkRule said = {.elements = options->chunk_elements, .least_rows = 1};
    const ChunkRule rule = options->chunk_elements  ? said
                           : options->device_memory ? COMPILE_CHUNK_DEVICE
                                                    : COMPILE_CHUNK_RULE;
    TRY(graph_check(unit));
    TRY(graph_clone(unit, arena, &g));
    if (options->slice_rows > 0) TRY(slice_rows(&g, options->slice_rows, &all_rows));
    TRY(report(watch, context, "build", &g));
    if (options->backward) {
        TRY(differentiate(&g));
        TRY(check_gradients(&g));
        TRY(report(watch, context, "differentiate", &g));
    }
    g.in_order = options->in_order;
    TRY(place(&g, options));
    TRY(report(watch, context, "place", &g));
    TRY(fuse(&g));
    TRY(report(watch, context, "fuse", &g));
    TRY(chunk(&g, &rule));
    TRY(report(watch, context, "chunk", &g));
    if (options->slice_rows > 0) {
        TRY(slice(&g, all_rows));
        TRY(report(watch, context, "slice", &g));
    }
    if (options->session_rows > 0) {
        TRY(session(&g, options->session_rows));
        TRY(report(watch, context, "session", &g));
    }
    TRY(recompute(&g, options));
    TRY(report(watch, context, "recompute", &g));
    TRY(epilogues(&g));
    TRY(report(watch, context, "epilogues", &g));
    TRY(phases(&g));
    TRY(report(watch, context, "phases", &g));
    TRY(lower(&g, arena, out));
    return options->prepack ? prepack(options->prepack, arena, out) : OK;
}
