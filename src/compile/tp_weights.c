/* tp_weights.c -- rules of single weights as rows of a strategy. */
#include "compile/tp_weights.h"

#include <string.h>
#include "base/math.h"
#include "base/text.h"

static const char *const layout_name[N_TP_LAYOUTS] = {"whole", "outputs", "inputs"};

const char *tp_layout_name(TpLayout l) { return layout_name[l]; }

/* The operand of an op that is the weight of a GEMM or of an embedding; -1: it has none. */
static int weight_operand(OpId op)
{
    return op == OP_linear || op == OP_linear_wide || op == OP_embedding ? 1 : -1;
}

static Value param_value(const Graph *g, int param)
{
    for (Value v = 0; v < g->n_values; v++)
        if (g->value[v].role == ROLE_PARAM && g->value[v].index == param) return v;
    return NO_VALUE;
}

bool tp_weight_is_open(const Graph *g, int param)
{
    const Value v = param_value(g, param);
    bool read = false;
    if (g->param[param].ndim != 2 || g->param[param].view == VIEW_EXPERT || v == NO_VALUE)
        return false;
    for (int i = 0; i < g->n_nodes; i++)
        for (int j = 0; j < g->node[i].n_in; j++) {
            if (g->node[i].in[j] != v) continue;
            if (weight_operand(g->node[i].op) != j) return false;
            read = true;
        }
    return read;
}

int tp_weight_bias(const Graph *g, int weight)
{
    const char *name = g->param[weight].name, *dot = strrchr(name, '.');
    const size_t stem = dot ? (size_t)(dot - name) : 0;
    for (int i = 0; i < g->n_params && dot && strcmp(dot, ".weight") == 0; i++)
        if (g->param[i].ndim == 1 && strncmp(g->param[i].name, name, stem) == 0 &&
            strcmp(g->param[i].name + stem, ".bias") == 0)
            return i;
    return -1;
}

/* Megatron's row of a parameter; NULL: it is whole. */
static const StrategyRow *megatron_row(const char *name)
{
    for (int i = 0; i < strategy_tp.n; i++) {
        const StrategyRow *row = &strategy_tp.row[i];
        if (strcmp(row->axis, "tp") == 0 && text_glob(row->pattern, name)) return row;
    }
    return NULL;
}

TpLayout tp_weight_default(const Graph *g, int weight)
{
    const StrategyRow *row = megatron_row(g->param[weight].name);
    return !row ? TP_WHOLE : row->dim == 0 ? TP_OUTPUTS : TP_INPUTS;
}

/* The indivisible piece along the dim: that of Megatron's row, if it cuts the same dim. */
static CutBy grain_of(const char *name, int dim)
{
    const StrategyRow *row = megatron_row(name);
    return row && row->dim == dim ? row->by : BY_ONE;
}

Err tp_weight_row(const Graph *g, int param, TpLayout l, Arena *arena, StrategyRow *out)
{
    const ParamInfo *p = &g->param[param];
    const bool whole = l == TP_WHOLE || (p->ndim == 1 && l == TP_INPUTS);
    const int dim = l == TP_INPUTS && !whole;
    const char *pattern;
    Text t = text_in(arena);
    text_add(&t, "%s/%s", g->kind, p->name);
    TRY(text_done(&t, &pattern));
    *out = (StrategyRow){pattern, "tp", dim, whole ? BY_NOTHING : grain_of(p->name, dim)};
    return OK;
}

bool tp_weight_fits(const Strategy *s, const Graph *g, int weight, TpLayout l, int tp,
                    int64_t *grains, const char **what)
{
    const ParamInfo *p = &g->param[weight];
    const int dim = l == TP_INPUTS;
    const CutBy by = grain_of(p->name, dim);
    const bool heads = by == BY_HEAD || by == BY_KEY_HEAD;
    *grains = heads ? s->heads : p->n[dim];
    *what = heads ? "heads" : dim ? "inputs" : "outputs";
    return l == TP_WHOLE || *grains >= tp;
}

/* ---- rules ---- */

