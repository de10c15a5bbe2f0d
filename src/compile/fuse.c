/* fuse.c -- fewer, larger ops: two tables of patterns, each applied until it finds no match.
 *
 * `fuse` runs before recompute, which then counts whole GEMMs. `epilogues` runs after it: a GEMM
 * fused with a cheap op before would no longer be a GEMM that is kept and a cheap op that is
 * recomputed. */
#include "compile/fuse.h"
#include <string.h>
#include "compile/compile.h"

typedef struct {
    const char *name;
    Err (*rewrite)(Graph *g, bool *found);
} FusionPattern;

static const FusionPattern packed[] = {{"siblings", fuse_siblings}};

static const FusionPattern early[] = {
    {"siblings", fuse_siblings},
    {"sum into GEMM", fuse_sum},
    {"sum into norm", fuse_residual},
    {"loss in one op", fuse_loss},
};

static const FusionPattern late[] = {
    {"GEMM and sum", fuse_add},
    {"GEMM and gelu", fuse_gelu},
    {"GEMM and pointwise gradient", fuse_slope},
    {"GEMMs of experts", fuse_experts},
    {"values of 8 bits", fuse_quantized},
};

static Err apply(const FusionPattern *pattern, size_t n, Graph *g)
{
    for (size_t i = 0; i < n; i++)
        for (bool found = true; found;) {
            found = false;
            TRY(pattern[i].rewrite(g, &found));
        }
    return graph_check(g);
}

Err fuse(Graph *g) { return apply(early, sizeof early / sizeof *early, g); }

Err fuse_packed(Graph *g) { return apply(packed, sizeof packed / sizeof *packed, g); }

Err epilogues(Graph *g) { return apply(late, sizeof late / sizeof *late, g); }

int fuse_gemm(const Graph *g, const Node *reader, Value v, OpId op)
{
    const int maker = g->value[v].role == ROLE_LOCAL ? graph_maker(g, v) : NO_NODE;
    if (maker == NO_NODE) return NO_NODE;
    const Node *n = &g->node[maker];
    return n->op == op && n->recomputed == reader->recomputed && n->chunk == reader->chunk
               ? maker
               : NO_NODE;
}

Err fuse_into(Graph *g, int node, int gemm, OpId op, int n_in, const Value *in)
{
    Node *n = &g->node[node];
    n->op = op;
    n->attr = g->node[gemm].attr;
    g->node[gemm].n_out = 0;
    TRY(ARENA_NEW(g->arena, n_in, &n->in));
    memcpy(n->in, in, (size_t)n_in * sizeof *in);
    n->n_in = n_in;
    return graph_tidy(g);
}
