/* pretoken.h -- splits text into words before the BPE merges, by the patterns of a tokenizer.json.
 *
 *     "it's  2024!"   -->   it  's  (space)  (space)2024  !          GPT-2's pattern
 *
 * A pattern is translated from the syntax of Oniguruma, which the official library uses, to that of
 * PCRE2. Character classes are expanded from our own tables (data/unicode.h). Syntax that has
 * another meaning in PCRE2 is an error that names it. The patterns of GPT-2, Llama 3 and Qwen2 have
 * hand-written matchers, about 10 times as fast; tests check that they match as PCRE2 does. */
#ifndef DATA_PRETOKEN_H
#define DATA_PRETOKEN_H

#include "data/unicode.h"

/* A compiled pattern; immutable. */
typedef struct {
    const char *source;          /* as in the file */
    const unsigned char *traits; /* CHAR_ bits of each code point */
    int known;                   /* hand-written matcher, or KNOWN_NONE */
    void *code;                  /* compiled by PCRE2 */
} PretokenPattern;

enum { KNOWN_NONE, KNOWN_GPT2, KNOWN_LLAMA3, KNOWN_QWEN2 };

extern const char pattern_gpt2[], pattern_llama3[], pattern_qwen2[];

/* Local. `where` names the pattern in messages. `by_hand` allows a hand-written matcher if
 * one exists. ERR_CONFIG names the unsupported syntax. `source` and `traits` must outlive
 * the pattern. */
Err pattern_open(PretokenPattern *p, const char *where, const char *source,
                 const unsigned char *traits, bool by_hand);
void pattern_close(PretokenPattern *p);
/* Local. Writes the pattern in PCRE2's syntax to the arena. */
Err pattern_translate(const char *where, const char *source, Arena *a, const char **out);
/* Local. Writes a pattern that matches exactly this text. */
Err pattern_literal(const char *text, Arena *a, const char **out);

/* The PCRE2 workspace of one thread. */
typedef struct {
    void *match, *context, *stack;
} Matcher;
Err matcher_open(Matcher *m);
void matcher_close(Matcher *m);

/* Local. Returns in *end the end of the piece that begins at `at`: a match at `at`, or the text
 * before the next match. The text is valid UTF-8, and `at` is before its end. */
Err pattern_next(const PretokenPattern *p, Matcher *m, Bytes text, size_t at, size_t *end);

/* True if text may be split before a space between ASCII letters, and each part matched
 * separately. */
static inline bool pattern_cuts(const PretokenPattern *p) { return p->known != KNOWN_NONE; }

/* Local. In pretoken_known.c: pattern_next for a pattern with a hand-written matcher. */
size_t known_next(const PretokenPattern *p, Bytes text, size_t at);

#endif