typedef struct {
    const char *at; /* the pattern */
    size_t length;
    int layout; /* TpLayout; -1: none is written, or none that exists */
} TpRule;

/* Reads the item at *rest; *rest moves behind it. Returns false past the last. */
static bool next_rule(const char **rest, TpRule *out)
{
    if (!*rest || !**rest) return false;
    const size_t n = strcspn(*rest, ",");
    const char *at = *rest, *equal = memchr(at, '=', n);
    *out = (TpRule){at, equal ? (size_t)(equal - at) : n, -1};
    for (int l = 0; l < N_TP_LAYOUTS && equal; l++)
        if (strlen(layout_name[l]) == n - out->length - 1 &&
            strncmp(equal + 1, layout_name[l], n - out->length - 1) == 0)
            out->layout = l;
    *rest += n + (at[n] == ',');
    return true;
}

/* True if the rule's pattern matches the name, or kind/name. */
static bool rule_matches(const TpRule *r, const Graph *g, const char *name)
{
    const char *slash = memchr(r->at, '/', r->length);
    const size_t kind = slash ? (size_t)(slash - r->at) : 0;
    if (!slash) return text_glob_part(r->at, r->length, name);
    return strlen(g->kind) == kind && strncmp(g->kind, r->at, kind) == 0 &&
           text_glob_part(slash + 1, r->length - kind - 1, name);
}

/* Where the first rule that matches the weight begins; NULL: none does. */
static const char *first_rule(const char *rules, const Graph *g, int weight)
{
    TpRule r;
    while (next_rule(&rules, &r))
        if (rule_matches(&r, g, g->param[weight].name)) return r.at;
    return NULL;
}

int tp_weight_rule(const char *rules, const Graph *g, int weight)
{
    TpRule r;
    const char *at = tp_weight_is_open(g, weight) ? first_rule(rules, g, weight) : NULL;
    return at && next_rule(&at, &r) ? r.layout : -1;
}

/* The open weights of all kinds, each name once; returns their number. */
static int open_names(const Model *m, const char **name)
{
    int n = 0;
    for (int k = 0; k < m->n_kinds; k++)
        for (int i = 0; i < m->kind[k].n_params; i++) {
            int same = 0;
            while (same < n && strcmp(name[same], m->kind[k].param[i].name) != 0) same++;
            if (same == n && tp_weight_is_open(&m->kind[k], i))
                name[n++] = m->kind[k].param[i].name;
        }
    return n;
}

static Err no_match(const TpCheck *c, const char *pattern)
{
    const Model *m = c->m;
    int n = 0;
    const char **name, *list;
    for (int k = 0; k < m->n_kinds; k++) n += m->kind[k].n_params;
    TRY(ARENA_NEW(c->temp, n + 1, &name));
    n = open_names(m, name);
    const char *near = text_nearest(pattern, name, n);
    Text t = text_in(c->temp);
    for (int i = 0; i < n; i++) text_add(&t, "%s%s", i ? ", " : "", name[i]);
    TRY(text_done(&t, &list));
    return err_fail(ERR_CONFIG,
                    "%s=%s: matches no weight whose layout along tp can be chosen%s%s%s; there are "
                    "%s, and biases follow their weights",
                    c->key, pattern, near ? "; did you mean " : "", near ? near : "",
                    near ? "?" : "", list);
}

/* What a rule does. */
typedef struct {
    bool matches, decides;
} RuleEffect;

/* Checks the weights of a kind that the rule decides. */
static Err check_kind(const TpCheck *c, const Graph *g, const TpRule *r, RuleEffect *effect)
{
    for (int i = 0; i < g->n_params; i++) {
        int64_t grains;
        const char *what;
        if (!tp_weight_is_open(g, i) || !rule_matches(r, g, g->param[i].name)) continue;
        effect->matches = true;
        if (first_rule(c->rules, g, i) != r->at) continue;
        effect->decides = true;
        if (tp_weight_fits(c->s, g, i, (TpLayout)r->layout, c->tp, &grains, &what)) continue;
        return err_fail(ERR_CONFIG,
                        "%s: %s of %s=%s has %lld %s, too few for the %d ranks of mesh.tp; set it "
                        "whole%s, or mesh.tp=%lld",
                        c->key, g->param[i].name, g->kind, layout_name[r->layout],
                        (long long)grains, what, c->tp,
                        r->layout == TP_INPUTS ? " or outputs" : " or inputs", (long long)grains);
    }
    return OK;
}

