/* unicode.h -- repairs UTF-8, classifies code points, and composes text canonically (NFC).
 *
 * Token ids must not depend on the libraries of a machine. The categories are therefore those of
 * Unicode 16, which the patterns of the official tokenizers library use, in a table of our own. NFC
 * is done by utf8proc, but skips the characters that the official library's normalization (Unicode
 * 9) does not have: the inert characters.
 *
 *     e  U+0301  a  U+1133B  U+0301      U+0301 composes with e
 *     é          a  U+1133B  U+0301      U+1133B is a mark since Unicode 11: here it is inert, like
 *                                        a letter, and U+0301 does not move before it */
#ifndef DATA_UNICODE_H
#define DATA_UNICODE_H

#include <stdbool.h>
#include "data/tokens.h"

enum { UNICODE_CODES = 0x110000, MAX_UTF8 = 4 };

/* Traits of a code point, one byte of flags each. */
enum {
    CHAR_LETTER = 1, /* \p{L} */
    CHAR_NUMBER = 2, /* \p{N} */
    CHAR_SPACE = 4,  /* White_Space */
    CHAR_WORD = 8,   /* \w: letters, marks, decimal digits, connectors */
    CHAR_INERT = 16,
    CHAR_COMPOSING = 32 /* NFC may change it, or the character before it */
};

/* Local. Returns the traits of every code point, [UNICODE_CODES]. */
Err unicode_traits(Arena *a, const unsigned char **out);

/* Local. Returns the code points of a general category ("L", "Lu") as ranges, [n][2], or with
 * `outside` those of all others. n is 0 for an unknown name. */
Err unicode_ranges(const char *category, bool outside, Arena *a, uint32_t (**out)[2], int *n);

/* Local. Decodes the code point at p of valid UTF-8 and returns its number of bytes. */
static inline int utf8_at(const unsigned char *p, uint32_t *code)
{
    if (p[0] < 0x80) return *code = p[0], 1;
    if (p[0] < 0xE0) return *code = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu), 2;
    if (p[0] < 0xF0) return *code = (p[0] & 0xFu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu), 3;
    *code = (p[0] & 0x7u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}
/* Local. Encodes a code point and returns its number of bytes; `out` has MAX_UTF8. */
int utf8_put(uint32_t code, unsigned char *out);
/* Local. Returns the code point that ends right before p. */
uint32_t utf8_before(const unsigned char *p);

/* Local. Returns the text itself if it is valid UTF-8. Otherwise returns a copy in the arena, with
 * U+FFFD for each sequence that cannot begin a character, and adds their number to *replaced. */
Err utf8_repair(Bytes text, Arena *a, Bytes *out, int64_t *replaced);

/* Local. Composes valid UTF-8 (NFC). Returns the same bytes if nothing changes, else a copy in
 * the arena. */
Err unicode_nfc(const unsigned char *traits, Bytes text, Arena *a, Bytes *out);

/* In unicode_table.c: run length << 5 | category, with categories in the order of `names`
 * in unicode.c. */
extern const uint32_t unicode_run[], unicode_inert[][2];
extern const int unicode_runs, unicode_inerts;

#endif
