/* place_rows.c -- the ways to run a node along one axis: the rows of its op, each with the splits
 * of its operands.
 *
 *   linear  x[t,i] w[o,i] -> y[t,o]      rows "t o i+"; w is sharded along o by some split S:
 *     x replicate, w shard(o, S) -> y shard(o, S)         row o
 *     x shard(i, ...), w shard(i, ...) -> y sum           row i+, if w were sharded along i
 *     all replicate                                       always
 *
 * A parameter is never moved, so its pin excludes most rows. An operand that is only added (a bias)
 * may be replicate where the row has a partial sum: the first part adds it, the others do not. */
#include "compile/place_rows_parts.h"

#include <string.h>

/* True if this operand may have summands in its copies: the op is linear in it, or it quantizes
 * each summand by itself, by the largest magnitude of all, for an op that is. */
static bool takes_copy_sums(const RowTrial *t, int operand)
{
    const OpClass class = op_info(t->n->op)->class;
    const Operand *o = trial_operand(t, operand);
    return class == CLASS_SUM || class == CLASS_VIEW || strcmp(o->name, "dy") == 0 ||
           ((t->n->op == OP_rope || t->n->op == OP_amax || op_quantizes(t->n->op)) && operand == 0);
}

/* The placement of an operand in this row. copy_sums: copies of some operand are summands, and so
 * are those of the outputs. */
static Err operand_placement(const RowTrial *t, int operand, bool copy_sums, PlacementId *out)
{
    PlacementTable *table = &t->p->placements;
    const Operand *o = trial_operand(t, operand);
    const bool output = operand >= t->n->n_in;
    bool with;
    const int dim = trial_dim(t, operand, &with);
    Placement placement = {.kind = PLACEMENT_REPLICATE};
    if (dim < 0) {
        if (t->row.partial && (output || o->added))
            placement.kind = t->row.partial == '+' ? PLACEMENT_SUM : PLACEMENT_MAX;
        return placement_intern(table, placement, out);
    }
    placement = (Placement){PLACEMENT_SHARD, dim, with ? t->with : t->split, false};
    TRY(split_of_factor(table, placement.split, trial_sides(t, operand, dim), &placement.split));
    if (placement.split < 0) { /* no list of spans */
        *out = NO_PLACEMENT;
        return OK;
    }
    const bool copies = table->split[placement.split].map->copies;
    /* Each part sums the contributions of its own heads to a key head. */
    const bool summands = t->row.with && with && output &&
                          (t->n->op == OP_attention_dx || t->n->op == OP_attention_along_dx);
    placement.copy_sums =
        copies && (summands || (copy_sums && (output || takes_copy_sums(t, operand))));
    return placement_intern(table, placement, out);
}

/* True if the key heads of each part are those that its heads read, and no others. */
static bool heads_agree(const RowTrial *t)
{
    const PlacementTable *table = &t->p->placements;
    const SpanMap *h = table->split[t->split].map, *g = table->split[t->with].map;
    const int64_t group = g->extent ? h->extent / g->extent : 0;
    for (int p = 0; p < table->parts; p++) {
        const int n = h->first[p + 1] - h->first[p], m = g->first[p + 1] - g->first[p];
        if (n > 1 || m > 1 || n != m || !group) return false;
        if (n == 0) continue;
        const Span a = h->span[h->first[p]], b = g->span[g->first[p]];
        if (b.lo != a.lo / group || b.hi != (a.hi + group - 1) / group) return false;
    }
    return true;
}

/* True if the placement is what v is pinned to; a quantized parameter stays where that one is. */
static bool has_pin(const PlaceContext *p, Value v, PlacementId placement)
{
    const PlacementId pin = p->quantized[v] == NO_PLACEMENT ? p->pin[v] : p->quantized[v];
    return pin == NO_PLACEMENT || pin == placement;
}

PlacementId param_placement(const PlaceContext *p, Value v)
{
    for (Value w = 0; w < p->g->n_values; w++) {
        const ValueInfo *info = &p->g->value[w];
        if (info->role == ROLE_PARAM && info->index == p->g->value[v].index) return p->pin[w];
    }
    return placement_replicate();
}

/* A parameter's gradient has the placement of the parameter, or is a partial sum if that is
 * replicate. Along data axes it must be one: ranks there have other tokens, and one reduce-scatter
 * of the pack sums the gradients of all its parameters over them. */
static bool fits_gradient(const PlaceContext *p, Value v, const Placement *placement)
{
    const Placement *use = &p->placements.list[param_placement(p, v)];
    const bool data = mesh_data_axes(p->mesh, VIEW_DENSE) >> p->axis & 1;
    if (use->kind == PLACEMENT_SHARD)
        return placement->kind == PLACEMENT_SHARD && placement->dim == use->dim &&
               placement->split == use->split;
    return placement->kind == PLACEMENT_SUM || (placement->kind == PLACEMENT_REPLICATE && !data);
}

