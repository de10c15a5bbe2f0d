/* tokens.c -- opens token files (map, recognize, parse) and reads tokens and document starts. */
#include "data/tokens.h"

#include <stdio.h>
#include <string.h>
#include "base/text.h"
#include "data/map.h"
#include "data/tokens_parts.h"

enum { PROBE_BYTES = 1 << 16 };

static const char *const format_name[N_FORMATS] = {"auto",     "text",   "jsonl", "tokens",
                                                   "megatron", "uint16", "uint32"};

const char *token_format_name(TokenFormat format) { return format_name[format]; }

Err token_format_named(const char *name, TokenFormat *out)
{
    for (int f = 0; f < N_FORMATS; f++) {
        if (strcmp(name, format_name[f]) != 0) continue;
        *out = (TokenFormat)f;
        return OK;
    }
    const char *near = text_nearest(name, format_name, N_FORMATS);
    return err_fail(
        ERR_CONFIG,
        "%.80s: is not a format of data files; %s%s%sformats are auto, text, jsonl, tokens, "
        "megatron, uint16, uint32",
        name, near ? "did you mean " : "", near ? near : "", near ? "? " : "");
}

static bool ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

Err tokens_recognise(const char *path, Bytes data, bool has_index, TokenFormat *out)
{
    const uint32_t magic = data.bytes >= 4 ? read_u32(data.at) : 0;
    const size_t probed = data.bytes < PROBE_BYTES ? data.bytes : PROBE_BYTES;
    *out = FORMAT_TEXT;
    if (magic == LLMC_MAGIC_U16 || magic == LLMC_MAGIC_U32 || magic == LLMC_MAGIC_EVAL)
        *out = FORMAT_TOKENS;
    else if (has_index)
        *out = FORMAT_MEGATRON;
    else if (ends_in(path, ".jsonl") || ends_in(path, ".ndjson"))
        *out = FORMAT_JSONL;
    else if (probed > 0 && memchr(data.at, '\0', probed)) /* text has no NUL */
        return err_fail(ERR_CONFIG,
                        "%s: is not text (byte %zu is NUL), has no magic of a token file and no "
                        ".idx next to it; set data.format to uint16 or uint32 (an array of "
                        "tokens), or to text to train on its bytes",
                        path,
                        (size_t)((const unsigned char *)memchr(data.at, '\0', probed) - data.at));
    return OK;
}

Err tokens_parse(const char *path, TokenFormat format, Bytes data, Bytes index, Arena *a,
                 Tokens *out)
{
    Tokens t = {.path = path, .format = format, .start_token = -1};
    if (format == FORMAT_AUTO) TRY(tokens_recognise(path, data, index.at != NULL, &t.format));
    switch (t.format) {
    case FORMAT_TOKENS:
        TRY(parse_llmc(data, &t));
        break;
    case FORMAT_MEGATRON:
        TRY(parse_megatron(data, index, &t));
        break;
    case FORMAT_JSONL:
        TRY(parse_jsonl(data, a, &t));
        break;
    case FORMAT_UINT16:
        TRY(parse_plain(data, 2, &t));
        break;
    case FORMAT_UINT32:
        TRY(parse_plain(data, 4, &t));
        break;
    default:
        TRY(parse_plain(data, 1, &t));
    }
    *out = t;
    return OK;
}

/* Finds the .bin and the .idx of a pair from NAME, NAME.bin or NAME.idx; *idx is "" if there
 * is none. */
static Err find_pair(const char *path, TokenFormat format, Arena *a, const char **bin,
                     const char **idx)
{
    const bool has_end = ends_in(path, ".bin") || ends_in(path, ".idx");
    const int stem = (int)strlen(path) - (has_end ? 4 : 0);
    const bool is_index = ends_in(path, ".idx") || !map_exists(path);
    Text b = text_in(a);
    text_add(&b, "%.*s.bin", stem, path);
    TRY(text_done(&b, bin));
    Text i = text_in(a);
    text_add(&i, "%.*s.idx", stem, path);
    TRY(text_done(&i, idx));
    const bool pair = map_exists(*bin) && map_exists(*idx);
    if (!pair && ends_in(path, ".idx"))
        return err_fail(ERR_IO, "%s: an index without its tokens: there is no %s", path, *bin);
    if (format == FORMAT_MEGATRON && !map_exists(*idx))
        return err_fail(ERR_IO,
                        "%s: a Megatron pair has an index next to it, and there is no %s; add it "
                        "or set another data.format",
                        path, *idx);
    if (pair && (is_index || ends_in(path, ".bin"))) return OK;
    *bin = path;
    if (format != FORMAT_MEGATRON) *idx = "";
    return OK;
}

