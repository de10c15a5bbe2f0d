/* encode.h -- encodes text to token ids and decodes ids, with a tokenizer.json or as bytes.
 *
 * For prompts and completions; token files are built by tokenize.h. A NULL tokenizer
 * means bytes. */
#ifndef DATA_ENCODE_H
#define DATA_ENCODE_H

#include "data/tokenizer.h"

typedef struct {
    int32_t *id;
    int64_t n;
    int64_t replaced; /* invalid UTF-8 sequences that were replaced by U+FFFD */
} EncodedText;

/* Local. Writes the ids of a text to the arena. `special` adds the tokens of the
 * tokenizer's template. */
Err encode_text(const Tokenizer *t, Bytes text, bool special, Arena *a, EncodedText *out);
/* Local. Returns the bytes of an id; empty for an unused id. */
Bytes decode_token(const Tokenizer *t, int32_t id);
/* Local. Writes the bytes of all ids to the arena. */
Err decode_text(const Tokenizer *t, const EncodedText *ids, Arena *a, Bytes *out);
/* Local. Returns the maximum number of bytes of an id. */
size_t decode_max_bytes(const Tokenizer *t);
/* Local. Returns the token that ends a text or precedes one: <|endoftext|>, <|end_of_text|> or
 * </s>; -1: the tokenizer has none of them. */
int32_t encode_end_of_text(const Tokenizer *t);

/* Local. Returns the length of the text up to its last complete character, the part that can be
 * printed while more bytes will follow. Bytes that are not UTF-8 count as complete. */
size_t utf8_whole(const char *text, size_t bytes);
#endif
