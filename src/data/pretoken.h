/* pretoken.h -- text to words, before bytes are merged: the patterns of a tokenizer.json.
 *
 *     "it's  2024!"   -->   it  's  (space)  (space)2024  !          GPT-2's pattern
 *
 * A pattern is translated from the spelling of Oniguruma, which the official library uses, to that
 * of PCRE2, with classes written out from our own tables (data/unicode.h). What is spelled alike
 * and means another thing is refused by name. The patterns of GPT-2, Llama 3 and Qwen2 have a
 * matcher written by hand, some 10 times as fast; tests hold it equal to PCRE2's. */
#ifndef DATA_PRETOKEN_H
#define DATA_PRETOKEN_H

#include "data/unicode.h"

/* A pattern, ready to match; immutable. */
typedef struct {
    const char *source;          /* as the file has it */
    const unsigned char *traits; /* of characters */
    int known;                   /* which matcher by hand, or none: KNOWN_NONE */
    void *code;                  /* PCRE2's */
} PretokenPattern;

enum { KNOWN_NONE, KNOWN_GPT2, KNOWN_LLAMA3, KNOWN_QWEN2 };

extern const char pattern_gpt2[], pattern_llama3[], pattern_qwen2[];

/* Local. `where` names the pattern in messages. `by_hand`: use a matcher written by hand where there
 * is one. ERR_CONFIG names what is not honoured. The traits must stay. */
Err pattern_open(PretokenPattern *p, const char *where, const char *source,
                 const unsigned char *traits, bool by_hand);
void pattern_close(PretokenPattern *p);
/* Local. In the spelling of PCRE2; in the arena. */
Err pattern_translate(const char *where, const char *source, Arena *a, const char **out);
/* Local. A pattern that matches the text as it is. */
Err pattern_literal(const char *text, Arena *a, const char **out);

/* What a thread matches with. */
typedef struct {
    void *match, *context, *stack;
} Matcher;
Err matcher_open(Matcher *m);
void matcher_close(Matcher *m);

/* Local. The end of the piece that begins at `at`, before the end of sound text: a match there, or
 * what stands before the next match. */
Err pattern_next(const PretokenPattern *p, Matcher *m, Bytes text, size_t at, size_t *end);

/* Whether text may be cut before a space that stands between ASCII letters, and each part matched
 * by itself. */
static inline bool pattern_cuts(const PretokenPattern *p) { return p->known != KNOWN_NONE; }

/* pretoken_known.c */
size_t known_next(const PretokenPattern *p, Bytes text, size_t at);

#endif
