/* plan_layers.c -- reads and writes words of ranges of layers. */
#include "cli/config/plan_layers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

KeyId plan_word_key(int word)
{
    static const KeyId key[N_PLAN_WORDS] = {[WORD_ZERO] = KEY_parallel_zero,
                                            [WORD_WEIGHTS] = KEY_parallel_zero_weights,
                                            [WORD_RECOMPUTE] = KEY_parallel_recompute,
                                            [WORD_OFFLOAD] = KEY_parallel_offload};
    return key[word];
}

/* ---- reading ---- */

/* Reads "7" or "0-7". */
static bool read_range(const char *text, int64_t *first, int64_t *last)
{
    char *end;
    if (*text < '0' || *text > '9') return false;
    *first = *last = strtoll(text, &end, 10);
    if (*end == '-' && end[1] >= '0' && end[1] <= '9') *last = strtoll(end + 1, &end, 10);
    return !*end && *first <= *last && *last < INT32_MAX;
}

/* Checks the value where its line is known: rules for layers have one line for all. */
static Err check_word(const KeyValue *v, int word, const char *text, Arena *a)
{
    Config *scratch;
    if (strchr(text, '@'))
        return err_fail(ERR_CONFIG,
                        "%s: layers %s: \"%.40s\": no @ here; the range stands before the words",
                        v->value.origin, v->name, text);
    TRY(ARENA_NEW(a, 1, &scratch));
    const WrittenValue value = {.text = text, .origin = v->value.origin};
    return key_convert(plan_word_key(word), &value, a, scratch);
}

/* Reads "recompute mlp.* attn.o": the value of the key is "mlp.*,attn.o". */
static Err read_word(const KeyValue *v, const char *item, Arena *a, PlanLayers *out)
{
    const char *names[N_PLAN_WORDS];
    const size_t n = strcspn(item, " ");
    int w = 0;
    for (int i = 0; i < N_PLAN_WORDS; i++) names[i] = key_at(plan_word_key(i))->name;
    while (w < N_PLAN_WORDS && (strlen(names[w]) != n || strncmp(names[w], item, n) != 0)) w++;
    if (w == N_PLAN_WORDS)
        return err_fail(ERR_CONFIG,
                        "%s: layers %s: \"%.40s\": unknown word; a layer has zero, zero_weights, "
                        "recompute and offload, as in [zero 1, recompute selective]",
                        v->value.origin, v->name, item);
    if (!item[n] || !item[n + 1])
        return err_fail(ERR_CONFIG, "%s: layers %s: %s has no value; write one, as in \"%s %s\"",
                        v->value.origin, v->name, names[w], names[w],
                        key_at(plan_word_key(w))->fallback);
    if (out->word[w])
        return err_fail(ERR_CONFIG, "%s: layers %s: %s is given again; keep one", v->value.origin,
                        v->name, names[w]);
    char *value;
    TRY(ARENA_NEW(a, strlen(item) + 1, &value));
    memcpy(value, item + n + 1, strlen(item + n + 1));
    for (char *c = value; *c; c++)
        if (*c == ' ') *c = ',';
    out->word[w] = value;
    return check_word(v, w, value, a);
}

static Err read_words(const KeyValue *v, Arena *a, PlanLayers *out)
{
    const char *at = v->value.text;
    while (*at) {
        const size_t n = strcspn(at, ",");
        char *item;
        TRY(ARENA_NEW(a, n + 1, &item));
        memcpy(item, at, n);
        TRY(read_word(v, item, a, out));
        at += n + (at[n] == ',');
    }
    for (int w = 0; w < N_PLAN_WORDS; w++)
        if (!out->word[w]) out->word[w] = key_at(plan_word_key(w))->fallback;
    return OK;
}

/* Reads the entry of the embedding or the head. */
static Err read_end(const KeyValue *v, Arena *a, PlanLayers *out)
{
    if (out->origin)
        return err_fail(ERR_CONFIG, "%s: layers %s: it is there twice (first: %s); keep one",
                        v->value.origin, v->name, out->origin);
    *out = (PlanLayers){.origin = v->value.origin};
    return read_words(v, a, out);
}

Err plan_layers_read(const KeyValue *v, Arena *a, PlanFile *p)
{
    PlanLayers *l = &p->layers[p->n_layers];
    const int64_t next = p->n_layers ? l[-1].last + 1 : 0;
    if (strcmp(v->name, "embed") == 0) return read_end(v, a, &p->embed);
    if (strcmp(v->name, "head") == 0) return read_end(v, a, &p->head);
    *l = (PlanLayers){.origin = v->value.origin};
    if (!read_range(v->name, &l->first, &l->last))
        return err_fail(ERR_CONFIG,
                        "%s: layers: \"%.40s\" is no range; write one as 0-7, or embed or head",
                        v->value.origin, v->name);
    if (l->first != next)
        return err_fail(ERR_CONFIG,
                        "%s: layers %s: layer %lld is %s; ranges start at 0 and follow each other: "
                        "start this one at %lld",
                        v->value.origin, v->name, (long long)(l->first < next ? l->first : next),
                        l->first < next ? "there twice" : "missing", (long long)next);
    TRY(read_words(v, a, l));
    p->n_layers++;
    return OK;
}

