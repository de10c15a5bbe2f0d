/* strategy.c -- the pins that follow from the rows of a strategy, and the order in which their cuts
 * nest. */
#include "compile/strategy.h"

#include <string.h>
#include "base/text.h"

/* ERR_CONFIG unless the model has heads and they make up the dim. */
static Err check_heads(const Strategy *s, const StrategyRow *row, const char *name, int64_t extent)
{
    const int64_t heads = row->by == BY_HEAD ? s->heads : s->key_heads;
    if (heads * s->head_size == extent) return OK;
    return err_fail(ERR_CONFIG,
                    "strategy %s: row \"%s\" cuts dim %d of %s, %lld, in whole heads; there are "
                    "%lld of %lld",
                    s->name, row->pattern, row->dim, name, (long long)extent, (long long)heads,
                    (long long)s->head_size);
}

typedef struct {
    const Strategy *s;
    const Mesh *mesh;
    Arena *arena;
} Pinner;

/* Tokens over the axes, outer first: by the map over the first one, evenly within its parts. */
static Layout cut_tokens(const Pinner *p, Layout l, int dim, unsigned axes, int64_t extent)
{
    const SpanMap *map = p->s->tokens;
    const unsigned first = axes & -axes;
    const bool mapped =
        map && map->extent == extent && map->n_parts == mesh_parts(p->mesh, l.view, first);
    for (unsigned left = axes; left; left &= left - 1)
        l = mapped && (left & -left) == first ? layout_cut_map(l, dim, first, map)
                                              : layout_cut(l, dim, left & -left, 1);
    return l;
}

/* Key heads that their readers share out evenly are cut evenly; of others there are copies. */
static Err add_readers_cut(const Pinner *p, const StrategyRow *row, unsigned axes, Layout *l)
{
    const Strategy *s = p->s;
    const int tp = mesh_parts(p->mesh, l->view, mesh_axes(p->mesh, l->view, "tp"));
    const int64_t left = s->key_heads / tp;
    const bool even = s->heads == s->key_heads || left % mesh_parts(p->mesh, l->view, axes) == 0;
    *l = even ? layout_cut(*l, row->dim, axes, 1)
              : layout_cut_read(*l, row->dim, axes, s->heads / s->key_heads);
    return OK;
}

static Err add_cut(const Pinner *p, const StrategyRow *row, const char *name, int64_t extent,
                   Layout *l)
{
    const Strategy *s = p->s;
    const unsigned axes = mesh_axes(p->mesh, l->view, row->axis);
    const int parts = mesh_parts(p->mesh, l->view, axes);
    const bool by_heads = row->by == BY_HEAD || row->by == BY_KEY_HEAD;
    const SpanMap *map;
    if (row->by == BY_TOKENS) {
        *l = cut_tokens(p, *l, row->dim, axes, extent);
        return OK;
    }
    if (row->by == BY_READER) return add_readers_cut(p, row, axes, l);
    if (by_heads) TRY(check_heads(s, row, name, extent));
    const bool even = s->key_heads == s->heads || s->key_heads % parts == 0;
    if (row->by != BY_KEY_HEAD || even) {
        for (unsigned left = axes; left; left &= left - 1) /* outer axes first */
            *l = layout_cut(*l, row->dim, left & -left, by_heads ? s->head_size : 1);
        return OK;
    }
    TRY(spans_key_heads(p->arena, s->heads, s->key_heads, s->head_size, parts, &map));
    *l = layout_cut_map(*l, row->dim, axes, map);
    return OK;
}

/* A named tensor, and its layout by the rows so far. */
typedef struct {
    const char *kind;         /* of its unit */
    const char *name, *alias; /* alias: as an operand of attention, or NULL */
    const Shape *shape;
    Layout layout;
    unsigned seen; /* axes that a row has decided */
    int view;      /* of the mesh, whose axes the rows name */
} PinTarget;

static bool row_matches(const StrategyRow *row, const PinTarget *t)
{
    const char *pattern = row->pattern, *slash = strchr(pattern, '/');
    if (slash) { /* for one kind of unit */
        const size_t n = (size_t)(slash - pattern);
        if (strlen(t->kind) != n || strncmp(pattern, t->kind, n) != 0) return false;
        pattern = slash + 1;
    }
    return text_glob(pattern, t->name) || (t->alias && strcmp(pattern, t->alias) == 0);
}

