/* route_rounds.c -- further rounds of an exchange, for the rows that had no room in the first.
 *
 *     F    s = ... all_to_all             round 1, with the activations that backward reads
 *          h = return_rows s offsets      a place for each choice of this rank's tokens: T K rows
 *          y = rounds h ...               runs a body once per further round
 *     B    rounds_dx: the same for the gradients of rows; rounds_dw: for those of weights
 *
 *     body of F    send_rows (of the round) - permute - exchange - collect - experts - back by the
 *                  exchange - return_rows
 *     body of B    the same up to the activations that are needed again; gradients of outputs come
 *                  the same way; then gradients of rows, of weights, or (rounds_back) of both
 *
 * A body is made of the nodes that a wanted value depends on: route.c rewrites them into a graph of
 * its own, with the same numbers of values, which is lowered here. Its scratch is a region of the
 * node, so memory is known before the run: that of one round, whatever the routing. Nothing of a
 * further round is kept: backward computes it again. The number of rounds follows from the offsets
 * that all members of ep x etp have (device/exchange.h), so every member begins every transfer.
 *
 * Rows return to the places that they would have with room for all, so a token's sum has the same
 * order. Gradients of weights are sums over rounds. */
#include "compile/route_parts.h"

#include <string.h>
#include "base/math.h"

enum { N_WEIGHTS = 3, MAX_OPERANDS = MAX_IN, BODY_NUMBERS = 1 << 10, WORD = 4 };

/* The parts of the bodies of one exchange, in forward or in backward. */
typedef struct {
    RoutePass *r;
    const RowExchange *x;
    Value rows; /* of the experts: what returns */
    bool backward;
    Value in[MAX_OPERANDS]; /* of the nodes, without the sum */
    int n_in;
    const Node *dw[N_WEIGHTS]; /* old nodes */
} RoundMaker;

/* The exchange of a node over rows of experts, or 0. */
static int8_t exchange_at(const RoutePass *r, const Node *n)
{
    int8_t of = 0;
    for (int j = 0; j < n->n_in && !of; j++) of = r->rows[n->in[j]];
    for (int j = 0; j < n->n_out && !of; j++)
        if (n->op == OP_permute) of = r->rows[n->out[j]];
    return of;
}

static Err add_operand(RoundMaker *m, Value v)
{
    if (m->n_in == MAX_OPERANDS - 1) /* and the sum */
        return err_fail(ERR_CHECK, "route: %s: further rounds read more than %d values",
                        m->r->g->kind, MAX_OPERANDS - 1);
    m->in[m->n_in++] = v;
    return OK;
}

/* The operands: tokens, the routing, gradients of outputs and gates, the weights of experts. */
static Err find_operands(RoundMaker *m)
{
    const RoutePass *r = m->r;
    const int8_t of = r->rows[m->rows];
    const Node *leave[2] = {NULL, NULL}; /* permute of the tokens, of the gradients */
    Value w[N_WEIGHTS];
    int n_w = 0, n_dw = 0;
    for (int i = 0; i < r->n_old; i++) {
        const Node *n = &r->old[i];
        if (exchange_at(r, n) != of) continue;
        if (n->op == OP_permute) leave[n->n_in > 2] = n;
        if (n->op == OP_grouped_linear && n_w++ < N_WEIGHTS) w[n_w - 1] = n->in[1];
        if (n->op == OP_grouped_linear_dw && i < r->now && n_dw++ < N_WEIGHTS) m->dw[n_dw - 1] = n;
    }
    m->backward = n_dw > 0;
    if (n_w != N_WEIGHTS || (n_dw != 0 && n_dw != N_WEIGHTS) || !leave[0] ||
        (m->backward && !leave[1]))
        return err_fail(ERR_CHECK,
                        "route: %s: experts with %d matrices and %d gradients; further "
                        "rounds are made for %d",
                        r->g->kind, n_w, n_dw, N_WEIGHTS);
    const Value routing[] = {leave[0]->in[0], m->x->at, m->x->offsets, m->x->all};
    for (int i = 0; i < 4; i++) TRY(add_operand(m, routing[i]));
    for (int i = 0; i < 3 && m->backward; i += 2) TRY(add_operand(m, leave[1]->in[i]));
    for (int i = 0; i < N_WEIGHTS; i++) TRY(add_operand(m, w[i]));
    return OK;
}

/* ---- a body ---- */