/* Adds ",mlp.*+attn.o@layers:0-7" if the words of the range are not those of the embedding. */
static void add_rule(const char *value, const char *rest, const char *units, Text *out)
{
    if (strcmp(value, rest) == 0) return;
    text_add(out, ",");
    for (const char *c = value; *c; c++) text_add(out, "%c", *c == ',' ? '+' : *c);
    text_add(out, "@%s", units);
}

static Err add_key(PlanFile *p, int word, Arena *a)
{
    const PlanLayers *l = p->layers;
    const Key *key = key_at(plan_word_key(word));
    const char *rest = (p->embed.origin ? &p->embed : &l[0])->word[word], *origin = NULL;
    Text t = text_in(a);
    text_add(&t, "%s", rest);
    for (int i = 0, end; i < p->n_layers; i = end) {
        char units[64];
        for (end = i + 1; end < p->n_layers; end++)
            if (strcmp(l[i].word[word], l[end].word[word]) != 0) break;
        snprintf(units, sizeof units, "layers:%lld-%lld", (long long)l[i].first,
                 (long long)l[end - 1].last);
        add_rule(l[i].word[word], rest, units, &t);
        if (!origin || strcmp(l[i].word[word], rest) != 0) origin = l[i].origin;
    }
    add_rule((p->head.origin ? &p->head : &l[p->n_layers - 1])->word[word], rest, "head", &t);
    KeyValue *to = &p->at[p->n++];
    *to = (KeyValue){.section = key->section, .name = key->name, .value = {.origin = origin}};
    return text_done(&t, &to->value.text);
}

Err plan_layers_keys(PlanFile *p, Arena *a)
{
    for (int w = 0; w < N_PLAN_WORDS; w++) TRY(add_key(p, w, a));
    return OK;
}

/* ---- writing ---- */

/* The rule of a key for a unit, or NULL. The head's unit is RULE_HEAD. */
static const LayerRule *rule_of(const Config *c, KeyId key, int unit)
{
    for (int i = 0; i < c->n_layer_rules; i++) {
        const LayerRule *r = &c->layer_rule[i];
        const bool head = r->first == RULE_HEAD;
        if (r->key != key) continue;
        if (head ? unit == RULE_HEAD : unit >= r->first && unit <= r->last) return r;
    }
    return NULL;
}

/* A value of a list: items are joined by + in a rule, by commas elsewhere. */
static void add_items(const char *value, Text *out)
{
    for (const char *c = value; *c; c++) text_add(out, "%c", *c == '+' || *c == ',' ? ' ' : *c);
}

static const TextList *list_of(const Config *c, int word)
{
    if (word == WORD_WEIGHTS) return &c->parallel_zero_weights;
    return word == WORD_OFFLOAD ? &c->parallel_offload : &c->parallel_recompute;
}

static void add_value(const Config *c, int word, int unit, Text *out)
{
    const LayerRule *rule = rule_of(c, plan_word_key(word), unit);
    if (rule)
        add_items(rule->value, out);
    else if (word == WORD_ZERO)
        text_add(out, "%lld", (long long)c->parallel_zero);
    else
        add_items(list_of(c, word)->text, out);
}

/* "[zero 1, recompute mlp.* attn.o]"; the words for single weights and for offload only if there
 * are any. */
static Err words_text(const Config *c, int unit, Arena *temp, const char **out)
{
    const char *value[N_PLAN_WORDS];
    for (int w = 0; w < N_PLAN_WORDS; w++) {
        Text one = text_in(temp);
        add_value(c, w, unit, &one);
        TRY(text_done(&one, &value[w]));
    }
    Text t = text_in(temp);
    for (int w = 0; w < N_PLAN_WORDS; w++) {
        const bool always = w == WORD_ZERO || w == WORD_RECOMPUTE;
        if (always || strcmp(value[w], "none") != 0)
            text_add(&t, "%s%s %s", w ? ", " : "[", key_at(plan_word_key(w))->name, value[w]);
    }
    text_add(&t, "]");
    return text_done(&t, out);
}

Err plan_layers_text(const Config *c, int64_t n_layers, Arena *temp, Text *out)
{
    const char **words, *embed, *head;
    TRY(ARENA_NEW(temp, n_layers, &words));
    TRY(words_text(c, 0, temp, &embed));
    TRY(words_text(c, RULE_HEAD, temp, &head));
    for (int64_t i = 0; i < n_layers; i++) TRY(words_text(c, (int)i + 1, temp, &words[i]));
    text_add(out, "layers:\n");
    if (strcmp(embed, words[0]) != 0) text_add(out, "  embed: %s\n", embed);
    for (int64_t i = 0, end; i < n_layers; i = end) {
        for (end = i + 1; end < n_layers && strcmp(words[i], words[end]) == 0;) end++;
        text_add(out, "  %lld-%lld: %s\n", (long long)i, (long long)end - 1, words[i]);
    }
    if (strcmp(head, words[n_layers - 1]) != 0) text_add(out, "  head: %s\n", head);
    return OK;
}
