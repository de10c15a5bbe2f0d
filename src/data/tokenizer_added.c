/* tokenizer_added.c -- reads "added_tokens".
 *
 * The official library renumbers them: a token of the vocabulary keeps its id there, and the others
 * follow the vocabulary in the order of the list. A file with other ids is refused, because the
 * official library would read it differently. */
#include <string.h>
#include "data/tokenizer_parts.h"

/* Returns the id that the official library assigns to token i. */
static int64_t id_in_order(const TokenizerFile *f, int i, const char *content)
{
    const json_t *known = json_object_get(f->vocab, content);
    const int64_t n_vocab = (int64_t)json_object_size(f->vocab);
    int64_t max_id = -1;
    if (known) return (int64_t)json_integer_value(known);
    for (int k = 0; k < i; k++)
        if (f->t->added[k].id > max_id) max_id = f->t->added[k].id;
    return max_id >= n_vocab ? max_id + 1 : n_vocab;
}

static Err read_flags(const TokenizerFile *f, const char *where, json_t *value, AddedToken *out)
{
    TRY(file_bool(f, where, value, "single_word", &out->single_word));
    TRY(file_bool(f, where, value, "lstrip", &out->lstrip));
    TRY(file_bool(f, where, value, "rstrip", &out->rstrip));
    TRY(file_bool(f, where, value, "normalized", &out->normalized));
    return file_bool(f, where, value, "special", &out->special);
}

/* Sets the bytes to search for and the bytes that the id decodes to. The latter are mapped from
 * characters as for all tokens; the official library, too, maps the composed content. */
static Err read_content(const TokenizerFile *f, const char *content, AddedToken *out)
{
    char *copy;
    bool maps;
    out->content = (Bytes){(const unsigned char *)content, strlen(content)};
    if (out->normalized && f->t->nfc)
        TRY(unicode_nfc(f->t->traits, out->content, f->arena, &out->content));
    TRY(ARENA_NEW(f->arena, out->content.bytes + 1, &copy));
    memcpy(copy, out->content.at, out->content.bytes);
    out->content.at = (const unsigned char *)copy;
    return file_token_bytes(f, copy, &out->decoded, &maps);
}

static bool same_content(const AddedToken *a, const AddedToken *b)
{
    return a->normalized == b->normalized && a->content.bytes == b->content.bytes &&
           memcmp(a->content.at, b->content.at, a->content.bytes) == 0;
}

static Err read_token(TokenizerFile *f, int i, json_t *value)
{
    const char *where, *content;
    AddedToken token = {0};
    int64_t id;
    TRY(file_item(f, "added_tokens", (size_t)i, &where));
    TRY(file_object(f, where, value, "id content single_word lstrip rstrip normalized special"));
    TRY(file_id(f, where, json_object_get(value, "id"), &id));
    TRY(file_text(f, where, value, "content", &content));
    if (!*content) return file_refuse(f, where, "its content is empty");
    TRY(read_flags(f, where, value, &token));
    TRY(read_content(f, content, &token));
    if (id != id_in_order(f, i, content))
        return file_refuse(f, where,
                           "%.80s has id %lld, and the official library reads it as %lld; ids "
                           "follow the vocabulary, in order",
                           content, (long long)id, (long long)id_in_order(f, i, content));
    token.id = (int32_t)id;
    for (int k = 0; k < i; k++)
        if (f->t->added[k].id == id || same_content(&f->t->added[k], &token))
            return file_refuse(f, where, "%.80s has the id or the content of added_tokens[%d]",
                               content, k);
    f->t->added[i] = token;
    if (id >= f->t->n_ids) f->t->n_ids = id + 1;
    return OK;
}

Err file_added(TokenizerFile *f, json_t *list)
{
    Tokenizer *t = f->t;
    json_t *value;
    size_t i;
    if (list && !json_is_array(list)) return file_refuse(f, "added_tokens", "must be a list");
    const size_t n = json_array_size(list);
    if (n > MAX_TOKENIZER_ADDED)
        return file_refuse(f, "added_tokens", "%zu tokens; the limit is %d", n,
                           MAX_TOKENIZER_ADDED);
    TRY(ARENA_NEW(f->arena, n, &t->added));
    json_array_foreach(list, i, value) TRY(read_token(f, (int)i, value));
    t->n_added = (int)n;
    t->raw.traits = t->normal.traits = t->traits;
    TRY(added_build(&t->raw, t->added, t->n_added, false, f->arena));
    return added_build(&t->normal, t->added, t->n_added, true, f->arena);
}
