/* tp_search.c -- searches a unit, part by part (place_parts.c): parts have no choice in common, so
 * the best of each are the best of all. */
#include "compile/tp_search.h"

#include <string.h>
#include "compile/place.h"

/* A unit that is being searched. */
typedef struct {
    const Graph *unit; /* forward alone */
    CompileOptions o;
    Strategy strategy; /* of o */
    const TpSearchOptions *set;
    Arena *temp;
    int axis; /* tp, of the dense view */
    PlacedGraph p;
    unsigned *pinned;             /* [n_values] */
    Layout *layout[N_TP_LAYOUTS]; /* [n_values]: pins, if all open weights have the layout */
    bool *may[N_TP_LAYOUTS];      /* [n_params]: the choices of open weights */
    int *part, n_parts;           /* [n_nodes] */
    Value *value;                 /* [n_params] */
} UnitSearch;

/* ---- choices ---- */

/* The pins, if every open weight has the layout. */
static Err pins_of(UnitSearch *u, TpLayout l)
{
    const Graph *g = u->p.g;
    StrategyRow *row;
    Strategy s = *u->o.strategy;
    unsigned *pinned;
    TRY(ARENA_NEW(u->temp, 2 * g->n_params + 1, &row));
    s.row = row;
    s.n = 0;
    s.base = u->o.strategy;
    for (int i = 0; i < g->n_params; i++) {
        const int bias = tp_weight_bias(g, i);
        if (!u->may[l][i]) continue;
        TRY(tp_weight_row(g, i, l, u->temp, &row[s.n++]));
        if (bias >= 0) TRY(tp_weight_row(g, bias, l, u->temp, &row[s.n++]));
    }
    return strategy_pins(&s, g, u->o.mesh, u->temp, &u->layout[l], &pinned);
}

static Err open_choices(UnitSearch *u)
{
    const Graph *g = u->p.g;
    const int tp = u->o.mesh->view[VIEW_DENSE].size[u->axis];
    for (int l = 0; l < N_TP_LAYOUTS; l++) {
        TRY(ARENA_NEW(u->temp, g->n_params + 1, &u->may[l]));
        for (int i = 0; i < g->n_params; i++) {
            int64_t grains;
            const char *what;
            const bool heads = tp_weights_keep_heads(u->o.mesh) && tp_weight_makes_heads(g, i);
            const bool fixed =
                heads || (u->set->fixed && u->set->fixed[i]) || !tp_weight_is_open(u->unit, i);
            u->may[l][i] =
                !fixed && (l == (int)tp_weight_default(g, i) ||
                           tp_weight_fits(u->o.strategy, g, i, (TpLayout)l, tp, &grains, &what));
        }
        TRY(pins_of(u, (TpLayout)l));
    }
    return OK;
}

static Err open_unit(UnitSearch *u, const Graph *unit)
{
    Graph *g;
    TRY(ARENA_NEW(u->temp, 1, &g));
    TRY(graph_clone(unit, u->temp, g));
    if (u->o.backward) TRY(differentiate(g));
    u->p = (PlacedGraph){.g = g, .mesh = u->o.mesh};
    const unsigned tp = mesh_axes(u->o.mesh, VIEW_DENSE, "tp");
    while (!(tp >> u->axis & 1)) u->axis++;
    TRY(ARENA_NEW(u->temp, g->n_params + 1, &u->value));
    for (Value v = 0; v < g->n_values; v++)
        if (g->value[v].role == ROLE_PARAM) u->value[g->value[v].index] = v;
    TRY(place_open(&u->p, &u->o, u->temp, &u->pinned));
    TRY(open_choices(u));
    return place_parts(&u->p, u->pinned, u->axis, u->temp, &u->part, &u->n_parts);
}

/* ---- one part ---- */

/* The layouts that weights may have in one run: bits of TpLayout. [n_params] */
typedef struct {
    uint8_t *of;
} Choices;

/* Adds a placement of a weight, or of a bias, once. */
static Err add_choice(const UnitSearch *u, PlaceContext *a, TpLayout l, int param, OpenWeight *out)
{
    const Value v = u->value[param];
    const ParamInfo *info = &u->p.g->param[param];
    double elements = 1;
    PlacementId id;
    TRY(placement_from_layout(&a->placements, &u->layout[l][v], 1u << a->axis, &a->dims[v], &id));
    for (int i = 0; i < info->ndim; i++) elements *= (double)info->n[i];
    if (a->placements.list[id].kind == PLACEMENT_SHARD) elements /= a->placements.parts;
    for (int i = 0; i < out->n; i++)
        if (out->id[i] == id) return OK;
    out->id[out->n] = id;
    out->seconds[out->n++] = u->set->element_s * elements / u->set->micros;
    return OK;
}

