/* choice.c -- between keys and points: choices that arguments fix, and the configuration of a
 * point. */
#include <stdio.h>
#include <string.h>

#include "cli/config/layer_rules.h"
#include "cli/config/mesh.h"
#include "cli/plan/plan.h"

static bool is_argument(const Config *c, KeyId key)
{
    return strcmp(c->origin[key], "command line") == 0;
}

/* Keys of mesh, batch and parallel that the search chooses. */
static const KeyId searched[] = {KEY_mesh_dp,           KEY_mesh_tp,
                                 KEY_mesh_cp,           KEY_mesh_pp,
                                 KEY_mesh_dp_replicate, KEY_mesh_ep,
                                 KEY_mesh_etp,          KEY_batch_micro,
                                 KEY_parallel_zero,     KEY_parallel_recompute,
                                 KEY_parallel_sequence, KEY_parallel_tp_weights,
                                 KEY_parallel_context,  KEY_parallel_schedule,
                                 KEY_parallel_chunks,   KEY_parallel_split};
enum { N_SEARCHED = sizeof searched / sizeof *searched };

/* Keys that the plan takes from the run as they are. */
static const KeyId kept[] = {KEY_parallel_live,    KEY_parallel_regather,    KEY_parallel_tokens,
                             KEY_parallel_offload, KEY_parallel_expert_rows, KEY_parallel_overflow};
enum { N_KEPT = sizeof kept / sizeof *kept };

static bool is_among(KeyId key, const KeyId *list, int n)
{
    for (int i = 0; i < n; i++)
        if (list[i] == key) return true;
    return false;
}

static Err fix_recompute(const Config *c, PlanFixed *f)
{
    static const char *const word[] = {"none", "selective", "full"};
    const TextList *list = &c->parallel_recompute;
    for (int i = 0; i < 3 && list->n == 1; i++)
        if (strcmp(list->at[0], word[i]) == 0) f->recompute = i;
    if (f->recompute >= 0) return OK;
    return err_fail(ERR_CONFIG,
                    "parallel.recompute=%.80s: a search fixes none, selective or full; names of "
                    "values and rules are not in its space",
                    list->text);
}

static Err fix_split(const Config *c, PlanFixed *f)
{
    f->by_cost = strcmp(c->parallel_split, "cost") == 0;
    if (f->by_cost || strcmp(c->parallel_split, "even") == 0) return OK;
    return err_fail(ERR_CONFIG,
                    "parallel.split=%.80s: a search fixes even or cost; numbers of layers are not "
                    "in its space",
                    c->parallel_split);
}

static Err fix_schedule(const Config *c, PlanFixed *f)
{
    f->schedule = c->parallel_schedule;
    if (plan_has_schedule(f->schedule)) return OK;
    return err_fail(ERR_CONFIG,
                    "parallel.schedule=%.80s: a search fixes 1f1b, interleaved, gpipe, bfs, zbh1, "
                    "zbh2, izb, zbv or dualpipev; others are not in its space",
                    f->schedule);
}

static Err fix_context(const Config *c, PlanFixed *f)
{
    const ContextKind kind = (ContextKind)(c->parallel_context - CONTEXT_BY_AUTO);
    f->context = kind == CONTEXT_AUTO ? -1 : (int)kind;
    if (kind == CONTEXT_AUTO || kind == CONTEXT_GATHER || kind == CONTEXT_RING ||
        kind == CONTEXT_ULYSSES)
        return OK;
    return err_fail(ERR_CONFIG,
                    "parallel.context=%s: a search fixes gather, ring or ulysses; others are not "
                    "in its space",
                    context_name(kind));
}

/* Rules are those of all plans, which have the run's tp then. */
static Err fix_tp(const Config *c, PlanFixed *f)
{
    const char *text = c->parallel_tp_weights.text;
    f->tp_search = config_searches_tp(c);
    f->tp_weights = NULL;
    if (f->tp_search || strcmp(text, "megatron") == 0) return OK;
    if (f->tp <= 1)
        return err_fail(ERR_CONFIG,
                        "parallel.tp_weights=%.80s: a search fixes rules for one number of ranks "
                        "along tp; set mesh.tp too, or parallel.tp_weights=megatron or search",
                        text);
    f->tp_weights = text;
    return OK;
}

