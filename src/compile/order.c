/* order.c -- the order of the nodes of a phase.
 *
 * Nodes keep the order of the graph, each preceded by its operands of the same phase. So a
 * recomputed value is made right before its first reader, and its lifetime is short. In B, where I
 * and W run together, dW directly follows dX, while both operands are in cache.
 *
 * A transfer begins as soon as its input is made and is waited for right before its result is read;
 * the nodes between overlap it:
 *
 *     d.x' = linear_dx d.y w      made here, a partial sum
 *     begin all_reduce d.x'
 *     d.w += linear_dw d.y x      overlaps the all-reduce
 *     d.x = wait
 *
 * Sends and receives between two ranks begin in the order of the graph's table of moves, which is
 * that of an attention plan: the n-th send of one rank meets the n-th receive of the other. A send
 * is waited for before the first of them that follows an attention which hid it, or, for a shard of
 * a weight, a GEMM with another shard. So a block that was passed on is soon free. Nobody waits
 * forever: the plan's checker has proven it, and on a ring all ranks begin to receive before they
 * wait. */
#include "compile/compile.h"

#include "ir/pairs.h"

typedef struct {
    const Graph *g;
    Phase phase;
    int *maker;      /* [n_values] */
    bool *done;      /* [n_nodes]: visited, or being visited */
    bool *emitted;   /* [n_nodes]: in the list */
    int *visit_at;   /* [n_nodes]: of a send: visits of its kind before it in the list */
    int n_visits[2]; /* attention, GEMMs with shards of weights */
    int *list, n;
} OrderBuilder;

static bool in_phase(const Node *n, Phase phase)
{
    return n->phase == phase || (phase == PHASE_B && n->phase != PHASE_F);
}

static void begin_ready(OrderBuilder *w);
static void visit(OrderBuilder *w, int index);

/* True for a send or receive of a shard of a weight, or of its gradient. */
static bool is_of_weights(const Graph *g, int index)
{
    const Node *n = &g->node[index];
    return op_pairs(n->op) && g->move[n->attr.move.index].weights;
}

static void list_node(OrderBuilder *w, int index)
{
    const OpId op = w->g->node[index].op;
    w->emitted[index] = true;
    w->visit_at[index] = w->n_visits[is_of_weights(w->g, index)];
    w->n_visits[0] += op_visits(op);
    w->n_visits[1] += op == OP_linear_part || op == OP_linear_part_dx || op == OP_linear_part_dw;
    w->list[w->n++] = index;
}

/* Lists the maker of an operand, if it is not yet. A transfer may begin during the visit of an
 * unpack, between its wait and itself, and read it: then the unpack is listed now. */
static void visit_maker(OrderBuilder *w, Value v)
{
    const int maker = w->maker[v];
    if (maker == NO_NODE) return;
    if (w->g->node[maker].op != OP_pack || !w->done[maker] || w->emitted[maker]) {
        visit(w, maker);
        return;
    }
    visit_maker(w, w->g->node[maker].in[0]);
    list_node(w, maker);
}

/* The maker of a value, looking through packs. Some ranks pack a message that others send directly,
 * and all ranks must begin transfers in one order. */
static int maker_behind_packs(const OrderBuilder *w, Value v)
{
    int maker = w->maker[v];
    while (maker != NO_NODE && w->g->node[maker].op == OP_pack)
        maker = w->maker[w->g->node[maker].in[0]];
    return maker;
}

/* Begins the recomputed transfers of all operands before the first of them is waited for: keys and
 * values of a hop travel together. */
static void begin_operands(OrderBuilder *w, const Node *n)
{
    for (int i = 0; i < n->n_in; i++) {
        const int wait = maker_behind_packs(w, n->in[i]);
        if (wait == NO_NODE || w->g->node[wait].op != OP_wait || !w->g->node[wait].recomputed)
            continue;
        visit_maker(w, w->g->node[wait].in[0]);
    }
}

/* True if `other` is a send or receive of this phase that begins before n, which is one too. */
static bool begins_before(const OrderBuilder *w, const Node *other, const Node *n)
{
    return op_pairs(other->op) && in_phase(other, w->phase) &&
           other->attr.move.index < n->attr.move.index;
}

