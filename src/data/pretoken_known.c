/* pretoken_known.c -- hand-written matchers for three patterns. A character class is one table
 * lookup, where PCRE2 searches about 700 ranges.
 *
 * Alternatives are tried in the order of the pattern. All three patterns end with:
 *
 *     \s+(?!\S)     spaces at the end, or all but the last of several: that one joins the next word
 *     \s+           one space before something else */
#include <string.h>
#include "data/pretoken.h"

const char pattern_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char pattern_llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char pattern_qwen2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                             "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

enum { CHAR_KINDS = CHAR_LETTER | CHAR_NUMBER | CHAR_SPACE };

typedef struct {
    const unsigned char *trait, *end;
} CharScanner;

/* Returns the kind of the character at p and its length; -1 at the end. */
static inline int kind_at(const CharScanner *s, const unsigned char *p, int *bytes)
{
    uint32_t code;
    *bytes = 0;
    if (p == s->end) return -1;
    *bytes = utf8_at(p, &code);
    return s->trait[code] & CHAR_KINDS;
}

/* Skips at most `max` characters of that kind. */
static inline const unsigned char *skip(const CharScanner *s, const unsigned char *p, int kind,
                                        size_t max)
{
    int n;
    while (max-- > 0 && kind_at(s, p, &n) == kind) p += n;
    return p;
}

static bool is_newline(unsigned char c) { return c == '\r' || c == '\n'; }

/* Matches \s+(?!\S)|\s+ in the white space [p, stop). */
static const unsigned char *split_spaces(const CharScanner *s, const unsigned char *p,
                                         const unsigned char *stop)
{
    if (stop == s->end) return stop;
    const unsigned char *last = stop - 1;
    while ((*last & 0xC0) == 0x80) last--;
    return last > p ? last : stop;
}

/* Matches 's 't 're 've 'm 'll 'd at an apostrophe; returns p if none matches. U+017F folds
 * to s. */
static const unsigned char *contraction(const CharScanner *s, const unsigned char *p, bool any_case)
{
    const unsigned char mask = any_case ? 0x20 : 0;
    const size_t left = (size_t)(s->end - p);
    if (left < 2) return p;
    const unsigned char a = p[1] | mask, b = left > 2 ? p[2] | mask : 0;
    if (a < 0x80 && strchr("stmd", a) && a) return p + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
    return any_case && left > 2 && p[1] == 0xC5 && p[2] == 0xBF ? p + 3 : p;
}

static const unsigned char *next_gpt2(const CharScanner *s, const unsigned char *p)
{
    int n, after;
    int kind = kind_at(s, p, &n);
    const unsigned char *q = *p == '\'' ? contraction(s, p, false) : p;
    if (q > p) return q;
    if (*p == ' ') { /* joins the word that follows */
        const int next = kind_at(s, p + 1, &after);
        if (next >= 0 && next != CHAR_SPACE) q = p + 1, kind = next;
    }
    q = skip(s, q, kind, SIZE_MAX);
    return kind == CHAR_SPACE ? split_spaces(s, p, q) : q;
}

/* Matches \s*[\r\n]+ up to its last newline, else as split_spaces. */
static const unsigned char *next_spaces(const CharScanner *s, const unsigned char *p)
{
    const unsigned char *stop = skip(s, p, CHAR_SPACE, SIZE_MAX);
    for (const unsigned char *q = stop; q > p; q--)
        if (is_newline(q[-1])) return q;
    return split_spaces(s, p, stop);
}

static const unsigned char *next_llama3(const CharScanner *s, const unsigned char *p, size_t digits)
{
    int n, after;
    const int kind = kind_at(s, p, &n);
    if (kind == CHAR_LETTER) return skip(s, p + n, CHAR_LETTER, SIZE_MAX);
    if (kind == CHAR_NUMBER) return skip(s, p, CHAR_NUMBER, digits);
    const unsigned char *q = *p == '\'' ? contraction(s, p, true) : p;
    if (q > p) return q;
    const int next = kind_at(s, p + n, &after);
    if (next == CHAR_LETTER && !is_newline(*p))
        return skip(s, p + n + after, CHAR_LETTER, SIZE_MAX);
    if (kind == CHAR_SPACE && (*p != ' ' || next != 0)) return next_spaces(s, p);
    q = skip(s, p + n, 0, SIZE_MAX); /* p is a space before symbols, or a symbol */
    while (q < s->end && is_newline(*q)) q++;
    return q;
}

size_t known_next(const PretokenPattern *p, Bytes text, size_t at)
{
    const CharScanner s = {p->traits, text.at + text.bytes};
    const unsigned char *from = text.at + at;
    const unsigned char *to = p->known == KNOWN_GPT2     ? next_gpt2(&s, from)
                              : p->known == KNOWN_LLAMA3 ? next_llama3(&s, from, 3)
                                                         : next_llama3(&s, from, 1);
    return (size_t)(to - text.at);
}
