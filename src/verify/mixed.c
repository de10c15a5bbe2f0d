/* mixed.c -- layouts whose layers differ: every other unit has other options than the layout. */
#include "verify/mixed.h"

#include <string.h>
#include "base/text.h"
#include "compile/tp_weights.h"
#include "plan/search/operators.h"

const UnitOptions layout_mixed_mark = {0};
const char *const layout_operators_mark = "operators";
const char *const layout_tp_mark = "tp_weights";

static int dp_cp(const MeshSizes *m)
{
    return (m->dp_replicate > 1 ? m->dp_replicate : 1) * (m->dp_shard > 1 ? m->dp_shard : 1) *
           (m->cp > 1 ? m->cp : 1);
}

/* The other value of each option that has an effect on this mesh. */
static UnitOptions other_options(const ParallelSettings *p, UnitOptions o)
{
    o.recompute = o.recompute == RECOMPUTE_FULL ? RECOMPUTE_NONE : RECOMPUTE_FULL;
    o.recompute_names = NULL;
    o.offload_names = NULL; /* full recomputation keeps nothing that could be offloaded */
    if (dp_cp(&p->mesh) > 1) o.zero = (o.zero + 1) % 4;
    if (p->mesh.tp > 1) o.sequence = !o.sequence;
    if (p->mesh.cp > 1) o.context = o.context == CONTEXT_GATHER ? CONTEXT_RING : CONTEXT_GATHER;
    return o;
}

static Err new_units(const JobSettings *job, Arena *arena, UnitOptions **out)
{
    const int n = (int)job->config->n_layers + 2;
    TRY(ARENA_NEW(arena, n, out));
    for (int u = 0; u < n; u++) (*out)[u] = job_unit_options(job, u);
    return OK;
}

Err operator_rules(const JobSettings *job, Arena *arena, const char **out)
{
    const int level = (job->parallel.zero + 1) % 4;
    Model model;
    TRY(model_build(job->config, job->dtype, job->batch, arena, &model));
    const char **rules;
    TRY(ARENA_NEW(arena, model.n_kinds, &rules));
    for (int k = 0; k < model.n_kinds; k++) {
        WeightSplits splits;
        TRY(weight_splits(&model.kind[k], arena, &splits));
        if (splits.n) TRY(weight_rules(&splits, 0, level, arena, &rules[k]));
    }
    Text t = text_in(arena);
    const char *join = "";
    for (int k = 0; k < model.n_kinds; k++) {
        if (!rules[k]) continue;
        text_add(&t, "%s%s", join, rules[k]);
        join = ",";
    }
    return text_done(&t, out);
}

/* True if a kind before has a weight of that name: the rule for it decides here too. */
static bool is_ruled(const Model *m, int kind, const char *name)
{
    for (int k = 0; k < kind; k++)
        for (int i = 0; i < m->kind[k].n_params; i++)
            if (strcmp(m->kind[k].param[i].name, name) == 0 && tp_weight_is_open(&m->kind[k], i))
                return true;
    return false;
}

Err tp_rules(const JobSettings *job, Arena *arena, const char **out)
{
    const ModelConfig *c = job->config;
    const Strategy s = strategy_with_heads(&strategy_tp, c->n_heads, c->n_kv_heads, c->head_size);
    const int tp = job->parallel.mesh.tp;
    int n = 0;
    Model m;
    TRY(model_build(c, job->dtype, job->batch, arena, &m));
    Text t = text_in(arena);
    for (int k = 0; k < m.n_kinds; k++)
        for (int i = 0; i < m.kind[k].n_params; i++) {
            const Graph *g = &m.kind[k];
            TpLayout l = (TpLayout)(n % N_TP_LAYOUTS);
            int64_t grains;
            const char *what;
            if (!tp_weight_is_open(g, i) || is_ruled(&m, k, g->param[i].name)) continue;
            if (job->parallel.mesh.cp > 1 && tp_weight_makes_heads(g, i)) l = TP_OUTPUTS;
            if (l == TP_OUTPUTS && job->parallel.mesh.cp <= 1 && tp_weight_has_copies(&s, g, i, tp))
                l = TP_INPUTS;
            if (!tp_weight_fits(&s, g, i, l, tp, &grains, &what)) l = TP_WHOLE;
            text_add(&t, "%s%s=%s", n++ ? "," : "", g->param[i].name, tp_layout_name(l));
        }
    return text_done(&t, out);
}

Err operator_reference(const char *rules, int zero, bool each, Arena *arena, const char **out,
                       bool *exists)
{
    char *text;
    *out = rules;
    if (!rules) return OK;
    TRY(arena_string(arena, rules, out));
    text = (char *)(uintptr_t)*out;
    for (char *at = text; *at; at++) {
        if (*at != '=') continue;
        const int level = at[1] - '0';
        *exists = *exists && (level >= 2) == each;
        if (level > zero) at[1] = (char)('0' + zero);
    }
    return OK;
}

Err mixed_units(const JobSettings *job, Arena *arena, const UnitOptions **out)
{
    JobSettings uniform = *job;
    UnitOptions *units;
    uniform.parallel.units = NULL;
    TRY(new_units(&uniform, arena, &units));
    for (int u = 1; u <= (int)job->config->n_layers; u += 2)
        units[u] = other_options(&job->parallel, units[u]);
    *out = units;
    return OK;
}

Err mixed_reference(const JobSettings *job, int zero, Arena *arena, const UnitOptions **out,
                    bool *changed)
{
    UnitOptions *units;
    bool exists = true;
    TRY(new_units(job, arena, &units));
    *changed = false;
    for (int u = 0; u < (int)job->config->n_layers + 2; u++) {
        UnitOptions *o = &units[u];
        const bool given = o->reduce_each;
        o->reduce_each = o->reduce_each || o->zero >= 2;
        const UnitOptions before = *o;
        bool same = true;
        TRY(operator_reference(before.zero_weights, zero, o->reduce_each, arena, &o->zero_weights,
                               &same));
        exists = exists && (same || given);
        if (o->zero > zero) o->zero = zero;
        o->recompute = job->compile.recompute;
        o->recompute_names = job->compile.recompute_names;
        o->offload_names = job->compile.offload_names;
        *changed = *changed || !job_same_options(&before, o);
    }
    *changed = *changed && exists;
    *out = units;
    return OK;
}

Err precise_units(const JobSettings *job, Arena *arena, const UnitOptions **out)
{
    JobSettings plain = *job;
    UnitOptions *units;
    plain.parallel = (ParallelSettings){0};
    TRY(new_units(&plain, arena, &units));
    for (int u = 0; u < (int)job->config->n_layers + 2; u++)
        units[u].fp8_names = job_unit_options(job, u).fp8_names;
    *out = units;
    return OK;
}
