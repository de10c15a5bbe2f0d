/* unicode.h -- characters: UTF-8 made sound, what a code point is, and canonical composition (NFC).
 *
 * Token ids must not depend on which libraries a machine has. So the categories are those of
 * Unicode 16, as the patterns of the official tokenizers library see them, in a table of our own;
 * and NFC, which utf8proc does, leaves alone what that library's normalization (Unicode 9) does not
 * know: inert characters.
 *
 *     e  U+0301  a  U+1133B  U+0301      U+0301 composes with e
 *     é          a  U+1133B  U+0301      U+1133B is a mark since Unicode 11: here it is a letter
 *                                        like any other, and U+0301 does not move before it */
#ifndef DATA_UNICODE_H
#define DATA_UNICODE_H

#include <stdbool.h>
#include "data/tokens.h"

enum { UNICODE_CODES = 0x110000, MAX_UTF8 = 4 };

/* What a code point is; a byte of them for each. */
enum {
    CHAR_LETTER = 1, /* \p{L} */
    CHAR_NUMBER = 2, /* \p{N} */
    CHAR_SPACE = 4,  /* White_Space */
    CHAR_WORD = 8,   /* \w: letters, marks, decimal digits, connectors */
    CHAR_INERT = 16,
    CHAR_COMPOSING = 32 /* composing may change it, or what stands before it */
};

/* Local. The traits of every code point, [UNICODE_CODES]. */
Err unicode_traits(Arena *a, const unsigned char **out);

/* Local. The code points of a general category ("L", "Lu") as ranges, [n][2]; none: an unknown
 * name. Of those without it when `outside`. */
Err unicode_ranges(const char *category, bool outside, Arena *a, uint32_t (**out)[2], int *n);

/* The code point at p, in text that is sound, and how many bytes it takes. */
static inline int utf8_at(const unsigned char *p, uint32_t *code)
{
    if (p[0] < 0x80) return *code = p[0], 1;
    if (p[0] < 0xE0) return *code = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu), 2;
    if (p[0] < 0xF0) return *code = (p[0] & 0xFu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu), 3;
    *code = (p[0] & 0x7u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}
/* The bytes of a code point; `out` has MAX_UTF8. */
int utf8_put(uint32_t code, unsigned char *out);
/* The code point that ends right before p. */
uint32_t utf8_before(const unsigned char *p);

/* Local. The same text when it is UTF-8, else a copy in the arena with U+FFFD for each part that
 * cannot be the beginning of a character; adds their number to *replaced. */
Err utf8_repair(Bytes text, Arena *a, Bytes *out, int64_t *replaced);

/* Local. The composed form of sound text: the same bytes where nothing changes, else in the arena.
 */
Err unicode_nfc(const unsigned char *traits, Bytes text, Arena *a, Bytes *out);

/* unicode_table.c: lengths of runs << 5 | category, in the order of `names` in unicode.c. */
extern const uint32_t unicode_run[], unicode_inert[][2];
extern const int unicode_runs, unicode_inerts;

#endif
