/* tokenizer.h -- loads a tokenizer.json (byte-level BPE) of Hugging Face's tokenizers library.
 *
 * Encoding gives the same ids as that library:
 *
 *     text   invalid UTF-8 becomes U+FFFD, counted
 *      |     added tokens that match the raw text                  <|endoftext|>
 *      |     NFC, if the file has it; then added tokens that match normalized text
 *      |     words, split by the file's patterns                   data/pretoken.h
 *      v     merges in each word                                   data/bpe.h
 *     ids    plus those of the file's template                     <|begin_of_text|>
 *
 * An unsupported feature of a file is an error that names it. A loaded tokenizer is immutable, so
 * threads share it; each thread has its own Encoder.
 *
 *     TRY(tokenizer_load("tokenizer.json", arena, &t));
 *     TRY(encoder_open(&e, t));
 *     TRY(encoder_add(&e, text, true));        appends to e.id[0 .. e.n)
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
    const unsigned char *traits; /* CHAR_ bits of each code point */
    Bpe bpe;
    int64_t n_ids; /* upper bound of all ids; some may be unused */
    AddedToken *added;
    int n_added;
    AddedSet raw, normal; /* added tokens, matched before and after normalization */
    bool nfc, prefix_space;
    PretokenPattern stage[MAX_TOKENIZER_STAGES]; /* each splits the pieces of the one before */
    int n_stages;
    int32_t before[MAX_TEMPLATE_TOKENS], after[MAX_TEMPLATE_TOKENS]; /* template */
    int n_before, n_after;
} Tokenizer;

/* Local. Returns the file that a path refers to: the path itself, or the tokenizer.json in a
 * folder. ERR_CONFIG if the folder has none. */
Err tokenizer_file(const char *path, Arena *a, const char **out);
/* Local. Loads a tokenizer.json, or that of a folder. Allocates in the arena; tokenizer_close frees
 * the compiled patterns. ERR_CONFIG names the file, the place in it and the problem. `path` must
 * outlive *out. */
Err tokenizer_load(const char *path, Arena *a, Tokenizer **out);
void tokenizer_close(Tokenizer *t);
/* Local. ERR_CONFIG if an id of the tokenizer is outside of the model's vocabulary. */
Err tokenizer_check_vocab(const Tokenizer *t, int64_t vocab);

/* Local. Returns the id of a token by its content (added tokens) or its bytes; -1: there
 * is none. */
int32_t tokenizer_id(const Tokenizer *t, const char *content);
/* Local. Returns the bytes of an id; empty for an unused id. */
Bytes tokenizer_bytes(const Tokenizer *t, int64_t id);
/* Local. True if it is an added token that the file marks as special. */
bool tokenizer_special(const Tokenizer *t, int64_t id);
/* Local. True if text may be split before a space between ASCII letters, and each part encoded
 * separately: the concatenated ids are those of the whole text. */
bool tokenizer_cuts(const Tokenizer *t);

typedef struct {
    const Tokenizer *of;
    Arena ids, text; /* text: the current document as valid, normalized UTF-8 */
    BpeScratch words;
    Matcher matcher;
    int32_t *id;
    int64_t n;
    int64_t replaced; /* invalid UTF-8 sequences since the encoder was opened */
} Encoder;

Err encoder_open(Encoder *e, const Tokenizer *t);
void encoder_close(Encoder *e);
/* Local. Appends the ids of a text; `special` adds those of the template. */
Err encoder_add(Encoder *e, Bytes text, bool special);
/* Local. Append the template's tokens before and after a text, for callers that add a text
 * in parts. */
Err encoder_begin(Encoder *e);
Err encoder_end(Encoder *e);
/* Local. Appends one id. */
Err encoder_add_id(Encoder *e, int32_t id);
void encoder_clear(Encoder *e);

/* Local. Writes the bytes of the ids to the arena. Unknown ids have no bytes. */
Err tokenizer_decode(const Tokenizer *t, const int32_t *id, int64_t n, Arena *a, Bytes *out);

#endif
