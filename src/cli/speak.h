/* speak.h -- what is generated, as text that comes out while it is made.
 *
 *     tokens   of any prompt, in any order
 *     text     of each prompt; it ends before a stop string, wherever tokens cut that
 *     stdout   in the order of prompts: of the first that has not ended as it comes, of others once
 *              it is their turn
 *
 * Only whole characters are shown, U+FFFD for bytes that are none, and nothing that may turn out to
 * be the beginning of a stop string. Special tokens have no text. */
#ifndef CLI_SPEAK_H
#define CLI_SPEAK_H

#include "cli/prompts.h"

enum { MAX_STOPS = 16 };

typedef struct {
    char *text;
    size_t n, said;
    int32_t *id;
    int64_t n_ids, ids_said;
    bool begun, ended;
    GenerateEnd why;
} Utterance;

typedef struct {
    const Tokenizer *tokenizer;
    const Prompts *prompts;
    const char *stop[MAX_STOPS];
    int n_stops;
    bool no_text;  /* ids spell nothing */
    bool ids;      /* ids are shown instead */
    FILE *out;     /* NULL: nothing is shown */
    Utterance *of; /* [prompts] */
    int64_t turn;  /* whose text is shown */
    Arena *arena;  /* for what is made sound */
} Speaker;

/* Local. Room for so many tokens of each prompt. The settings above `of` are filled in. */
Err speaker_open(Speaker *s, int64_t max_tokens, Arena *a);
/* Local. As GenerateListener has them; the context is a Speaker. */
bool speaker_token(void *speaker, int64_t prompt, int32_t token);
void speaker_end(void *speaker, int64_t prompt, GenerateEnd why);

#endif
