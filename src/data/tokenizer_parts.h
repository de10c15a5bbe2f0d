/* tokenizer_parts.h -- between the files that read a tokenizer.json, each a part of it. Only they know
 * jansson. A place in the file is written as pre_tokenizer.pretokenizers[1].pattern. */
#ifndef DATA_TOKENIZER_PARTS_H
#define DATA_TOKENIZER_PARTS_H

#include <jansson.h>
#include "data/tokenizer.h"

typedef struct {
    const char *path;
    Arena *arena;
    Tokenizer *t;
    json_t *vocab;
    bool byte_level; /* the pre_tokenizer had it */
    bool in_text;    /* the template named the text */
} TokenizerFile;

/* Local. "tokenizer.json: model.dropout: what; " and ERR_CONFIG. */
#define file_refuse(f, where, ...) err_is(ERR_CONFIG, file_message((f), (where), __VA_ARGS__))
int file_message(const TokenizerFile *f, const char *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Local. "where.name" or "where[i]" in the arena. */
Err file_member(const TokenizerFile *f, const char *where, const char *name, const char **out);
Err file_item(const TokenizerFile *f, const char *where, size_t i, const char **out);

/* Local. ERR_CONFIG unless it is an object whose members are all among `names`, spaces between
 * them. */
Err file_object(const TokenizerFile *f, const char *where, json_t *value, const char *names);
/* Local. A member that must be there, of that kind. */
Err file_text(const TokenizerFile *f, const char *where, json_t *object, const char *name,
              const char **out);
Err file_bool(const TokenizerFile *f, const char *where, json_t *object, const char *name,
              bool *out);
/* Local. An id: a whole number in [0, MAX_TOKENIZER_IDS). */
Err file_id(const TokenizerFile *f, const char *where, json_t *value, int64_t *out);

/* tokenizer_model.c: vocabulary and merges; n_ids is settled when added tokens are known too. */
Err file_vocab(TokenizerFile *f, json_t *model);
Err file_merges(TokenizerFile *f, json_t *model);
/* The bytes that the characters of a token stand for. false: some stand for none, and the bytes are
 * those of the characters themselves. */
Err file_token_bytes(const TokenizerFile *f, const char *token, Bytes *out, bool *maps);

/* tokenizer_added.c */
Err file_added(TokenizerFile *f, json_t *list);

/* tokenizer_stages.c */
Err file_normalizer(TokenizerFile *f, json_t *value);
Err file_pre_tokenizer(TokenizerFile *f, json_t *value);
Err file_post_processor(TokenizerFile *f, json_t *value);
Err file_decoder(TokenizerFile *f, json_t *value);

#endif
