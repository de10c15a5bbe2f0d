/* names.c -- patterns against the names of values. A pattern that matches nothing is a user's
 * mistake, and is reported before anything runs. */
#include "compile/names.h"

#include <stdio.h>
#include <string.h>
#include "base/text.h"

typedef struct {
    const char *at;
    int length;
} NamePattern;

bool names_all_but(const char *patterns) { return patterns && strncmp(patterns, "full,", 5) == 0; }

/* Reads the pattern at *rest, without the sign of an exception; *rest moves behind it. Returns
 * false past the last. */
static bool next_pattern(const char **rest, NamePattern *one)
{
    if (names_all_but(*rest)) *rest += 5;
    if (!*rest || !**rest) return false;
    *one = (NamePattern){*rest, (int)strcspn(*rest, ",")};
    *rest += one->length + ((*rest)[one->length] == ',');
    if (*one->at == '-') *one = (NamePattern){one->at + 1, one->length - 1};
    return true;
}

/* ERR_CONFIG unless all items have the sign of an exception, or none. */
static Err check_signs(const char *key, const char *patterns)
{
    const bool but = names_all_but(patterns);
    if (but && !strstr(key, "parallel.recompute")) /* behind the file and line of the key */
        return err_fail(ERR_CONFIG, "%s=%.80s: has no exceptions; list the values", key, patterns);
    for (const char *at = but ? patterns + 5 : patterns; at && *at;) {
        const int length = (int)strcspn(at, ",");
        if ((*at == '-') != but)
            return err_fail(ERR_CONFIG,
                            "%s=%.*s: exceptions follow full: full,-attn.out,-attn.lse recomputes "
                            "all but these values, and then every item has a minus",
                            key, length < 80 ? length : 80, at);
        at += length + (at[length] == ',');
    }
    return OK;
}

static bool matches(NamePattern one, const char *name)
{
    return *name && text_glob_part(one.at, (size_t)one.length, name);
}

/* The length that a message shows. */
static int shown(NamePattern one) { return one.length < 80 ? one.length : 80; }

bool names_listed(const char *patterns, const char *name)
{
    NamePattern one;
    for (const char *rest = patterns; next_pattern(&rest, &one);)
        if (matches(one, name)) return true;
    return false;
}

/* True if the pattern matches the name, or that of the value whose copy in 8 bits it is. */
static bool matches_copy(NamePattern one, const char *name)
{
    char plain[128]; /* as long as names may be */
    const char *suffix = strstr(name, ".fp8");
    if (matches(one, name)) return true;
    snprintf(plain, sizeof plain, "%.*s", suffix ? (int)(suffix - name) : 0, name);
    return suffix && matches(one, plain);
}

bool names_listed_copy(const char *patterns, const char *name)
{
    NamePattern one;
    for (const char *rest = patterns; next_pattern(&rest, &one);)
        if (matches_copy(one, name)) return true;
    return false;
}

/* Collects the names that a pattern may match in `name`, unless it is NULL; returns their number. A
 * head has no backward phases and keeps nothing. */
static int collect(const Graph *kind, int n_kinds, const char **name)
{
    int n = 0;
    for (int k = 0; k < n_kinds; k++) {
        if (graph_find(&kind[k], ROLE_Y) == NO_VALUE) continue;
        for (Value v = 0; v < kind[k].n_values; v++) {
            if (kind[k].value[v].role != ROLE_LOCAL || !*kind[k].value[v].name) continue;
            if (name) name[n] = kind[k].value[v].name;
            n++;
        }
    }
    return n;
}

static Err no_match(const char *key, NamePattern one, const char *const *name, int n, Arena *temp)
{
    const char *list, *pattern;
    Text t = text_in(temp);
    text_add(&t, "%.*s", shown(one), one.at);
    TRY(text_done(&t, &pattern));
    const char *near = text_nearest(pattern, name, n);
    t = text_in(temp);
    for (int i = 0; i < n; i++) {
        int same = 0; /* units of two kinds may have values of one name */
        while (same < i && strcmp(name[same], name[i]) != 0) same++;
        if (same == i) text_add(&t, "%s%s", i ? ", " : "", name[i]);
    }
    TRY(text_done(&t, &list));
    return err_fail(ERR_CONFIG, "%s=%s: matches no value of any unit%s%s%s; there are %s", key,
                    pattern, near ? "; did you mean " : "", near ? near : "", near ? "?" : "",
                    list);
}