/* Parameters stay as pinned; values that outlive the program have the placements that readers
 * expect. */
static bool is_legal(const RowTrial *t, const RowChoice *c)
{
    const PlaceContext *p = t->p;
    for (int i = 0; i < t->n->n_in; i++) {
        const ValueInfo *info = &p->g->value[t->n->in[i]];
        const Placement *placement = &p->placements.list[c->in[i]];
        const bool added = t->sig->in[i].added && placement->kind == PLACEMENT_SUM;
        const bool stays = info->role == ROLE_PARAM || p->quantized[t->n->in[i]] != NO_PLACEMENT;
        if (stays && !has_pin(p, t->n->in[i], c->in[i]) && !added) return false;
        if (placement->copy_sums && !takes_copy_sums(t, i)) return false;
    }
    for (int i = 0; i < t->n->n_out; i++) {
        const Role role = p->g->value[t->n->out[i]].role;
        const Placement *placement = &p->placements.list[c->out[i]];
        if (role == ROLE_DPARAM && !fits_gradient(p, t->n->out[i], placement)) return false;
        if ((role == ROLE_LOSS || role == ROLE_STAT) && placement->kind != PLACEMENT_REPLICATE &&
            placement->kind != PLACEMENT_SUM)
            return false;
    }
    return true;
}

typedef struct {
    RowChoice *list;
    int n;
} RowChoiceList;

static Err add_choice(RowChoiceList *out, const RowChoice *c)
{
    for (int i = 0; i < out->n; i++)
        if (memcmp(out->list[i].in, c->in, sizeof c->in) == 0 &&
            memcmp(out->list[i].out, c->out, sizeof c->out) == 0)
            return OK;
    if (out->n == MAX_CHOICES)
        return err_fail(ERR_CHECK, "place: more than %d ways to run one op", MAX_CHOICES);
    out->list[out->n++] = *c;
    return OK;
}

static double node_flops(const PlaceContext *p, const Node *n)
{
    Dims in[MAX_IN], out[MAX_OUT];
    for (int i = 0; i < n->n_in; i++) in[i] = p->g->value[n->in[i]].dims;
    for (int i = 0; i < n->n_out; i++) out[i] = p->g->value[n->out[i]].dims;
    return op_flops(n->op, &n->attr, n->n_in, in, n->n_out, out).all;
}

/* The work of the whole node, on all ranks of the axis. */
static CostWork node_work(const PlaceContext *p, int index)
{
    const Node *n = &p->g->node[index];
    Dims in[MAX_IN], out[MAX_OUT];
    if (n->n_in > MAX_IN) return (CostWork){.op = n->op}; /* a join is a view */
    for (int i = 0; i < n->n_in; i++) in[i] = p->g->value[n->in[i]].dims;
    for (int i = 0; i < n->n_out; i++) out[i] = p->g->value[n->out[i]].dims;
    CostWork w = cost_work(n->op, &n->attr, p->g->dtype, n->n_in, in, n->n_out, out);
    w.heavy *= p->share[index];
    w.light *= p->share[index];
    w.bytes *= p->share[index];
    return w;
}

/* The seconds of a share of a node; 0 without rates. */
static double shared_seconds(const PlaceContext *p, int node, double share)
{
    if (!p->rates) return 0;
    CostWork w = p->work[node];
    w.heavy *= share;
    w.light *= share;
    w.bytes *= share;
    return cost_work_seconds(p->rates, &w);
}

/* Sets the seconds of the choices; their flops say how the work is divided. */
static void price(const PlaceContext *p, int node, RowChoice *list, int n)
{
    for (int i = 0; i < n; i++) {
        const double share = p->flops[node] > 0 ? list[i].flops / p->flops[node] : 1;
        list[i].seconds = shared_seconds(p, node, share);
    }
}

/* Even splits of the factors of rows that this view shows as several dims. */
static Err add_token_splits(PlaceContext *p, const Node *n, const Signature *sig)
{
    const int most = (int)(sizeof p->token_split / sizeof *p->token_split);
    const Operand *o = sig->in[0].second[0] ? &sig->in[0] : &sig->out[0];
    const Value v = o == &sig->in[0] ? n->in[0] : n->out[0];
    const char factor[3] = {o->letter[0], o->second[0], o->third[0]};
    const int64_t rows = p->g->value[v].dims.dim[0].cap;
    for (int i = 0; i < 3 && factor[i] && rows; i++) {
        const ProductSides sides = operand_sides(o, 0, factor[i], &n->attr, rows);
        const int64_t extent = rows / (sides.outer * sides.inner);
        bool known = extent < p->placements.parts; /* some rank would have nothing */
        int split;
        TRY(split_even(&p->placements, extent, 1, &split));
        TRY(split_of_factor(&p->placements, split, sides, &split));
        for (int k = 0; k < p->n_token_splits; k++) known = known || p->token_split[k] == split;
        if (!known && p->n_token_splits < most) p->token_split[p->n_token_splits++] = split;
    }
    return OK;
}

