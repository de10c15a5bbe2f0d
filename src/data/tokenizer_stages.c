/* tokenizer_stages.c -- reads "normalizer", "pre_tokenizer", "post_processor" and "decoder".
 *
 * Each is null, an object with a type, or a Sequence of such objects. Other types are errors.
 *
 *     normalizer       NFC
 *     pre_tokenizer    Split (a pattern; behavior Isolated), then ByteLevel, which must be last
 *     post_processor   ByteLevel (offsets, which are not used here), TemplateProcessing
 *     decoder          ByteLevel */
#include <stdio.h>
#include <string.h>
#include "data/tokenizer_parts.h"

static bool is_null(const json_t *value) { return !value || json_is_null(value); }

static Err type_of(const TokenizerFile *f, const char *where, json_t *value, const char **out)
{
    if (!json_is_object(value))
        return file_refuse(f, where, "must be null or an object with a type");
    return file_text(f, where, value, "type", out);
}

/* Calls `read` for each object of a Sequence, whose list is the member `list`, or for the
 * value itself. */
typedef Err StageReader(TokenizerFile *f, const char *where, const char *type, json_t *value);
static Err for_each_stage(TokenizerFile *f, const char *where, json_t *value, const char *list,
                          StageReader *read)
{
    const char *type, *place;
    char names[40];
    size_t i;
    json_t *item;
    TRY(type_of(f, where, value, &type));
    if (strcmp(type, "Sequence") != 0) return read(f, where, type, value);
    snprintf(names, sizeof names, "type %s", list);
    TRY(file_object(f, where, value, names));
    json_t *items = json_object_get(value, list);
    if (!json_is_array(items)) return file_refuse(f, where, "must have a list \"%s\"", list);
    TRY(file_member(f, where, list, &where));
    json_array_foreach(items, i, item)
    {
        TRY(file_item(f, where, i, &place));
        TRY(type_of(f, place, item, &type));
        TRY(read(f, place, type, item));
    }
    return OK;
}

static Err unsupported(const TokenizerFile *f, const char *where, const char *type,
                       const char *supported)
{
    return file_refuse(f, where, "%.60s is not supported; supported are %s", type, supported);
}

static Err read_normalizer(TokenizerFile *f, const char *where, const char *type, json_t *value)
{
    if (strcmp(type, "NFC") != 0) return unsupported(f, where, type, "NFC, Sequence and null");
    f->t->nfc = true;
    return file_object(f, where, value, "type");
}

Err file_normalizer(TokenizerFile *f, json_t *value)
{
    if (is_null(value)) return OK;
    return for_each_stage(f, "normalizer", value, "normalizers", read_normalizer);
}

static Err add_pattern(TokenizerFile *f, const char *where, const char *source)
{
    Tokenizer *t = f->t;
    const char *copy;
    if (t->n_stages == MAX_TOKENIZER_STAGES)
        return file_refuse(f, where, "more than %d patterns", MAX_TOKENIZER_STAGES);
    TRY(arena_string(f->arena, source, &copy));
    char place[200];
    snprintf(place, sizeof place, "%.100s: %.80s", f->path, where);
    TRY(pattern_open(&t->stage[t->n_stages], place, copy, t->traits, true));
    t->n_stages++;
    return OK;
}

static Err read_split(TokenizerFile *f, const char *where, json_t *value)
{
    const char *behavior, *source;
    bool invert;
    json_t *pattern = json_object_get(value, "pattern");
    TRY(file_object(f, where, value, "type pattern behavior invert"));
    TRY(file_text(f, where, value, "behavior", &behavior));
    TRY(file_bool(f, where, value, "invert", &invert));
    if (strcmp(behavior, "Isolated") != 0)
        return file_refuse(f, where, "behavior %.40s is not supported; Isolated is", behavior);
    if (invert) return file_refuse(f, where, "invert true is not supported");
    TRY(file_member(f, where, "pattern", &where));
    TRY(file_object(f, where, pattern, "Regex String"));
    if (json_object_size(pattern) != 1) return file_refuse(f, where, "must be a Regex or a String");
    if (json_object_get(pattern, "Regex")) {
        TRY(file_text(f, where, pattern, "Regex", &source));
    } else {
        TRY(file_text(f, where, pattern, "String", &source));
        TRY(pattern_literal(source, f->arena, &source));
    }
    if (!*source) return file_refuse(f, where, "is empty");
    return add_pattern(f, where, source);
}

static Err read_byte_level(TokenizerFile *f, const char *where, json_t *value)
{
    Tokenizer *t = f->t;
    bool prefix, use = true; /* old files have no use_regex */
    TRY(file_object(f, where, value, "type add_prefix_space trim_offsets use_regex"));
    TRY(file_bool(f, where, value, "add_prefix_space", &prefix));
    if (json_object_get(value, "use_regex")) TRY(file_bool(f, where, value, "use_regex", &use));
    if (prefix && t->n_stages > 0)
        return file_refuse(f, where, "add_prefix_space after a Split is not supported");
    t->prefix_space = prefix;
    return use ? add_pattern(f, where, pattern_gpt2) : OK;
}

