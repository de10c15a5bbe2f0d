/* unicode.c -- expands the tables of unicode_table.c, and encodes, decodes and repairs UTF-8. */
#include "data/unicode.h"

#include <string.h>

enum { REPLACEMENT_BYTES = 3 };

static const char names[][3] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

typedef struct {
    uint32_t first, last;
    unsigned char trait;
} TraitRange;

/* Traits in addition to those of the categories: White_Space; for words, Other_Alphabetic
 * characters that are no marks, and Join_Control; for composition, Hangul's vowels and finals,
 * which compose with the character before, and ranges with characters that are not their own
 * composed form. A range that is too wide only costs time. */
static const TraitRange trait_range[] = {
    {0x9, 0xD, CHAR_SPACE},
    {0x20, 0x20, CHAR_SPACE},
    {0x85, 0x85, CHAR_SPACE},
    {0xA0, 0xA0, CHAR_SPACE},
    {0x1680, 0x1680, CHAR_SPACE},
    {0x2000, 0x200A, CHAR_SPACE},
    {0x2028, 0x2029, CHAR_SPACE},
    {0x202F, 0x202F, CHAR_SPACE},
    {0x205F, 0x205F, CHAR_SPACE},
    {0x3000, 0x3000, CHAR_SPACE},
    {0x200C, 0x200D, CHAR_WORD},
    {0x24B6, 0x24E9, CHAR_WORD},
    {0x1F130, 0x1F149, CHAR_WORD},
    {0x1F150, 0x1F169, CHAR_WORD},
    {0x1F170, 0x1F189, CHAR_WORD},
    {0x340, 0x387, CHAR_COMPOSING},
    {0x958, 0x95F, CHAR_COMPOSING},
    {0x9DC, 0x9DF, CHAR_COMPOSING},
    {0xA33, 0xA5E, CHAR_COMPOSING},
    {0xB5C, 0xB5D, CHAR_COMPOSING},
    {0xF43, 0xFB9, CHAR_COMPOSING},
    {0x1160, 0x11FF, CHAR_COMPOSING},
    {0x1F00, 0x1FFF, CHAR_COMPOSING},
    {0x2000, 0x2001, CHAR_COMPOSING},
    {0x2126, 0x212B, CHAR_COMPOSING},
    {0x2329, 0x232A, CHAR_COMPOSING},
    {0x2ADC, 0x2ADC, CHAR_COMPOSING},
    {0xF900, 0xFAFF, CHAR_COMPOSING},
    {0xFB1D, 0xFB4E, CHAR_COMPOSING},
    {0x1D15E, 0x1D1C0, CHAR_COMPOSING},
    {0x2F800, 0x2FA1F, CHAR_COMPOSING},
};

static unsigned char trait_of(const char *category)
{
    const bool word = strchr("LM", category[0]) || strcmp(category, "Nd") == 0 ||
                      strcmp(category, "Nl") == 0 || strcmp(category, "Pc") == 0;
    return (unsigned char)((category[0] == 'L' ? CHAR_LETTER : 0) |
                           (category[0] == 'N' ? CHAR_NUMBER : 0) |
                           (category[0] == 'M' ? CHAR_COMPOSING : 0) | (word ? CHAR_WORD : 0));
}

Err unicode_traits(Arena *a, const unsigned char **out)
{
    unsigned char *trait;
    uint32_t code = 0;
    TRY(ARENA_NEW(a, UNICODE_CODES, &trait));
    for (int i = 0; i < unicode_runs; i++) {
        const uint32_t length = unicode_run[i] >> 5;
        memset(trait + code, trait_of(names[unicode_run[i] & 31]), length);
        code += length;
    }
    MUST(code == UNICODE_CODES, "the runs of categories end at U+%lX", (unsigned long)code);
    for (size_t i = 0; i < sizeof trait_range / sizeof *trait_range; i++)
        for (code = trait_range[i].first; code <= trait_range[i].last; code++)
            trait[code] |= trait_range[i].trait;
    for (int i = 0; i < unicode_inerts; i++)
        for (code = unicode_inert[i][0]; code <= unicode_inert[i][1]; code++)
            trait[code] = (unsigned char)((trait[code] & ~CHAR_COMPOSING) | CHAR_INERT);
    *out = trait;
    return OK;
}

