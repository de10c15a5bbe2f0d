/* text.c -- text in arenas, whole files, glob patterns, suggestions, numbers for people.
 *
 * A Text is the last object in its arena, so it grows in place: blocks are pushed in multiples of
 * ARENA_ALIGN and are adjacent; text_done returns the unused rest.
 *
 *     ... | at [ block ][   block   ]          text_done rewinds to here
 *               text text text\0 . . ^                        \0| */
#include "base/text.h"
#include "base/math.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { READ_BLOCK = 1 << 16, MAX_WORD = 127, MAX_NUMBER_BYTES = 24 };

Text text_in(Arena *arena) { return (Text){.arena = arena}; }

/* Reserves `bytes` more and not ahead: growing copies nothing, so small steps are cheap. */
static Err text_reserve(Text *t, size_t bytes)
{
    const size_t room = t->cap - t->length;
    void *block;
    if (bytes <= room) return OK;
    const size_t grow = align_up(bytes - room);
    TRY(arena_push(t->arena, grow, &block));
    if (t->cap == 0) t->at = block;
    MUST(t->at == NULL || block == t->at + t->cap,
         "arena %s was used between text_in and text_done", t->arena->name);
    t->cap += grow;
    return OK;
}

void text_add(Text *t, const char *format, ...)
{
    va_list args;
    if (t->err != OK) return;
    va_start(args, format);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    MUST(n >= 0, "\"%s\" cannot be formatted", format);
    const size_t bytes = (size_t)n + 1;
    t->err = text_reserve(t, bytes);
    if (t->err != OK) return;
    if (t->at) {
        va_start(args, format);
        (void)vsnprintf(t->at + t->length, bytes, format, args);
        va_end(args);
    }
    t->length += bytes - 1;
}

Err text_done(Text *t, const char **out)
{
    TRY(t->err);
    TRY(text_reserve(t, 1));
    if (t->at) t->at[t->length] = '\0';
    arena_rewind(t->arena, arena_mark(t->arena) - (t->cap - t->length - 1));
    *out = t->at;
    return OK;
}

static Err read_all(FILE *file, const char *path, size_t limit, Text *t)
{
    for (;;) {
        TRY(text_reserve(t, READ_BLOCK));
        const size_t got = fread(t->at + t->length, 1, READ_BLOCK, file);
        t->length += got;
        if (ferror(file)) return err_fail(ERR_IO, "%s: cannot read: %s", path, strerror(errno));
        if (t->length > limit)
            return err_fail(ERR_IO, "%s: is longer than the %zu bytes that such a file may have",
                            path, limit);
        if (got < READ_BLOCK) return OK;
    }
}

