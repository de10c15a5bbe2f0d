/* layer_rules.c -- parses, checks and applies the rules of keys for some layers. */
#include "cli/config/layer_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const KeyId ruled_keys[] = {
    KEY_parallel_zero,     KEY_parallel_zero_weights, KEY_parallel_recompute, KEY_parallel_offload,
    KEY_parallel_sequence, KEY_parallel_regather,     KEY_parallel_context,   KEY_precision_fp8};
enum { N_RULED = sizeof ruled_keys / sizeof *ruled_keys };

static bool takes_rules(KeyId id)
{
    for (int i = 0; i < N_RULED; i++)
        if (ruled_keys[i] == id) return true;
    return false;
}

/* The part of an item that names units, or NULL. full@0-1 names pipeline stages. */
static const char *units_part(const char *item)
{
    const char *at = strchr(item, '@');
    if (!at) return NULL;
    const bool named = strncmp(at + 1, "layers", 6) == 0 || strcmp(at + 1, "embed") == 0 ||
                       strcmp(at + 1, "head") == 0;
    return named ? at + 1 : NULL;
}

static Err bad_range(const WrittenValue *value, KeyId id, const char *item)
{
    return err_fail(ERR_CONFIG,
                    "%s: %s=%.80s: the part after @ must be layers:0-7, layers:3, embed or head, "
                    "with the first layer first",
                    value->origin, key_at(id)->path, item);
}

/* Parses "layers:0-7"; units are numbered from the embedding on. */
static bool parse_units(const char *text, LayerRule *out)
{
    int first, last, end = 0;
    if (strcmp(text, "embed") == 0 || strcmp(text, "head") == 0) {
        out->first = out->last = *text == 'e' ? 0 : RULE_HEAD;
        return true;
    }
    if (strncmp(text, "layers:", 7) != 0 || strspn(text + 7, "0123456789-") != strlen(text + 7))
        return false;
    if (sscanf(text + 7, "%8d-%8d%n", &first, &last, &end) != 2 || text[7 + end]) {
        if (sscanf(text + 7, "%8d%n", &first, &end) != 1 || text[7 + end]) return false;
        last = first;
    }
    out->first = first + 1;
    out->last = last + 1;
    return first >= 0 && first <= last;
}

/* ERR_CONFIG unless the key takes the value. Patterns are checked when the model is known. */
static Err check_value(KeyId id, const char *origin, const char *text, Arena *a)
{
    Config *scratch;
    const WrittenValue one = {.text = text, .origin = origin};
    const bool patterns = id == KEY_parallel_recompute || id == KEY_parallel_offload ||
                          id == KEY_parallel_zero_weights || id == KEY_precision_fp8;
    const size_t n = strlen(text);
    if (patterns && (n == 0 || *text == '+' || text[n - 1] == '+' || strstr(text, "++")))
        return err_fail(ERR_CONFIG, "%s: %s: a rule without a value; write none", origin,
                        key_at(id)->path);
    if (patterns) return OK;
    TRY(ARENA_NEW(a, 1, &scratch));
    return key_convert(id, &one, a, scratch);
}

static Err add_rule(KeyId id, const WrittenValue *value, const char *item, Arena *a, Config *c)
{
    LayerRule rule = {.key = id, .item = item};
    const char *at = strchr(item, '@');
    char *text;
    if (!parse_units(at + 1, &rule)) return bad_range(value, id, item);
    if (id == KEY_precision_fp8 && (rule.first == 0 || rule.first == RULE_HEAD))
        return err_fail(ERR_CONFIG,
                        "%s: precision.fp8=%.80s: embedding and head have no GEMMs in FP8; name "
                        "layers, as in mlp.*@layers:0-7",
                        value->origin, item);
    if (c->n_layer_rules == MAX_LAYER_RULES)
        return err_fail(ERR_CONFIG, "%s: %s: more than %d rules for layers", value->origin,
                        key_at(id)->path, MAX_LAYER_RULES);
    if (!c->layer_rule) TRY(ARENA_NEW(a, MAX_LAYER_RULES, &c->layer_rule));
    TRY(ARENA_NEW(a, (int64_t)(at - item) + 1, &text));
    memcpy(text, item, (size_t)(at - item));
    rule.value = text;
    TRY(check_value(id, value->origin, text, a));
    c->layer_rule[c->n_layer_rules++] = rule;
    return OK;
}

static void drop_rules(KeyId id, Config *c)
{
    int n = 0;
    for (int i = 0; i < c->n_layer_rules; i++)
        if (c->layer_rule[i].key != id) c->layer_rule[n++] = c->layer_rule[i];
    c->n_layer_rules = n;
}

/* The items without units, joined again; the default if there are none. */
static Err join_rest(KeyId id, const WrittenValue *value, const TextList *items, Arena *a,
                     WrittenValue *rest)
{
    const Key *key = key_at(id);
    Text t = text_in(a);
    int n = 0;
    for (int i = 0; i < items->n; i++) {
        if (units_part(items->at[i])) continue;
        if (n++ > 0 && key->type != KEY_LIST)
            return err_fail(ERR_CONFIG,
                            "%s: %s=%.80s: several values without layers; give one, for all other "
                            "units",
                            value->origin, key->path, value->text);
        text_add(&t, "%s%s", n > 1 ? "," : "", items->at[i]);
    }
    *rest = (WrittenValue){.origin = value->origin};
    if (n == 0) text_add(&t, "%s", key->fallback);
    return text_done(&t, &rest->text);
}

