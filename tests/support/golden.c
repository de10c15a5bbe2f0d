/* golden.c -- reads golden files into structs; the formula of their weights.
 *
 * Nothing in a file is trusted: a truncated or edited file must fail here, by name, and not as a
 * wrong gradient in a test. */
#include "support/golden.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char golden_format[] = "sheaf golden 1";

const char *const golden_names[] = {
    "gpt2",  "gpt2_packed", "llama",     "llama_tied", "llama_packed", "mistral", "qwen2",
    "qwen3", "mixtral",     "qwen2_moe", "qwen3_moe",  "olmoe",        "dots1",   NULL};

static uint64_t random_bits(const char *name, int64_t index)
{
    uint64_t z = 0xCBF29CE484222325u; /* FNV-1a of the name, then splitmix64 from there */
    for (const char *c = name; *c; c++) z = (z ^ (unsigned char)*c) * 0x100000001B3u;
    z += ((uint64_t)index + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* True for "....input_layernorm.weight", "....ln_1.weight", "....q_norm.weight"; never for
 * a bias. */
static bool is_norm(const char *name)
{
    const char *kind = strrchr(name, '.');
    if (!kind || strcmp(kind, ".weight") != 0) return false;
    const char *layer = kind;
    while (layer > name && layer[-1] != '.') layer--;
    if (strncmp(layer, "ln_", 3) == 0) return true;
    const char *norm = strstr(layer, "norm");
    return norm && norm < kind;
}

double golden_weight(const char *name, int64_t index)
{
    const int64_t steps = (int64_t)(random_bits(name, index) >> 44) - (1 << 19);
    return (double)steps * 0x1p-21 + (is_norm(name) ? 1.0 : 0.0); /* exact: 22 bits in all */
}

/* The file being read, for messages, and the arena of the copies. */
typedef struct {
    const char *path;
    Arena *arena;
} Reader;

static Err malformed(const Reader *r, const char *what, const char *why)
{
    return err_fail(ERR_CHECK, "%s: %s: %s; make it again with tests/golden/make_golden.py",
                    r->path, what, why);
}

/* An array of exactly n whole numbers below `below`. */
static Err read_ids(const Reader *r, const json_t *root, const char *key, int64_t n, int64_t below,
                    int32_t **out)
{
    const json_t *list = json_object_get(root, key);
    if (!json_is_array(list) || (int64_t)json_array_size(list) != n)
        return malformed(r, key, "is not a list of T * batch numbers");
    TRY(ARENA_NEW(r->arena, n, out));
    for (int64_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, (size_t)i);
        const int64_t id = json_integer_value(x);
        if (!json_is_integer(x) || id < 0 || id >= below)
            return malformed(r, key, "a value is not a whole number within its bounds");
        (*out)[i] = (int32_t)id;
    }
    return OK;
}

static Err read_weights(const Reader *r, const json_t *root, int64_t n, double **out)
{
    const json_t *list = json_object_get(root, "weights");
    if (!json_is_array(list) || (int64_t)json_array_size(list) != n)
        return malformed(r, "weights", "is not a list of T * batch numbers");
    TRY(ARENA_NEW(r->arena, n, out));
    for (int64_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, (size_t)i);
        if (!json_is_number(x)) return malformed(r, "weights", "a value is not a number");
        (*out)[i] = json_number_value(x);
    }
    return OK;
}

static Err read_shape(const Reader *r, const json_t *shape, GoldenParam *p)
{
    p->ndim = (int)json_array_size(shape);
    p->n_elements = 1;
    if (p->ndim < 1 || p->ndim > GOLDEN_MAX_DIMS)
        return malformed(r, p->name, "has neither one nor two dims");
    for (int i = 0; i < p->ndim; i++) {
        p->dim[i] = json_integer_value(json_array_get(shape, (size_t)i));
        if (p->dim[i] <= 0) return malformed(r, p->name, "a dim is not a positive number");
        p->n_elements *= p->dim[i];
    }
    return OK;
}

/* [[index, value], ...], ascending. */
static Err read_entries(const Reader *r, json_t *list, GoldenParam *p)
{
    p->n_entries = (int64_t)json_array_size(list);
    TRY(ARENA_NEW(r->arena, p->n_entries, &p->index));
    TRY(ARENA_NEW(r->arena, p->n_entries, &p->value));
    for (int64_t i = 0; i < p->n_entries; i++) {
        json_int_t index;
        if (json_unpack(json_array_get(list, (size_t)i), "[I,F!]", &index, &p->value[i]) != 0)
            return malformed(r, p->name, "an entry is not [index, value]");
        if (index >= p->n_elements || index <= (i ? p->index[i - 1] : -1))
            return malformed(r, p->name, "an entry's index is past the end or out of order");
        if (fabs(p->value[i]) > p->max) return malformed(r, p->name, "an entry is above `max`");
        p->index[i] = index;
    }
    return OK;
}

static Err read_params(const Reader *r, json_t *list, Golden *g)
{
    g->n_params = (int64_t)json_array_size(list);
    TRY(ARENA_NEW(r->arena, g->n_params, &g->param));
    for (int64_t i = 0; i < g->n_params; i++) {
        GoldenParam *p = &g->param[i];
        json_t *shape, *entries;
        if (json_unpack(json_array_get(list, (size_t)i), "{s:s, s:o, s:F, s:F, s:o}", "name",
                        &p->name, "shape", &shape, "norm", &p->norm, "max", &p->max, "entries",
                        &entries) != 0)
            return malformed(r, "params", "one lacks a name, shape, norm, max or entries");
        TRY(arena_string(r->arena, p->name, &p->name)); /* the JSON's own string is freed with it */
        TRY(read_shape(r, shape, p));
        TRY(read_entries(r, entries, p));
    }
    return OK;
}