static Err fix_key(const Config *c, KeyId key, PlanFixed *f)
{
    switch (key) {
    case KEY_mesh_dp:
        f->dp = c->dp_follows ? 0 : (int)c->mesh_dp;
        return OK;
    case KEY_mesh_tp:
        f->tp = (int)c->mesh_tp;
        return OK;
    case KEY_mesh_cp:
        f->cp = (int)c->mesh_cp;
        return OK;
    case KEY_mesh_pp:
        f->pp = (int)c->mesh_pp;
        return OK;
    case KEY_mesh_dp_replicate:
        f->dp_replicate = (int)c->mesh_dp_replicate;
        return OK;
    case KEY_mesh_ep:
        f->ep = (int)c->mesh_ep;
        return OK;
    case KEY_mesh_etp:
        f->etp = (int)c->mesh_etp;
        return OK;
    case KEY_batch_micro:
        f->micro = c->batch_micro;
        return OK;
    case KEY_parallel_zero:
        f->zero = (int)c->parallel_zero;
        return OK;
    case KEY_parallel_recompute:
        return fix_recompute(c, f);
    case KEY_parallel_sequence:
        f->sequence = c->parallel_sequence;
        return OK;
    case KEY_parallel_tp_weights:
        return fix_tp(c, f);
    case KEY_parallel_context:
        return fix_context(c, f);
    case KEY_parallel_schedule:
        return fix_schedule(c, f);
    case KEY_parallel_chunks:
        f->chunks = (int)c->parallel_chunks;
        return OK;
    case KEY_parallel_split:
        return fix_split(c, f);
    default:
        return OK;
    }
}

/* Plans are uniform: a rule for layers would be lost without a word. */
static Err refuse_rules(const Config *c, KeyId key, const char *origin)
{
    const char *rule = layer_rules_first(c, key);
    if (!rule) return OK;
    return err_fail(ERR_CONFIG,
                    "%s: %s=%.80s: values for single layers are not in the space of a search; give "
                    "one value, or leave it out",
                    origin, key_at(key)->path, rule);
}

/* Levels of single weights are an outcome of the search over layers that differ. */
static Err by_weight(const char *key)
{
    return err_fail(ERR_CONFIG,
                    "%s: the search chooses the weights and their levels together, and takes none "
                    "as given; leave it out, and change the plan file afterwards",
                    key);
}

Err plan_fixed_of(const Config *c, PlanFixed *out)
{
    *out = plan_fixed_none();
    out->keeps_offload = is_argument(c, KEY_parallel_offload);
    for (int k = 0; k < N_KEYS; k++) {
        const KeyId key = (KeyId)k;
        if (is_argument(c, key) || is_among(key, kept, N_KEPT))
            TRY(refuse_rules(c, key, c->origin[key]));
        if (!plan_decides(key) || !is_argument(c, key) || is_among(key, kept, N_KEPT)) continue;
        if (key == KEY_parallel_zero_weights) return by_weight("parallel.zero_weights");
        if (!is_among(key, searched, N_SEARCHED))
            return err_fail(ERR_CONFIG,
                            "%s: the search does not choose it, and plans have its default; leave "
                            "it out, and add it to the plan file afterwards",
                            key_at(key)->path);
        TRY(fix_key(c, key, out));
    }
    if (strcmp(c->parallel_offload.text, "none") == 0 || out->recompute == RECOMPUTE_NONE)
        return OK;
    return err_fail(ERR_CONFIG,
                    "parallel.offload=%.80s: a search over recomputation has plans that keep "
                    "nothing to offload; set parallel.recompute=none too, or leave it out",
                    c->parallel_offload.text);
}

/* The axis along which several ranks give the key an effect: other plans are no answer. */
static void need_axis(KeyId key, PlanFixed *f)
{
    f->over_cp = f->over_cp || key == KEY_parallel_context;
    f->over_tp = f->over_tp || key == KEY_parallel_tp_weights;
    f->over_pp = f->over_pp || key == KEY_parallel_schedule || key == KEY_parallel_chunks ||
                 key == KEY_parallel_split;
}

