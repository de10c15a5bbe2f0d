/* packs.c -- the packs of a unit besides those by view: weights with a ZeRO level of their own, and
 * coded weights (ir/unit.h).
 *
 *     zero 1, zero_weights mlp.*=3      packs of layer.0    norms, self_attn    zero 1
 *                                                           mlp                 zero 3
 *     FP8                               packs of layer.0    norms               bf16
 *                                                           self_attn, mlp      e4m3, with scales
 *
 * GEMMs are fused over weights that are adjacent in memory, and units of a kind share a program:
 * the graph of a kind keeps weights apart that are in two packs in any of its units. */
#include "job/job_parts.h"

#include <stdio.h>
#include <string.h>
#include "base/math.h"
#include "base/text.h"

/* One item: a pattern of names of weights and its level. */
typedef struct {
    const char *at;
    int length; /* of the pattern */
    int level;  /* -1: none is written, or none that exists */
} WeightRule;

/* Reads the item at *rest; *rest moves behind it. Returns false past the last. */
static bool next_rule(const char **rest, WeightRule *out)
{
    if (!*rest || !**rest) return false;
    const int n = (int)strcspn(*rest, ",");
    const char *at = *rest, *last = at + n - 1;
    const bool whole = n > 2 && last[-1] == '=' && *last >= '0' && *last <= '3';
    *out = (WeightRule){at, whole ? n - 2 : n, whole ? *last - '0' : -1};
    *rest += n + (at[n] == ',');
    return true;
}

int job_weight_level(const char *rules, const char *name)
{
    WeightRule r;
    while (next_rule(&rules, &r))
        if (text_glob_part(r.at, (size_t)r.length, name)) return r.level;
    return -1;
}

int job_most_zero(const UnitOptions *o)
{
    WeightRule r;
    int most = o->zero;
    for (const char *rest = o->zero_weights; next_rule(&rest, &r);) most = max_int(most, r.level);
    return most;
}

static bool has_rules(const Job *job, int unit, const char *rules)
{
    const char *own = job_unit_options(&job->settings, unit).zero_weights;
    return own && strcmp(own, rules) == 0;
}

/* The weights of the units that have these rules, each name once; returns their number. */
static int collect(const Job *job, const char *rules, const char **name)
{
    const Model *m = &job->model;
    int n = 0;
    for (int u = 0; u < m->n_units; u++) {
        const Graph *g = &m->kind[m->unit[u].kind];
        for (int i = 0; i < g->n_params && has_rules(job, u, rules); i++) {
            int same = 0;
            while (same < n && strcmp(name[same], g->param[i].name) != 0) same++;
            if (same == n) name[n++] = g->param[i].name;
        }
    }
    return n;
}

static Err no_match(const char *key, const char *pattern, const char *const *name, int n,
                    Arena *temp)
{
    const char *near = text_nearest(pattern, name, n), *list;
    Text t = text_in(temp);
    for (int i = 0; i < n; i++) text_add(&t, "%s%s", i ? ", " : "", name[i]);
    TRY(text_done(&t, &list));
    return err_fail(
        ERR_CONFIG, "%s=%s: matches no weight of the units it is for%s%s%s; there are %s", key,
        pattern, near ? "; did you mean " : "", near ? near : "", near ? "?" : "", list);
}

Err job_check_weights(const Job *job, const char *rules, Arena *temp)
{
    const Model *m = &job->model;
    int n = 0;
    const char **name;
    char key[WRITTEN_KEY_BYTES];
    WeightRule r;
    job_written_key(job->settings.origin.zero_weights, "parallel.zero_weights", key);
    for (int k = 0; k < m->n_kinds; k++) n += m->kind[k].n_params;
    TRY(ARENA_NEW(temp, n + 1, &name));
    n = collect(job, rules, name);
    for (const char *rest = rules; next_rule(&rest, &r);) {
        char pattern[128];
        bool found = false, decides = false;
        snprintf(pattern, sizeof pattern, "%.*s", min_int(r.length, 80), r.at);
        if (r.level < 0)
            return err_fail(ERR_CONFIG,
                            "%s=%s: write a pattern of names of weights and a ZeRO level from 0 to "
                            "3, as mlp.*=3",
                            key, pattern);
        for (int i = 0; i < n; i++) {
            if (!text_glob_part(r.at, (size_t)r.length, name[i])) continue;
            found = true;
            decides = decides || job_weight_level(rules, name[i]) == r.level;
        }
        if (!found) return no_match(key, pattern, name, n, temp);
        if (!decides)
            return err_fail(ERR_CONFIG,
                            "%s=%s=%d: patterns before it match all its weights, and the first one "
                            "decides; write it first, or leave it out",
                            key, pattern, r.level);
    }
    return OK;
}

