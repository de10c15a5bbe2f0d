/* strategy.c -- the rows of the strategies, and the pins that follow from them. */
#include "compile/strategy.h"

#include <string.h>
#include "base/text.h"

/* Tensor parallelism of heads, feed-forward and vocabulary: column-parallel weights are sharded
 * along dim 0, row-parallel ones along dim 1. */
static const StrategyRow tensor_rows[] = {
    {"*q_proj.weight", "tp", 0, BY_HEAD},      {"*k_proj.weight", "tp", 0, BY_KEY_HEAD},
    {"*v_proj.weight", "tp", 0, BY_KEY_HEAD},  {"*q_proj.bias", "tp", 0, BY_HEAD},
    {"*k_proj.bias", "tp", 0, BY_KEY_HEAD},    {"*v_proj.bias", "tp", 0, BY_KEY_HEAD},
    {"*o_proj.weight", "tp", 1, BY_HEAD},      {"attn.c_proj.weight", "tp", 1, BY_HEAD},
    {"*gate_proj.weight", "tp", 0, BY_ONE},    {"*up_proj.weight", "tp", 0, BY_ONE},
    {"*gate_proj.bias", "tp", 0, BY_ONE},      {"*up_proj.bias", "tp", 0, BY_ONE},
    {"*down_proj.weight", "tp", 1, BY_ONE},    {"mlp.c_fc.weight", "tp", 0, BY_ONE},
    {"mlp.c_fc.bias", "tp", 0, BY_ONE},        {"mlp.c_proj.weight", "tp", 1, BY_ONE},
    {"*embed_tokens.weight", "tp", 0, BY_ONE}, {"wte.weight", "tp", 0, BY_ONE},
    {"lm_head.weight", "tp", 0, BY_ONE},
};

/* Sequence parallelism: the stream and the outputs of norms are sharded by tokens. They are
 * all-gathered before a GEMM, and its partial sums are reduce-scattered after. */
static const StrategyRow sequence_rows[] = {
    {"x", "tp", 0, BY_ONE},
    {"*.in", "tp", 0, BY_ONE},
    {"mid", "tp", 0, BY_ONE},
    {"y", "tp", 0, BY_ONE},
};

enum {
    N_TENSOR_ROWS = sizeof tensor_rows / sizeof *tensor_rows,
    N_SEQUENCE_ROWS = sizeof sequence_rows / sizeof *sequence_rows
};

const Strategy strategy_tp = {.name = "tensor", .row = tensor_rows, .n = N_TENSOR_ROWS};
const Strategy strategy_tp_sequence = {.name = "tensor and sequence",
                                       .row = sequence_rows,
                                       .n = N_SEQUENCE_ROWS,
                                       .base = &strategy_tp};

Strategy strategy_with_heads(const Strategy *s, int64_t heads, int64_t key_heads, int64_t head_size)
{
    Strategy with = *s;
    with.heads = heads;
    with.key_heads = key_heads;
    with.head_size = head_size;
    return with;
}

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

static Err add_cut(const Pinner *p, const StrategyRow *row, const char *name, int64_t extent,
                   Layout *l)
{
    const Strategy *s = p->s;
    const unsigned axes = mesh_axes(p->mesh, VIEW_DENSE, row->axis);
    const int parts = mesh_parts(p->mesh, VIEW_DENSE, axes);
    const SpanMap *map;
    if (row->by != BY_ONE) TRY(check_heads(s, row, name, extent));
    const bool even = s->key_heads == s->heads || s->key_heads % parts == 0;
    if (row->by != BY_KEY_HEAD || even) {
        *l = layout_cut(*l, row->dim, axes, row->by == BY_ONE ? 1 : s->head_size);
        return OK;
    }
    TRY(spans_key_heads(p->arena, s->heads, s->key_heads, s->head_size, parts, &map));
    *l = layout_cut_map(*l, row->dim, axes, map);
    return OK;
}

/* A named tensor, and its layout by the rows so far. */
typedef struct {
    const char *name;
    const Shape *shape;
    Layout layout;
    unsigned seen; /* axes that a row has decided */
    bool matched;  /* some row matches */
} PinTarget;

static Err apply_row(const Pinner *p, const StrategyRow *row, PinTarget *t)
{
    const unsigned axes = mesh_axes(p->mesh, VIEW_DENSE, row->axis);
    if ((t->seen & axes) || !text_glob(row->pattern, t->name)) return OK;
    if (row->dim >= t->shape->ndim)
        return err_fail(ERR_CONFIG, "strategy %s: row \"%s\" cuts dim %d of %s, which has %d dims",
                        p->s->name, row->pattern, row->dim, t->name, t->shape->ndim);
    if (mesh_parts(p->mesh, VIEW_DENSE, axes) > 1)
        TRY(add_cut(p, row, t->name, t->shape->n[row->dim], &t->layout));
    t->seen |= axes;
    t->matched = true;
    return OK;
}

/* *pinned becomes true if a row matches, else stays. */
static Err pin_dims(const Pinner *p, const char *name, const Shape *shape, Layout *out,
                    bool *pinned)
{
    PinTarget t = {name, shape, layout_replicate(VIEW_DENSE), 0, false};
    for (const Strategy *s = p->s; s; s = s->base)
        for (int i = 0; i < s->n; i++) TRY(apply_row(p, &s->row[i], &t));
    if (t.matched) *pinned = true;
    *out = layout_simplify(&t.layout, p->mesh);
    return OK;
}

static bool always_pinned(Role r) { return role_given(r) || r == ROLE_Y || r == ROLE_DX; }

Err strategy_pins(const Strategy *s, const Graph *g, const Mesh *mesh, Arena *arena, Layout **pin,
                  bool **pinned)
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
        (*pinned)[v] = always_pinned(info->role);
        if (info->role == ROLE_DPARAM || !info->name[0]) continue;
        TRY(pin_dims(&p, gradient ? info->name + 2 : info->name, &shape, &(*pin)[v],
                     &(*pinned)[v]));
    }
    return OK;
}

Err strategy_use(const Strategy *s, const Model *m, const Mesh *mesh, Arena *arena, Layout **use)
{
    const Pinner p = {s, mesh, arena};
    TRY(ARENA_NEW(arena, m->n_params, use));
    for (int u = 0; u < m->n_units; u++) {
        const Unit *unit = &m->unit[u];
        for (int k = 0; k < unit->n_params; k++) {
            const ParamInfo *info = &m->kind[unit->kind].param[k];
            Layout *known = &(*use)[unit->param[k]], l;
            Shape shape = {.ndim = info->ndim};
            bool pinned = false;
            memcpy(shape.n, info->n, sizeof shape.n);
            TRY(pin_dims(&p, info->name, &shape, &l, &pinned));
            if (m->param[unit->param[k]].holder[0] != u && !layout_equal(known, &l))
                return err_fail(ERR_CONFIG,
                                "strategy %s: unit %s would use %s in another layout than unit %s, "
                                "which holds it too",
                                s->name, unit->name, m->param[unit->param[k]].name,
                                m->unit[m->param[unit->param[k]].holder[0]].name);
            *known = l;
        }
    }
    return OK;
}