/* Marks the node and what its operands with rows of experts are made by. */
static void need(const RoutePass *r, int node, bool *needed)
{
    if (needed[node]) return;
    needed[node] = true;
    for (int j = 0; j < r->old[node].n_in && r->old[node].op != OP_permute; j++)
        if (r->rows[r->old[node].in[j]]) need(r, r->maker[r->old[node].in[j]], needed);
}

/* An empty graph with the values of the unit, of which the operands are arguments. */
static Err open_graph(const RoundMaker *m, Graph *g)
{
    const Graph *unit = m->r->g;
    *g = *unit;
    g->node = NULL, g->move = NULL, g->body = NULL;
    g->n_nodes = g->cap_nodes = g->n_moves = g->cap_moves = g->n_bodies = 0;
    TRY(ARENA_NEW(g->arena, unit->n_values, &g->value));
    g->cap_values = unit->n_values;
    for (Value v = 0; v < g->n_values; v++) {
        const Role role = unit->value[v].role;
        g->value[v] = unit->value[v];
        if (role != ROLE_PARAM && role != ROLE_DPARAM) g->value[v].role = ROLE_LOCAL;
    }
    for (int i = 0; i < m->n_in; i++) {
        if (unit->value[m->in[i]].role == ROLE_PARAM) continue;
        g->value[m->in[i]].role = ROLE_ARG;
        g->value[m->in[i]].index = i;
    }
    return OK;
}

/* The exchange within the body: this round's rows, of the offsets that round 1 has gathered. */
static Err open_body(const RoundMaker *m, RoutePass *b)
{
    const OpAttr attr = {.kernel = m->x->attr};
    RowExchange *x;
    const Dims mine = m->r->g->value[m->x->mine].dims;
    TRY(ARENA_NEW(b->g->arena, b->n_exchanges, &b->exchange));
    memcpy(b->exchange, m->r->exchange, (size_t)b->n_exchanges * sizeof *b->exchange);
    TRY(route_open_rows(b));
    x = &b->exchange[m->x - m->r->exchange];
    x->to = route_add(b, OP_send_rows, &attr, 2, (const Value[]){x->at, x->offsets}, NULL);
    x->mine = route_add(b, OP_sum_offsets, &attr, 1, &x->all, &mine);
    b->number = (m->r->g->n_bodies + 1) * BODY_NUMBERS; /* apart from those of other bodies */
    return graph_err(b->g);
}

/* The rows that have returned go to their places: those of the output, argument n_in. */
static Err place_returned(const RoundMaker *m, RoutePass *b, Dims places)
{
    const OpAttr attr = {.kernel = m->x->attr};
    const Value in[] = {b->returned[m->rows], m->x->offsets};
    if (in[0] == NO_VALUE) return graph_err(b->g);
    const Value to = graph_value(b->g, ROLE_ARG, NULL, b->g->value[in[0]].dtype, places);
    if (to == NO_VALUE) return graph_err(b->g);
    b->g->value[to].index = m->n_in;
    route_add(b, OP_return_rows, &attr, 2, in, &places);
    route_redirect(b, to);
    return graph_err(b->g);
}

/* Runs the GEMMs of the body in FP8 where round 1 does: its rows have scales of their own. The body
 * is of F alone, so it keeps values that a unit would quantize again in backward. */
static Err quantize_body(Graph *g, const CompileOptions *o)
{
    if (!o->fp8.names || !o->fp8.experts) return OK;
    TRY(quantize_experts(g, o));
    for (int i = 0; i < g->n_nodes; i++) g->node[i].recomputed = false;
    return OK;
}

/* Quantizes, fuses and lowers the body; *bytes: what its region needs. */
static Err lower_body(RoutePass *unit, Graph *g, int32_t *index, size_t *bytes)
{
    const struct Program **list;
    Program *p;
    TRY(graph_check(g));
    TRY(quantize_body(g, unit->o));
    TRY(unit->o->unfused ? fuse_packed(g) : fuse(g));
    if (!unit->o->unfused) TRY(epilogues(g));
    TRY(phases(g));
    TRY(ARENA_NEW(g->arena, 1, &p));
    TRY(lower(g, g->arena, p));
    TRY(ARENA_NEW(g->arena, unit->g->n_bodies + 1, &list));
    for (int i = 0; i < unit->g->n_bodies; i++) list[i] = unit->g->body[i];
    *index = unit->g->n_bodies;
    list[unit->g->n_bodies++] = p;
    unit->g->body = list;
    if (p->scratch_bytes[PHASE_F] > *bytes) *bytes = p->scratch_bytes[PHASE_F];
    return OK;
}

