/* pretoken_pattern.c -- translates patterns from Oniguruma's syntax to PCRE2's.
 *
 *     \s*[\r\n]+| ?[^\s\p{L}]+
 *     -->  [\x{9}-\x{d}...]*[\r\n]+| ?[^\x{9}-\x{d}...\x{41}-\x{5a}...]+
 *
 * Works character by character. Syntax with the same meaning in both is copied. Syntax that
 * differs, or that is not known to agree, is an error. */
#include <stdio.h>
#include <string.h>
#include "base/text.h"
#include "data/pretoken.h"

typedef struct {
    const char *where, *source;
    const char *at;
    Arena temp; /* ranges of categories */
    Text *out;
    bool in_class, any_case;
    int depth, case_depth; /* of groups; of the group in which any_case began */
} PatternTranslator;

static Err refuse(const PatternTranslator *r, size_t n, const char *why)
{
    return err_fail(ERR_CONFIG,
                    "%s: the pattern %.200s has \"%.*s\" at byte %lld: %s; the official tokenizers "
                    "library may read it",
                    r->where, r->source, (int)n, r->at, (long long)(r->at - r->source), why);
}

static void put_ranges(PatternTranslator *r, const uint32_t (*range)[2], int n)
{
    if (!r->in_class) text_add(r->out, "[");
    for (int i = 0; i < n; i++)
        text_add(r->out, "\\x{%lx}-\\x{%lx}", (unsigned long)range[i][0],
                 (unsigned long)range[i][1]);
    if (!r->in_class) text_add(r->out, "]");
}

