/* fuzz_tokenizer.c -- a tokenizer.json: an error, or a tokenizer that encodes any text, valid UTF-8
 * or not, to ids of its vocabulary without losing a byte.
 *
 * The input is the file, then a zero byte, then the text. */
#define _GNU_SOURCE /* memfd_create */
#include "fuzz/fuzz.h"
#include "data/tokenizer.h"

/* True if the bytes of the ids are those of the text: without normalization and stripping. */
static bool keeps_bytes(const Tokenizer *t)
{
    bool keeps = !t->nfc && !t->prefix_space;
    for (int i = 0; i < t->n_added; i++)
        keeps =
            keeps && !t->added[i].lstrip && !t->added[i].rstrip &&
            t->added[i].decoded.bytes == t->added[i].content.bytes &&
            memcmp(t->added[i].decoded.at, t->added[i].content.at, t->added[i].content.bytes) == 0;
    return keeps;
}

static void encode(const Tokenizer *t, Bytes text, Arena *a)
{
    Encoder e;
    Bytes repaired, back;
    int64_t bad = 0;
    if (encoder_open(&e, t) != OK) abort();
    if (encoder_add(&e, text, true) == OK) {
        for (int64_t i = 0; i < e.n; i++)
            if (e.id[i] < 0 || e.id[i] >= t->n_ids) abort();
        const int64_t n = e.n - t->n_before - t->n_after;
        if (n < 0 || tokenizer_decode(t, e.id + t->n_before, n, a, &back) != OK) abort();
        if (utf8_repair(text, a, &repaired, &bad) != OK || bad != e.replaced) abort();
        if (keeps_bytes(t) &&
            (back.bytes != repaired.bytes ||
             (repaired.bytes && memcmp(back.at, repaired.at, repaired.bytes) != 0)))
            abort();
    }
    encoder_close(&e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena *a = fuzz_arena();
    Tokenizer *t;
    const uint8_t *zero = size > 0 ? memchr(data, '\0', size) : NULL;
    const size_t file = zero ? (size_t)(zero - data) : size;
    if (tokenizer_load(fuzz_file(data, file), a, &t) != OK) return 0;
    if (zero) encode(t, (Bytes){zero + 1, size - file - 1}, a);
    tokenizer_close(t);
    return 0;
}