/* The body that makes rows, gradients of weights, or both. */
static Err make_body(const RoundMaker *m, bool rows, bool dw, Dims places, int32_t *index,
                     size_t *bytes)
{
    const RoutePass *r = m->r;
    Graph g;
    RoutePass b = *r;
    bool *needed;
    TRY(open_graph(m, &g));
    b.g = &g;
    TRY(ARENA_NEW(g.arena, r->n_old + 1, &needed));
    TRY(open_body(m, &b));
    b.is_returned[m->rows] = rows;
    if (rows) need(r, r->maker[m->rows], needed);
    for (int i = 0; i < N_WEIGHTS && dw; i++) need(r, (int)(m->dw[i] - r->old), needed);
    for (int i = 0; i < r->n_old; i++) {
        if (!needed[i]) continue;
        TRY(route_node(&b, &r->old[i]));
        if (r->old[i].op == OP_grouped_linear_dw) g.node[g.n_nodes - 1].keep[0] = SLOT_ONE;
    }
    if (rows) TRY(place_returned(m, &b, places));
    return lower_body(m->r, &g, index, bytes);
}

/* ---- the nodes ---- */

static Dims region_of(size_t bytes) { return dims1(dim_of((int64_t)((bytes + WORD - 1) / WORD))); }

static OpAttr loop_attr(const RoundMaker *m, int32_t body, int32_t merged)
{
    const Attr *a = &m->x->attr;
    return (OpAttr){.rounds = {body, merged, a->exchange.ep, a->exchange.room}};
}

/* rounds, or rounds_dx: adds to the rows of `first`. */
static Err add_rows_loop(RoundMaker *m, Value first)
{
    RoutePass *r = m->r;
    const Dims places = r->g->value[first].dims;
    Value in[MAX_OPERANDS];
    int32_t body, merged = 0;
    size_t bytes = 0;
    TRY(make_body(m, true, false, places, &body, &bytes));
    if (m->backward) TRY(make_body(m, true, true, places, &merged, &bytes));
    memcpy(in, m->in, sizeof in);
    in[m->n_in] = first;
    const Dims given[] = {places, region_of(bytes)};
    const OpAttr attr = loop_attr(m, body, merged);
    Node *n =
        graph_node(r->g, m->backward ? OP_rounds_dx : OP_rounds, &attr, m->n_in + 1, in, given, 2);
    if (!n) return graph_err(r->g);
    n->keep[0] = SLOT_ONE;
    r->returned[m->rows] = n->out[0];
    return OK;
}

/* rounds_dw: adds to the sums that round 1 has begun. */
static Err add_weights_loop(RoundMaker *m)
{
    Graph *g = m->r->g;
    Dims given[1 + N_WEIGHTS];
    int32_t body;
    size_t bytes = 0;
    TRY(make_body(m, false, true, (Dims){0}, &body, &bytes));
    given[0] = region_of(bytes);
    for (int i = 0; i < N_WEIGHTS; i++) given[1 + i] = g->value[m->dw[i]->out[0]].dims;
    const OpAttr attr = loop_attr(m, body, 0);
    Node *n = graph_node(g, OP_rounds_dw, &attr, m->n_in, m->in, given, 1 + N_WEIGHTS);
    if (!n) return graph_err(g);
    for (int i = 0; i < N_WEIGHTS; i++) {
        n->out[1 + i] = m->dw[i]->out[0];
        n->keep[1 + i] = SLOT_ONE;
    }
    return OK;
}

Err route_rounds(RoutePass *r, Value v)
{
    const RowExchange *x = &r->exchange[r->rows[v] - 1];
    RoundMaker m = {.r = r, .x = x, .rows = v};
    const OpAttr attr = {.kernel = x->attr};
    const Dims *at = &r->g->value[x->at].dims, *rooms = &r->g->value[r->returned[v]].dims;
    const Dims places = dims2(dim_of(max_i64(dims_count(at), 1)), rooms->dim[1]);
    const Value in[] = {r->returned[v], x->offsets};
    const Value first = route_add(r, OP_return_rows, &attr, 2, in, &places);
    if (first == NO_VALUE) return graph_err(r->g);
    r->has_rounds[v] = true;
    TRY(find_operands(&m));
    TRY(add_rows_loop(&m, first));
    return m.backward ? add_weights_loop(&m) : OK;
}
