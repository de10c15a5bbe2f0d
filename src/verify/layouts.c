/* layouts.c -- layouts as text. */
#include "verify/layouts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schedule/gen/generate.h"
#include "verify/mixed.h"

static int one_if_none(int n) { return n ? n : 1; }

int layout_ranks(const ParallelSettings *p)
{
    return one_if_none(p->mesh.dp_replicate) * one_if_none(p->mesh.dp_shard) *
           one_if_none(p->mesh.tp) * one_if_none(p->mesh.pp) * one_if_none(p->mesh.cp);
}

__attribute__((format(printf, 2, 3))) static void add_word(char *buffer, const char *format, ...)
{
    const size_t n = strlen(buffer);
    va_list args;
    va_start(args, format);
    if (n) snprintf(buffer + n, LAYOUT_TEXT_BYTES - n, " ");
    vsnprintf(buffer + n + (n > 0), LAYOUT_TEXT_BYTES - n - (n > 0), format, args);
    va_end(args);
}

const char *layout_words(const ParallelSettings *p, char *buffer)
{
    const bool two = p->mesh.dp_replicate > 1;
    buffer[0] = '\0';
    if (two) add_word(buffer, "dp_replicate=%d", p->mesh.dp_replicate);
    if (two) add_word(buffer, "dp_shard=%d", one_if_none(p->mesh.dp_shard));
    if (!two && p->mesh.dp_shard > 1) add_word(buffer, "dp=%d", p->mesh.dp_shard);
    if (p->mesh.cp > 1) add_word(buffer, "cp=%d", p->mesh.cp);
    if (p->mesh.cp_heads) add_word(buffer, "cp_heads=%d", p->mesh.cp_heads);
    if (p->mesh.tp > 1) add_word(buffer, "tp=%d", p->mesh.tp);
    if (p->mesh.pp > 1) add_word(buffer, "pp=%d", p->mesh.pp);
    if (p->mesh.ep > 1) add_word(buffer, "ep=%d", p->mesh.ep);
    if (p->mesh.etp > 1) add_word(buffer, "etp=%d", p->mesh.etp);
    if (p->rounds) add_word(buffer, "rounds");
    if (p->schedule && strcmp(p->schedule, "1f1b") != 0)
        add_word(buffer, "schedule=%s", p->schedule);
    if (p->chunks) add_word(buffer, "chunks=%d", p->chunks);
    if (p->slices) add_word(buffer, "slices=%d", p->slices);
    if (p->group) add_word(buffer, "group=%d", p->group);
    if (p->split && strcmp(p->split, "even") != 0) add_word(buffer, "split=%s", p->split);
    if (p->evict) add_word(buffer, "evict");
    if (p->zero) add_word(buffer, "zero=%d", p->zero);
    if (p->reduce_each && p->zero < 2) add_word(buffer, "reduce=each");
    if (p->sequence) add_word(buffer, "sequence");
    if (p->context) add_word(buffer, "context=%s", context_name(p->context));
    if (p->cp_inner) add_word(buffer, "cp_inner=%d", p->cp_inner);
    if (p->tokens) add_word(buffer, "tokens=%s", token_map_name(p->tokens));
    if (p->mesh.stream_weights) add_word(buffer, "weights=stream");
    if (p->keep_gathered) add_word(buffer, "regather=false");
    if (p->units) add_word(buffer, "mixed");
    if (p->zero_weights) add_word(buffer, "operators");
    if (p->tp_weights) add_word(buffer, "tp_weights");
    if (p->fold > 1) add_word(buffer, "fold=%d", p->fold);
    if (p->live && p->zero == 3) add_word(buffer, "live=%d", p->live);
    return buffer[0] ? buffer : strcpy(buffer, "one rank");
}

/* ---- parsing ---- */

typedef struct {
    const char *name;
    int low, high;
} LayoutKey;

static const LayoutKey keys[] = {
    {"dp_replicate", 1, 4096}, {"dp_shard", 1, 4096}, {"dp", 1, 4096},
    {"tp", 1, 4096},           {"zero", 0, 3},        {"live", 1, 4096},
    {"fold", 1, 4096},         {"pp", 1, 4096},       {"chunks", 1, 4096},
    {"group", 1, 4096},        {"slices", 1, 4096},   {"cp", 1, 4096},
    {"cp_heads", 1, 4096},     {"cp_inner", 1, 4096}, {"ep", 1, 4096},
    {"etp", 1, 4096}};

