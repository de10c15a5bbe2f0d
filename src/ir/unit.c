/* unit.c -- construction of a model from units. */
#include "ir/unit.h"

#include <stdio.h>
#include <string.h>

Err model_open(Model *m, const char *name, int cap_units, int cap_params, Arena *arena)
{
    *m = (Model){.name = name, .arena = arena, .cap_units = cap_units, .cap_params = cap_params};
    for (m->n_by_name = 1; m->n_by_name < 2 * cap_params;) m->n_by_name *= 2;
    TRY(ARENA_NEW(arena, cap_units, &m->unit));
    TRY(ARENA_NEW(arena, m->n_by_name, &m->by_name));
    TRY(ARENA_NEW(arena, cap_params, &m->pack));
    return ARENA_NEW(arena, cap_params, &m->param);
}

/* The entry of the parameter of that name in the hash table, or the empty one where it belongs
 * (FNV-1a, linear probing). */
static int32_t *slot_of(const Model *m, const char *name)
{
    uint32_t hash = 2166136261u;
    for (const char *p = name; *p; p++) hash = (hash ^ (uint8_t)*p) * 16777619u;
    int at = (int)(hash & (uint32_t)(m->n_by_name - 1));
    while (m->by_name[at] && strcmp(m->param[m->by_name[at] - 1].name, name) != 0)
        at = (at + 1) & (m->n_by_name - 1);
    return &m->by_name[at];
}

int model_find_param(const Model *m, const char *name) { return *slot_of(m, name) - 1; }

static Err hold(Param *p, int unit, const ParamInfo *info)
{
    bool same = p->info.ndim == info->ndim;
    for (int i = 0; same && i < info->ndim; i++) same = p->info.n[i] == info->n[i];
    if (!same) return err_fail(ERR_CHECK, "parameter %s has two shapes", p->name);
    if (p->n_holders == MAX_HOLDERS)
        return err_fail(ERR_CHECK, "parameter %s: more than %d units hold it", p->name,
                        MAX_HOLDERS);
    p->holder[p->n_holders++] = unit;
    return OK;
}

static Err add_param(Model *m, const char *name, const ParamInfo *info, int *out)
{
    MUST(m->n_params < m->cap_params, "room for %d parameters", m->cap_params);
    Param *p = &m->param[m->n_params];
    *p = (Param){.info = *info, .count = 1, .copy_of = -1};
    TRY(arena_string(m->arena, name, &p->name));
    for (int i = 0; i < info->ndim; i++) p->count *= info->n[i];
    *slot_of(m, name) = m->n_params + 1;
    *out = m->n_params++;
    return hold(p, m->n_units, info);
}

/* The unit's own pack of such parameters; a new one if there is none. */
static Err pack_of(Model *m, int unit, const ParamInfo *info, Pack **out)
{
    Unit *u = &m->unit[unit];
    for (int i = u->first_pack; i < u->first_pack + u->n_packs; i++) {
        const ParamInfo *first = &m->param[m->pack[i].param[0]].info;
        if (first->view == info->view && first->pack == info->pack && first->rule == info->rule &&
            first->coded == info->coded) {
            *out = &m->pack[i];
            return OK;
        }
    }
    const DType wide = dtype_wide(m->kind[u->kind].dtype);
    const DType use = info->coded                        ? E4M3
                      : info->rule != PARAM_BY_OPTIMIZER ? wide
                                                         : m->kind[u->kind].dtype;
    u->n_packs++;
    *out = &m->pack[m->n_packs++];
    **out = (Pack){.unit = unit, .view = info->view, .rule = info->rule, .type = {use, wide}};
    return ARENA_NEW(m->arena, u->n_params, &(*out)->param);
}

/* Puts the parameters that the unit is the first to hold into its packs. */
static Err fill_packs(Model *m, int unit)
{
    Unit *u = &m->unit[unit];
    u->first_pack = m->n_packs;
    u->n_packs = 0;
    u->count = 0;
    for (int k = 0; k < u->n_params; k++) {
        Param *p = &m->param[u->param[k]];
        Pack *pack;
        if (p->holder[0] != unit) continue;
        TRY(pack_of(m, unit, &p->info, &pack));
        p->pack = (int)(pack - m->pack);
        p->pack_index = pack->n_params;
        pack->param[pack->n_params++] = u->param[k];
        pack->count += p->count;
        u->count += p->count;
    }
    return OK;
}

Err model_make_packs(Model *m)
{
    m->n_packs = 0;
    for (int u = 0; u < m->n_units; u++) TRY(fill_packs(m, u));
    return OK;
}