/* Lists the sends and receives that begin before n, and the waits of sends that are hidden. */
static void visit_earlier_pairs(OrderBuilder *w, const Node *n)
{
    for (int i = 0; i < w->g->n_nodes; i++)
        if (begins_before(w, &w->g->node[i], n)) visit(w, i);
    for (int i = 0; i < w->g->n_nodes && !w->g->in_order; i++) {
        const Node *wait = &w->g->node[i];
        if (wait->op != OP_wait || w->done[i] || !in_phase(wait, w->phase)) continue;
        const int send = w->maker[wait->in[0]];
        if (w->g->node[send].op == OP_send && w->emitted[send] &&
            w->visit_at[send] < w->n_visits[is_of_weights(w->g, send)])
            visit(w, i);
    }
}

static void visit(OrderBuilder *w, int index)
{
    const Node *n = &w->g->node[index];
    if (w->done[index] || !in_phase(n, w->phase)) return;
    w->done[index] = true;
    if (!w->g->in_order) begin_operands(w, n);
    if (op_pairs(n->op)) visit_earlier_pairs(w, n);
    /* First what a send begins after: that may hide the arrival of what it passes on. */
    for (int i = 0; i < n->n_in; i++)
        if (n->op == OP_send && op_only_orders(n->op, i)) visit_maker(w, n->in[i]);
    for (int i = 0; i < n->n_in; i++) visit_maker(w, n->in[i]);
    if (w->emitted[index]) return;
    list_node(w, index);
    /* A pack makes no transfer ready that its operand did not. If it began others, those that some
     * ranks pack for would begin before the one that it packs for. */
    if (!w->g->in_order && n->op != OP_pack) begin_ready(w);
}

static bool is_ready(const OrderBuilder *w, const Node *n)
{
    for (int i = 0; i < n->n_in; i++) {
        const int maker = maker_behind_packs(w, n->in[i]);
        if (maker != NO_NODE && in_phase(&w->g->node[maker], w->phase) && !w->emitted[maker])
            return false;
    }
    for (int i = 0; i < w->g->n_nodes && op_pairs(n->op); i++)
        if (begins_before(w, &w->g->node[i], n) && !w->emitted[i]) return false;
    return true;
}

/* Begins the transfers whose operands are ready. Recomputed ones begin when they are needed, so
 * that their results do not live longer; those of a plan wait for its visits instead. */
static void begin_ready(OrderBuilder *w)
{
    for (int i = 0; i < w->g->n_nodes; i++) {
        const Node *n = &w->g->node[i];
        if (w->done[i] || !op_transfers(n->op) || !in_phase(n, w->phase)) continue;
        if (n->recomputed && !op_pairs(n->op)) continue;
        if (is_ready(w, n)) visit(w, i);
    }
}

/* True if the node waits for a transfer or unpacks one: it is deferred until its first reader. A
 * sum that outlives the program has none. */
static bool can_be_deferred(const OrderBuilder *w, int index)
{
    const Node *n = &w->g->node[index];
    if (w->g->in_order) return false;
    if (n->op == OP_pack) {
        const int maker = maker_behind_packs(w, n->in[0]);
        if (maker == NO_NODE || role_accumulates(w->g->value[n->out[0]].role)) return false;
        n = &w->g->node[maker];
    }
    if (n->op != OP_wait) return false;
    return op_transfers(w->g->node[w->maker[n->in[0]]].op);
}

Err order(const Graph *g, Phase phase, Arena *arena, int **list, int *n)
{
    OrderBuilder w = {.g = g, .phase = phase};
    TRY(ARENA_NEW(arena, g->n_nodes + 1, &w.list));
    const size_t mark = arena_mark(arena);
    TRY(ARENA_NEW(arena, g->n_nodes + 1, &w.done));
    TRY(ARENA_NEW(arena, g->n_nodes + 1, &w.emitted));
    TRY(ARENA_NEW(arena, g->n_nodes + 1, &w.visit_at));
    TRY(graph_makers(g, arena, &w.maker));
    for (int i = 0; i < g->n_nodes; i++)
        if (!g->node[i].recomputed && !can_be_deferred(&w, i)) visit(&w, i);
    for (int i = 0; i < g->n_nodes; i++) /* outputs of the phase without readers in it */
        if (!g->node[i].recomputed) visit(&w, i);
    arena_rewind(arena, mark);
    *list = w.list;
    *n = w.n;
    return OK;
}