static Err apply_row(const Pinner *p, const StrategyRow *row, PinTarget *t)
{
    if (!row_matches(row, t)) return OK;
    const unsigned axes = mesh_axes(p->mesh, t->view, row->axis);
    if (!axes || (t->seen & axes)) return OK;
    if (row->dim >= t->shape->ndim)
        return err_fail(ERR_CONFIG, "strategy %s: row \"%s\" cuts dim %d of %s, which has %d dims",
                        p->s->name, row->pattern, row->dim, t->name, t->shape->ndim);
    if (mesh_parts(p->mesh, t->view, axes) > 1 && row->by != BY_NOTHING)
        TRY(add_cut(p, row, t->name, t->shape->n[row->dim], &t->layout));
    t->seen |= axes;
    return OK;
}

/* *pinned: the axes that a row decides are added. */
static Err pin_dims(const Pinner *p, PinTarget *t, Layout *out, unsigned *pinned)
{
    t->layout = layout_replicate(t->view);
    for (const Strategy *s = p->s; s; s = s->base)
        for (int i = 0; i < s->n; i++) TRY(apply_row(p, &s->row[i], t));
    *pinned |= t->seen;
    *out = strategy_nested(layout_simplify(&t->layout, p->mesh), p->mesh, 0);
    return OK;
}

static bool always_pinned(Role r) { return role_given(r) || r == ROLE_Y || r == ROLE_DX; }

static Value value_named(const Graph *g, const char *name)
{
    for (Value v = 0; v < g->n_values; v++)
        if (strcmp(g->value[v].name, name) == 0) return v;
    return NO_VALUE;
}

/* True if the strategy's tokens cut sequences of q[e,b,a,h,c]: a part has some of b only. */
static bool cuts_sequences(const Strategy *s, const Dims *q)
{
    const int64_t group = q->dim[1].cap * q->dim[2].cap, rows = q->dim[0].cap * group;
    const SpanMap *map = s->tokens;
    bool whole = true;
    if (!map || map->extent != rows) return false;
    for (int i = 0; i < map->first[map->n_parts]; i++)
        whole = whole && map->span[i].lo % group == 0 && map->span[i].hi % group == 0;
    return !whole;
}

/* The operand of attention that the value is, or whose gradient it is; NULL if none. */
static const char *alias_of(const Strategy *s, const Graph *g, Value v)
{
    static const char *const operand[2][4] = {
        {"attention:q", "attention:k", "attention:v", "attention:o"},
        {"along:q", "along:k", "along:v", "along:o"}};
    const char *name = g->value[v].name;
    if (strncmp(name, "d.", 2) == 0) v = value_named(g, name + 2);
    for (int i = 0; i < g->n_nodes && v != NO_VALUE; i++) {
        const Node *n = &g->node[i];
        const bool along = n->op == OP_attention_along;
        if (n->op != OP_attention && !along) continue;
        if (along && !cuts_sequences(s, &g->value[n->in[0]].dims)) continue;
        for (int k = 0; k < 3; k++)
            if (n->in[k] == v) return operand[along][k];
        if (n->out[0] == v) return operand[along][3];
    }
    return NULL;
}

/* The place of an axis in the order in which cuts of a dim nest: lower is outer. Rows of a streamed
 * weight are no tokens: tp shards heads, and its part is streamed. */
static int nest_rank(const Cut *c, const Mesh *mesh, int view, int token_dim)
{
    const bool tokens = c->dim == token_dim && view == VIEW_DENSE;
    const bool outer = (c->axes & mesh_axes(mesh, view, tokens ? "cp" : "tp")) != 0;
    return (outer ? 0 : 1 << MAX_AXES) + c->axes;
}

int strategy_token_dim(const Dims *d)
{
    return d->ndim == 2 && d->dim[0].slot == NO_SLOT && d->dim[1].slot != NO_SLOT;
}

Layout strategy_nested(Layout l, const Mesh *mesh, int token_dim)
{
    for (int i = 0; i < l.n_cuts; i++)
        for (int k = i + 1; k < l.n_cuts; k++) {
            const Cut outer = l.cut[i]; /* the order of cuts of different dims means nothing */
            if (outer.dim != l.cut[k].dim || outer.dim == DIM_FLAT) continue;
            if (nest_rank(&outer, mesh, l.view, token_dim) <=
                nest_rank(&l.cut[k], mesh, l.view, token_dim))
                continue;
            l.cut[i] = l.cut[k];
            l.cut[k] = outer;
        }
    return l;
}