/* \s and \S: the property White_Space. */
static void put_space(PatternTranslator *r, bool outside)
{
    static const uint32_t in[][2] = {
        {0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
    enum { N = sizeof in / sizeof *in };
    uint32_t out[N + 1][2] = {{0, 0}};
    for (int i = 0; i < N; i++) out[i][1] = in[i][0] - 1, out[i + 1][0] = in[i][1] + 1;
    out[N][1] = UNICODE_CODES - 1;
    if (outside)
        put_ranges(r, (const uint32_t(*)[2])out, N + 1);
    else
        put_ranges(r, in, N);
}

static Err put_category(PatternTranslator *r, const char *name, bool outside, size_t length)
{
    uint32_t(*range)[2];
    int n;
    TRY(unicode_ranges(name, outside, &r->temp, &range, &n));
    if (n == 0) return refuse(r, length, "not a known general category of characters");
    put_ranges(r, (const uint32_t(*)[2])range, n);
    r->at += length;
    return OK;
}

/* \p{L}, \P{L}, \p{^L} */
static Err put_property(PatternTranslator *r)
{
    char name[8];
    const bool not = r->at[2] == '{' && r->at[3] == '^';
    const char *from = r->at + 3 + not, *end = r->at[2] == '{' ? strchr(from, '}') : NULL;
    if (!end) return refuse(r, 2, "a property is written \\p{Name}");
    const size_t length = (size_t)(end - r->at) + 1;
    snprintf(name, sizeof name, "%.*s", end - from < 8 ? (int)(end - from) : 7, from);
    return put_category(r, name, (r->at[1] == 'P') != not, length);
}

static Err put_escape(PatternTranslator *r)
{
    const char c = r->at[1];
    switch (c) {
    case 'p':
    case 'P':
        return put_property(r);
    case 's':
    case 'S':
        put_space(r, c == 'S');
        r->at += 2;
        return OK;
    case 'd':
    case 'D':
        return put_category(r, "Nd", c == 'D', 2);
    default:
        break;
    }
    const bool control = c && strchr("rntfv", c),
               sign = c && strchr("\\|.*+?()[]{}^$/-'\"#&~!@%,:;<=>_ ", c);
    if (!control && !sign) return refuse(r, c ? 2 : 1, "an escape that is not supported");
    if (c == 'v')
        text_add(r->out, "\\x{b}"); /* PCRE2's \v matches any vertical space */
    else
        text_add(r->out, "\\%c", c);
    r->at += 2;
    return OK;
}

static Err open_group(PatternTranslator *r)
{
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?>"};
    r->depth++;
    if (r->at[1] == '*') return refuse(r, 2, "a verb of the regex engine");
    if (r->at[1] != '?') {
        text_add(r->out, "(?:"); /* captures are not used */
        r->at++;
        return OK;
    }
    if (strncmp(r->at, "(?i:", 4) == 0) {
        if (!r->any_case) r->case_depth = r->depth;
        r->any_case = true;
        text_add(r->out, "(?i:");
        r->at += 4;
        return OK;
    }
    for (int i = 0; i < 4; i++) {
        if (strncmp(r->at, same[i], 3) != 0) continue;
        text_add(r->out, "%s", same[i]);
        r->at += 3;
        return OK;
    }
    return refuse(r, 4, "a group that is not supported");
}

static Err close_group(PatternTranslator *r)
{
    if (r->any_case && r->depth == r->case_depth) r->any_case = false;
    if (--r->depth < 0) return refuse(r, 1, "closes no group");
    text_add(r->out, ")");
    r->at++;
    return OK;
}

/* Copies {2}, {1,3} or {2,}. A following sign has another meaning in PCRE2. */
static Err put_count(PatternTranslator *r)
{
    const size_t digits = strspn(r->at + 1, "0123456789");
    const size_t more = r->at[1 + digits] == ',' ? 1 + strspn(r->at + 2 + digits, "0123456789") : 0;
    const size_t length = 2 + digits + more;
    if (digits == 0 || digits > 4 || more > 5 || r->at[length - 1] != '}')
        return refuse(r, 2, "not a count like {1,3}");
    if (r->at[length] && strchr("?+*{", r->at[length]))
        return refuse(r, length + 1, "a sign after a count is not supported");
    text_add(r->out, "%.*s", (int)length, r->at);
    r->at += length;
    return OK;
}

/* Copies a character. If case is ignored, characters whose case folding has several characters are
 * refused: "ss" would match U+00DF, for example. */
static Err put_plain(PatternTranslator *r)
{
    static const char *const folds[] = {"ss", "ff", "fi", "fl", "st"};
    uint32_t code;
    const int n = utf8_at((const unsigned char *)r->at, &code);
    if (r->any_case && code >= 0x80)
        return refuse(r, (size_t)n, "case is supported for ASCII letters only");
    for (int i = 0; i < 5 && r->any_case; i++)
        if ((r->at[0] | 0x20) == folds[i][0] && (r->at[1] | 0x20) == folds[i][1])
            return refuse(r, 2, "letters that match one character if case is ignored");
    text_add(r->out, "%.*s", n, r->at);
    r->at += n;
    return OK;
}

static Err in_class(PatternTranslator *r)
{
    if (*r->at == '\\') return put_escape(r);
    if (*r->at == '[' || strncmp(r->at, "&&", 2) == 0)
        return refuse(r, 2, "nested sets are not supported");
    if (*r->at == ']') {
        r->in_class = false;
        text_add(r->out, "]");
        r->at++;
        return OK;
    }
    return put_plain(r);
}

static Err open_class(PatternTranslator *r)
{
    const bool not = r->at[1] == '^';
    if (r->at[1 + not ] == ']') return refuse(r, 2u + not, "an empty set");
    text_add(r->out, not ? "[^" : "[");
    r->at += 1 + not ;
    r->in_class = true;
    return OK;
}

static Err put_one(PatternTranslator *r)
{
    if (r->in_class) return in_class(r);
    switch (*r->at) {
    case '\\':
        return put_escape(r);
    case '(':
        return open_group(r);
    case ')':
        return close_group(r);
    case '[':
        return open_class(r);
    case '{':
        return put_count(r);
    case '^':
    case '$':
        return refuse(r, 1, "anchors are not supported");
    default:
        return put_plain(r);
    }
}

Err pattern_translate(const char *where, const char *source, Arena *a, const char **out)
{
    Text text = text_in(a);
    PatternTranslator r = {.where = where, .source = source, .at = source, .out = &text};
    TRY(arena_open(&r.temp, "ranges", (size_t)1 << 28));
    Err err = OK;
    while (*r.at && err == OK) {
        arena_rewind(&r.temp, 0);
        err = put_one(&r);
    }
    arena_close(&r.temp);
    if (err == OK && (r.depth != 0 || r.in_class))
        err = refuse(&r, 0, "a group or a set is not closed");
    TRY(err);
    return text_done(&text, out);
}

Err pattern_literal(const char *text, Arena *a, const char **out)
{
    Text t = text_in(a);
    for (const char *p = text; *p; p++)
        text_add(&t, "%s%c", strchr("\\|.*+?()[]{}^$", *p) ? "\\" : "", *p);
    return text_done(&t, out);
}