/* A category of one letter contains all categories that begin with it. */
static bool is_category(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0 || (name[0] == names[i][0] && !name[1])) return true;
    return false;
}

Err unicode_ranges(const char *category, bool outside, Arena *a, uint32_t (**out)[2], int *n)
{
    const size_t length = strlen(category);
    uint32_t(*range)[2], code = 0;
    int n_ranges = 0;
    *n = 0;
    if (!is_category(category)) return OK;
    TRY(ARENA_NEW(a, unicode_runs, &range));
    for (int i = 0; i < unicode_runs; i++) {
        const uint32_t first = code;
        code += unicode_run[i] >> 5;
        if ((strncmp(names[unicode_run[i] & 31], category, length) == 0) == outside) continue;
        if (n_ranges > 0 && range[n_ranges - 1][1] + 1 == first)
            n_ranges--; /* extends the last range */
        else
            range[n_ranges][0] = first;
        range[n_ranges++][1] = code - 1;
    }
    *out = range;
    *n = n_ranges;
    return OK;
}

int utf8_put(uint32_t code, unsigned char *out)
{
    if (code < 0x80) return out[0] = (unsigned char)code, 1;
    const int n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, code >>= 6) out[i] = (unsigned char)(0x80 | (code & 0x3F));
    out[0] = (unsigned char)((0xF00u >> n & 0xF0u) | code);
    return n;
}

uint32_t utf8_before(const unsigned char *p)
{
    uint32_t code;
    do p--;
    while ((*p & 0xC0) == 0x80);
    utf8_at(p, &code);
    return code;
}

/* Returns the length of the character at p. *bad: it is malformed, and the result is the length of
 * the sequence that U+FFFD replaces. */
static size_t next_bytes(const unsigned char *p, size_t left, bool *bad)
{
    const unsigned char c = p[0];
    const size_t n = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    /* The second byte is limited further: no overlong encoding, no surrogate, nothing
     * above U+10FFFF. */
    const unsigned char low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    *bad = false;
    for (size_t i = 1; i < n; i++) {
        if (i < left && p[i] >= (i == 1 ? low : 0x80) && p[i] <= (i == 1 ? high : 0xBF)) continue;
        *bad = true;
        return i;
    }
    *bad = n == 0;
    return n ? n : 1;
}

/* Returns the position of the first invalid byte at or after `at`, or the end. */
static size_t valid_until(Bytes text, size_t at)
{
    while (at < text.bytes) {
        uint64_t eight;
        bool bad;
        if (at + 8 <= text.bytes) {
            memcpy(&eight, text.at + at, 8);
            if (!(eight & 0x8080808080808080u)) {
                at += 8;
                continue;
            }
        }
        const size_t n = next_bytes(text.at + at, text.bytes - at, &bad);
        if (bad) return at;
        at += n;
    }
    return at;
}

Err utf8_repair(Bytes text, Arena *a, Bytes *out, int64_t *replaced)
{
    size_t at = valid_until(text, 0), used = at;
    *out = text;
    if (at == text.bytes) return OK;
    void *buffer;
    TRY(arena_push(a, text.bytes * REPLACEMENT_BYTES, &buffer));
    unsigned char *to = buffer;
    memcpy(to, text.at, at);
    while (at < text.bytes) {
        bool bad;
        at += next_bytes(text.at + at, text.bytes - at, &bad);
        memcpy(to + used, "\xEF\xBF\xBD", REPLACEMENT_BYTES);
        used += REPLACEMENT_BYTES;
        ++*replaced;
        const size_t end = valid_until(text, at);
        memcpy(to + used, text.at + at, end - at);
        used += end - at;
        at = end;
    }
    *out = (Bytes){to, used};
    return OK;
}
