/* nfc.c -- canonical composition. utf8proc composes one run at a time; all other text is copied.
 *
 *     c a f e  U+0301  !        a run begins with the character before a composing one, and ends
 *           |--------|          before the next that is not composing, or at an inert one
 *
 * A character without CHAR_COMPOSING is its own composed form, is no mark, and does not compose
 * with the character before it. Hence text can be split before it. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "data/unicode.h"

/* Limits per code point: code points after canonical decomposition, and the growth factor of UTF-8
 * bytes in NFC. */
enum { MAX_DECOMPOSED = 4, MAX_NFC_GROWTH = 3 };

static const utf8proc_option_t composed = UTF8PROC_STABLE | UTF8PROC_COMPOSE;

/* Marks are sorted stably by combining class with qsort: utf8proc's exchange sort is quadratic in
 * the length of a sequence of marks. */
typedef struct {
    int32_t code, place;
} CombiningMark;

static int by_class(const void *a, const void *b)
{
    const CombiningMark *x = a, *y = b;
    const int cx = utf8proc_get_property(x->code)->combining_class;
    const int cy = utf8proc_get_property(y->code)->combining_class;
    return cx != cy ? (cx > cy) - (cx < cy) : (x->place > y->place) - (x->place < y->place);
}

static void sort_marks(int32_t *code, int64_t n, CombiningMark *mark)
{
    for (int64_t at = 0, end; at < n; at = end + (end == at)) {
        for (end = at; end < n && utf8proc_get_property(code[end])->combining_class > 0; end++)
            mark[end] = (CombiningMark){code[end], (int32_t)end};
        if (end - at < 2) continue;
        qsort(mark + at, (size_t)(end - at), sizeof *mark, by_class);
        for (int64_t i = at; i < end; i++) code[i] = mark[i].code;
    }
}

/* Returns the code points of a run, decomposed, with marks sorted. */
static Err decompose(Bytes text, Arena *a, int32_t **out, int64_t *n)
{
    int32_t *code;
    CombiningMark *mark;
    int64_t used = 0;
    const int64_t capacity = (int64_t)text.bytes * MAX_DECOMPOSED;
    void *codes, *marks;
    if (text.bytes > INT32_MAX / MAX_DECOMPOSED)
        return err_fail(
            ERR_CONFIG,
            "%zu bytes of combining characters in a row; the limit is %d: split the document",
            text.bytes, INT32_MAX / MAX_DECOMPOSED);
    TRY(arena_push(a, (size_t)capacity * sizeof *code + sizeof *code, &codes)); /* + 1 for a NUL */
    TRY(arena_push(a, (size_t)capacity * sizeof *mark, &marks));
    code = codes;
    mark = marks;
    for (size_t at = 0; at < text.bytes;) {
        uint32_t c;
        int bound = 0;
        at += (size_t)utf8_at(text.at + at, &c);
        const utf8proc_ssize_t parts =
            utf8proc_decompose_char((int32_t)c, code + used, capacity - used, composed, &bound);
        MUST(parts > 0 && parts <= capacity - used, "U+%lX has %ld parts", (unsigned long)c,
             (long)parts);
        used += parts;
    }
    sort_marks(code, used, mark);
    *out = code;
    *n = used;
    return OK;
}

/* Appends the composed form of a run to the text at `to`. */
static Err compose(Bytes run, Arena *a, unsigned char *to, size_t *used)
{
    const size_t mark = arena_mark(a);
    int32_t *code;
    int64_t n;
    TRY(decompose(run, a, &code, &n));
    const utf8proc_ssize_t bytes = utf8proc_reencode(code, n, composed);
    MUST(bytes >= 0 && (size_t)bytes <= MAX_NFC_GROWTH * run.bytes, "NFC of %zu bytes gave %ld",
         run.bytes, (long)bytes);
    memcpy(to + *used, code, (size_t)bytes);
    *used += (size_t)bytes;
    arena_rewind(a, mark);
    return OK;
}

/* Returns the first composing character at or after `at`, or the end; *base: beginning of
 * its run. */
static size_t find_composing(const unsigned char *traits, Bytes text, size_t at, size_t *base)
{
    *base = at;
    while (at < text.bytes) {
        uint32_t c;
        if (text.at[at] < 0x80) {
            *base = at++;
            continue;
        }
        const int n = utf8_at(text.at + at, &c);
        if (traits[c] & CHAR_COMPOSING) return at;
        *base = at;
        at += (size_t)n;
        if (traits[c] & CHAR_INERT) *base = at; /* nothing composes with it */
    }
    return at;
}

static size_t end_of_composing(const unsigned char *traits, Bytes text, size_t at)
{
    while (at < text.bytes) {
        uint32_t c;
        const int n = utf8_at(text.at + at, &c);
        if (!(traits[c] & CHAR_COMPOSING)) break;
        at += (size_t)n;
    }
    return at;
}

Err unicode_nfc(const unsigned char *traits, Bytes text, Arena *a, Bytes *out)
{
    size_t base, used = 0, from = 0, at = find_composing(traits, text, 0, &base);
    *out = text;
    if (at == text.bytes) return OK;
    void *capacity;
    TRY(arena_push(a, text.bytes * MAX_NFC_GROWTH, &capacity));
    unsigned char *to = capacity;
    while (at < text.bytes) {
        const size_t end = end_of_composing(traits, text, at);
        memcpy(to + used, text.at + from, base - from);
        used += base - from;
        TRY(compose((Bytes){text.at + base, end - base}, a, to, &used));
        from = end;
        at = find_composing(traits, text, end, &base);
    }
    memcpy(to + used, text.at + from, text.bytes - from);
    *out = (Bytes){to, used + text.bytes - from};
    return OK;
}
