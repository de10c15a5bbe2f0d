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
    for (int i = 0; i < g->n_nodes; i++)
        for (int j = 0; j < g->node[i].n_out; j++)
            if ((*out)[g->node[i].out[j]] < i) (*out)[g->node[i].out[j]] = i;
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
    for (Value v = 0; v < g->n_values; v++) {
        const bool given = role_given(g->value[v].role) && s->last_read[v] >= 0;
        s->slot[v] = given ? take_slot(&slots) : -1;
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        for (int j = 0; j < search_n_operands(n); j++) {
            const Value v = search_operand(s, i, j);
            if (s->slot[v] < 0) s->slot[v] = take_slot(&slots);
        }
        for (int j = 0; j < search_n_operands(n); j++) {
            const Value v = search_operand(s, i, j);
            if (end[v] != i) continue;
            end[v] = -1; /* an operand may occur twice */
            slots.at[slots.n++] = s->slot[v];
        }
    }
    s->n_slots = (slots.all + SLOTS_PER_PAD - 1) / SLOTS_PER_PAD * SLOTS_PER_PAD;
    return OK;
}

Err place_search_open(PlacementSearch *s)
{
    const Graph *g = s->p->g;
    TRY(ARENA_NEW(s->p->arena, g->n_values, &s->last_read));
    for (Value v = 0; v < g->n_values; v++) s->last_read[v] = -1;
    for (int i = 0; i < g->n_nodes; i++)
        for (int j = 0; j < g->node[i].n_in; j++) s->last_read[g->node[i].in[j]] = i;
    TRY(assign_slots(s));
    TRY(place_inside(g, s->p->arena, &s->inside));
    TRY(find_ragged(s));
    s->table_size = FIRST_TABLE;
    TRY(ARENA_NEW(s->p->arena, s->table_size, &s->table));
    TRY(ARENA_NEW(s->p->arena, g->n_nodes + 1, &s->rows));
    TRY(ARENA_NEW(s->p->arena, g->n_nodes + 1, &s->layer));
    TRY(ARENA_NEW(s->p->arena, g->n_nodes + 1, &s->n));
    return ARENA_NEW(s->p->arena, g->n_nodes + 1, &s->cap);
}
