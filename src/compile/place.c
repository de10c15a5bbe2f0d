/* place.c -- lay a unit out over the mesh, forward and backward together.
 *
 *   before:  %7 = linear %5 %w        layouts open, but for the strategy's pins
 *   after:   every value has a layout; where two disagree a transfer stands between them
 *
 * Pins first. Between pins the rows of ops.def say which cuts each op can work on. On one rank
 * every pin simplifies to replicate, so nothing is open, and nothing is inserted. */
#include "compile/compile.h"

/* May an op work where all its operands are replicate? Always; but a row that names a letter which
 * no operand has would be a slip in ops.def. */
static Err check_rows(const Graph *g, const Node *n)
{
    OpRow row[MAX_ROWS];
    const Signature sig = op_signature(n->op);
    const int n_rows = op_rows(n->op, row);
    for (int r = 0; r < n_rows; r++) {
        bool found = row[r].letter == '*';
        for (int i = 0; i < sig.n_in; i++)
            found = found || operand_dim(&sig.in[i], row[r].letter) >= 0;
        for (int i = 0; i < sig.n_out; i++)
            found = found || operand_dim(&sig.out[i], row[r].letter) >= 0;
        if (!found)
            return err_fail(ERR_CHECK, "graph %s: %s: row \"%c\" names no extent of the op",
                            g->kind, op_info(n->op)->name, row[r].letter);
    }
    return OK;
}

Err place(Graph *g, const Strategy *strategy, const Mesh *mesh, Arena *temp)
{
    Layout *pin;
    bool *pinned;
    const size_t mark = arena_mark(temp);
    TRY(strategy_pins(strategy, g, mesh, temp, &pin, &pinned));
    for (int i = 0; i < g->n_nodes; i++) TRY(check_rows(g, &g->node[i]));
    for (Value v = 0; v < g->n_values; v++) {
        if (!layout_is_replicate(&pin[v]))
            return err_fail(
                ERR_CONFIG,
                "graph %s: the strategy cuts %s over an axis of more than one rank: not "
                "yet; run on a mesh of one rank",
                g->kind, g->value[v].name);
        g->value[v].layout = pin[v];
    }
    arena_rewind(temp, mark);
    return graph_check(g);
}