Err names_check(const char *key, const char *patterns, const Graph *kind, int n_kinds, Arena *temp)
{
    const int n = collect(kind, n_kinds, NULL);
    const char **name;
    TRY(ARENA_NEW(temp, n + 1, &name));
    collect(kind, n_kinds, name);
    return names_check_in(key, patterns, name, n, temp);
}

Err names_check_in(const char *key, const char *patterns, const char *const *name, int n,
                   Arena *temp)
{
    NamePattern one;
    TRY(check_signs(key, patterns));
    for (const char *rest = patterns; next_pattern(&rest, &one);) {
        bool found = false;
        for (int i = 0; i < n; i++) found = found || matches(one, name[i]);
        if (!found) return no_match(key, one, name, n, temp);
    }
    return OK;
}

static bool same_dims(const ProgTensor *a, const ProgTensor *b)
{
    bool same = a->ndim == b->ndim;
    for (int i = 0; same && i < a->ndim; i++) same = dim_same(a->dim[i], b->dim[i]);
    return same;
}

/* True if `copy` is the name that recompute gives to the copy of `name`. */
static bool is_copy(const char *copy, const char *name)
{
    const size_t n = strlen(name);
    return strncmp(copy, name, n) == 0 && strcmp(copy + n, "'") == 0;
}

/* True if recomputed instructions make parts of the copy of tensor t: t is a join. */
static bool has_recomputed_parts(const Program *p, int32_t t)
{
    for (int32_t c = 0; c < p->n_tensors; c++) {
        if (!is_copy(p->tensor[c].name, p->tensor[t].name)) continue;
        for (int i = p->first[PHASE_I]; i < p->first[PHASE_B]; i++)
            for (int k = 0; k < p->instr[i].n_out && p->instr[i].recomputed; k++)
                if (p->tensor[p->instr[i].out[k]].view_of == p->tensor[c].view_of) return true;
    }
    return false;
}

/* True if the instruction that makes tensor t is recomputed. Its copy has a derived name. For a
 * part of an unnamed value (q of q, k and v) the op decides, since no other has that shape. */
static bool is_recomputed(const Program *p, int32_t t)
{
    const Instr *maker = NULL;
    for (int i = p->first[PHASE_F]; i < p->first[PHASE_I]; i++)
        for (int k = 0; k < p->instr[i].n_out; k++)
            if (p->instr[i].out[k] == p->tensor[t].shows) maker = &p->instr[i];
    if (!maker) return has_recomputed_parts(p, t);
    for (int i = p->first[PHASE_I]; maker && i < p->first[PHASE_B]; i++) {
        const Instr *in = &p->instr[i];
        for (int k = 0; k < in->n_out && in->recomputed; k++)
            if (is_copy(p->tensor[in->out[k]].name, p->tensor[t].name)) return true;
        if (in->recomputed && in->op == maker->op && in->n_out == maker->n_out &&
            same_dims(&p->tensor[in->out[0]], &p->tensor[maker->out[0]]))
            return true;
    }
    return false;
}

/* True if t is made in F and read by a backward phase under this name. */
static bool is_kept(const Program *p, int t)
{
    const uint8_t region = p->tensor[t].at[SPLIT].region;
    if (!*p->tensor[t].name || (region != REGION_FRAME_I && region != REGION_FRAME_W)) return false;
    for (int i = p->first[PHASE_I]; i < p->first[PHASE_B]; i++)
        for (int k = 0; k < p->instr[i].n_in; k++)
            if (p->instr[i].in[k] == t) return true;
    return false;
}