/* The number of the pack of weight k of a unit: 0 is that of all without a level of their own. */
static uint8_t number_of(const Job *job, int unit, int k)
{
    const Model *m = &job->model;
    const UnitOptions o = job_unit_options(&job->settings, unit);
    const char *name = m->kind[m->unit[unit].kind].param[k].name;
    return (uint8_t)(1 + job_weight_level(o.zero_weights, name));
}

/* The weights of a unit that GEMMs in FP8 alone read, and it alone holds: coded ones, if there are
 * some. */
static uint64_t coded_of(const Job *job, int unit)
{
    const Model *m = &job->model;
    const Unit *u = &m->unit[unit];
    Fp8Options fp8 = job->settings.compile.fp8;
    fp8.names = job_fp8_names(job, unit);
    uint64_t coded = quantize_coded(&m->kind[u->kind], &fp8);
    for (int k = 0; k < u->n_params; k++)
        if (m->param[u->param[k]].n_holders > 1) coded &= ~((uint64_t)1 << k);
    return coded;
}

/* True if the unit before is of the same kind and has the same rules. */
static bool is_as_before(const Job *job, int unit)
{
    const Unit *u = &job->model.unit[unit];
    if (unit == 0 || u[-1].kind != u->kind) return false;
    if (job->coded[unit] != job->coded[unit - 1]) return false;
    const char *a = job_unit_options(&job->settings, unit - 1).zero_weights,
               *b = job_unit_options(&job->settings, unit).zero_weights;
    return a == b || (a && b && strcmp(a, b) == 0);
}

/* True if two weights of a kind are in one pack in each of its units. */
static bool always_together(const Job *job, int kind, int a, int b)
{
    for (int u = 0; u < job->model.n_units; u++) {
        if (job->model.unit[u].kind != kind || is_as_before(job, u)) continue;
        if (number_of(job, u, a) != number_of(job, u, b)) return false;
        if ((job->coded[u] >> a & 1) != (job->coded[u] >> b & 1)) return false;
    }
    return true;
}

/* Keeps the GEMMs of weights apart that are not always in one pack. */
static void part_graph(Job *job, int kind)
{
    Graph *g = &job->model.kind[kind];
    for (int i = 0; i < g->n_params; i++) {
        int like = 0;
        while (!always_together(job, kind, like, i)) like++;
        g->param[i].pack = (uint8_t)like;
    }
}

Err job_part_packs(Job *job, Arena *arena)
{
    Model *m = &job->model;
    bool any = false;
    TRY(ARENA_NEW(arena, m->n_units, &job->coded));
    for (int u = 0; u < m->n_units; u++) {
        const char *before = u ? job_fp8_names(job, u - 1) : NULL, *names = job_fp8_names(job, u);
        const bool again = u && m->unit[u - 1].kind == m->unit[u].kind && before == names;
        job->coded[u] = again ? job->coded[u - 1] : coded_of(job, u);
        any = any || job->coded[u] || job_unit_options(&job->settings, u).zero_weights;
    }
    if (!any) return OK;
    for (int k = 0; k < m->n_kinds; k++) part_graph(job, k);
    for (int u = 0; u < m->n_units; u++) {
        const uint64_t joined =
            quantize_joined(&m->kind[m->unit[u].kind], &job->settings.compile.fp8, job->coded[u]);
        for (int k = 0; k < m->unit[u].n_params; k++) {
            Param *p = &m->param[m->unit[u].param[k]];
            if (p->holder[0] != u) continue;
            p->info.pack = number_of(job, u, k);
            p->info.coded = job->settings.compile.fp8.code_weights && job->coded[u] >> k & 1;
            p->info.joined = joined >> k & 1 && number_of(job, u, k - 1) == number_of(job, u, k);
        }
    }
    return model_make_packs(m);
}

int job_pack_zero(const Job *job, int pack)
{
    const Pack *p = &job->model.pack[pack];
    const int number = job->model.param[p->param[0]].info.pack;
    return number > 0 ? number - 1 : job->unit[p->unit].zero;
}
