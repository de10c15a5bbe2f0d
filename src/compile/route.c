/* route.c -- the rows of experts that are sharded over axes of their own: sent to the ranks that
 * have the experts, and back.
 *
 *   before:  rows = permute x at                         the rows of this rank, all E experts
 *            out = grouped_linear ... rows w offsets
 *            y = unpermute at out gates
 *   after:   to = send_rows at offsets                   ep rooms of B rows
 *            all = wait (all_gather offsets)             over ep x etp
 *            mine = sum_offsets all
 *            r = wait (all_to_all (permute_sent x to))   over ep
 *            rows = collect_rows (wait (all_gather r)) all        over etp; E / ep experts
 *            out = grouped_linear ... rows w mine        w: E / ep experts, width F / etp
 *            s = wait (reduce_scatter (spread_rows out all))      over etp
 *            y = unpermute_sent to (wait (all_to_all s)) gates
 *
 * place has pinned the choices by tokens over tp and cp, so each token of a stage has one owner,
 * and the axes of experts need not be those of attention (MoE parallel folding). device/exchange.h
 * draws the rooms. All of them have B rows, the same on all ranks, so memory and bytes are known
 * before the run, and every rank begins every transfer whatever the router chose. Backward is the
 * same with other payloads: gradients of outputs leave as rows do, those of rows return as outputs.
 *
 * Rows without room are an error, or take further rounds (route_rounds.c).
 *
 * A transfer of rows begins where its operand is made, and what it brings is collected where it is
 * read first: a shared expert that stands between overlaps it. */
#include "compile/route_parts.h"

#include <math.h>
#include <string.h>
#include "base/math.h"
#include "compile/place.h"
#include "ir/build.h"

static unsigned axes_of(const RoutePass *r, const char *name)
{
    return mesh_axes(r->o->mesh, VIEW_EXPERT, name);
}

/* ---- which values have rows of experts ---- */

static bool permutes(OpId op)
{
    return op == OP_permute || op == OP_unpermute || op == OP_permute_dgate;
}

/* The operand of an op that has rows at the ranks of their tokens, or -1. */
static int returned_operand(OpId op)
{
    return op == OP_unpermute ? 1 : op == OP_permute_dgate ? 2 : -1;
}

static int8_t exchange_of(const RoutePass *r, Value at)
{
    for (int i = 0; i < r->n_exchanges; i++)
        if (r->exchange[i].at == at) return (int8_t)(i + 1);
    return 0;
}

/* Rows come from permute and stay rows in all ops but those of tokens. */
static void find_rows(RoutePass *r)
{
    for (int i = 0; i < r->g->n_nodes; i++) {
        const Node *n = &r->g->node[i];
        const int back = returned_operand(n->op);
        int8_t of = n->op == OP_permute ? exchange_of(r, n->in[1]) : 0;
        for (int j = 0; j < n->n_in && !permutes(n->op) && !of; j++) of = r->rows[n->in[j]];
        if (back >= 0 && r->rows[n->in[back]]) r->is_returned[n->in[back]] = true;
        for (int j = 0; j < n->n_out && of; j++)
            if (r->g->value[n->out[j]].role == ROLE_LOCAL) r->rows[n->out[j]] = of;
    }
}

/* ERR_CHECK if permute reads choices in another layout than the router's: its rows would stay at
 * the ranks of their tokens. */
static Err check_rows(const RoutePass *r)
{
    for (int i = 0; i < r->g->n_nodes; i++)
        if (r->g->node[i].op == OP_permute && !r->rows[r->g->node[i].out[0]])
            return err_fail(ERR_CHECK,
                            "route: %s, permute, value %%%d: its choices are in another layout "
                            "than those of the router",
                            r->g->kind, r->g->node[i].out[0]);
    return OK;
}

/* ---- shapes of this rank ---- */

/* The most rows of an expert, over all ranks that have tokens of a micro-batch. */
static int64_t capacity_of(const Graph *g)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        const Dims *kept = &g->value[n->out[0]].dims; /* of all tokens */
        if (n->op != OP_limit_choices) continue;
        const double choices = (double)(kept->dim[0].cap * kept->dim[1].cap);
        return (int64_t)ceil(n->attr.kernel.limit.capacity * choices /
                             (double)n->attr.kernel.limit.experts);
    }
    return INT32_MAX;
}

/* The most rows of a room that there can be. */
static int64_t most_rows(const RoutePass *r, const Node *assign)
{
    const ValueInfo *at = &r->g->value[assign->out[0]];
    const int64_t k = at->dims.dim[1].cap, choices = max_i64(at->max_elements, 1), t = choices / k;
    const int64_t experts = r->g->value[assign->out[1]].dims.dim[0].cap - 1;
    const int64_t each = experts / r->parts;
    return min_i64(t * min_i64(k, each), each * min_i64(t, capacity_of(r->g)));
}

