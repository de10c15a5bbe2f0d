/* place_splits.c -- the candidate splits of the letter that a row shards.
 *
 *   linear x[t,i] w[o,i] -> y[t,o], row t: the splits of t in which x is available, or y is pinned;
 *   along cp also those of pinned values elsewhere */
#include "compile/place_rows_parts.h"

const Dims *trial_dims(const RowTrial *t, int operand)
{
    const Node *n = t->n;
    return &t->p->dims[operand < n->n_in ? n->in[operand] : n->out[operand - n->n_in]];
}

const Operand *trial_operand(const RowTrial *t, int operand)
{
    return operand < t->n->n_in ? &t->sig->in[operand] : &t->sig->out[operand - t->n->n_in];
}

int trial_dim(const RowTrial *t, int operand, bool *with)
{
    const Operand *o = trial_operand(t, operand);
    *with = false;
    if (t->row.letter == '*') return o->ndim == -1 ? t->any : -1;
    const int dim = operand_dim(o, t->row.letter);
    if (dim >= 0 || !t->row.with) return dim;
    *with = true;
    return operand_dim(o, t->row.with);
}

ProductSides trial_sides(const RowTrial *t, int operand, int dim)
{
    const Operand *o = trial_operand(t, operand);
    if (o->ndim <= 0 || !o->second[dim]) return (ProductSides){1, 1};
    if (t->choices) return (ProductSides){1, t->choices};
    return operand_sides(o, dim, t->row.letter, &t->n->attr, trial_dims(t, operand)->dim[dim].cap);
}

static void add_split(SplitList *s, int split)
{
    for (int i = 0; i < s->n; i++)
        if (s->split[i] == split) return;
    if (split >= 0 && s->n < 8) s->split[s->n++] = split;
}

static Err split_of_operand(RowTrial *t, int operand, PlacementId id, bool want_with,
                            SplitList *out)
{
    PlacementTable *table = &t->p->placements;
    const Placement placement = table->list[id];
    bool with;
    const int dim = trial_dim(t, operand, &with);
    int split = placement.split;
    if (dim < 0 || with != want_with) return OK;
    const ProductSides sides = trial_sides(t, operand, dim);
    const int64_t whole = sides.outer * sides.inner;
    if (placement.kind == PLACEMENT_SUM && whole) { /* scatter it evenly */
        TRY(split_even(table, trial_dims(t, operand)->dim[dim].cap / whole, 1, &split));
        add_split(out, split);
    }
    if (placement.kind != PLACEMENT_SHARD || placement.dim != dim) return OK;
    TRY(split_to_factor(table, split, sides, &split));
    add_split(out, split);
    return OK;
}

/* The splits of all pinned activations along that dim of the operand. */
static Err splits_of_pins(RowTrial *t, int operand, bool want_with, SplitList *out)
{
    const PlaceContext *p = t->p;
    const Operand *o = trial_operand(t, operand);
    bool with;
    const int dim = trial_dim(t, operand, &with);
    if (dim < 0 || with != want_with || (o->ndim > 0 && o->second[dim])) return OK;
    for (Value v = 0; v < p->g->n_values; v++) {
        if (p->pin[v] == NO_PLACEMENT || p->g->value[v].role == ROLE_PARAM) continue;
        const Placement *pin = &p->placements.list[p->pin[v]];
        if (pin->kind != PLACEMENT_SHARD || pin->dim != dim) continue;
        if (p->dims[v].dim[dim].cap == trial_dims(t, operand)->dim[dim].cap)
            add_split(out, pin->split);
    }
    return OK;
}

/* Those of the token dims of the unit, if the operand has the rows. */
static Err splits_of_tokens(RowTrial *t, int operand, bool want_with, SplitList *out)
{
    PlacementTable *table = &t->p->placements;
    bool with;
    const int dim = trial_dim(t, operand, &with);
    if (dim != 0 || with != want_with) return OK;
    for (int i = 0; i < t->p->n_token_splits; i++) {
        int split = t->p->token_split[i];
        if (table->split[split].map->extent != trial_dims(t, operand)->dim[0].cap) continue;
        TRY(split_to_factor(table, split, trial_sides(t, operand, 0), &split));
        add_split(out, split);
    }
    return OK;
}

Err row_splits(RowTrial *t, const PlacementId avail[][MAX_AVAIL], const int *n_avail, bool with,
               SplitList *out)
{
    out->n = 0;
    for (int i = 0; i < t->n->n_in; i++)
        for (int k = 0; k < n_avail[i]; k++) TRY(split_of_operand(t, i, avail[i][k], with, out));
    for (int i = 0; i < t->n->n_in + t->n->n_out && t->p->context; i++)
        TRY(splits_of_pins(t, i, with, out));
    for (int i = 0; i < t->n->n_in + t->n->n_out && t->p->n_token_splits; i++)
        TRY(splits_of_tokens(t, i, with, out));
    for (int i = 0; i < t->n->n_out; i++) {
        const Value v = t->n->out[i];
        const bool gradient = t->p->g->value[v].role == ROLE_DPARAM;
        const PlacementId pin = gradient ? param_placement(t->p, v) : t->p->pin[v];
        if (pin != NO_PLACEMENT) TRY(split_of_operand(t, t->n->n_in + i, pin, with, out));
    }
    return OK;
}