static Err open_weights(const UnitSearch *u, const Choices *c, PlaceContext *a)
{
    const Graph *g = u->p.g;
    OpenWeight *open;
    TRY(ARENA_NEW(u->temp, g->n_values + 1, &open));
    for (int i = 0; i < g->n_params; i++) {
        const int bias = c->of[i] ? tp_weight_bias(g, i) : -1;
        for (int l = 0; l < N_TP_LAYOUTS; l++) {
            if (!(c->of[i] >> l & 1)) continue;
            TRY(add_choice(u, a, (TpLayout)l, i, &open[u->value[i]]));
            if (bias >= 0) TRY(add_choice(u, a, (TpLayout)l, bias, &open[u->value[bias]]));
        }
    }
    a->open = open;
    return OK;
}

static Err price_sums(const UnitSearch *u, PlaceContext *a)
{
    const Graph *g = u->p.g;
    double *sum_s;
    TRY(ARENA_NEW(u->temp, g->n_values + 1, &sum_s));
    for (Value v = 0; v < g->n_values; v++) {
        if (g->value[v].role != ROLE_DPARAM) continue;
        const double bytes =
            (double)dims_count(&g->value[v].dims) * (double)dtype_bytes(dtype_wide(g->dtype));
        sum_s[v] =
            cost_transfer_seconds(a->rates, COMM_ALL_REDUCE, a->group, bytes) / u->set->micros;
    }
    a->sum_s = sum_s;
    return OK;
}

/* The layout of a weight that the search has chosen. */
static Err chosen(const UnitSearch *u, PlaceContext *a, const RowChoice *choice, const Choices *c,
                  int param, TpLayout *out)
{
    const Graph *g = u->p.g;
    for (int i = 0; i < g->n_nodes; i++)
        for (int j = 0; j < g->node[i].n_in; j++) {
            if (!a->only[i] || g->node[i].in[j] != u->value[param]) continue;
            for (int l = 0; l < N_TP_LAYOUTS; l++) {
                PlacementId id;
                TRY(placement_from_layout(&a->placements, &u->layout[l][u->value[param]],
                                          1u << a->axis, &a->dims[u->value[param]], &id));
                if (c->of[param] >> l & 1 && choice[i].in[j] == id) *out = (TpLayout)l;
            }
            return OK;
        }
    return OK;
}

/* The result of searching one part. */
typedef struct {
    bool done;
    TpLayout *layout; /* [n_params]: of its weights */
    double seconds;
    bool exact;
} PartResult;

/* Searches a part with these choices. */
static Err search_part(const UnitSearch *u, int part, const Choices *c, PartResult *out)
{
    const Graph *g = u->p.g;
    PlaceContext *a;
    RowChoice *choice;
    bool *only;
    TRY(place_open_axis(&u->p, u->pinned, u->axis, &u->o, u->temp, &a));
    place_price_axis(a, u->set->rates);
    TRY(ARENA_NEW(u->temp, g->n_nodes + 1, &only));
    for (int i = 0; i < g->n_nodes; i++) only[i] = u->part[i] == part;
    a->only = only;
    TRY(open_weights(u, c, a));
    TRY(price_sums(u, a));
    TRY(rows_open(a));
    TRY(ARENA_NEW(u->temp, g->n_nodes + 1, &choice));
    TRY(place_choose(a, &choice));
    for (int i = 0; i < g->n_params; i++)
        if (c->of[i]) TRY(chosen(u, a, choice, c, i, &out->layout[i]));
    out->seconds = a->seconds;
    out->exact = !a->beamed;
    return OK;
}

/* True if a node of the part reads the weight. */
static bool is_in_part(const UnitSearch *u, int part, int param)
{
    const Graph *g = u->p.g;
    for (int i = 0; i < g->n_nodes; i++)
        for (int j = 0; j < g->node[i].n_in; j++)
            if (u->part[i] == part && g->node[i].in[j] == u->value[param]) return true;
    return false;
}

/* ---- runs ---- */

/* Which choices a run leaves to open weights. */
typedef enum {
    RUN_MEGATRON,
    RUN_GIVEN,       /* those that the caller gives */
    RUN_WITH_COPIES, /* all; what makes heads is along outputs, if ranks have copies of key heads */
    RUN_NO_COPIES    /* all; weights of key heads with copies are not along outputs */
} RunKind;

/* Sets the choices; *copies: ranks would have copies of key heads. */
static Err set_choices(const UnitSearch *u, int part, RunKind kind, const TpLayout *given,
                       Choices *c, bool *copies)
{
    const Graph *g = u->p.g;
    const int tp = u->o.mesh->view[VIEW_DENSE].size[u->axis];
    TRY(ARENA_NEW(u->temp, g->n_params + 1, &c->of));
    *copies = false;
    for (int i = 0; i < g->n_params; i++)
        *copies = *copies || (u->may[TP_OUTPUTS][i] && is_in_part(u, part, i) &&
                              tp_weight_has_copies(u->o.strategy, g, i, tp));
    for (int i = 0; i < g->n_params; i++) {
        const unsigned outputs = 1u << TP_OUTPUTS;
        unsigned may = 0;
        for (int l = 0; l < N_TP_LAYOUTS; l++) may |= (unsigned)u->may[l][i] << l;
        if (!may || !is_in_part(u, part, i)) continue;
        if (kind == RUN_MEGATRON) may = 1u << tp_weight_default(g, i);
        if (kind == RUN_GIVEN) may = 1u << given[i];
        if (*copies && kind == RUN_WITH_COPIES && tp_weight_makes_heads(g, i)) may = outputs;
        if (*copies && kind == RUN_NO_COPIES && tp_weight_has_copies(u->o.strategy, g, i, tp))
            may &= ~outputs;
        c->of[i] = (uint8_t)may;
    }
    return OK;
}