/* True if t is made by an op that is never computed again. */
static bool is_routed(const Program *p, int32_t t)
{
    for (int i = p->first[PHASE_F]; i < p->first[PHASE_I]; i++)
        for (int k = 0; k < p->instr[i].n_out; k++)
            if (p->instr[i].out[k] == p->tensor[t].shows)
                return op_info(p->instr[i].op)->class == CLASS_ROUTE;
    return false;
}

/* True if the pattern matches a result of a router. */
static bool names_routed(const NamesTarget *target, NamePattern one)
{
    for (int k = 0; k < target->n; k++)
        for (int t = 0; t < target->program[k].n_tensors; t++)
            if (matches(one, target->program[k].tensor[t].name) &&
                is_kept(&target->program[k], t) && is_routed(&target->program[k], t))
                return true;
    return false;
}

/* An exception has an effect if the value is kept. */
static bool has_effect(const Program *p, NamePattern one, NamesEffect effect, bool but)
{
    for (int i = 0; i < p->n_instr && effect == NAMES_OFFLOAD; i++)
        if (p->instr[i].op == OP_copy_out && matches_copy(one, p->tensor[p->instr[i].in[0]].name))
            return true;
    for (int t = 0; t < p->n_tensors && effect == NAMES_RECOMPUTED; t++)
        if (matches_copy(one, p->tensor[t].name) && (but ? is_kept(p, t) : is_recomputed(p, t)))
            return true;
    return false;
}

/* The length of the name that a pattern names: of mlp.in in mlp.in.fp8.t. */
static int plain_length(const char *name)
{
    const char *suffix = strstr(name, ".fp8");
    return suffix ? (int)(suffix - name) : (int)strlen(name);
}

/* True if a kept tensor before t has its plain name. */
static bool is_listed(const Program *p, int t)
{
    const int n = plain_length(p->tensor[t].name);
    for (int i = 0; i < t; i++)
        if (plain_length(p->tensor[i].name) == n &&
            strncmp(p->tensor[i].name, p->tensor[t].name, (size_t)n) == 0 && is_kept(p, i))
            return true;
    return false;
}

/* The names of all kept values that the effect may change, each after a space: " mlp.act mid". */
static Err list_kept(const NamesTarget *target, NamesEffect effect, Arena *temp, const char **out)
{
    Text t = text_in(temp);
    for (int k = 0; k < target->n; k++) {
        const Program *p = &target->program[k];
        for (int i = 0; i < p->n_tensors; i++)
            if (is_kept(p, i) && !is_listed(p, i) &&
                !(effect == NAMES_RECOMPUTED && is_routed(p, i)))
                text_add(&t, " %.*s", plain_length(p->tensor[i].name), p->tensor[i].name);
    }
    return text_done(&t, out);
}

Err names_check_effect(const char *key, const char *patterns, NamesEffect effect,
                       const NamesTarget *target, Arena *temp)
{
    NamePattern one;
    for (const char *rest = patterns; next_pattern(&rest, &one);) {
        const char *list;
        bool found = false;
        for (int k = 0; k < target->n; k++)
            found = found || has_effect(&target->program[k], one, effect, names_all_but(patterns));
        if (found) continue;
        TRY(list_kept(target, effect, temp, &list));
        if (!*list)
            return err_fail(ERR_CONFIG,
                            "%s=%.*s: with parallel.recompute=%.80s nothing is kept for the "
                            "backward phases, so it would change nothing; remove one of the two",
                            key, shown(one), one.at, target->recompute);
        if (effect == NAMES_RECOMPUTED && names_routed(target, one))
            return err_fail(
                ERR_CONFIG,
                "%s=%.*s: what a router chooses is kept, as other experts might be chosen again, "
                "so it would change nothing; remove it; others that are kept:%s",
                key, shown(one), one.at, list);
        return err_fail(
            ERR_CONFIG,
            "%s=%.*s: no value of that name is kept for the backward phases, so it would change "
            "nothing; kept are:%s",
            key, shown(one), one.at, list);
    }
    return OK;
}
