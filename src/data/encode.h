/* encode.h -- text to tokens and back, by bytes or by a tokenizer.json: for those who read and write
 * text, not files of tokens. A tokenizer that is NULL stands for bytes. */
#ifndef DATA_ENCODE_H
#define DATA_ENCODE_H

#include "data/tokenizer.h"

typedef struct {
    int32_t *id;
    int64_t n;
    int64_t replaced; /* parts that were not UTF-8: U+FFFD stands for them */
} EncodedText;

/* Local. The ids of a text, in the arena; with `special` those that the tokenizer's template puts
 * around it too. */
Err encode_text(const Tokenizer *t, Bytes text, bool special, Arena *a, EncodedText *out);
/* Local. The bytes that an id stands for; none where it stands for none. */
Bytes decode_token(const Tokenizer *t, int32_t id);
/* Local. The most bytes that an id stands for. */
size_t decode_max_bytes(const Tokenizer *t);
/* Local. The token that ends a text, or comes before one: what the tokenizer calls <|endoftext|>,
 * <|end_of_text|> or </s>; -1: it has none. */
int32_t encode_end_of_text(const Tokenizer *t);

/* Local. Bytes of the text up to its last whole character: what may be shown, when more is to come.
 * Bytes that are no UTF-8 count as whole. */
size_t utf8_whole(const char *text, size_t bytes);
#endif
