/* tokenizer_parts.h -- shared by the files that read the sections of a tokenizer.json with jansson.
 *
 * Positions in the file are written as pre_tokenizer.pretokenizers[1].pattern. */
#ifndef DATA_TOKENIZER_PARTS_H
#define DATA_TOKENIZER_PARTS_H

#include <jansson.h>
#include "data/tokenizer.h"

typedef struct {
    const char *path;
    Arena *arena;
    Tokenizer *t;
    json_t *vocab;
    bool byte_level; /* the pre_tokenizer contains ByteLevel */
    bool in_text;    /* the template's text has been read */
} TokenizerFile;

/* Local. Fails with ERR_CONFIG and "tokenizer.json: model.dropout: what". */
#define file_refuse(f, where, ...) err_is(ERR_CONFIG, file_message((f), (where), __VA_ARGS__))
int file_message(const TokenizerFile *f, const char *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Local. Write "where.name" or "where[i]" to the arena. */
Err file_member(const TokenizerFile *f, const char *where, const char *name, const char **out);
Err file_item(const TokenizerFile *f, const char *where, size_t i, const char **out);

/* Local. ERR_CONFIG unless it is an object whose members are all in `names`, a list separated
 * by spaces. */
Err file_object(const TokenizerFile *f, const char *where, json_t *value, const char *names);
/* Local. Read a required member of that type. */
Err file_text(const TokenizerFile *f, const char *where, json_t *object, const char *name,
              const char **out);
Err file_bool(const TokenizerFile *f, const char *where, json_t *object, const char *name,
              bool *out);
/* Local. Reads an id: a whole number in [0, MAX_TOKENIZER_IDS). */
Err file_id(const TokenizerFile *f, const char *where, json_t *value, int64_t *out);

/* In tokenizer_model.c: the vocabulary and the merges. n_ids is final once the added tokens
 * are read. */
Err file_vocab(TokenizerFile *f, json_t *model);
Err file_merges(TokenizerFile *f, json_t *model);
/* Local. Maps the characters of a token to bytes. *maps false: some character maps to no byte, and
 * the bytes are the token's own UTF-8. */
Err file_token_bytes(const TokenizerFile *f, const char *token, Bytes *out, bool *maps);

/* In tokenizer_added.c. */
Err file_added(TokenizerFile *f, json_t *list);

/* In tokenizer_stages.c. */
Err file_normalizer(TokenizerFile *f, json_t *value);
Err file_pre_tokenizer(TokenizerFile *f, json_t *value);
Err file_post_processor(TokenizerFile *f, json_t *value);
Err file_decoder(TokenizerFile *f, json_t *value);

#endif