Err model_add_unit(Model *m, int kind, const char *name, const char *prefix)
{
    const Graph *g = &m->kind[kind];
    MUST(m->n_units < m->cap_units, "room for %d units", m->cap_units);
    for (int u = 0; u < m->n_units && graph_find(g, ROLE_LOSS) != NO_VALUE; u++)
        if (graph_find(&m->kind[m->unit[u].kind], ROLE_LOSS) != NO_VALUE)
            return err_fail(ERR_CHECK, "unit %s: unit %s has a loss already; a model has one", name,
                            m->unit[u].name);
    Unit *u = &m->unit[m->n_units];
    *u = (Unit){.kind = kind, .n_params = g->n_params};
    TRY(arena_string(m->arena, name, &u->name));
    TRY(ARENA_NEW(m->arena, g->n_params + 1, &u->param));
    for (int i = 0; i < g->n_params; i++) {
        char whole[256];
        snprintf(whole, sizeof whole, "%s%s", prefix, g->param[i].name);
        int at = model_find_param(m, whole);
        if (at >= 0)
            TRY(hold(&m->param[at], m->n_units, &g->param[i]));
        else
            TRY(add_param(m, whole, &g->param[i], &at));
        u->param[i] = at;
    }
    return fill_packs(m, m->n_units++);
}

/* Replaces parameter `old` of the unit, which another stage holds too, by `copy`. */
static void hold_copy(Model *m, int unit, int old, int copy)
{
    Unit *u = &m->unit[unit];
    Param *p = &m->param[copy];
    for (int k = 0; k < u->n_params; k++)
        if (u->param[k] == old) u->param[k] = copy;
    p->holder[p->n_holders++] = unit;
}

/* The copy of a parameter on a stage; makes one if there is none. */
static int copy_on(Model *m, int param, const int16_t *stage, int on)
{
    for (int i = 0; i < m->n_params; i++)
        if (m->param[i].copy_of == param && stage[m->param[i].holder[0]] == on) return i;
    m->param[m->n_params] = m->param[param];
    m->param[m->n_params].n_holders = 0;
    m->param[m->n_params].copy_of = param;
    m->param[param].is_shared = m->param[m->n_params].is_shared = true;
    return m->n_params++;
}

Err model_copy_params(Model *m, const int16_t *stage)
{
    const int n = m->n_params;
    Param *room;
    TRY(ARENA_NEW(m->arena, (int64_t)n * MAX_HOLDERS, &room));
    TRY(ARENA_NEW(m->arena, (int64_t)n * MAX_HOLDERS, &m->pack));
    memcpy(room, m->param, (size_t)n * sizeof *room);
    m->param = room;
    m->cap_params = n * MAX_HOLDERS;
    for (int i = 0; i < n; i++) {
        const Param p = m->param[i];
        int kept = 0;
        for (int h = 0; h < p.n_holders; h++) {
            const int unit = p.holder[h], on = stage[unit];
            if (on == stage[p.holder[0]])
                m->param[i].holder[kept++] = unit;
            else
                hold_copy(m, unit, i, copy_on(m, i, stage, on));
        }
        m->param[i].n_holders = kept;
    }
    return model_make_packs(m);
}

Err model_set_view(Model *m, int kind, int param, int view)
{
    m->kind[kind].param[param].view = (uint8_t)view;
    for (int u = 0; u < m->n_units; u++)
        if (m->unit[u].kind == kind) m->param[m->unit[u].param[param]].info.view = (uint8_t)view;
    return model_make_packs(m);
}

InputShape model_input(const Model *m, Input which)
{
    const InputInfo *info = input_info(which);
    if (info->writer == WRITTEN_BY_SESSION)
        return (InputShape){m->logit_rows > 0 ? m->rows : 0, info->extent};
    for (int k = 0; k < m->n_kinds; k++)
        for (Value v = 0; v < m->kind[k].n_values; v++) {
            const ValueInfo *value = &m->kind[k].value[v];
            if (value->role != ROLE_INPUT || value->index != (int)which) continue;
            return (InputShape){value->dims.dim[0].cap,
                                value->dims.ndim > 1 ? value->dims.dim[1].cap : 1};
        }
    return (InputShape){0, info->extent};
}

bool model_is_shared(const Model *m, int param) { return m->param[param].is_shared; }

const char *model_value_name(const Model *m, int unit, const char *name, char *buffer)
{
    snprintf(buffer, VALUE_NAME_BYTES, "%s.%s", m->unit[unit].name, name);
    return buffer;
}

int64_t model_param_count(const Model *m)
{
    int64_t count = 0;
    for (int i = 0; i < m->n_params; i++)
        if (m->param[i].copy_of < 0) count += m->param[i].count;
    return count;
}