static Err refuse_free(const Config *c, KeyId key, const char *setting)
{
    if (key == KEY_parallel_context && c->parallel_context == CONTEXT_BY_AUTO)
        return err_fail(ERR_CONFIG,
                        "--explain-choice %.80s: auto is what the search chooses; give gather, "
                        "ring or ulysses",
                        setting);
    if (key == KEY_mesh_dp && c->mesh_dp < 1)
        return err_fail(ERR_CONFIG, "--explain-choice %.80s: give a number of ranks from 1 on",
                        setting);
    return OK;
}

Err plan_fix(const char *setting, Arena *a, PlanFixed *f)
{
    char section[64] = "", name[64] = "";
    const char *equals = strchr(setting, '=');
    int end = 0;
    Config *c;
    if (!equals || sscanf(setting, "%63[a-z_].%63[a-z_]%n", section, name, &end) != 2 ||
        setting[end] != '=')
        return err_fail(ERR_CONFIG, "--explain-choice %.80s: must be KEY=VALUE, as mesh.tp=4",
                        setting);
    const int key = key_find(section, name);
    if (key < 0) return key_unknown("--explain-choice", section, name);
    if (key == KEY_parallel_zero_weights)
        return by_weight("--explain-choice parallel.zero_weights");
    if (!is_among((KeyId)key, searched, N_SEARCHED))
        return err_fail(ERR_CONFIG,
                        "--explain-choice %.80s: the search does not choose this key; docs/PLAN.md "
                        "lists those that it chooses",
                        setting);
    TRY(ARENA_NEW(a, 1, &c));
    const WrittenValue value = {.text = equals + 1, .origin = "--explain-choice"};
    TRY(key_set((KeyId)key, &value, a, c));
    TRY(refuse_rules(c, (KeyId)key, value.origin));
    TRY(refuse_free(c, (KeyId)key, setting));
    need_axis((KeyId)key, f);
    return fix_key(c, (KeyId)key, f);
}

/* ---- the configuration of a point ---- */

static Err set_text(KeyId key, Arena *a, Config *c, const char *text)
{
    const char *copy;
    TRY(arena_string(a, text, &copy));
    return key_set(key, &(WrittenValue){.text = copy, .origin = "plan"}, a, c);
}

static Err set_number(KeyId key, Arena *a, Config *c, int64_t n)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)n);
    return set_text(key, a, c, text);
}

static Err set_mesh(const PlanPoint *p, Arena *a, Config *c)
{
    if (p->mesh.dp_replicate > 1) {
        TRY(set_number(KEY_mesh_dp_replicate, a, c, p->mesh.dp_replicate));
        TRY(set_number(KEY_mesh_dp_shard, a, c, p->mesh.dp_shard));
    } else {
        TRY(set_number(KEY_mesh_dp, a, c, plan_dp(p)));
    }
    if (p->mesh.ep > 1) {
        TRY(set_number(KEY_mesh_ep, a, c, p->mesh.ep));
        TRY(set_number(KEY_mesh_etp, a, c, p->mesh.etp));
    } else { /* rows of experts stay on their rank: they never lack room */
        TRY(set_text(KEY_parallel_overflow, a, c, "error"));
    }
    TRY(set_number(KEY_mesh_tp, a, c, p->mesh.tp));
    TRY(set_number(KEY_mesh_cp, a, c, p->mesh.cp));
    TRY(set_number(KEY_mesh_pp, a, c, p->mesh.pp));
    return set_number(KEY_batch_micro, a, c, p->micro);
}

/* Adds the value of a rule: + joins what commas join elsewhere. */
static void add_rule(const char *value, Text *t)
{
    text_add(t, ",");
    for (const char *at = value; *at; at++) text_add(t, "%c", *at == ',' ? '+' : *at);
}

