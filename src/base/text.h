/* text.h -- text that grows in an arena; files, patterns and suggestions.
 *
 *     Text t = text_in(arena);
 *     text_add(&t, "%d ranks", n);        a failed add is remembered; the others are skipped
 *     TRY(text_done(&t, &string));        NUL-terminated; fails if an add failed
 *
 * The arena must not be used for anything else between text_in and text_done. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"

typedef struct {
    Arena *arena;
    char *at;
    size_t length, cap;
    Err err;
} Text;

Text text_in(Arena *arena);
void text_add(Text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
Err text_done(Text *t, const char **out);

/* Local. Reads a whole file, NUL-terminated after `length` bytes. ERR_IO names the file and the
 * reason, also for a file above `limit` bytes. */
Err text_read_file(const char *path, size_t limit, Arena *arena, const char **out, size_t *length);

/* The bytes of the longest prefix that is UTF-8: `length` if all of it is. Overlong forms,
 * surrogates and code points past U+10FFFF are not. */
size_t text_utf8_bytes(const char *text, size_t length);
/* True if the name matches the pattern, in which * stands for any run of characters. */
bool text_glob(const char *pattern, const char *name);
/* The same with a pattern of `length` bytes that need not be NUL-terminated. */
bool text_glob_part(const char *pattern, size_t length, const char *name);
/* The candidate with the smallest edit distance to `word`; NULL if none is near enough to
 * suggest. */
const char *text_nearest(const char *word, const char *const *candidate, int n);
/* "1.5 KiB", "12.0 GiB"; `buffer` is at least 24 bytes and is returned. */
const char *text_bytes(int64_t bytes, char *buffer);
/* "1.5k", "12.0G", for counts and flops; `buffer` as for text_bytes. */
const char *text_count(double count, char *buffer);
/* "1 clip", "3 clips". */
enum { COUNTED_BYTES = 48 };
const char *text_counted(int64_t n, const char *noun, char buffer[COUNTED_BYTES]);

#endif