bool tp_weight_has_copies(const Strategy *s, const Graph *g, int weight, int tp)
{
    const bool keys = grain_of(g->param[weight].name, 0) == BY_KEY_HEAD;
    return keys && s->key_heads < s->heads && s->key_heads % tp != 0;
}

bool tp_weight_makes_heads(const Graph *g, int weight)
{
    const CutBy by = grain_of(g->param[weight].name, 0);
    return by == BY_HEAD || by == BY_KEY_HEAD;
}

bool tp_weights_keep_heads(const Mesh *mesh)
{
    return mesh_parts(mesh, VIEW_DENSE, mesh_axes(mesh, VIEW_DENSE, "cp")) > 1;
}

static Err check_heads(const TpCheck *c, const Graph *g)
{
    for (int i = 0; i < g->n_params; i++) {
        const int rule = tp_weight_rule(c->rules, g, i);
        if (rule < 0 || rule == TP_OUTPUTS || !tp_weight_makes_heads(g, i)) continue;
        return err_fail(ERR_CONFIG,
                        "%s: %s of %s=%s with mesh.cp: the heads of queries, keys and values stay "
                        "on their ranks of tp while tokens are on those of cp; set it to outputs, "
                        "or mesh.cp=1",
                        c->key, g->param[i].name, g->kind, layout_name[rule]);
    }
    return OK;
}

/* Copies of key heads are where the heads are that read them: with other queries, keys or values
 * they would have no place. */
static Err check_copies(const TpCheck *c, const Graph *g)
{
    const Strategy *s = c->s;
    int copies = -1, other = -1;
    for (int i = 0; i < g->n_params; i++) {
        if (!tp_weight_is_open(g, i) || !tp_weight_makes_heads(g, i)) continue;
        const int rule = tp_weight_rule(c->rules, g, i);
        const int layout = rule < 0 ? (int)tp_weight_default(g, i) : rule;
        if (layout != TP_OUTPUTS) other = i;
        if (layout == TP_OUTPUTS && tp_weight_has_copies(s, g, i, c->tp)) copies = i;
    }
    if (copies < 0 || other < 0) return OK;
    return err_fail(ERR_CONFIG,
                    "%s: %s of %s is not along outputs, but %s is: mesh.tp=%d does not divide the "
                    "%lld key heads, so ranks have copies of them, beside the heads that read "
                    "them; set queries, keys and values all to outputs, or keys and values to "
                    "whole or inputs",
                    c->key, g->param[other].name, g->kind, g->param[copies].name, c->tp,
                    (long long)s->key_heads);
}

/* A weight that several units hold has one layout, on one stage or on two: ranks add up the
 * gradients of its parts. */
static Err check_shared(const TpCheck *c)
{
    const Model *m = c->m;
    struct {
        const Graph *g; /* of the first unit that has it; NULL: none yet */
        int layout;
    } * first;
    TRY(ARENA_NEW(c->temp, m->n_params + 1, &first));
    for (int u = 0; u < m->n_units; u++)
        for (int k = 0; k < m->unit[u].n_params; k++) {
            const Graph *g = &m->kind[m->unit[u].kind];
            const int of = m->unit[u].param[k], rule = tp_weight_rule(c->rules, g, k);
            const int layout = rule < 0 ? (int)tp_weight_default(g, k) : rule;
            if (!first[of].g) {
                first[of].g = g;
                first[of].layout = layout;
            }
            if (first[of].layout == layout) continue;
            return err_fail(ERR_CONFIG,
                            "%s: %s is %s in %s and %s in %s, which hold one weight; give both the "
                            "same layout, as %s=%s",
                            c->key, g->param[k].name, layout_name[first[of].layout],
                            first[of].g->kind, layout_name[layout], g->kind, g->param[k].name,
                            layout_name[layout]);
        }
    return OK;
}

