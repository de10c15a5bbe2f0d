/* place_slots.c -- opens the search of a placement: which values a state has, and where.
 *
 *     value    made    last read    slot
 *     x        given   node 4       0
 *     %7       node 2  node 9       1
 *     %8       node 5  node 6       0      x is dead */
#include "compile/place_choose_parts.h"

#include <string.h>

Err place_inside(const Graph *g, Arena *arena, bool **out)
{
    int *maker;
    TRY(ARENA_NEW(arena, g->n_values + 1, out));
    TRY(graph_makers(g, arena, &maker));
    for (int i = 0; i < g->n_nodes; i++)
        for (int j = 0; j < g->node[i].n_in && g->node[i].chunk; j++) {
            const int from = maker[g->node[i].in[j]];
            if (from != NO_NODE && g->node[from].chunk == g->node[i].chunk)
                (*out)[g->node[i].in[j]] = true;
        }
    return OK;
}

/* Rows of experts have the letter r, or (tk) where they meet tokens; `at` has their numbers. */
static bool is_ragged(const Operand *o)
{
    return o->ndim > 0 && (o->letter[0] == 'r' || (o->letter[0] == 't' && o->second[0]) ||
                           (o->ndim == 2 && strcmp(o->name, "at") == 0));
}

static Err find_ragged(PlacementSearch *s)
{
    const Graph *g = s->p->g;
    TRY(ARENA_NEW(s->p->arena, g->n_values + 1, &s->ragged));
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        const Signature *sig = &s->p->sig[i];
        for (int j = 0; j < n->n_in && j < sig->n_in; j++)
            if (is_ragged(&sig->in[j])) s->ragged[n->in[j]] = true;
        for (int j = 0; j < n->n_out; j++)
            if (is_ragged(&sig->out[j])) s->ragged[n->out[j]] = true;
    }
    return OK;
}

/* Slots that are free. */
typedef struct {
    int *at, n;
    int all; /* handed out so far */
} FreeSlots;

static int take_slot(FreeSlots *f) { return f->n > 0 ? f->at[--f->n] : f->all++; }

/* The last node that reads or writes each value; -1: none. */
static Err find_ends(const PlacementSearch *s, int **out)
{
    const Graph *g = s->p->g;
    TRY(ARENA_NEW(s->p->arena, g->n_values + 1, out));
    for (Value v = 0; v < g->n_values; v++) (*out)[v] = s->last_read[v];
    for (int k = 0; k < s->n_steps; k++) {
        const Node *n = &g->node[s->step[k]];
        for (int j = 0; j < n->n_out; j++)
            if ((*out)[n->out[j]] < s->step[k]) (*out)[n->out[j]] = s->step[k];
    }
    return OK;
}

/* Gives each value a slot from where it is made, or from the start, to its end. */
static Err assign_slots(PlacementSearch *s)
{
    const Graph *g = s->p->g;
    FreeSlots slots = {0};
    int *end;
    TRY(find_ends(s, &end));
    TRY(ARENA_NEW(s->p->arena, g->n_values + 1, &slots.at));
    TRY(ARENA_NEW(s->p->arena, g->n_values + 1, &s->slot));
    for (Value v = 0; v < g->n_values; v++) s->slot[v] = s->given[v] ? take_slot(&slots) : -1;
    for (int k = 0; k < s->n_steps; k++) {
        const int i = s->step[k];
        const Node *n = &g->node[i];
        for (int j = 0; j < search_n_operands(n); j++) {
            const Value v = search_operand(s, i, j);
            if (v != NO_VALUE && s->slot[v] < 0) s->slot[v] = take_slot(&slots);
        }
        for (int j = 0; j < search_n_operands(n); j++) {
            const Value v = search_operand(s, i, j);
            if (v == NO_VALUE || end[v] != i) continue;
            end[v] = -1; /* an operand may occur twice */
            slots.at[slots.n++] = s->slot[v];
        }
    }
    s->n_slots = (slots.all + SLOTS_PER_PAD - 1) / SLOTS_PER_PAD * SLOTS_PER_PAD;
    return OK;
}

/* The nodes to place, in order; the last read of each value by them; and the weights whose
 * gradients they make, which are read there: a gradient goes where its weight is. */
static Err find_reads(PlacementSearch *s)
{
    const Graph *g = s->p->g;
    Value *param; /* [n_params] */
    TRY(ARENA_NEW(s->p->arena, g->n_nodes + 1, &s->step));
    TRY(ARENA_NEW(s->p->arena, g->n_values + 1, &s->last_read));
    TRY(ARENA_NEW(s->p->arena, g->n_values + 1, &s->weight_of));
    TRY(ARENA_NEW(s->p->arena, g->n_params + 1, &param));
    for (Value v = 0; v < g->n_values; v++)
        if (g->value[v].role == ROLE_PARAM) param[g->value[v].index] = v;
    for (Value v = 0; v < g->n_values; v++) {
        const bool gradient = g->value[v].role == ROLE_DPARAM;
        const Value w = gradient ? param[g->value[v].index] : NO_VALUE;
        s->weight_of[v] = search_is_open(s->p, w) ? w : NO_VALUE;
        s->last_read[v] = -1;
    }
    for (int i = 0; i < g->n_nodes; i++)
        if (!s->p->only || s->p->only[i]) s->step[s->n_steps++] = i;
    for (int k = 0; k < s->n_steps; k++) {
        const Node *n = &g->node[s->step[k]];
        for (int j = 0; j < n->n_in; j++) s->last_read[n->in[j]] = s->step[k];
        for (int j = 0; j < n->n_out; j++)
            if (s->weight_of[n->out[j]] != NO_VALUE)
                s->last_read[s->weight_of[n->out[j]]] = s->step[k];
    }
    return OK;
}

/* Marks the values that the first state has: those that are given, or made by nodes that are not
 * placed, and read. */
static Err find_given(PlacementSearch *s)
{
    const Graph *g = s->p->g;
    TRY(ARENA_NEW(s->p->arena, g->n_values + 1, &s->given));
    for (Value v = 0; v < g->n_values; v++)
        s->given[v] = s->last_read[v] >= 0 && (role_given(g->value[v].role) || s->p->only);
    for (int k = 0; k < s->n_steps && s->p->only; k++) {
        const Node *n = &g->node[s->step[k]];
        for (int j = 0; j < n->n_out; j++) s->given[n->out[j]] = false;
    }
    return OK;
}

Err place_search_open(PlacementSearch *s)
{
    const Graph *g = s->p->g;
    TRY(find_reads(s));
    TRY(find_given(s));
    TRY(assign_slots(s));
    TRY(place_inside(g, s->p->arena, &s->inside));
    TRY(find_ragged(s));
    s->table_size = FIRST_TABLE;
    TRY(ARENA_NEW(s->p->arena, s->table_size, &s->table));
    for (int i = 0; i < MAX_OPEN_READS; i++) TRY(ARENA_NEW(s->p->arena, s->n_slots, &s->open[i]));
    TRY(ARENA_NEW(s->p->arena, g->n_nodes + 1, &s->rows));
    TRY(ARENA_NEW(s->p->arena, s->n_steps + 1, &s->layer));
    TRY(ARENA_NEW(s->p->arena, s->n_steps + 1, &s->n));
    return ARENA_NEW(s->p->arena, s->n_steps + 1, &s->cap);
}