Err strategy_pins(const Strategy *s, const Graph *g, const Mesh *mesh, Arena *arena, Layout **pin,
                  unsigned **pinned)
{
    const Pinner p = {s, mesh, arena};
    TRY(ARENA_NEW(arena, g->n_values, pin));
    TRY(ARENA_NEW(arena, g->n_values, pinned));
    for (Value v = 0; v < g->n_values; v++) {
        const ValueInfo *info = &g->value[v];
        const bool gradient = strncmp(info->name, "d.", 2) == 0; /* same layout as its value */
        Shape shape = {.ndim = info->dims.ndim};
        for (int i = 0; i < shape.ndim; i++) shape.n[i] = info->dims.dim[i].cap;
        (*pin)[v] = layout_replicate(VIEW_DENSE);
        (*pinned)[v] = always_pinned(info->role) ? mesh_all_axes(mesh, VIEW_DENSE) : 0;
        /* Programs see the rank's part of an expert, whatever the dense axes. They see a streamed
         * weight whole over cp, until the pass `weights`. */
        const bool expert = info->role == ROLE_PARAM && g->param[info->index].view == VIEW_EXPERT;
        const bool unnamed = !info->name[0] || info->role == ROLE_SCALE; /* the same on all ranks */
        if (info->role == ROLE_DPARAM || unnamed || expert) continue;
        PinTarget t = {.kind = g->kind,
                       .name = gradient ? info->name + 2 : info->name,
                       .alias = alias_of(s, g, v),
                       .shape = &shape};
        TRY(pin_dims(&p, &t, &(*pin)[v], &(*pinned)[v]));
    }
    return OK;
}

Err strategy_stream(const Strategy *s, const Graph *g, const Mesh *mesh, Arena *arena, Layout *out)
{
    const Pinner p = {s, mesh, arena};
    const Value y = graph_find(g, ROLE_Y);
    unsigned pinned = 0;
    *out = layout_replicate(VIEW_DENSE);
    if (y == NO_VALUE) return OK;
    const Dims *dims = &g->value[y].dims;
    Shape shape = {.ndim = dims->ndim};
    for (int i = 0; i < shape.ndim; i++) shape.n[i] = dims->dim[i].cap;
    PinTarget t = {.kind = g->kind, .name = g->value[y].name, .shape = &shape};
    return pin_dims(&p, &t, out, &pinned);
}

Err strategy_param(const Strategy *s, const Graph *g, int index, const Mesh *mesh, Arena *arena,
                   Layout *out)
{
    const Pinner p = {s, mesh, arena};
    const ParamInfo *info = &g->param[index];
    Shape shape = {.ndim = info->ndim};
    PinTarget t = {.kind = g->kind, .name = info->name, .shape = &shape, .view = info->view};
    unsigned pinned = 0;
    memcpy(shape.n, info->n, sizeof shape.n);
    return pin_dims(&p, &t, out, &pinned);
}

/* The layouts of the parameters of a kind of units. */
static Err use_of_kind(const Strategy *s, const Graph *g, const Mesh *mesh, Arena *arena,
                       Layout **out)
{
    TRY(ARENA_NEW(arena, g->n_params + 1, out));
    for (int k = 0; k < g->n_params; k++) TRY(strategy_param(s, g, k, mesh, arena, &(*out)[k]));
    return OK;
}

Err strategy_use(const Strategy *s, const Model *m, const Mesh *mesh, Arena *arena, Layout **use)
{
    Layout **of; /* [n_kinds] */
    TRY(ARENA_NEW(arena, m->n_params, use));
    TRY(ARENA_NEW(arena, m->n_kinds + 1, &of));
    for (int u = 0; u < m->n_units; u++) {
        const Unit *unit = &m->unit[u];
        if (!of[unit->kind])
            TRY(use_of_kind(s, &m->kind[unit->kind], mesh, arena, &of[unit->kind]));
        for (int k = 0; k < unit->n_params; k++) {
            const Layout *l = &of[unit->kind][k];
            Layout *known = &(*use)[unit->param[k]];
            if (m->param[unit->param[k]].holder[0] != u && !layout_equal(known, l))
                return err_fail(ERR_CONFIG,
                                "strategy %s: unit %s would use %s in another layout than unit %s, "
                                "which holds it too",
                                s->name, unit->name, m->param[unit->param[k]].name,
                                m->unit[m->param[unit->param[k]].holder[0]].name);
            *known = *l;
        }
    }
    return OK;
}

bool strategy_streams_weight(const Strategy *s, const Graph *g, int param)
{
    const ParamInfo *info = &g->param[param];
    const PinTarget t = {.kind = g->kind, .name = info->name};
    for (; s; s = s->base)
        for (int i = 0; i < s->n; i++)
            if (strcmp(s->row[i].axis, "weight") == 0 && row_matches(&s->row[i], &t))
                return s->row[i].by != BY_NOTHING && info->view == VIEW_DENSE;
    return false;
}

Layout strategy_weight_cut(const Mesh *mesh)
{
    Layout l = layout_replicate(VIEW_WEIGHT);
    for (unsigned left = mesh_axes(mesh, VIEW_WEIGHT, "weight"); left; left &= left - 1)
        l = layout_cut(l, 0, left & -left, 1); /* outer axes first */
    return l;
}