static Err check_rule(const TpCheck *c, const TpRule *r)
{
    const char *pattern;
    RuleEffect effect = {0};
    Text t = text_in(c->temp);
    text_add(&t, "%.*s", min_int((int)r->length, 80), r->at);
    TRY(text_done(&t, &pattern));
    if (r->layout < 0)
        return err_fail(ERR_CONFIG,
                        "%s=%.*s: write a pattern of names of weights and outputs, inputs or "
                        "whole, as *.k_proj.*=whole",
                        c->key, min_int((int)strcspn(r->at, ","), 80), r->at);
    for (int k = 0; k < c->m->n_kinds; k++) TRY(check_kind(c, &c->m->kind[k], r, &effect));
    if (!effect.matches) return no_match(c, pattern);
    if (effect.decides) return OK;
    return err_fail(ERR_CONFIG,
                    "%s=%s=%s: patterns before it match all its weights, and the first one "
                    "decides; write it first, or leave it out",
                    c->key, pattern, layout_name[r->layout]);
}

Err tp_weights_check(const TpCheck *c)
{
    TpRule r;
    for (const char *rest = c->rules; next_rule(&rest, &r);) TRY(check_rule(c, &r));
    for (int k = 0; k < c->m->n_kinds && c->rules; k++) {
        TRY(check_copies(c, &c->m->kind[k]));
        if (c->keeps_heads) TRY(check_heads(c, &c->m->kind[k]));
    }
    return c->rules ? check_shared(c) : OK;
}

/* True if the strategy has a row for the stream within layers. */
static bool pins_mid(const Strategy *s)
{
    for (; s; s = s->base)
        for (int i = 0; i < s->n; i++)
            if (strcmp(s->row[i].pattern, "mid") == 0 && strcmp(s->row[i].axis, "tp") == 0)
                return true;
    return false;
}

/* The heads of attention over tp, where they are no copies. */
static const StrategyRow head_rows[] = {{"attention:q", "tp", 1, BY_ONE},
                                        {"attention:k", "tp", 1, BY_ONE},
                                        {"attention:v", "tp", 1, BY_ONE},
                                        {"attention:o", "tp", 1, BY_ONE}};
enum { N_HEAD_ROWS = sizeof head_rows / sizeof *head_rows };

Err tp_weights_strategy(const Strategy *base, const Model *m, const char *rules, const Mesh *mesh,
                        Arena *arena, Strategy *out)
{
    const int tp = mesh_parts(mesh, VIEW_DENSE, mesh_axes(mesh, VIEW_DENSE, "tp"));
    const bool copies = base->key_heads < base->heads && base->key_heads % tp != 0;
    int most = 0, n = 0;
    StrategyRow *row;
    Strategy *below;
    for (int k = 0; k < m->n_kinds; k++) most += 2 * m->kind[k].n_params;
    TRY(ARENA_NEW(arena, most + 1 + N_HEAD_ROWS, &row));
    TRY(ARENA_NEW(arena, 1, &below));
    *below = *base;
    for (int i = 0; i < N_HEAD_ROWS && tp_weights_keep_heads(mesh) && !copies; i++)
        row[n++] = head_rows[i];
    if (!pins_mid(base)) row[n++] = (StrategyRow){"mid", "tp", 0, BY_NOTHING};
    for (int k = 0; k < m->n_kinds; k++)
        for (int i = 0; i < m->kind[k].n_params; i++) {
            const Graph *g = &m->kind[k];
            const int layout = tp_weight_rule(rules, g, i);
            const int bias = tp_weight_bias(g, i);
            if (layout < 0) continue;
            TRY(tp_weight_row(g, i, (TpLayout)layout, arena, &row[n++]));
            if (bias >= 0) TRY(tp_weight_row(g, bias, (TpLayout)layout, arena, &row[n++]));
        }
    *out = *base;
    out->name = "weights over tp";
    out->row = row;
    out->n = n;
    out->base = below;
    out->by_seconds = true;
    return OK;
}
