/* tokenizer_model.c -- reads "model": the vocabulary and the merges of byte-level BPE.
 *
 *     "vocab": {"Ġthe": 262, ...}      each character is a byte: printable bytes are themselves,
 *     "merges": ["Ġ t", ...]           the others are U+0100 and on, in order; Ġ is a space
 *            or [["Ġ", "t"], ...]
 *
 * All 256 bytes must have a token. Then any text can be encoded, and unk_token has no effect. */
#include <stdio.h>
#include <string.h>
#include "data/tokenizer_parts.h"

static bool prints(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* Writes the character of each byte. */
static void byte_chars(uint32_t out[256])
{
    uint32_t next = 256;
    for (int b = 0; b < 256; b++) out[b] = prints(b) ? (uint32_t)b : next++;
}

/* Returns the byte of a character; -1: it has none. */
static int byte_of(uint32_t code)
{
    uint32_t chars[256];
    if (code < 256 && prints((int)code)) return (int)code;
    if (code < 256 || code > 512) return -1;
    byte_chars(chars);
    for (int b = 0; b < 256; b++)
        if (chars[b] == code) return b;
    return -1;
}

Err file_token_bytes(const TokenizerFile *f, const char *token, Bytes *out, bool *maps)
{
    const size_t length = strlen(token);
    unsigned char *to;
    size_t used = 0;
    TRY(ARENA_NEW(f->arena, length + 1, &to));
    *maps = true;
    for (size_t at = 0; at < length && *maps;) {
        uint32_t code;
        at += (size_t)utf8_at((const unsigned char *)token + at, &code);
        const int byte = byte_of(code);
        *maps = byte >= 0;
        to[used++] = (unsigned char)byte;
    }
    if (!*maps) memcpy(to, token, length);
    *out = (Bytes){to, *maps ? used : length};
    return OK;
}

static Err check_empty(const TokenizerFile *f, json_t *model, const char *name)
{
    json_t *value = json_object_get(model, name);
    if (!value || json_is_null(value) || (json_is_string(value) && !*json_string_value(value)))
        return OK;
    return file_refuse(f, "model", "%s is set; byte-level BPE is supported only without it", name);
}

static Err check_model(const TokenizerFile *f, json_t *model)
{
    json_t *type = json_object_get(model, "type"), *drop = json_object_get(model, "dropout");
    if (json_is_object(model) && type &&
        (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return file_refuse(f, "model.type", "%.40s; only BPE is supported",
                           json_is_string(type) ? json_string_value(type) : "not a text");
    TRY(file_object(f, "model", model,
                    "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                    "byte_fallback ignore_merges vocab merges"));
    if (drop && !json_is_null(drop) && !(json_is_number(drop) && json_number_value(drop) == 0.0))
        return file_refuse(f, "model.dropout", "random merges are not supported; set it to null");
    TRY(check_empty(f, model, "continuing_subword_prefix"));
    TRY(check_empty(f, model, "end_of_word_suffix"));
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return file_refuse(f, "model.byte_fallback",
                           "true; the vocabulary must be byte-level BPE, a SentencePiece "
                           "vocabulary is not supported");
    return OK;
}

static Err read_bytes(TokenizerFile *f)
{
    uint32_t chars[256];
    byte_chars(chars);
    for (int b = 0; b < 256; b++) {
        unsigned char text[MAX_UTF8 + 1];
        text[utf8_put(chars[b], text)] = '\0';
        json_t *id = json_object_get(f->vocab, (const char *)text);
        if (!id)
            return file_refuse(f, "model.vocab",
                               "has no token for byte %d (%s); each of the 256 needs one: is it "
                               "byte-level BPE?",
                               b, text);
        f->t->bpe.byte_id[b] = (int32_t)json_integer_value(id);
    }
    return OK;
}

Err file_vocab(TokenizerFile *f, json_t *model)
{
    const char *token, *where;
    json_t *value;
    int64_t id, max_id = -1;
    TRY(check_model(f, model));
    f->vocab = json_object_get(model, "vocab");
    if (!json_is_object(f->vocab))
        return file_refuse(f, "model.vocab", "must be an object of tokens and their ids");
    json_object_foreach(f->vocab, token, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) >= MAX_TOKENIZER_IDS) {
            TRY(file_member(f, "model.vocab", token, &where));
            return file_id(f, where, value, &id);
        }
        if (json_integer_value(value) > max_id) max_id = (int64_t)json_integer_value(value);
    }
    f->t->n_ids = max_id + 1;
    return read_bytes(f);
}

/* Reads the bytes of each id. is_word: it is in the vocabulary, and all its characters map
 * to bytes. */
static Err read_tokens(TokenizerFile *f, bool *is_word)
{
    const char *token;
    json_t *value;
    Bytes *of;
    TRY(ARENA_NEW(f->arena, f->t->n_ids, &of));
    json_object_foreach(f->vocab, token, value)
    {
        const int64_t id = (int64_t)json_integer_value(value);
        if (of[id].at)
            return file_refuse(f, "model.vocab", "%.80s has id %lld, as has another token", token,
                               (long long)id);
        TRY(file_token_bytes(f, token, &of[id], &is_word[id]));
    }
    f->t->bpe.token = of;
    f->t->bpe.n_tokens = f->t->n_ids;
    for (int i = 0; i < f->t->n_added; i++) {
        const AddedToken *added = &f->t->added[i];
        if (!of[added->id].at) of[added->id] = added->decoded;
    }
    return OK;
}

/* Splits a merge into its two sides; false: it is malformed. */
static bool sides(json_t *merge, Bytes side[2])
{
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            json_t *text = json_array_get(merge, i);
            if (!json_is_string(text)) return false;
            side[i] =
                (Bytes){(const unsigned char *)json_string_value(text), json_string_length(text)};
        }
        return true;
    }
    if (!json_is_string(merge)) return false;
    const char *text = json_string_value(merge), *space = strchr(text, ' ');
    if (!space || strchr(space + 1, ' ')) return false;
    side[0] = (Bytes){(const unsigned char *)text, (size_t)(space - text)};
    side[1] = (Bytes){(const unsigned char *)space + 1, strlen(space + 1)};
    return true;
}

/* Returns the id of a token that merge i names. */
static Err id_of(const TokenizerFile *f, size_t i, Bytes token, int32_t *out)
{
    json_t *id = json_object_getn(f->vocab, (const char *)token.at, token.bytes);
    if (!id)
        return file_refuse(f, "model.merges", "[%zu]: %.*s is not in model.vocab", i,
                           token.bytes < 80 ? (int)token.bytes : 80, (const char *)token.at);
    *out = (int32_t)json_integer_value(id);
    return OK;
}

static Err read_merge(TokenizerFile *f, size_t i, json_t *merge)
{
    Bytes side[2];
    int32_t left, right, both;
    unsigned char *joined;
    if (!sides(merge, side))
        return file_refuse(f, "model.merges",
                           "[%zu]: must be two tokens, \"a b\" or [\"a\", \"b\"]", i);
    const size_t mark = arena_mark(f->arena);
    TRY(ARENA_NEW(f->arena, side[0].bytes + side[1].bytes + 1, &joined));
    memcpy(joined, side[0].at, side[0].bytes);
    memcpy(joined + side[0].bytes, side[1].at, side[1].bytes);
    TRY(id_of(f, i, side[0], &left));
    TRY(id_of(f, i, side[1], &right));
    TRY(id_of(f, i, (Bytes){joined, side[0].bytes + side[1].bytes}, &both));
    bpe_merge_add(&f->t->bpe, left, right, (Merge){.rank = (uint32_t)i, .id = both});
    arena_rewind(f->arena, mark);
    return OK;
}

Err file_merges(TokenizerFile *f, json_t *model)
{
    json_t *list = json_object_get(model, "merges"), *merge;
    bool *is_word;
    size_t i;
    TRY(ARENA_NEW(f->arena, f->t->n_ids, &is_word));
    TRY(read_tokens(f, is_word));
    if (!json_is_array(list)) return file_refuse(f, "model.merges", "must be a list");
    TRY(bpe_reserve_merges(&f->t->bpe, (int64_t)json_array_size(list), f->arena));
    json_array_foreach(list, i, merge) TRY(read_merge(f, i, merge));
    if (!json_is_true(json_object_get(model, "ignore_merges"))) return OK;
    return bpe_ignore_merges(&f->t->bpe, is_word, f->arena);
}