static void set_key(ParallelSettings *p, const char *name, int value)
{
    if (strcmp(name, "dp_replicate") == 0) p->mesh.dp_replicate = value;
    if (strcmp(name, "dp_shard") == 0 || strcmp(name, "dp") == 0) p->mesh.dp_shard = value;
    if (strcmp(name, "tp") == 0) p->mesh.tp = value;
    if (strcmp(name, "zero") == 0) p->zero = value;
    if (strcmp(name, "live") == 0) p->live = value;
    if (strcmp(name, "fold") == 0) p->fold = value;
    if (strcmp(name, "pp") == 0) p->mesh.pp = value;
    if (strcmp(name, "chunks") == 0) p->chunks = value;
    if (strcmp(name, "group") == 0) p->group = value;
    if (strcmp(name, "slices") == 0) p->slices = value;
    if (strcmp(name, "cp") == 0) p->mesh.cp = value;
    if (strcmp(name, "cp_heads") == 0) p->mesh.cp_heads = value;
    if (strcmp(name, "cp_inner") == 0) p->cp_inner = value;
    if (strcmp(name, "ep") == 0) p->mesh.ep = value;
    if (strcmp(name, "etp") == 0) p->mesh.etp = value;
}

static Err bad_word(const char *word)
{
    return err_fail(
        ERR_CONFIG,
        "layout: \"%s\" is not a word of a layout; the words are dp=N dp_replicate=N "
        "dp_shard=N cp=N cp_heads=N cp_inner=N context=NAME tokens=NAME tp=N pp=N ep=N etp=N "
        "schedule=NAME chunks=N slices=N group=N split=cost evict zero=0..3 live=N fold=N "
        "reduce=each sequence rounds weights=stream regather=false mixed operators tp_weights, "
        "separated by spaces; separate layouts by ;",
        word);
}

static Err parse_schedule(const char *name, ParallelSettings *p)
{
    int n;
    const GeneratorRow *row = schedule_generators(&n);
    for (int i = 0; i < n; i++)
        if (strcmp(row[i].name, name) == 0) return p->schedule = row[i].name, OK;
    return err_fail(ERR_CONFIG,
                    "layout: schedule=%s: there is no such schedule; `sheaf help "
                    "parallel.schedule` lists them",
                    name);
}

static Err parse_context(const char *name, ParallelSettings *p)
{
    for (int i = 0; i < N_CONTEXTS; i++)
        if (strcmp(context_name((ContextKind)i), name) == 0) return p->context = (ContextKind)i, OK;
    return err_fail(ERR_CONFIG,
                    "layout: context=%s: there is no such way; they are auto, gather, ulysses, "
                    "ring, double-ring, lightseq, token-ring, rsa, dsp",
                    name);
}

static Err parse_tokens(const char *name, ParallelSettings *p)
{
    for (int i = 0; i < N_TOKEN_MAPS; i++)
        if (strcmp(token_map_name((TokenMap)i), name) == 0) return p->tokens = (TokenMap)i, OK;
    return err_fail(ERR_CONFIG,
                    "layout: tokens=%s: there is no such map; they are auto, contiguous, zigzag, "
                    "striped",
                    name);
}

