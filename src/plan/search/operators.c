/* operators.c -- operators are weights whose GEMMs read one x; patterns are the shortest prefixes
 * that name them alone. */
#include "plan/search/operators.h"

#include <string.h>
#include "base/text.h"

/* The x of the GEMM that reads the weight; NO_VALUE: none does (a norm, an embedding). */
static Value read_with(const Graph *g, int param)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        for (int k = 1; k < n->n_in && op_info(n->op)->class == CLASS_HEAVY; k++) {
            const ValueInfo *v = n->in[k] == NO_VALUE ? NULL : &g->value[n->in[k]];
            if (v && v->role == ROLE_PARAM && v->index == param) return n->in[0];
        }
    }
    return NO_VALUE;
}

/* True if all weights whose names begin with the first `length` characters are chosen. */
static bool names_chosen(const Graph *g, const bool *chosen, const char *name, size_t length)
{
    for (int i = 0; i < g->n_params; i++)
        if (!chosen[i] && strncmp(g->param[i].name, name, length) == 0) return false;
    return true;
}

/* The length of the shortest prefix up to a dot that names chosen weights alone; 0: none. */
static size_t prefix_of(const Graph *g, const bool *chosen, const char *name)
{
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.'))
        if (names_chosen(g, chosen, name, (size_t)(dot - name) + 1))
            return (size_t)(dot - name) + 1;
    return 0;
}

static Err patterns_of(const Graph *g, const bool *chosen, Arena *arena, const char *const **out)
{
    const char **pattern;
    int n = 0;
    TRY(ARENA_NEW(arena, g->n_params + 1, &pattern));
    for (int i = 0; i < g->n_params; i++) {
        const char *name = g->param[i].name;
        const size_t length = prefix_of(g, chosen, name);
        Text t = text_in(arena);
        if (!chosen[i]) continue;
        text_add(&t, length ? "%.*s*" : "%.*s", (int)(length ? length : strlen(name)), name);
        TRY(text_done(&t, &pattern[n]));
        int same = 0;
        while (same < n && strcmp(pattern[same], pattern[n]) != 0) same++;
        n += same == n;
    }
    pattern[n] = NULL;
    *out = pattern;
    return OK;
}

/* Chooses the weights of the next operator, in the order of the graph; false: there is none. */
static bool choose_next(const Graph *g, bool *chosen)
{
    int first = 0;
    while (first < g->n_params && (chosen[first] || read_with(g, first) == NO_VALUE)) first++;
    if (first == g->n_params) return false;
    const Value x = read_with(g, first);
    for (int i = first; i < g->n_params; i++) chosen[i] = chosen[i] || read_with(g, i) == x;
    return true;
}

/* True if weights of GEMMs are left. */
static bool is_cut(const Graph *g, const bool *chosen)
{
    for (int i = 0; i < g->n_params; i++)
        if (!chosen[i] && read_with(g, i) != NO_VALUE) return true;
    return false;
}

Err weight_splits(const Graph *kind, Arena *arena, WeightSplits *out)
{
    bool *chosen;
    *out = (WeightSplits){0};
    TRY(ARENA_NEW(arena, kind->n_params + 1, &chosen));
    while (out->n < MAX_SPLITS && choose_next(kind, chosen) && is_cut(kind, chosen))
        TRY(patterns_of(kind, chosen, arena, &out->pattern[out->n++]));
    return OK;
}

Err weight_rules(const WeightSplits *s, int split, int level, Arena *arena, const char **out)
{
    Text t = text_in(arena);
    for (const char *const *p = s->pattern[split]; *p; p++)
        text_add(&t, "%s%s=%d", p == s->pattern[split] ? "" : ",", *p, level);
    return text_done(&t, out);
}