Err text_read_file(const char *path, size_t limit, Arena *arena, const char **out, size_t *length)
{
    const size_t mark = arena_mark(arena);
    MUST(arena->base, "%s: arena %s only counts", path, arena->name);
    FILE *file = fopen(path, "rb");
    if (!file) return err_fail(ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    Text t = text_in(arena);
    Err err = read_all(file, path, limit, &t);
    fclose(file);
    if (err == OK) err = text_done(&t, out);
    if (err == OK)
        *length = t.length;
    else
        arena_rewind(arena, mark);
    return err;
}

/* Returns the number of continuation bytes after the first byte of a UTF-8 sequence, or -1. The
 * range of the second byte excludes overlong forms, surrogates and code points past U+10FFFF. */
static int utf8_tail(unsigned char c, unsigned char second)
{
    if (c < 0x80) return 0;
    if (c >= 0xC2 && c <= 0xDF) return 1;
    if (c >= 0xE0 && c <= 0xEF)
        return (c == 0xE0 && second < 0xA0) || (c == 0xED && second > 0x9F) ? -1 : 2;
    if (c >= 0xF0 && c <= 0xF4)
        return (c == 0xF0 && second < 0x90) || (c == 0xF4 && second > 0x8F) ? -1 : 3;
    return -1;
}

size_t text_utf8_bytes(const char *text, size_t length)
{
    const unsigned char *at = (const unsigned char *)text;
    for (size_t i = 0, next; i < length; i = next) {
        int tail = utf8_tail(at[i], i + 1 < length ? at[i + 1] : 0);
        for (next = i + 1; tail > 0 && next < length && (at[next] & 0xC0) == 0x80; next++) tail--;
        if (tail != 0) return i;
    }
    return length;
}

bool text_glob(const char *pattern, const char *name)
{
    return text_glob_part(pattern, strlen(pattern), name);
}

bool text_glob_part(const char *pattern, size_t length, const char *name)
{
    const char *const end = pattern + length;
    const char *star = NULL, *resume = NULL; /* the last *, and the end of its run so far */
    while (*name) {
        if (pattern < end && *pattern == '*') {
            star = pattern++;
            resume = name;
        } else if (pattern < end && *pattern == *name) {
            pattern++, name++;
        } else if (star) {
            /* Backtracks to the last * only: longer runs of earlier ones gain nothing. */
            pattern = star + 1;
            name = ++resume;
        } else {
            return false;
        }
    }
    while (pattern < end && *pattern == '*') pattern++;
    return pattern == end;
}

static bool same(char a, char b) { return tolower((unsigned char)a) == tolower((unsigned char)b); }

/* Edit distance (insertions, deletions, replacements, swaps of neighbours); case is ignored. Keeps
 * three rows of the dynamic-programming table, oldest to newest. */
static int edits(const char *a, const char *b)
{
    int rows[3][MAX_WORD + 1], *older = rows[0], *old = rows[1], *row = rows[2];
    const int n = (int)strlen(b);
    for (int j = 0; j <= n; j++) old[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            const int replace = old[j - 1] + !same(a[i - 1], b[j - 1]);
            row[j] = min_int(replace, 1 + min_int(old[j], row[j - 1]));
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
                row[j] = min_int(row[j], older[j - 2] + 1);
        }
        int *spare = older;
        older = old, old = row, row = spare;
    }
    return old[n];
}

const char *text_nearest(const char *word, const char *const *candidate, int n)
{
    const size_t length = strlen(word);
    const char *nearest = NULL;
    if (length > MAX_WORD) return NULL;
    int bound = (int)(length + 2) /
                3; /* at most one edit per three letters is a typo; more is another word */
    for (int i = 0; i < n; i++) {
        const size_t other = strlen(candidate[i]);
        if (other > MAX_WORD) continue;
        const int distance = edits(word, candidate[i]);
        if (distance > bound || distance >= (int)(length > other ? length : other)) continue;
        nearest = candidate[i];
        bound = distance - 1; /* strictly nearer: the first of equals wins */
    }
    return nearest;
}

const char *text_bytes(int64_t bytes, char *buffer)
{
    static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int i = -1;
    while (fabs(value) >= (i < 0 ? 1024.0 : 1023.95)) value /= 1024.0, i++; /* never "1024.0 KiB" */
    if (i < 0)
        snprintf(buffer, MAX_NUMBER_BYTES, "%d B", (int)bytes);
    else
        snprintf(buffer, MAX_NUMBER_BYTES, "%.1f %s", value, unit[i]);
    return buffer;
}

const char *text_count(double count, char *buffer)
{
    static const char *const unit[] = {"", "k", "M", "G", "T", "P", "E"};
    enum { LAST = sizeof unit / sizeof *unit - 1 };
    double value = count;
    int i = 0;
    while (fabs(value) >= 999.95 && i < LAST && isfinite(value)) value /= 1000.0, i++;
    if (fabs(value) >= 999.95 || isnan(value))
        snprintf(buffer, MAX_NUMBER_BYTES, "%.1e", count); /* beyond every unit, or NaN */
    else if (i == 0 && value == floor(value))
        snprintf(buffer, MAX_NUMBER_BYTES, "%.0f", value);
    else
        snprintf(buffer, MAX_NUMBER_BYTES, "%.1f%s", value, unit[i]);
    return buffer;
}

const char *text_counted(int64_t n, const char *noun, char buffer[COUNTED_BYTES])
{
    snprintf(buffer, COUNTED_BYTES, "%lld %s%s", (long long)n, noun, n == 1 ? "" : "s");
    return buffer;
}