static Err parse_word(const char *word, ParallelSettings *p)
{
    const char *equal = strchr(word, '=');
    if (strcmp(word, "sequence") == 0 || strcmp(word, "sequence=true") == 0)
        return p->sequence = true, OK;
    if (strcmp(word, "rounds") == 0) {
        p->rounds = true;
        p->expert_rows = LAYOUT_ROUNDS_ROWS;
        return OK;
    }
    if (strcmp(word, "evict") == 0 || strcmp(word, "evict=true") == 0) return p->evict = true, OK;
    if (strcmp(word, "mixed") == 0) return p->units = &layout_mixed_mark, OK;
    if (strcmp(word, "operators") == 0) return p->zero_weights = layout_operators_mark, OK;
    if (strcmp(word, "tp_weights") == 0) return p->tp_weights = layout_tp_mark, OK;
    if (strcmp(word, "weights=stream") == 0) return p->mesh.stream_weights = true, OK;
    if (strcmp(word, "regather=false") == 0) return p->keep_gathered = true, OK;
    if (strcmp(word, "reduce=each") == 0) return p->reduce_each = true, OK;
    if (strcmp(word, "split=cost") == 0) return p->split = "cost", OK;
    if (strncmp(word, "schedule=", 9) == 0) return parse_schedule(word + 9, p);
    if (strncmp(word, "context=", 8) == 0) return parse_context(word + 8, p);
    if (strncmp(word, "tokens=", 7) == 0) return parse_tokens(word + 7, p);
    for (size_t i = 0; equal && i < sizeof keys / sizeof *keys; i++) {
        char *end;
        const size_t length = strlen(keys[i].name);
        if (length != (size_t)(equal - word) || strncmp(word, keys[i].name, length) != 0) continue;
        const long value = strtol(equal + 1, &end, 10);
        if (*end || end == equal + 1 || value < keys[i].low || value > keys[i].high)
            return err_fail(ERR_CONFIG, "layout: %s: must be a number from %d to %d", word,
                            keys[i].low, keys[i].high);
        set_key(p, keys[i].name, (int)value);
        return OK;
    }
    return bad_word(word);
}

/* True if the key of the word at `at` ("tp" of "tp=2") occurs in an earlier word too. */
static bool is_named_before(const char *text, size_t at, size_t n)
{
    size_t name = strcspn(text + at, "=, ;\t\n");
    if (name > n) name = n;
    for (size_t k = 0; k < at; k += 1 + strcspn(text + k, ", ;\t\n"))
        if (strcspn(text + k, "=, ;\t\n") == name && strncmp(text + k, text + at, name) == 0)
            return true;
    return false;
}

static Err check_tp(const ParallelSettings *p)
{
    if (!p->tp_weights || p->mesh.tp > 1) return OK;
    return err_fail(ERR_CONFIG, "layout: tp_weights: has no effect without tp; add tp=2 or more, "
                                "or remove it");
}

/* Refuses words about cp in a layout without it: they would silently have no effect. */
static Err check_cp(const ParallelSettings *p)
{
    if (p->cp_inner && p->context != CONTEXT_DOUBLE_RING)
        return err_fail(ERR_CONFIG,
                        "layout: cp_inner=%d: has no effect with context=%s; add "
                        "context=double-ring, or remove it",
                        p->cp_inner, context_name(p->context));
    if (p->mesh.cp_heads > 1 && p->mesh.cp <= 1)
        return err_fail(ERR_CONFIG,
                        "layout: cp_heads=%d: has no effect without cp; add cp=2 or more, or "
                        "remove it",
                        p->mesh.cp_heads);
    if (p->mesh.cp > 1 || (!p->context && !p->tokens && !p->mesh.stream_weights)) return OK;
    if (p->mesh.stream_weights)
        return err_fail(ERR_CONFIG,
                        "layout: weights=stream: has no effect without cp; add cp=2 or more, or "
                        "remove it");
    return err_fail(ERR_CONFIG,
                    "layout: %s=%s: has no effect without cp; add cp=2 or more, or remove it",
                    p->context ? "context" : "tokens",
                    p->context ? context_name(p->context) : token_map_name(p->tokens));
}

static Err check_ep(const ParallelSettings *p)
{
    if (!p->rounds || p->mesh.ep > 1) return OK;
    return err_fail(ERR_CONFIG,
                    "layout: rounds: has no effect without ep; add ep=2 or more, or remove it");
}

Err layout_parse(const char *text, size_t length, ParallelSettings *out)
{
    ParallelSettings p = {0};
    for (size_t at = 0; at < length;) {
        char word[64];
        size_t n = strcspn(text + at, ", ;\t\n");
        if (n > length - at) n = length - at;
        snprintf(word, sizeof word, "%.*s", (int)n, text + at);
        if (n && is_named_before(text, at, n))
            return err_fail(ERR_CONFIG, "layout: %s: set twice; remove one of the two", word);
        if (n) TRY(parse_word(word, &p));
        at += n + 1;
    }
    TRY(check_cp(&p));
    TRY(check_ep(&p));
    TRY(check_tp(&p));
    *out = p;
    return OK;
}