static Err find_token_splits(PlaceContext *p)
{
    for (int i = 0; i < p->g->n_nodes && p->context && p->switches; i++) {
        const OpId op = p->g->node[i].op;
        const bool views = op == OP_unfold || op == OP_unfold_along || op == OP_fold;
        if (views) TRY(add_token_splits(p, &p->g->node[i], &p->sig[i]));
    }
    return OK;
}

/* Finds the quantized copies of parameters that GEMMs read, transposed ones too. */
static Err find_quantized(PlaceContext *p)
{
    TRY(ARENA_NEW(p->arena, p->g->n_values + 1, &p->quantized));
    for (Value v = 0; v < p->g->n_values; v++) p->quantized[v] = NO_PLACEMENT;
    for (int i = 0; i < p->g->n_nodes; i++) {
        const Node *n = &p->g->node[i];
        const bool turned = n->op == OP_quantize_turned || n->op == OP_turn;
        if (!op_quantizes(n->op) && n->op != OP_turn) continue;
        if (p->g->value[n->in[0]].role != ROLE_PARAM) continue;
        Placement placement = p->placements.list[p->pin[n->in[0]]];
        if (turned) placement.dim = placement.kind == PLACEMENT_SHARD && !placement.dim;
        TRY(placement_intern(&p->placements, placement, &p->quantized[n->out[0]]));
    }
    return OK;
}

Err rows_open(PlaceContext *p)
{
    const double part = 1.0 / p->placements.parts;
    TRY(ARENA_NEW(p->arena, p->g->n_nodes + 1, &p->sig));
    TRY(ARENA_NEW(p->arena, p->g->n_nodes + 1, &p->flops));
    TRY(ARENA_NEW(p->arena, p->g->n_nodes + 1, &p->work));
    TRY(ARENA_NEW(p->arena, p->g->n_nodes + 1, &p->rest));
    for (int i = 0; i < p->g->n_nodes; i++) {
        p->sig[i] = op_signature(p->g->node[i].op);
        p->flops[i] = node_flops(p, &p->g->node[i]) * p->share[i];
        if (p->rates) p->work[i] = node_work(p, i);
    }
    TRY(find_token_splits(p));
    TRY(find_quantized(p));
    for (int i = p->g->n_nodes - 1; i >= 0; i--)
        p->rest[i] = p->rest[i + 1] + (p->only && !p->only[i] ? 0 : shared_seconds(p, i, part));
    return OK;
}

/* Tries one row with fixed splits, with and without copies that are summands. */
static Err try_row(RowTrial *t, bool copy_sums, RowChoiceList *out)
{
    RowChoice c = {.flops = t->flops / t->p->placements.parts};
    if (t->row.with && !heads_agree(t)) return OK;
    for (int i = 0; i < t->n->n_in; i++) TRY(operand_placement(t, i, copy_sums, &c.in[i]));
    for (int i = 0; i < t->n->n_out; i++)
        TRY(operand_placement(t, t->n->n_in + i, copy_sums, &c.out[i]));
    for (int i = 0; i < t->n->n_in; i++)
        if (c.in[i] == NO_PLACEMENT) return OK;
    for (int i = 0; i < t->n->n_out; i++)
        if (c.out[i] == NO_PLACEMENT) return OK;
    return is_legal(t, &c) ? add_choice(out, &c) : OK;
}

static Err try_splits(RowTrial *t, const PlacementId avail[][MAX_AVAIL], const int *n_avail,
                      RowChoiceList *out)
{
    SplitList mine, with = {{-1}, 1};
    TRY(row_splits(t, avail, n_avail, false, &mine));
    if (t->row.with) TRY(row_splits(t, avail, n_avail, true, &with));
    for (int i = 0; i < mine.n; i++)
        for (int k = 0; k < with.n; k++) {
            t->split = mine.split[i];
            t->with = with.split[k];
            TRY(try_row(t, false, out));
            TRY(try_row(t, true, out));
        }
    return OK;
}

/* True if the outputs are linear in the first operand, dy, alone. Along cp the gradients of vectors
 * of a clip are sums over its tokens, and stay partial down to those of the parameters, which are
 * summed over cp in any case. */