/* After ByteLevel characters represent bytes, so no other pre-tokenizer may follow. */
static Err read_pre(TokenizerFile *f, const char *where, const char *type, json_t *value)
{
    if (f->byte_level) return file_refuse(f, where, "%.60s after ByteLevel is not supported", type);
    if (strcmp(type, "Split") == 0) return read_split(f, where, value);
    if (strcmp(type, "ByteLevel") != 0)
        return unsupported(f, where, type, "Split, ByteLevel and Sequence");
    f->byte_level = true;
    return read_byte_level(f, where, value);
}

Err file_pre_tokenizer(TokenizerFile *f, json_t *value)
{
    if (!is_null(value)) TRY(for_each_stage(f, "pre_tokenizer", value, "pretokenizers", read_pre));
    if (f->byte_level) return OK;
    return file_refuse(f, "pre_tokenizer", "has no ByteLevel; only byte-level BPE is supported");
}

/* Appends the ids of a special token that the template names. */
static Err template_token(TokenizerFile *f, const char *where, json_t *named, json_t *tokens)
{
    Tokenizer *t = f->t;
    const char *name;
    int64_t id;
    size_t i;
    json_t *value;
    TRY(file_text(f, where, named, "id", &name));
    json_t *ids = json_object_get(json_object_get(tokens, name), "ids");
    if (!json_is_array(ids))
        return file_refuse(f, where, "%.80s is not among the special_tokens, with ids", name);
    int *n = f->in_text ? &t->n_after : &t->n_before;
    json_array_foreach(ids, i, value)
    {
        TRY(file_id(f, where, value, &id));
        if (*n == MAX_TEMPLATE_TOKENS)
            return file_refuse(f, where, "more than %d tokens on one side", MAX_TEMPLATE_TOKENS);
        if (id >= t->n_ids)
            return file_refuse(f, where, "%.80s has id %lld, and the vocabulary has %lld ids", name,
                               (long long)id, (long long)t->n_ids);
        (f->in_text ? t->after : t->before)[(*n)++] = (int32_t)id;
    }
    return OK;
}

static Err template_piece(TokenizerFile *f, const char *where, json_t *piece, json_t *tokens)
{
    const char *name;
    TRY(file_object(f, where, piece, "SpecialToken Sequence"));
    json_t *special = json_object_get(piece, "SpecialToken");
    if (special) return template_token(f, where, special, tokens);
    TRY(file_text(f, where, json_object_get(piece, "Sequence"), "id", &name));
    if (strcmp(name, "A") != 0 || f->in_text)
        return file_refuse(f, where, "Sequence %.20s: a template of one text names A, once", name);
    f->in_text = true;
    return OK;
}

static Err read_template(TokenizerFile *f, const char *where, json_t *value)
{
    const char *place;
    size_t i;
    json_t *piece, *tokens = json_object_get(value, "special_tokens");
    TRY(file_object(f, where, value, "type single pair special_tokens"));
    json_t *single = json_object_get(value, "single");
    if (f->in_text) return file_refuse(f, where, "a second template is not supported");
    TRY(file_member(f, where, "single", &where));
    if (!json_is_array(single)) return file_refuse(f, where, "must be a list");
    json_array_foreach(single, i, piece)
    {
        TRY(file_item(f, where, i, &place));
        TRY(template_piece(f, place, piece, tokens));
    }
    return f->in_text ? OK : file_refuse(f, where, "has no Sequence A");
}

static Err read_post(TokenizerFile *f, const char *where, const char *type, json_t *value)
{
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(f, where, value);
    if (strcmp(type, "ByteLevel") != 0)
        return unsupported(f, where, type, "ByteLevel, TemplateProcessing and Sequence");
    return file_object(f, where, value, "type add_prefix_space trim_offsets use_regex");
}

Err file_post_processor(TokenizerFile *f, json_t *value)
{
    if (is_null(value)) return OK;
    return for_each_stage(f, "post_processor", value, "processors", read_post);
}

static Err read_decoder(TokenizerFile *f, const char *where, const char *type, json_t *value)
{
    if (strcmp(type, "ByteLevel") != 0)
        return unsupported(f, where, type, "ByteLevel and Sequence");
    return file_object(f, where, value, "type add_prefix_space trim_offsets use_regex");
}

Err file_decoder(TokenizerFile *f, json_t *value)
{
    if (is_null(value)) return file_refuse(f, "decoder", "null; only ByteLevel is supported");
    return for_each_stage(f, "decoder", value, "decoders", read_decoder);
}
