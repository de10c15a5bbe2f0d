/* graph_test.h -- a small graph for tests of passes: built by hand, transformed, printed and
 * compared. */
#ifndef TESTS_SUPPORT_GRAPH_TEST_H
#define TESTS_SUPPORT_GRAPH_TEST_H

#include "support/expect.h"

#include "compile/compile.h"
#include "ir/build.h"
#include "model/build.h"

typedef struct {
    Arena arena;
    Graph g;
    Mesh mesh; /* one rank */
} GraphTest;

/* All extents of a graph differ. */
enum { T = 6, D = 4, F = 5, E = 3 };

static inline void graph_test_open(GraphTest *b, const char *kind)
{
    DO(arena_open(&b->arena, "graph test", (size_t)1 << 28));
    graph_init(&b->g, kind, F64, &b->arena);
    b->mesh = mesh_single();
}

static inline void graph_test_close(GraphTest *b) { arena_close(&b->arena); }

static inline Value graph_test_x(GraphTest *b) { return stream_in(&b->g, dim_of(T), D); }

/* A weight [out, in] of this name. */
static inline Value graph_test_w(GraphTest *b, const char *name, int64_t out, int64_t in)
{
    return weight2(&b->g, name, out, in, 1);
}

/* Checks the printed graph: its inputs, then every node. */
static inline void graph_test_expect_all(GraphTest *b, const char *name, const char *want)
{
    const char *got;
    DO(graph_print(&b->g, &b->arena, &got));
    expect_text(name, got, want);
}

/* Checks the printed nodes, without the inputs. */
static inline void graph_test_expect(GraphTest *b, const char *name, const char *want)
{
    const char *got;
    DO(graph_print(&b->g, &b->arena, &got));
    got = strchr(got, '\n') + 1;
    while (strncmp(got, "  %", 3) == 0) got = strchr(got, '\n') + 1;
    expect_text(name, got, want);
}

/* Returns the node that makes the value of this name. */
static inline Node *graph_test_node(GraphTest *b, const char *name)
{
    for (Value v = 0; v < b->g.n_values; v++)
        if (strcmp(b->g.value[v].name, name) == 0) return &b->g.node[graph_maker(&b->g, v)];
    fail_msg("no value %s", name);
    return NULL;
}

/* Differentiates the graph if `back`, then places it on one rank. */
static inline void graph_test_prepare(GraphTest *b, bool back)
{
    DO(graph_err(&b->g));
    if (back) DO(differentiate(&b->g));
    DO(place(&b->g, &(CompileOptions){.strategy = &strategy_tp, .mesh = &b->mesh}));
}

/* The number of nodes of this op in a graph, and of instructions in a phase of a program. */
static inline int count_nodes(const Graph *g, OpId op)
{
    int n = 0;
    for (int i = 0; i < g->n_nodes; i++) n += g->node[i].op == op;
    return n;
}

static inline int count_instr(const Program *p, Phase phase, OpId op)
{
    int n = 0;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) n += p->instr[i].op == op;
    return n;
}

#endif