/* Rows of a room: as many as the bound says, but no more than there can be. */
static int64_t room_rows(const RoutePass *r, const Node *assign)
{
    const int64_t choices = max_i64(r->g->value[assign->out[0]].max_elements, 1);
    const int64_t most = most_rows(r, assign);
    const double factor = r->o->expert_rows;
    if (factor <= 0) return most;
    return min_i64(most, (int64_t)ceil(factor * (double)choices / r->parts));
}

/* Rows have i32 numbers. */
static Err check_rooms(const RoutePass *r, int64_t room)
{
    const int64_t rooms = (int64_t)r->parts * r->copies;
    if (room <= INT32_MAX / rooms) return OK;
    return err_fail(ERR_CONFIG,
                    "a rank of experts has room for %lld rows from each of %lld ranks: more than "
                    "%d in all, the limit of 32-bit row numbers; set a smaller "
                    "parallel.expert_rows, batch.micro or data.seq_len",
                    (long long)room, (long long)rooms, INT32_MAX);
}

static Err open_exchanges(RoutePass *r)
{
    Graph *g = r->g;
    int n = 0;
    for (int i = 0; i < g->n_nodes; i++) n += g->node[i].op == OP_assign_rows;
    TRY(ARENA_NEW(g->arena, n + 1, &r->exchange));
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *a = &g->node[i];
        if (a->op != OP_assign_rows) continue;
        const int64_t room = room_rows(r, a);
        TRY(check_rooms(r, room));
        RowExchange *x = &r->exchange[r->n_exchanges++];
        *x = (RowExchange){.at = a->out[0], .offsets = a->out[1], .rooms = r->parts * room};
        x->attr.exchange.ep = r->parts;
        x->attr.exchange.etp = r->copies;
        x->attr.exchange.part = mesh_part(r->o->mesh, VIEW_EXPERT, axes_of(r, "ep"), r->o->rank);
        x->attr.exchange.room = room;
        x->attr.exchange.rounds = r->o->rounds && room < most_rows(r, a);
    }
    return OK;
}

/* Weights of experts and their gradients have the shapes of this rank's part. */
static Err shape_params(RoutePass *r)
{
    Graph *g = r->g;
    for (Value v = 0; v < r->n_values; v++) {
        ValueInfo *info = &g->value[v];
        const bool param = info->role == ROLE_PARAM || info->role == ROLE_DPARAM;
        Layout use;
        if (!param || g->param[info->index].view != VIEW_EXPERT) continue;
        TRY(strategy_param(r->o->strategy, g, info->index, r->o->mesh, g->arena, &use));
        info->dims = local_dims(&info->dims, &use, r->o->mesh, r->o->rank);
        info->layout = layout_replicate(VIEW_DENSE); /* sums over edp follow from the view */
    }
    for (int p = 0; p < g->n_params; p++) {
        Layout use;
        ParamInfo *info = &g->param[p];
        Dims dims = {.ndim = info->ndim};
        if (info->view != VIEW_EXPERT) continue;
        for (int i = 0; i < dims.ndim; i++) dims.dim[i] = dim_of(info->n[i]);
        TRY(strategy_param(r->o->strategy, g, p, r->o->mesh, g->arena, &use));
        dims = local_dims(&dims, &use, r->o->mesh, r->o->rank);
        for (int i = 0; i < dims.ndim; i++) info->n[i] = dims.dim[i].cap;
    }
    return OK;
}

/* The width of rows between grouped GEMMs follows that of the weights. */
static void shape_rows(RoutePass *r, const Node *n)
{
    Graph *g = r->g;
    for (int j = 0; j < n->n_out; j++) {
        ValueInfo *out = &g->value[n->out[j]];
        const int8_t of = out->role == ROLE_LOCAL ? r->rows[n->out[j]] : 0;
        if (!of) continue;
        const Dims *w = n->n_in > 1 ? &g->value[n->in[1]].dims : NULL;
        const Dims *x = &g->value[n->in[0]].dims;
        out->dims.dim[0] = dim_of(r->exchange[of - 1].rooms * r->copies);
        out->layout = layout_replicate(VIEW_DENSE);
        if (n->op == OP_grouped_linear)
            out->dims.dim[1] = w->dim[1];
        else if (n->op == OP_grouped_linear_dx)
            out->dims.dim[1] = w->dim[2];
        else if (n->op != OP_permute)
            out->dims.dim[1] = x->dim[1];
    }
}

