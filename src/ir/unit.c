/* unit.c -- putting a model together from units. */
#include "ir/unit.h"

#include <stdio.h>
#include <string.h>

Err model_open(Model *m, const char *name, int cap_units, int cap_params, Arena *arena)
{
    *m = (Model){.name = name, .arena = arena, .cap_units = cap_units, .cap_params = cap_params};
    TRY(ARENA_NEW(arena, cap_units, &m->unit));
    return ARENA_NEW(arena, cap_params, &m->param);
}

int model_find_param(const Model *m, const char *name)
{
    for (int i = 0; i < m->n_params; i++)
        if (strcmp(m->param[i].name, name) == 0) return i;
    return -1;
}

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

static Err add_param(Model *m, Unit *u, const char *name, const ParamInfo *info, int *out)
{
    MUST(m->n_params < m->cap_params, "room for %d parameters", m->cap_params);
    Param *p = &m->param[m->n_params];
    *p = (Param){.info = *info, .count = 1, .pack_at = u->pack_count};
    TRY(arena_string(m->arena, name, &p->name));
    for (int i = 0; i < info->ndim; i++) p->count *= info->n[i];
    u->pack_count += p->count;
    *out = m->n_params++;
    return hold(p, m->n_units, info);
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
            TRY(add_param(m, u, whole, &g->param[i], &at));
        u->param[i] = at;
    }
    m->n_units++;
    return OK;
}

const char *model_value_name(const Model *m, int unit, const char *name, char *buffer)
{
    snprintf(buffer, VALUE_NAME_BYTES, "%s.%s", m->unit[unit].name, name);
    return buffer;
}

int64_t model_param_count(const Model *m)
{
    int64_t count = 0;
    for (int i = 0; i < m->n_params; i++) count += m->param[i].count;
    return count;
}