static Err run_part(const UnitSearch *u, int part, RunKind kind, const TpLayout *given,
                    PartResult *out)
{
    bool copies;
    Choices c;
    TRY(set_choices(u, part, kind, given, &c, &copies));
    out->done = kind != RUN_NO_COPIES || copies;
    return out->done ? search_part(u, part, &c, out) : OK;
}

/* The best layouts of a part, and the seconds of Megatron's. */
static Err best_of_part(UnitSearch *u, int part, TpSearchResult *out)
{
    const int n = u->p.g->n_params;
    PartResult megatron, with, without;
    TRY(ARENA_NEW(u->temp, n + 1, &megatron.layout));
    TRY(ARENA_NEW(u->temp, n + 1, &with.layout));
    TRY(ARENA_NEW(u->temp, n + 1, &without.layout));
    TRY(run_part(u, part, RUN_MEGATRON, NULL, &megatron));
    TRY(run_part(u, part, RUN_WITH_COPIES, NULL, &with));
    TRY(run_part(u, part, RUN_NO_COPIES, NULL, &without));
    const PartResult *best = &megatron; /* the first of equals */
    if (with.seconds < best->seconds * (1 - 1e-9)) best = &with;
    if (without.done && without.seconds < best->seconds * (1 - 1e-9)) best = &without;
    for (int i = 0; i < n; i++)
        if (u->may[TP_WHOLE][i] && is_in_part(u, part, i)) out->layout[i] = best->layout[i];
    out->seconds += best->seconds;
    out->megatron_s += megatron.seconds;
    out->exact = out->exact && with.exact && (!without.done || without.exact);
    return OK;
}

static Err open_search(UnitSearch *u, const Graph *unit, Arena *temp, TpSearchResult *out)
{
    Model none = {.n_kinds = 0};
    u->temp = temp;
    u->unit = unit;
    TRY(tp_weights_strategy(u->o.strategy, &none, NULL, u->o.mesh, temp, &u->strategy));
    u->o.strategy = &u->strategy;
    for (int i = 0; i < unit->n_params; i++)
        if (unit->param[i].ndim == 2) out->layout[i] = tp_weight_default(unit, i);
    out->exact = true;
    return open_unit(u, unit);
}

static Err search_all(UnitSearch *u, const Graph *unit, Arena *temp, TpSearchResult *out)
{
    TRY(open_search(u, unit, temp, out));
    for (int part = 0; part < u->n_parts; part++) {
        const size_t mark = arena_mark(temp);
        TRY(best_of_part(u, part, out));
        arena_rewind(temp, mark);
    }
    return OK;
}

static Err sum_given(UnitSearch *u, const Graph *unit, const TpLayout *layout, Arena *temp,
                     TpSearchResult *out)
{
    TRY(open_search(u, unit, temp, out));
    for (int part = 0; part < u->n_parts; part++) {
        const size_t mark = arena_mark(temp);
        PartResult r;
        TRY(ARENA_NEW(temp, unit->n_params + 1, &r.layout));
        TRY(run_part(u, part, RUN_GIVEN, layout, &r));
        out->seconds += r.seconds;
        arena_rewind(temp, mark);
    }
    return OK;
}

Err tp_search(const Graph *unit, const CompileOptions *o, const TpSearchOptions *set, Arena *arena,
              TpSearchResult *out)
{
    UnitSearch u = {.o = *o, .set = set};
    *out = (TpSearchResult){0};
    TRY(ARENA_NEW(arena, unit->n_params + 1, &out->layout));
    const size_t mark = arena_mark(arena);
    const Err err = search_all(&u, unit, arena, out);
    arena_rewind(arena, mark);
    return err;
}

Err tp_search_seconds(const Graph *unit, const CompileOptions *o, const TpSearchOptions *set,
                      const TpLayout *layout, Arena *arena, double *out)
{
    UnitSearch u = {.o = *o, .set = set};
    TpSearchResult r = {0};
    const size_t mark = arena_mark(arena);
    TRY(ARENA_NEW(arena, unit->n_params + 1, &r.layout));
    const Err err = sum_given(&u, unit, layout, arena, &r);
    arena_rewind(arena, mark);
    *out = r.seconds;
    return err;
}