/* ---- nodes ---- */

Value route_add(RoutePass *r, OpId op, const OpAttr *attr, int n_in, const Value *in,
                const Dims *given)
{
    for (int i = 0; i < n_in; i++)
        if (in[i] == NO_VALUE) return NO_VALUE;
    Node *n = r->g->err == OK ? graph_node(r->g, op, attr, n_in, in, given, 1) : NULL;
    return n ? n->out[0] : NO_VALUE;
}

void route_redirect(RoutePass *r, Value into)
{
    if (r->g->err == OK) r->g->node[r->g->n_nodes - 1].out[0] = into;
}

/* A collective over axes of the expert view, begun. */
static Value begin(RoutePass *r, OpId op, const char *const axis[2], Value v, Dims dims)
{
    Graph *g = r->g;
    unsigned axes = 0;
    if (v == NO_VALUE) return v;
    for (int i = 0; i < 2 && axis[i]; i++) axes |= axes_of(r, axis[i]);
    TransferPart move = {.number = r->number + graph_transfers(g), .reduce = REDUCE_SUM};
    const Err err = mesh_group(r->o->mesh, VIEW_EXPERT, axes, r->o->rank, g->arena, &move.group);
    if (err != OK) g->err = err;
    const OpAttr attr = {.move = {graph_move(g, &move)}};
    const Value y = route_add(r, op, &attr, 1, &v, &dims);
    if (y == NO_VALUE) return y;
    g->node[g->n_nodes - 1].queue = QUEUE_COMM;
    g->value[y].dtype = g->value[v].dtype;
    return y;
}

static Dims rows_of(const RoutePass *r, Value v, int64_t rows)
{
    return dims2(dim_of(rows), r->g->value[v].dims.dim[1]);
}

static Err add_exchange(RoutePass *r, RowExchange *x)
{
    static const char *const group[2] = {"ep", "etp"};
    Graph *g = r->g;
    const OpAttr attr = {.kernel = x->attr};
    const Dim offsets = g->value[x->offsets].dims.dim[0];
    const int64_t experts = (offsets.cap - 1) / r->parts;
    const Dims all = dims2(dim_of(r->parts * r->copies), offsets),
               mine = dims1(dim_of(experts + 1));
    x->to = route_add(r, OP_send_rows, &attr, 2, (const Value[]){x->at, x->offsets}, NULL);
    x->all = wait_for(g, begin(r, OP_all_gather, group, x->offsets, all));
    x->mine = route_add(r, OP_sum_offsets, &attr, 1, &x->all, &mine);
    return graph_err(g);
}

/* permute x at gate: the rows leave for the ranks of their experts. */
static Err send(RoutePass *r, const Node *n)
{
    static const char *const ep[2] = {"ep", NULL};
    const RowExchange *x = &r->exchange[r->rows[n->out[0]] - 1];
    Value in[3] = {n->in[0], x->to, n->n_in > 2 ? n->in[2] : NO_VALUE};
    const Dims rooms = rows_of(r, n->in[0], x->rooms);
    Value v = route_add(r, OP_permute_sent, NULL, n->n_in, in, &rooms);
    if (r->parts > 1) v = begin(r, OP_all_to_all, ep, v, rooms);
    r->begun[n->out[0]] = v;
    return graph_err(r->g);
}

/* The rows of v have arrived: those of this rank's experts become v. */
static Err collect(RoutePass *r, Value v)
{
    static const char *const etp[2] = {"etp", NULL};
    const RowExchange *x = &r->exchange[r->rows[v] - 1];
    const OpAttr attr = {.kernel = x->attr};
    const Dims all = rows_of(r, v, x->rooms * r->copies);
    Value w = r->begun[v];
    if (w == NO_VALUE) return OK;
    if (r->parts > 1) w = wait_for(r->g, w);
    if (r->copies > 1) w = wait_for(r->g, begin(r, OP_all_gather, etp, w, all));
    route_add(r, OP_collect_rows, &attr, 2, (const Value[]){w, x->all}, &all);
    route_redirect(r, v);
    r->begun[v] = NO_VALUE;
    return graph_err(r->g);
}

