/* tokenizer.h -- a tokenizer.json of Hugging Face's tokenizers library, byte-level BPE: text to ids
 * and back, the same ids as that library's.
 *
 *     text   invalid UTF-8 becomes U+FFFD, counted
 *      |     added tokens that stand as they are                   <|endoftext|>
 *      |     NFC, when the file says so; then added tokens that are normalized
 *      |     words, by the file's patterns                         data/pretoken.h
 *      v     merges in each word                                   data/bpe.h
 *     ids    and what the file's template puts around them         <|begin_of_text|>
 *
 * What a file asks for and we do not honour is an error that names it. A tokenizer is immutable
 * once loaded, so threads share it; each has an Encoder of its own.
 *
 *     TRY(tokenizer_load("tokenizer.json", arena, &t));
 *     TRY(encoder_open(&e, t));
 *     TRY(encoder_add(&e, text, true));        e.id[0 .. e.n) grows
 *     encoder_close(&e);
 *     tokenizer_close(t); */
#ifndef DATA_TOKENIZER_H
#define DATA_TOKENIZER_H

#include "data/added.h"
#include "data/bpe.h"
#include "data/pretoken.h"

enum {
    MAX_TOKENIZER_STAGES = 8,
    MAX_TEMPLATE_TOKENS = 16,
    MAX_TOKENIZER_IDS = 1 << 24,
    MAX_TOKENIZER_ADDED = 1 << 14
};

typedef struct {
    const char *path;
    const unsigned char *traits; /* of characters */
    Bpe bpe;
    int64_t n_ids; /* all are below; there may be holes */
    AddedToken *added;
    int n_added;
    AddedSet raw, normal; /* added tokens, looked for before and after normalization */
    bool nfc, prefix_space;
    PretokenPattern stage[MAX_TOKENIZER_STAGES]; /* each cuts the pieces of the one before */
    int n_stages;
    int32_t before[MAX_TEMPLATE_TOKENS], after[MAX_TEMPLATE_TOKENS]; /* the template's tokens */
    int n_before, n_after;
} Tokenizer;

/* Local. In the arena, but for what tokenizer_close gives back. ERR_CONFIG names the file, the place
 * in it and what is wrong or not honoured. `path` must stay. */
Err tokenizer_load(const char *path, Arena *a, Tokenizer **out);
void tokenizer_close(Tokenizer *t);

/* Local. The id of a token by its content (added tokens) or its bytes; -1: there is none. */
int32_t tokenizer_id(const Tokenizer *t, const char *content);
/* Local. The bytes that an id stands for; none for a hole. */
Bytes tokenizer_bytes(const Tokenizer *t, int64_t id);
/* Local. Is it an added token that the file calls special? */
bool tokenizer_special(const Tokenizer *t, int64_t id);
/* Local. Whether text may be cut before a space between ASCII letters and each part encoded by
 * itself: the ids of the parts, one after another, are those of the text. */
bool tokenizer_cuts(const Tokenizer *t);

typedef struct {
    const Tokenizer *of;
    Arena ids, text; /* text: of the current document, made sound and normal */
    BpeScratch words;
    Matcher matcher;
    int32_t *id;
    int64_t n;
    int64_t replaced; /* parts of text that were not UTF-8, since the encoder was opened */
} Encoder;

Err encoder_open(Encoder *e, const Tokenizer *t);
void encoder_close(Encoder *e);
/* Local. Appends the ids of a text; with `special` those of the template too. */
Err encoder_add(Encoder *e, Bytes text, bool special);
/* Local. What the template puts before and after a text, for who adds a text in parts. */
Err encoder_begin(Encoder *e);
Err encoder_end(Encoder *e);
/* Local. Appends one id. */
Err encoder_add_id(Encoder *e, int32_t id);
void encoder_clear(Encoder *e);

/* Local. The bytes of ids, in the arena. Ids that are in no vocabulary give none. */
Err tokenizer_decode(const Tokenizer *t, const int32_t *id, int64_t n, Arena *a, Bytes *out);

#endif
