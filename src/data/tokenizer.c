/* tokenizer.c -- encodes text through the stages of a tokenizer, and decodes ids. */
#include "data/tokenizer.h"

#include <string.h>

void tokenizer_close(Tokenizer *t)
{
    for (int i = 0; i < t->n_stages; i++) pattern_close(&t->stage[i]);
    t->n_stages = 0;
}

Err tokenizer_check_vocab(const Tokenizer *t, int64_t vocab)
{
    if (t->n_ids <= vocab) return OK;
    return err_fail(ERR_CONFIG,
                    "data.tokenizer=%.200s: has %lld ids, but the model's vocabulary has %lld; set "
                    "model.vocab_size=%lld or more",
                    t->path, (long long)t->n_ids, (long long)vocab, (long long)t->n_ids);
}

Bytes tokenizer_bytes(const Tokenizer *t, int64_t id)
{
    return id >= 0 && id < t->n_ids ? t->bpe.token[id] : (Bytes){0};
}

int32_t tokenizer_id(const Tokenizer *t, const char *content)
{
    const size_t bytes = strlen(content);
    for (int64_t id = t->n_ids - 1; id >= 0; id--) { /* added tokens usually have the highest ids */
        const Bytes b = t->bpe.token[id];
        if (b.at && b.bytes == bytes && memcmp(b.at, content, bytes) == 0) return (int32_t)id;
    }
    return -1;
}

bool tokenizer_special(const Tokenizer *t, int64_t id)
{
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].id == id) return t->added[i].special;
    return false;
}

bool tokenizer_cuts(const Tokenizer *t)
{
    if (t->n_stages == 0 || !pattern_cuts(&t->stage[0])) return false;
    for (int i = 0; i < t->n_added; i++) {
        const Bytes c = t->added[i].content;
        if (t->added[i].rstrip || memchr(c.at, ' ', c.bytes)) return false;
    }
    return true;
}

Err encoder_open(Encoder *e, const Tokenizer *t)
{
    *e = (Encoder){.of = t};
    Err err = arena_open(&e->ids, "ids", ARENA_PLENTY);
    if (err == OK) err = arena_open(&e->text, "text", ARENA_PLENTY);
    if (err == OK) err = bpe_scratch_open(&e->words);
    if (err == OK) err = matcher_open(&e->matcher);
    if (err != OK) encoder_close(e);
    e->id = (int32_t *)(void *)e->ids.base;
    return err;
}

void encoder_close(Encoder *e)
{
    matcher_close(&e->matcher);
    bpe_scratch_close(&e->words);
    arena_close(&e->text);
    arena_close(&e->ids);
}

void encoder_clear(Encoder *e) { e->n = 0; }

/* The array of ids is the arena's address space, so it never moves. Checks that it can hold that
 * many more. */
static Err reserve_ids(Encoder *e, size_t more)
{
    const size_t capacity = e->ids.cap_bytes / sizeof *e->id;
    if (more <= capacity && (size_t)e->n <= capacity - more) return OK;
    return err_fail(ERR_NOMEM, "%zu more ids exceed the limit of %zu; split the document", more,
                    capacity);
}

Err encoder_add_id(Encoder *e, int32_t id)
{
    TRY(reserve_ids(e, 1));
    e->id[e->n++] = id;
    return OK;
}

/* Splits text by the patterns from `stage` on. Each piece after the last pattern is a word. */
static Err add_words(Encoder *e, Bytes text, int stage)
{
    const Tokenizer *t = e->of;
    if (stage == t->n_stages) {
        int64_t n;
        TRY(bpe_encode(&t->bpe, &e->words, text, e->id + e->n, &n));
        e->n += n;
        return OK;
    }
    for (size_t at = 0, end; at < text.bytes; at = end) {
        TRY(pattern_next(&t->stage[stage], &e->matcher, text, at, &end));
        TRY(add_words(e, (Bytes){text.at + at, end - at}, stage + 1));
    }
    return OK;
}

/* Encodes text between added tokens. */
static Err add_text(Encoder *e, Bytes text)
{
    TRY(reserve_ids(e, text.bytes + 1 + BPE_SLACK)); /* at most one id per byte */
    if (text.bytes == 0) return OK;
    if (!e->of->prefix_space || text.at[0] == ' ') return add_words(e, text, 0);
    const size_t mark = arena_mark(&e->text);
    void *buffer;
    TRY(arena_push(&e->text, text.bytes + 1, &buffer));
    unsigned char *to = buffer;
    to[0] = ' ';
    memcpy(to + 1, text.at, text.bytes);
    TRY(add_words(e, (Bytes){to, text.bytes + 1}, 0));
    arena_rewind(&e->text, mark);
    return OK;
}

/* Splits text at added tokens and calls `rest` for the text between them. */
static Err cut_added(Encoder *e, const AddedSet *set, Bytes text, Err (*rest)(Encoder *, Bytes))
{
    AddedMatch m;
    size_t done = 0;
    for (size_t at = 0; added_find(set, text, at, &m); at = m.next) {
        if (done < m.from) TRY(rest(e, (Bytes){text.at + done, m.from - done}));
        TRY(encoder_add_id(e, m.token->id));
        done = m.to;
    }
    if (done < text.bytes) TRY(rest(e, (Bytes){text.at + done, text.bytes - done}));
    return OK;
}

static Err add_normal(Encoder *e, Bytes text)
{
    const size_t mark = arena_mark(&e->text);
    if (e->of->nfc) TRY(unicode_nfc(e->of->traits, text, &e->text, &text));
    TRY(cut_added(e, &e->of->normal, text, add_text));
    arena_rewind(&e->text, mark);
    return OK;
}

Err encoder_begin(Encoder *e)
{
    for (int i = 0; i < e->of->n_before; i++) TRY(encoder_add_id(e, e->of->before[i]));
    return OK;
}

Err encoder_end(Encoder *e)
{
    for (int i = 0; i < e->of->n_after; i++) TRY(encoder_add_id(e, e->of->after[i]));
    return OK;
}

Err encoder_add(Encoder *e, Bytes text, bool special)
{
    arena_rewind(&e->text, 0);
    if (special) TRY(encoder_begin(e));
    TRY(utf8_repair(text, &e->text, &text, &e->replaced));
    TRY(cut_added(e, &e->of->raw, text, add_normal));
    return special ? encoder_end(e) : OK;
}

Err tokenizer_decode(const Tokenizer *t, const int32_t *id, int64_t n, Arena *a, Bytes *out)
{
    size_t bytes = 0;
    unsigned char *to;
    for (int64_t i = 0; i < n; i++) bytes += tokenizer_bytes(t, id[i]).bytes;
    TRY(ARENA_NEW(a, bytes, &to));
    *out = (Bytes){to, bytes};
    for (int64_t i = 0; i < n; i++) {
        const Bytes b = tokenizer_bytes(t, id[i]);
        if (b.bytes) memcpy(to, b.at, b.bytes);
        to += b.bytes;
    }
    return OK;
}