/* v leaves for the ranks of its tokens. */
static Err give_back(RoutePass *r, Value v)
{
    static const char *const ep[2] = {"ep", NULL}, *const etp[2] = {"etp", NULL};
    const RowExchange *x = &r->exchange[r->rows[v] - 1];
    const OpAttr attr = {.kernel = x->attr};
    const Dims all = rows_of(r, v, x->rooms * r->copies), rooms = rows_of(r, v, x->rooms);
    Value w = route_add(r, OP_spread_rows, &attr, 2, (const Value[]){v, x->all}, &all);
    if (r->copies > 1) w = wait_for(r->g, begin(r, OP_reduce_scatter, etp, w, rooms));
    if (r->parts > 1) w = wait_for(r->g, begin(r, OP_all_to_all, ep, w, rooms));
    r->returned[v] = w;
    return graph_err(r->g);
}

/* unpermute and permute_dgate read the rows that have returned: from rooms, or, where rows take
 * rounds, from a place for each choice. */
static Err read_returned(RoutePass *r, const Node *old)
{
    const int at = old->op == OP_unpermute ? 0 : 1, rows = returned_operand(old->op);
    const Value v = old->in[rows];
    const RowExchange *x = &r->exchange[r->rows[v] - 1];
    Node n = *old, *room;
    if (x->attr.exchange.rounds && !r->has_rounds[v]) TRY(route_rounds(r, v));
    TRY(ARENA_NEW(r->g->arena, n.n_in, &n.in));
    memcpy(n.in, old->in, (size_t)n.n_in * sizeof *n.in);
    n.op = old->op == OP_unpermute ? OP_unpermute_sent : OP_permute_dgate_sent;
    n.in[at] = x->attr.exchange.rounds ? x->at : x->to;
    n.in[rows] = r->returned[v];
    return graph_append(r->g, &n, &room);
}

/* A node of experts, with the offsets of this rank's. */
static Err run_here(RoutePass *r, const Node *old)
{
    Node n = *old, *room;
    TRY(ARENA_NEW(r->g->arena, n.n_in + 1, &n.in));
    for (int j = 0; j < n.n_in; j++) {
        n.in[j] = old->in[j];
        if (r->rows[old->in[j]]) TRY(collect(r, old->in[j]));
        for (int i = 0; i < r->n_exchanges; i++)
            if (old->in[j] == r->exchange[i].offsets) n.in[j] = r->exchange[i].mine;
    }
    shape_rows(r, &n);
    TRY(graph_append(r->g, &n, &room));
    for (int j = 0; j < n.n_out; j++)
        if (r->is_returned[n.out[j]]) TRY(give_back(r, n.out[j]));
    return OK;
}

Err route_node(RoutePass *r, const Node *n)
{
    if (n->op != OP_permute || !r->rows[n->out[0]]) return run_here(r, n);
    shape_rows(r, n);
    return send(r, n);
}

static Err rewrite(RoutePass *r, const Node *n)
{
    Node *room;
    const int back = returned_operand(n->op);
    if (back >= 0 && r->rows[n->in[back]]) return read_returned(r, n);
    if (n->op != OP_assign_rows) return route_node(r, n);
    TRY(graph_append(r->g, n, &room));
    return add_exchange(r, &r->exchange[exchange_of(r, n->out[0]) - 1]);
}

Err route_open_rows(RoutePass *r)
{
    Arena *a = r->g->arena;
    TRY(ARENA_NEW(a, r->n_values + 1, &r->begun));
    TRY(ARENA_NEW(a, r->n_values + 1, &r->returned));
    TRY(ARENA_NEW(a, r->n_values + 1, &r->is_returned));
    TRY(ARENA_NEW(a, r->n_values + 1, &r->has_rounds));
    for (Value v = 0; v < r->n_values; v++) r->begun[v] = r->returned[v] = NO_VALUE;
    return OK;
}

static Err open_pass(RoutePass *r)
{
    TRY(ARENA_NEW(r->g->arena, r->n_values + 1, &r->rows));
    TRY(graph_makers(r->g, r->g->arena, &r->maker));
    TRY(route_open_rows(r));
    TRY(open_exchanges(r));
    find_rows(r);
    TRY(check_rows(r));
    return shape_params(r);
}

Err route_rows(Graph *g, const CompileOptions *o)
{
    RoutePass r = {.g = g, .o = o, .old = g->node, .n_old = g->n_nodes, .n_values = g->n_values};
    r.parts = mesh_parts(o->mesh, VIEW_EXPERT, axes_of(&r, "ep"));
    r.copies = mesh_parts(o->mesh, VIEW_EXPERT, axes_of(&r, "etp"));
    TRY(open_pass(&r));
    if (r.n_exchanges == 0) return OK;
    g->node = NULL;
    g->n_nodes = g->cap_nodes = 0;
    for (r.now = 0; r.now < r.n_old; r.now++) TRY(rewrite(&r, &r.old[r.now]));
    return graph_check(g);
}