Err layer_rules_take(KeyId id, const WrittenValue *value, Arena *a, Config *c, WrittenValue *rest)
{
    TextList items;
    bool any = false;
    *rest = *value;
    if (!takes_rules(id)) return OK;
    drop_rules(id, c);
    if (!strchr(value->text, '@')) return OK;
    TRY(list_items(key_at(id), value, a, &items));
    for (int i = 0; i < items.n; i++)
        if (units_part(items.at[i])) {
            any = true;
            TRY(add_rule(id, value, items.at[i], a, c));
        }
    return any ? join_rest(id, value, &items, a, rest) : OK;
}

const char *layer_rules_first(const Config *c, KeyId id)
{
    for (int i = 0; i < c->n_layer_rules; i++)
        if (c->layer_rule[i].key == id) return c->layer_rule[i].item;
    return NULL;
}

void layer_rules_print(const Config *c, KeyId id, Text *out)
{
    for (int i = 0; i < c->n_layer_rules; i++)
        if (c->layer_rule[i].key == id) text_add(out, "\"%s\", ", c->layer_rule[i].item);
}

/* "mlp.act+attn.in" as "mlp.act,attn.in". */
static Err patterns_of(const char *value, Arena *a, const char **out)
{
    TRY(arena_string(a, value, out));
    for (char *at = (char *)(uintptr_t)*out; *at; at++)
        if (*at == '+') *at = ',';
    return OK;
}

static Err set_recompute(const char *value, Arena *a, UnitOptions *o)
{
    static const char *const word[] = {"none", "selective", "full"};
    o->recompute = RECOMPUTE_NAMED;
    for (int i = 0; i < 3; i++)
        if (strcmp(value, word[i]) == 0) o->recompute = (Recompute)i;
    o->recompute_names = NULL;
    return o->recompute == RECOMPUTE_NAMED ? patterns_of(value, a, &o->recompute_names) : OK;
}

/* Values were checked when they were read. */
static Err set_option(const LayerRule *rule, Arena *a, UnitOptions *o)
{
    const char *value = rule->value;
    switch (rule->key) {
    case KEY_parallel_zero:
        o->zero = atoi(value);
        return OK;
    case KEY_parallel_sequence:
        o->sequence = strcmp(value, "true") == 0;
        return OK;
    case KEY_parallel_regather:
        o->keep_gathered = strcmp(value, "false") == 0;
        return OK;
    case KEY_parallel_context:
        for (int k = 0; k < N_CONTEXTS; k++)
            if (strcmp(context_name((ContextKind)k), value) == 0) o->context = (ContextKind)k;
        return OK;
    case KEY_parallel_offload:
        o->offload_names = NULL;
        return strcmp(value, "none") == 0 ? OK : patterns_of(value, a, &o->offload_names);
    case KEY_parallel_zero_weights:
        o->zero_weights = NULL;
        return strcmp(value, "none") == 0 ? OK : patterns_of(value, a, &o->zero_weights);
    case KEY_precision_fp8:
        o->fp8_names = NULL;
        return strcmp(value, "none") == 0 ? OK : patterns_of(value, a, &o->fp8_names);
    default:
        return set_recompute(value, a, o);
    }
}

/* The rule that names a unit before rule i does, or NULL. */
static const LayerRule *earlier(const Config *c, int i, int unit, int head)
{
    for (int k = 0; k < i; k++) {
        const LayerRule *rule = &c->layer_rule[k];
        const int first = rule->first == RULE_HEAD ? head : rule->first;
        const int last = rule->last == RULE_HEAD ? head : rule->last;
        if (rule->key == c->layer_rule[i].key && unit >= first && unit <= last) return rule;
    }
    return NULL;
}

static Err apply_rule(const Config *c, int i, const ModelConfig *model, UnitOptions *units)
{
    const LayerRule *rule = &c->layer_rule[i];
    const int head = (int)model->n_layers + 1;
    const int first = rule->first == RULE_HEAD ? head : rule->first;
    const int last = rule->last == RULE_HEAD ? head : rule->last;
    const char *origin = c->origin[rule->key], *path = key_at(rule->key)->path;
    if (rule->first != RULE_HEAD && last > (int)model->n_layers)
        return err_fail(ERR_CONFIG, "%s: %s=%.60s: %s has layers 0 to %lld", origin, path,
                        rule->item, model->name, (long long)model->n_layers - 1);
    for (int u = first; u <= last; u++) {
        const LayerRule *other = earlier(c, i, u, head);
        char unit[32] = "the embedding";
        if (u > 0) snprintf(unit, sizeof unit, u == head ? "the head" : "layer %d", u - 1);
        if (other)
            return err_fail(ERR_CONFIG,
                            "%s: %s: both %.60s and %.60s name %s; give each layer one rule",
                            origin, path, other->item, rule->item, unit);
        TRY(set_option(rule, c->arena, &units[u]));
    }
    return OK;
}

Err layer_rules_apply(const Config *c, const ModelConfig *model, JobSettings *s)
{
    const int n = (int)model->n_layers + 2;
    UnitOptions *units;
    if (c->n_layer_rules == 0) return OK;
    if (s->n_stage_rules)
        return err_fail(ERR_CONFIG,
                        "%s: parallel.recompute has rules for pipeline stages, and %s for layers; "
                        "name the layers of the stages instead",
                        c->origin[KEY_parallel_recompute], key_at(c->layer_rule[0].key)->path);
    TRY(ARENA_NEW(c->arena, n, &units));
    for (int u = 0; u < n; u++) units[u] = job_unit_options(s, u);
    for (int i = 0; i < c->n_layer_rules; i++) TRY(apply_rule(c, i, model, units));
    s->parallel.units = units;
    return OK;
}
