/* tp_text.c -- layouts of weights along tp. */
#include "cli/tp_text.h"

#include <jansson.h>
#include "compile/tp_weights.h"
#include "job/tp_choice.h"

/* The layout that all weights of a kind have, or -1. */
static int common_layout(const Job *job, const Graph *g)
{
    int common = -2; /* no weight yet */
    for (int i = 0; i < g->n_params; i++) {
        if (!tp_weight_is_open(g, i)) continue;
        const int l = tp_weight_rule(job->settings.parallel.tp_weights, g, i);
        common = common == -2 || common == l ? l : -1;
    }
    return common < 0 ? -1 : common;
}

/* Adds the weights of a kind that are not as in Megatron: "layer: self_attn.k_proj.weight whole,
 * ..."; false if there are none. */
static bool kind_text(const Job *job, const Graph *g, const char *before, Text *t)
{
    const int common = common_layout(job, g);
    bool any = false;
    for (int i = 0; i < g->n_params; i++) {
        const int l = tp_weight_rule(job->settings.parallel.tp_weights, g, i);
        if (l < 0 || l == (int)tp_weight_default(g, i)) continue;
        if (any) text_add(t, ", ");
        if (!any) text_add(t, "%s%s: ", before, g->kind);
        any = true;
        if (common >= 0) return text_add(t, "all weights %s", tp_layout_name((TpLayout)l)), true;
        text_add(t, "%s %s", g->param[i].name, tp_layout_name((TpLayout)l));
    }
    return any;
}

static void table_text(const TpChoice *c, Text *t)
{
    text_add(t,
             "             found by search at %s%s, without latencies: a sequence in one unit\n"
             "             kind           Megatron ms       found ms\n",
             c->rates ? "the rates of " : "default rates", c->rates ? c->rates : "");
    for (int i = 0; i < c->n_kinds; i++)
        text_add(t, "             %-12s %13.4g  %13.4g%s\n", c->kind[i].kind,
                 1e3 * c->kind[i].megatron_s, 1e3 * c->kind[i].seconds,
                 c->kind[i].exact ? "" : "  not proven the least");
}

void tp_text(const Job *job, Text *t)
{
    const ParallelSettings *p = &job->settings.parallel;
    const char *before = "  tp         ";
    if (!p->tp_weights && !p->tp_choice) return;
    for (int k = 0; k < job->model.n_kinds; k++) {
        if (!kind_text(job, &job->model.kind[k], before, t)) continue;
        text_add(t, "\n");
        before = "             ";
    }
    if (before[2] == 't') text_add(t, "  tp         all weights as in Megatron\n");
    if (p->tp_choice) table_text(p->tp_choice, t);
}

void tp_line_text(const Job *job, Text *t)
{
    const ParallelSettings *p = &job->settings.parallel;
    bool any = false;
    if (!p->tp_weights && !p->tp_choice) return;
    text_add(t, "weights over tp: ");
    for (int k = 0; k < job->model.n_kinds; k++)
        any = kind_text(job, &job->model.kind[k], any ? "; " : "", t) || any;
    text_add(t, "%s%s\n", any ? "" : "as in Megatron", p->tp_choice ? "; found by search" : "");
}

json_t *tp_json(const Job *job)
{
    const ParallelSettings *p = &job->settings.parallel;
    const TpChoice *c = p->tp_choice;
    json_t *kinds = json_array();
    if (!p->tp_weights && !c) return json_decref(kinds), json_null();
    for (int i = 0; c && i < c->n_kinds; i++)
        json_array_append_new(kinds,
                              json_pack("{s:s, s:f, s:f, s:b}", "kind", c->kind[i].kind,
                                        "megatron_ms", 1e3 * c->kind[i].megatron_s, "ms",
                                        1e3 * c->kind[i].seconds, "exact", c->kind[i].exact));
    return json_pack("{s:s?, s:b, s:s?, s:o}", "rules", p->tp_weights, "searched", c != NULL,
                     "rates", c ? c->rates : NULL, "kinds", kinds);
}