static bool is_linear_in_dy(const RowTrial *t)
{
    const OpId op = t->n->op;
    return t->p->context && (op == OP_linear_dx || op == OP_linear_dw || op == OP_bias_dw ||
                             op == OP_gelu_dx || op == OP_cast);
}

/* Partial sums pass through sums and views. */
static Err try_sum(RowTrial *t, RowChoiceList *out)
{
    RowChoice c = {.flops = t->flops};
    const OpClass class = op_info(t->n->op)->class;
    const Placement sum = {.kind = PLACEMENT_SUM};
    const bool linear = is_linear_in_dy(t);
    if (class != CLASS_SUM && class != CLASS_VIEW && !linear) return OK;
    for (int i = 0; i < (linear ? 1 : t->n->n_in); i++)
        TRY(placement_intern(&t->p->placements, sum, &c.in[i]));
    for (int i = 0; i < t->n->n_out; i++) TRY(placement_intern(&t->p->placements, sum, &c.out[i]));
    return is_legal(t, &c) ? add_choice(out, &c) : OK;
}

/* Drops the choice of running the whole node on every rank, if another one divides its flops:
 * context parallelism divides work, also where repeating a GEMM would save a transfer. Of tokens
 * with several dims it divides that of norms too: a switch costs less than a gather. Partial sums
 * may stay whole: they are small, and their reduction is what costs. */
static void drop_whole(const PlaceContext *p, RowChoiceList *c, double flops)
{
    bool divided = false;
    int n = 0;
    for (int i = 0; i < c->n; i++) divided = divided || c->list[i].flops < flops;
    for (int i = 0; i < c->n; i++)
        if (!divided || c->list[i].flops < flops ||
            p->placements.list[c->list[i].in[0]].kind == PLACEMENT_SUM)
            c->list[n++] = c->list[i];
    c->n = n;
}

/* The choices of a token, if the node has rows (tk) of experts; else 0. */
static int64_t row_choices(const RowTrial *t)
{
    for (int i = 0; i < t->n->n_in && i < t->sig->n_in; i++)
        if (strcmp(t->sig->in[i].name, "at") == 0 && t->sig->in[i].ndim == 2)
            return trial_dims(t, i)->dim[1].cap;
    return 0;
}

/* Marks are made on every rank, of its own part, and summed as gradients are. */
static Err marks_choice(PlaceContext *p, int node, RowChoice *out, int *n)
{
    *out = (RowChoice){.flops = p->flops[node]};
    TRY(placement_intern(&p->placements, (Placement){.kind = PLACEMENT_SUM}, &out->out[0]));
    price(p, node, out, 1);
    *n = 1;
    return OK;
}

/* True for rows that place by seconds must not take. Along tp tokens are consecutive: a causal
 * attention over some of them has more keys on the last rank than on the first, which seconds per
 * flop do not see. */
static bool is_uneven(const RowTrial *t)
{
    return t->p->rates && !t->p->context && t->row.letter == 't' &&
           (t->n->op == OP_attention || t->n->op == OP_attention_dx);
}

Err rows_of_node(PlaceContext *p, int node, const PlacementId avail[][MAX_AVAIL],
                 const int *n_avail, RowChoice *out, int *n)
{
    RowTrial t = {.p = p, .n = &p->g->node[node], .sig = &p->sig[node], .flops = p->flops[node]};
    RowChoiceList choices = {.list = out};
    OpRow row[MAX_ROWS];
    const int n_rows = op_rows(t.n->op, row);
    const RowChoice whole = {.flops = t.flops};
    if (t.n->op == OP_mark_amax) return marks_choice(p, node, out, n);
    t.choices = row_choices(&t);
    if (is_legal(&t, &whole)) TRY(add_choice(&choices, &whole));
    for (int r = 0; r < n_rows; r++) {
        t.row = row[r];
        if (is_uneven(&t)) continue;
        const int dims = row[r].letter == '*' ? trial_dims(&t, 0)->ndim : 1;
        for (t.any = 0; t.any < dims; t.any++) TRY(try_splits(&t, avail, n_avail, &choices));
    }
    t.row = (OpRow){0};
    TRY(try_sum(&t, &choices));
    /* An amax is a partial maximum: its operand is not gathered to save the latency of that. */
    const OpClass class = op_info(t.n->op)->class;
    if (p->context &&
        (class == CLASS_HEAVY || t.n->op == OP_amax || (p->n_token_splits && class == CLASS_CHEAP)))
        drop_whole(p, &choices, t.flops);
    price(p, node, choices.list, choices.n);
    *n = choices.n;
    return OK;
}
