/* strategy.c -- the tables, and the pins that follow from them. */
#include "compile/strategy.h"

#include <string.h>
#include "base/text.h"

/* The first two rows are sequence parallelism; plain tensor parallelism is the rest. */
static const StrategyRow rows[] = {
    {"x", "tp", 0}, /* tokens: gathered on the way in, scattered by the sum on the way out */
    {"y", "tp", 0},
    {"*q_proj.weight", "tp", 0},
    {"*k_proj.weight", "tp", 0},
    {"*v_proj.weight", "tp", 0},
    {"*q_proj.bias", "tp", 0},
    {"*k_proj.bias", "tp", 0},
    {"*v_proj.bias", "tp", 0},
    {"*o_proj.weight", "tp", 1},
    {"attn.c_proj.weight", "tp", 1},
    {"*gate_proj.weight", "tp", 0},
    {"*up_proj.weight", "tp", 0},
    {"*down_proj.weight", "tp", 1},
    {"mlp.c_fc.weight", "tp", 0},
    {"mlp.c_fc.bias", "tp", 0},
    {"mlp.c_proj.weight", "tp", 1},
    {"*embed_tokens.weight", "tp", 0},
    {"wte.weight", "tp", 0},
    {"lm_head.weight", "tp", 0},
};

enum { N_ROWS = sizeof rows / sizeof *rows };

const Strategy strategy_tp_sequence = {"tensor and sequence", rows, N_ROWS};
const Strategy strategy_tp = {"tensor", rows + 2, N_ROWS - 2};

static Err pin_value(const Strategy *s, const Graph *g, const Mesh *mesh, const char *name, Value v,
                     Layout *out, bool *pinned)
{
    const ValueInfo *info = &g->value[v];
    unsigned seen = 0;
    Layout l = layout_replicate(VIEW_DENSE);
    for (int i = 0; i < s->n; i++) {
        const StrategyRow *row = &s->row[i];
        const unsigned axes = mesh_axes(mesh, VIEW_DENSE, row->axis);
        if ((seen & axes) || !text_glob(row->pattern, name)) continue;
        if (row->dim >= info->dims.ndim)
            return err_fail(ERR_CONFIG,
                            "strategy %s: row \"%s\" cuts dim %d of %s, which has %d dims", s->name,
                            row->pattern, row->dim, name, info->dims.ndim);
        l = layout_cut(l, row->dim, axes, 1);
        seen |= axes;
        *pinned = true;
    }
    *out = layout_simplify(&l, mesh);
    return OK;
}

Err strategy_pins(const Strategy *s, const Graph *g, const Mesh *mesh, Arena *arena, Layout **pin,
                  bool **pinned)
{
    TRY(ARENA_NEW(arena, g->n_values, pin));
    TRY(ARENA_NEW(arena, g->n_values, pinned));
    for (Value v = 0; v < g->n_values; v++) {
        const ValueInfo *info = &g->value[v];
        const bool gradient = strncmp(info->name, "d.", 2) == 0; /* laid out as what it is of */
        (*pin)[v] = layout_replicate(VIEW_DENSE);
        (*pinned)[v] = info->role == ROLE_PARAM;
        if (info->role == ROLE_DPARAM || !info->name[0]) continue;
        TRY(pin_value(s, g, mesh, gradient ? info->name + 2 : info->name, v, &(*pin)[v],
                      &(*pinned)[v]));
    }
    return OK;
}
