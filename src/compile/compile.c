/* compile.c -- the passes in their order. */
#include "compile/compile.h"

static Err report(CompileWatch watch, void *context, const char *pass, const Graph *g)
{
    return watch ? watch(context, pass, g) : OK;
}

Err compile_unit(const Graph *unit, const CompileOptions *options, CompileWatch watch,
                 void *context, Arena *arena, Program *out)
{
    Graph g;
    const int64_t elements = options->chunk_elements ? options->chunk_elements : COMPILE_CHUNK;
    TRY(graph_check(unit));
    TRY(graph_clone(unit, arena, &g));
    TRY(report(watch, context, "build", &g));
    if (options->backward) {
        TRY(differentiate(&g));
        TRY(report(watch, context, "differentiate", &g));
    }
    TRY(place(&g, options->strategy, options->mesh, arena));
    TRY(report(watch, context, "place", &g));
    TRY(fuse(&g));
    TRY(report(watch, context, "fuse", &g));
    TRY(chunk(&g, elements));
    TRY(report(watch, context, "chunk", &g));
    TRY(recompute(&g, options));
    TRY(report(watch, context, "recompute", &g));
    TRY(phases(&g));
    TRY(report(watch, context, "phases", &g));
    return lower(&g, arena, out);
}