/* "3,1@layers:0-4,2@layers:5-7,0@head": the words of a key for all units, the embedding's first. */
static Err unit_values(const UnitOptions *unit, int n, const char *(*word)(const UnitOptions *o),
                       Arena *a, const char **out)
{
    Text t = text_in(a);
    text_add(&t, "%s", word(&unit[0]));
    for (int u = 1, end; u < n - 1; u = end) {
        for (end = u + 1; end < n - 1 && strcmp(word(&unit[u]), word(&unit[end])) == 0;) end++;
        if (strcmp(word(&unit[u]), word(&unit[0])) == 0) continue;
        add_rule(word(&unit[u]), &t);
        text_add(&t, "@layers:%d-%d", u - 1, end - 2);
    }
    if (strcmp(word(&unit[n - 1]), word(&unit[0])) != 0) {
        add_rule(word(&unit[n - 1]), &t);
        text_add(&t, "@head");
    }
    return text_done(&t, out);
}

static const char *zero_word(const UnitOptions *o)
{
    static const char *const word[] = {"0", "1", "2", "3"};
    return word[o->zero];
}

static const char *offload_word(const UnitOptions *o)
{
    return o->offload_names ? o->offload_names : "none";
}

static const char *weights_word(const UnitOptions *o)
{
    return o->zero_weights ? o->zero_weights : "none";
}

static bool parts_weights(const PlanPoint *p)
{
    for (int u = 0; u < p->n_units; u++)
        if (p->unit[u].zero_weights) return true;
    return false;
}

static bool offloads(const PlanPoint *p)
{
    for (int u = 0; u < p->n_units; u++)
        if (p->unit[u].offload_names) return true;
    return false;
}

static Err set_units(const PlanPoint *p, Arena *a, Config *c)
{
    const char *zero, *recompute;
    TRY(unit_values(p->unit, p->n_units, zero_word, a, &zero));
    TRY(unit_values(p->unit, p->n_units, job_recompute_text, a, &recompute));
    if (offloads(p)) {
        const char *offload;
        TRY(unit_values(p->unit, p->n_units, offload_word, a, &offload));
        TRY(set_text(KEY_parallel_offload, a, c, offload));
    }
    if (parts_weights(p)) {
        const char *weights;
        TRY(unit_values(p->unit, p->n_units, weights_word, a, &weights));
        TRY(set_text(KEY_parallel_zero_weights, a, c, weights));
    }
    TRY(set_text(KEY_parallel_zero, a, c, zero));
    return set_text(KEY_parallel_recompute, a, c, recompute);
}

Err plan_config_of(const Config *base, const PlanPoint *p, Arena *a, Config *out)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    Config c = *base;
    for (int k = 0; k < N_KEYS; k++)
        if (plan_decides((KeyId)k) && !is_among((KeyId)k, kept, N_KEPT))
            TRY(key_set((KeyId)k, &(WrittenValue){key_at((KeyId)k)->fallback, .origin = "default"},
                        a, &c));
    TRY(set_mesh(p, a, &c));
    if (p->unit) {
        TRY(set_units(p, a, &c));
    } else {
        TRY(set_number(KEY_parallel_zero, a, &c, p->zero));
        TRY(set_text(KEY_parallel_recompute, a, &c, recompute[p->recompute]));
    }
    TRY(set_text(KEY_parallel_sequence, a, &c, p->sequence ? "true" : "false"));
    if (p->tp_weights) TRY(set_text(KEY_parallel_tp_weights, a, &c, p->tp_weights));
    if (p->mesh.cp > 1) TRY(set_text(KEY_parallel_context, a, &c, context_name(p->context)));
    if (p->mesh.cp == 1) TRY(set_text(KEY_parallel_tokens, a, &c, "auto"));
    if (p->mesh.pp > 1) {
        TRY(set_text(KEY_parallel_schedule, a, &c, p->schedule));
        if (p->chunks) TRY(set_number(KEY_parallel_chunks, a, &c, p->chunks));
        const char *split = p->split ? p->split : p->by_cost ? "cost" : "even";
        TRY(set_text(KEY_parallel_split, a, &c, split));
    }
    c.run_ranks = 0;
    TRY(config_settle_mesh(&c));
    *out = c;
    return OK;
}
