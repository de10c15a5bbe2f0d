/* text_stream.h -- generated tokens, printed as text while they are produced.
 *
 *     tokens   of any prompt, in any order
 *     text     of each prompt; it ends before a stop string, even one that several tokens form
 *     stdout   in the order of the prompts: the first unfinished completion is printed as it grows,
 *              later ones are buffered until the completions before them have ended
 *
 * Only whole UTF-8 characters are printed. Invalid bytes become U+FFFD. A suffix that may be the
 * beginning of a stop string is held back. Special tokens have no text. */
#ifndef CLI_TEXT_STREAM_H
#define CLI_TEXT_STREAM_H

#include "cli/prompts.h"

enum { MAX_STOPS = 16 };

/* The tokens of one prompt, and how many of them are on the screen. */
typedef struct {
    char *text;
    size_t n, printed; /* bytes */
    int32_t *id;
    int64_t n_ids, ids_printed;
    bool prompt_printed, ended;
    GenerateEnd why;
} Completion;

typedef struct {
    const Tokenizer *tokenizer;
    const Prompts *prompts;
    const char *stop[MAX_STOPS];
    int n_stops;
    bool no_text;           /* the model has no tokenizer: ids have no text */
    bool ids;               /* print ids instead of text */
    FILE *out;              /* NULL: nothing is printed */
    Completion *completion; /* [prompts] */
    int64_t current;        /* the completion that is being printed */
    Arena *arena;           /* scratch memory for UTF-8 repair */
} TextStream;

/* Local. Allocates `max_tokens` tokens for each prompt. The caller has set the members above
 * `completion`. */
Err text_stream_open(TextStream *s, int64_t max_tokens, Arena *a);
/* Local. The callbacks of GenerateListener; the context is a TextStream. text_stream_token returns
 * true once the text contains a stop string. */
bool text_stream_token(void *stream, int64_t prompt, int32_t token);
void text_stream_end(void *stream, int64_t prompt, GenerateEnd why);

#endif
