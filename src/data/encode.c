/* encode.c -- encodes and decodes text, with a tokenizer or as bytes. */
#include "data/encode.h"

#include <string.h>
#include "data/unicode.h"

static Err encode_as_bytes(Bytes text, Arena *a, EncodedText *out)
{
    TRY(ARENA_NEW(a, text.bytes, &out->id));
    out->n = (int64_t)text.bytes;
    out->replaced = 0;
    for (size_t i = 0; i < text.bytes; i++) out->id[i] = text.at[i];
    return OK;
}

static Err copy_ids(const Encoder *e, Arena *a, EncodedText *out)
{
    TRY(ARENA_NEW(a, e->n, &out->id));
    out->n = e->n;
    out->replaced = e->replaced;
    if (e->n) memcpy(out->id, e->id, (size_t)e->n * sizeof *e->id);
    return OK;
}

Err encode_text(const Tokenizer *t, Bytes text, bool special, Arena *a, EncodedText *out)
{
    Encoder e;
    if (!t) return encode_as_bytes(text, a, out);
    TRY(encoder_open(&e, t));
    Err err = encoder_add(&e, text, special);
    if (err == OK) err = copy_ids(&e, a, out);
    encoder_close(&e);
    return err;
}

Bytes decode_token(const Tokenizer *t, int32_t id)
{
#define FOUR(n) n, n + 1, n + 2, n + 3
#define ROW(n) FOUR(n), FOUR(n + 4), FOUR(n + 8), FOUR(n + 12)
#define BLOCK(n) ROW(n), ROW(n + 16), ROW(n + 32), ROW(n + 48)
    static const unsigned char byte[BYTE_VOCAB] = {BLOCK(0), BLOCK(64), BLOCK(128), BLOCK(192)};
    if (t) return tokenizer_bytes(t, id);
    return id >= 0 && id < BYTE_VOCAB ? (Bytes){&byte[id], 1} : (Bytes){NULL, 0};
}

Err decode_text(const Tokenizer *t, const EncodedText *ids, Arena *a, Bytes *out)
{
    size_t bytes = 0;
    unsigned char *to;
    for (int64_t i = 0; i < ids->n; i++) bytes += decode_token(t, ids->id[i]).bytes;
    TRY(ARENA_NEW(a, bytes + 1, &to));
    *out = (Bytes){to, bytes};
    for (int64_t i = 0; i < ids->n; i++) {
        const Bytes b = decode_token(t, ids->id[i]);
        if (b.bytes) memcpy(to, b.at, b.bytes);
        to += b.bytes;
    }
    return OK;
}

size_t decode_max_bytes(const Tokenizer *t)
{
    size_t max = 1;
    for (int64_t id = 0; t && id < t->n_ids; id++) {
        const size_t bytes = tokenizer_bytes(t, id).bytes;
        if (bytes > max) max = bytes;
    }
    return max;
}

int32_t encode_end_of_text(const Tokenizer *t)
{
    static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    int32_t id = -1;
    for (int i = 0; t && i < 3 && id < 0; i++) id = tokenizer_id(t, usual[i]);
    return id;
}

/* Returns the length of the character that begins with this byte; 0: no character does. */
static size_t begins(unsigned char c)
{
    return c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
}

size_t utf8_whole(const char *text, size_t bytes)
{
    for (size_t back = 1; back < MAX_UTF8 && back <= bytes; back++) {
        const unsigned char c = (unsigned char)text[bytes - back];
        if ((c & 0xC0) == 0x80) continue; /* continuation byte */
        return begins(c) > back ? bytes - back : bytes;
    }
    return bytes;
}