static Err read_logits(const Reader *r, json_t *list, Golden *g)
{
    g->n_logits = (int64_t)json_array_size(list);
    TRY(ARENA_NEW(r->arena, g->n_logits, &g->logit));
    for (int64_t i = 0; i < g->n_logits; i++) {
        json_int_t token, id;
        GoldenLogit *at = &g->logit[i];
        if (json_unpack(json_array_get(list, (size_t)i), "[I,I,F!]", &token, &id, &at->value) != 0)
            return malformed(r, "logits", "one is not [token, id, value]");
        if (token < 0 || token >= g->n_tokens || id < 0 || id >= g->vocab)
            return malformed(r, "logits", "one is outside of [T * batch, vocab]");
        at->token = token, at->id = id;
    }
    return OK;
}

static Err read_spots(const Reader *r, json_t *list, Golden *g)
{
    g->n_spots = (int64_t)json_array_size(list);
    TRY(ARENA_NEW(r->arena, g->n_spots, &g->spot));
    for (int64_t i = 0; i < g->n_spots; i++) {
        const char *name;
        json_int_t index;
        GoldenSpot *at = &g->spot[i];
        if (json_unpack(json_array_get(list, (size_t)i), "[s,I,F!]", &name, &index, &at->value) !=
            0)
            return malformed(r, "spots", "one is not [name, index, value]");
        const GoldenParam *p = golden_param(g, name);
        if (!p || index < 0 || index >= p->n_elements)
            return malformed(r, "spots", "one is not in any parameter");
        at->param = p->name, at->index = index;
    }
    return OK;
}

static Err read_config(const Reader *r, const json_t *config, Golden *g)
{
    g->vocab = json_integer_value(json_object_get(config, "vocab_size"));
    if (g->vocab <= 0) return malformed(r, "config", "vocab_size is not a positive number");
    char *text = json_dumps(config, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    if (!text) return err_fail(ERR_NOMEM, "%s: no memory for the text of `config`", r->path);
    const Err err = arena_string(r->arena, text, &g->config);
    free(text);
    return err;
}

static Err read_golden(const Reader *r, json_t *root, Golden *g)
{
    json_t *config, *logits, *params, *spots;
    json_int_t T, batch;
    json_error_t error;
    const char *format;
    if (json_unpack_ex(root, &error, 0, "{s:s, s:I, s:I, s:F, s:o, s:o, s:o, s:o}", "format",
                       &format, "T", &T, "batch", &batch, "loss", &g->loss, "config", &config,
                       "logits", &logits, "params", &params, "spots", &spots) != 0)
        return malformed(r, "top level", error.text);
    if (strcmp(format, golden_format) != 0) return malformed(r, "format", "is another version");
    if (T <= 0 || batch <= 0) return malformed(r, "T, batch", "are not both positive");
    g->T = T, g->batch = batch, g->n_tokens = T * batch;
    TRY(read_config(r, config, g));
    TRY(read_ids(r, root, "tokens", g->n_tokens, g->vocab, &g->tokens));
    TRY(read_ids(r, root, "targets", g->n_tokens, g->vocab, &g->targets));
    TRY(read_ids(r, root, "positions", g->n_tokens, T, &g->positions));
    TRY(read_ids(r, root, "key_lo", g->n_tokens, T, &g->key_lo));
    TRY(read_weights(r, root, g->n_tokens, &g->weights));
    TRY(read_params(r, params, g));
    TRY(read_logits(r, logits, g));
    return read_spots(r, spots, g);
}

Err golden_load_file(const char *path, Arena *arena, Golden *out)
{
    const Reader reader = {.path = path, .arena = arena};
    Golden g = {.name = path};
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return err_fail(ERR_IO, "%s, line %d: %s; is GOLDEN_DIR the folder tests/golden?", path,
                        error.line, error.text);
    const Err err = read_golden(&reader, root, &g);
    json_decref(root);
    if (err == OK) *out = g;
    return err;
}

Err golden_load(const char *name, Arena *arena, Golden *out)
{
    char path[1024];
    const int length = snprintf(path, sizeof path, "%s/%s.json", GOLDEN_DIR, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return err_fail(ERR_IO, "%s/%s.json: the path is longer than %zu bytes", GOLDEN_DIR, name,
                        sizeof path - 1);
    Golden g;
    TRY(golden_load_file(path, arena, &g));
    TRY(arena_string(arena, name, &g.name));
    *out = g;
    return OK;
}

Err golden_write_config(const Golden *g, const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file) return err_fail(ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    const bool wrote = fputs(g->config, file) >= 0;
    if (fclose(file) != 0 || !wrote)
        return err_fail(ERR_IO, "%s: writing it failed: %s", path, strerror(errno));
    return OK;
}

const GoldenParam *golden_param(const Golden *g, const char *name)
{
    for (int64_t i = 0; i < g->n_params; i++)
        if (strcmp(g->param[i].name, name) == 0) return &g->param[i];
    return NULL;
}

void golden_ranges(const Golden *g, int32_t *ranges)
{
    for (int64_t n = 0; n < g->n_tokens; n++) {
        const int64_t first = n - n % g->T; /* of the sequence */
        ranges[4 * n + 0] = (int32_t)(first + g->key_lo[n]);
        ranges[4 * n + 1] = (int32_t)(n + 1);
        ranges[4 * n + 2] = ranges[4 * n + 3] = 0;
    }
}