Err tokens_open(const char *path, TokenFormat format, Arena *a, Tokens *out)
{
    const char *bin = path, *idx = "";
    Bytes data = {0}, index = {0};
    if (format == FORMAT_AUTO || format == FORMAT_MEGATRON)
        TRY(find_pair(path, format, a, &bin, &idx));
    TRY(map_file(bin, &data));
    Err err = *idx ? map_file(idx, &index) : OK;
    if (err == OK && format == FORMAT_AUTO) err = tokens_recognise(bin, data, *idx, &format);
    if (err == OK) err = tokens_parse(bin, format, data, index, a, out);
    if (map_check() != OK) err = ERR_IO; /* an error in lost bytes is not the cause */
    if (err != OK) {
        unmap(&data);
        unmap(&index);
        return err;
    }
    out->map[0] = data;
    out->map[1] = index;
    return OK;
}

void tokens_close(Tokens *t)
{
    unmap(&t->map[0]);
    unmap(&t->map[1]);
}

int64_t tokens_at(const Tokens *t, int64_t i)
{
    const unsigned char *p = t->first + i * t->width;
    switch (t->width) {
    case 1:
        return p[0];
    case 2: {
        const int id = p[0] | p[1] << 8;
        return t->is_signed ? (int16_t)id : id;
    }
    case 4:
        return t->is_signed ? (int64_t)(int32_t)read_u32(p) : (int64_t)read_u32(p);
    default:
        return (int64_t)read_u64(p);
    }
}

static int64_t start_at(const Tokens *t, int64_t d)
{
    return t->start ? t->start[d] : megatron_start(t, d);
}

int64_t tokens_next_start(const Tokens *t, int64_t at, int64_t end)
{
    if (t->start_token >= 0) {
        for (int64_t i = at + 1; i < end; i++)
            if (tokens_at(t, i) == t->start_token) return i;
        return end;
    }
    int64_t low = 0, high = t->n_starts; /* search for the first document that starts past `at` */
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (start_at(t, middle) > at)
            high = middle;
        else
            low = middle + 1;
    }
    const int64_t next = low < t->n_starts ? start_at(t, low) : end;
    return next > at && next < end ? next : end; /* lost pages of a truncated file read as 0 */
}

Err tokens_bad_id(const Tokens *t, int64_t i, int64_t vocab)
{
    const int64_t id = tokens_at(t, i), byte = t->first_byte + i * t->width;
    char at[32] = "", wider[64] = "";
    if (t->first_byte >= 0) snprintf(at, sizeof at, " (byte %lld)", (long long)byte);
    if (id >= 0 && id < INT32_MAX)
        snprintf(wider, sizeof wider, " or a model with model.vocab_size=%lld or more",
                 (long long)id + 1);
    return err_fail(ERR_CHECK,
                    "%s: token %lld%s is %lld, and the vocabulary has %lld ids; use tokens of the "
                    "model's tokenizer%s. The file was read as %s: is data.format right?",
                    t->path, (long long)i, at, (long long)id, (long long)vocab, wider,
                    tokens_describe(t));
}

Err token_stats_init(TokenStats *stats, Arena *a)
{
    *stats = (TokenStats){.low = INT64_MAX, .high = INT64_MIN};
    return ARENA_NEW(a, MAX_STATS_IDS / 8, &stats->seen);
}

Err tokens_scan(const Tokens *t, int64_t from, int64_t to, int64_t vocab, TokenStats *stats)
{
    int64_t start = from == 0 ? 0 : tokens_next_start(t, from - 1, to);
    for (int64_t i = from; i < to; i++) {
        const int64_t id = tokens_at(t, i);
        if (vocab > 0 && (id < 0 || id >= vocab)) return tokens_bad_id(t, i, vocab);
        if (id < stats->low) stats->low = id;
        if (id > stats->high) stats->high = id;
        if (id >= 0 && id < MAX_STATS_IDS && !(stats->seen[id / 8] >> id % 8 & 1)) {
            stats->seen[id / 8] |= (unsigned char)(1 << id % 8);
            stats->n_ids++;
        }
        if (i != start) continue;
        stats->n_documents++;
        start = tokens_next_start(t, i, to);
    }
    return OK;
}

const char *tokens_describe(const Tokens *t)
{
    switch (t->format) {
    case FORMAT_TOKENS:
        return t->width == 2 ? "a token file of llm.c, uint16" : "a token file of llm.c, uint32";
    case FORMAT_MEGATRON:
        return t->width == 1                    ? "a Megatron pair, uint8"
               : t->width == 2 && !t->is_signed ? "a Megatron pair, uint16"
               : t->width == 2                  ? "a Megatron pair, int16"
               : t->width == 4                  ? "a Megatron pair, int32"
                                                : "a Megatron pair, int64";
    case FORMAT_JSONL:
        return "JSONL, its texts by bytes";
    case FORMAT_UINT16:
        return "an array of uint16 tokens";
    case FORMAT_UINT32:
        return "an array of uint32 tokens";
    default:
        return "text, by bytes";
    }
}
