/* hf_extra.c -- the files of a Hugging Face folder besides weights: config.json and a tokenizer. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "state/disk.h"
#include "state/hf_write.h"
#include "state/strict.h"

enum { MAX_CONFIG_BYTES = 1 << 20, MAX_TOKENIZER_BYTES = 1 << 28, MAX_DEPTH = 64 };

static const char *const tokenizer_files[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
};

static const char *const architecture[N_FAMILIES] = {
    [FAMILY_GPT2] = "GPT2LMHeadModel",          [FAMILY_LLAMA] = "LlamaForCausalLM",
    [FAMILY_MISTRAL] = "MistralForCausalLM",    [FAMILY_QWEN2] = "Qwen2ForCausalLM",
    [FAMILY_QWEN3] = "Qwen3ForCausalLM",        [FAMILY_MIXTRAL] = "MixtralForCausalLM",
    [FAMILY_QWEN2_MOE] = "Qwen2MoeForCausalLM", [FAMILY_QWEN3_MOE] = "Qwen3MoeForCausalLM",
    [FAMILY_OLMOE] = "OlmoeForCausalLM",        [FAMILY_DOTS1] = "Dots1ForCausalLM",
};

Err hf_put_text(const char *dir, const char *name, const char *text)
{
    char path[DISK_PATH_BYTES];
    int fd;
    TRY(disk_path(dir, name, path));
    TRY(disk_create(path, &fd));
    const Err err = disk_write(fd, path, 0, text, strlen(text));
    if (err == OK) return disk_finish(fd, path);
    disk_close(fd);
    return err;
}

static bool is_file(const char *dir, const char *name)
{
    char path[DISK_PATH_BYTES];
    struct stat s;
    return disk_path(dir, name, path) == OK && stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

Err hf_copy_file(const char *in_path, const char *to, const char *name)
{
    char out_path[DISK_PATH_BYTES], buffer[1 << 16];
    int64_t length;
    int in, out;
    TRY(disk_path(to, name, out_path));
    TRY(disk_open(in_path, &in));
    Err err = disk_length(in, in_path, &length);
    if (err == OK) err = disk_create(out_path, &out);
    if (err != OK) {
        disk_close(in);
        return err;
    }
    for (int64_t at = 0; err == OK && at < length; at += (int64_t)sizeof buffer) {
        const size_t n =
            (size_t)(length - at) < sizeof buffer ? (size_t)(length - at) : sizeof buffer;
        err = disk_read(in, in_path, at, buffer, n);
        if (err == OK) err = disk_write(out, out_path, at, buffer, n);
    }
    disk_close(in);
    if (err == OK) return disk_finish(out, out_path);
    disk_close(out);
    return err;
}

Err hf_copy_tokenizer(const char *from, const char *to, int *n)
{
    char path[DISK_PATH_BYTES];
    *n = 0;
    for (size_t i = 0; from && i < sizeof tokenizer_files / sizeof *tokenizer_files; i++) {
        if (!is_file(from, tokenizer_files[i])) continue;
        TRY(disk_path(from, tokenizer_files[i], path));
        TRY(hf_copy_file(path, to, tokenizer_files[i]));
        (*n)++;
    }
    return OK;
}

/* Parses an object from a file in the folder; NULL: no such file. */
static Err read_object(const char *dir, const char *name, size_t limit, Arena *temp, json_t **out)
{
    char path[DISK_PATH_BYTES];
    const char *text;
    size_t bytes;
    *out = NULL;
    if (!dir || !is_file(dir, name)) return OK;
    const size_t mark = arena_mark(temp);
    TRY(disk_path(dir, name, path));
    TRY(text_read_file(path, limit, temp, &text, &bytes));
    const Err err = strict_parse(path, text, bytes, MAX_DEPTH, out);
    arena_rewind(temp, mark);
    return err;
}

/* ---- token ids ---- */

/* Returns the text of "</s>" or of {"content": "</s>", ...}. */
static const char *token_text(const json_t *x)
{
    return json_string_value(json_is_object(x) ? json_object_get(x, "content") : x);
}

static json_t *id_of(const json_t *tokenizer, const char *text)
{
    const json_t *added = json_object_get(tokenizer, "added_tokens"), *item;
    size_t i;
    json_array_foreach(added, i, item)
    {
        const char *content = json_string_value(json_object_get(item, "content"));
        if (content && text && strcmp(content, text) == 0) return json_object_get(item, "id");
    }
    return NULL;
}

/* Adds the ids of bos, eos and pad: from a config.json next to the tokenizer, else from
 * the tokenizer. */
static Err add_ids(const char *extra_dir, Arena *temp, json_t *config)
{
    static const char *const key[][2] = {{"bos_token_id", "bos_token"},
                                         {"eos_token_id", "eos_token"},
                                         {"pad_token_id", "pad_token"}};
    json_t *old = NULL, *settings = NULL, *tokenizer = NULL;
    Err err = read_object(extra_dir, "config.json", MAX_CONFIG_BYTES, temp, &old);
    if (err == OK && !old)
        err = read_object(extra_dir, "tokenizer_config.json", MAX_TOKENIZER_BYTES, temp, &settings);
    if (err == OK && settings)
        err = read_object(extra_dir, "tokenizer.json", MAX_TOKENIZER_BYTES, temp, &tokenizer);
    for (int i = 0; i < 3 && err == OK; i++) {
        json_t *id = json_object_get(old, key[i][0]);
        if (!id) id = id_of(tokenizer, token_text(json_object_get(settings, key[i][1])));
        json_object_set_new(config, key[i][0], id ? json_deep_copy(id) : json_null());
    }
    json_decref(old);
    json_decref(settings);
    json_decref(tokenizer);
    return err;
}

/* ---- config.json ---- */

static const char *torch_dtype_name(int type)
{
    return type == ST_BF16  ? "bfloat16"
           : type == ST_F16 ? "float16"
           : type == ST_F64 ? "float64"
                            : "float32";
}

/* Generates a config from the model, with the keys that transformers needs besides. Dropout is set
 * to 0, since its default would be nonzero. */
static Err generate_config(const HfWriteSettings *w, Arena *temp, json_t **out)
{
    static const char *const dropout[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};
    const Source *s = w->from;
    const char *text;
    Text t = text_in(temp);
    model_config_json(&s->model, &t);
    TRY(text_done(&t, &text));
    TRY(strict_parse("the model", text, strlen(text), MAX_DEPTH, out));
    for (int i = 0; i < 3 && s->model.family == FAMILY_GPT2; i++)
        json_object_set_new(*out, dropout[i], json_real(0));
    json_object_set_new(*out, "architectures", json_pack("[s]", architecture[s->model.family]));
    const int own = s->manifest.tensors.tensor[0].dtype == F64 ? ST_F64 : ST_F32;
    json_object_set_new(*out, "torch_dtype",
                        json_string(torch_dtype_name(w->type == HF_AS_STORED ? own : w->type)));
    return add_ids(w->extra_dir, temp, *out);
}

/* Sets the type under the key that the config has for it. */
static void set_type(json_t *config, int type)
{
    const bool newer = json_object_get(config, "dtype") != NULL;
    json_object_set_new(config, newer ? "dtype" : "torch_dtype",
                        json_string(torch_dtype_name(type)));
    if (newer) json_object_del(config, "torch_dtype");
}

/* Compares the model of a config.json with `model`. Only keys that are read matter. */
static Err describes(const json_t *config, const ModelConfig *model, Arena *temp, bool *out)
{
    const char *mine, *theirs, *key;
    json_t *value, *read = json_object();
    ModelConfig c;
    json_object_foreach((json_t *)config, key, value)
    {
        if (model_key_is_read(key, model->family)) json_object_set(read, key, value);
    }
    char *text = json_dumps(read, JSON_REAL_PRECISION(17));
    json_decref(read);
    if (!text) return err_fail(ERR_NOMEM, "no memory for the text of config.json");
    const Err err = model_config_parse("config.json", text, strlen(text), temp, &c);
    free(text);
    *out = false;
    if (err != OK) return OK; /* it was written for another model */
    Text a = text_in(temp);
    model_config_json(&c, &a);
    TRY(text_done(&a, &mine));
    Text b = text_in(temp);
    model_config_json(model, &b);
    TRY(text_done(&b, &theirs));
    *out = strcmp(mine, theirs) == 0;
    return OK;
}

/* Replaces the keys that are read by those of the model, in a config whose model was changed. */
static Err merge_config(const ModelConfig *model, Arena *temp, json_t *config)
{
    const char *key, *text;
    json_t *value, *made = NULL;
    void *next;
    Text t = text_in(temp);
    model_config_json(model, &t);
    TRY(text_done(&t, &text));
    TRY(strict_parse("the model", text, strlen(text), MAX_DEPTH, &made));
    json_object_foreach_safe(config, next, key, value)
    {
        if (model_key_is_read(key, model->family)) json_object_del(config, key);
    }
    json_object_update(config, made);
    json_decref(made);
    return OK;
}

/* Finds the config.json that the model came with; NULL: it was not from a Hugging Face folder. */
static Err read_original(const HfWriteSettings *w, Arena *temp, json_t **out)
{
    const char *dir = w->from->extra_dir;
    TRY(read_object(dir, HF_ORIGINAL_CONFIG, MAX_CONFIG_BYTES, temp, out));
    return *out ? OK : read_object(dir, "config.json", MAX_CONFIG_BYTES, temp, out);
}

/* Returns the config: the original one with every key, as far as it describes the model. */
static Err make_config(const HfWriteSettings *w, Arena *temp, json_t **out)
{
    bool same;
    TRY(read_original(w, temp, out));
    if (!*out) return generate_config(w, temp, out);
    TRY(describes(*out, &w->from->model, temp, &same));
    if (!same) TRY(merge_config(&w->from->model, temp, *out));
    if (w->type != HF_AS_STORED) set_type(*out, w->type);
    /* Weights in FP8 are read and not written. */
    if (json_object_size(json_object_get(*out, "quantization_config")) > 0)
        json_object_del(*out, "quantization_config");
    return OK;
}

static Err config_text(json_t *config, Arena *a, const char **out)
{
    char *text = json_dumps(config, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (!text) return err_fail(ERR_NOMEM, "no memory for the text of config.json");
    Text t = text_in(a);
    text_add(&t, "%s\n", text);
    free(text);
    return text_done(&t, out);
}

Err hf_config_text(const HfWriteSettings *w, Arena *a, const char **out)
{
    json_t *config = NULL;
    Err err = make_config(w, a, &config);
    if (err == OK) err = config_text(config, a, out);
    json_decref(config);
    return err;
}

/* ---- the folder hf/ of a run ---- */

/* Sets dropout to 0, which is all that training supports. Returns whether it was not. */
static bool clear_dropout(json_t *config)
{
    static const char *const key[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop",
                                      "attention_dropout"};
    bool changed = false;
    for (int i = 0; i < 4; i++) {
        const json_t *value = json_object_get(config, key[i]);
        if (!json_is_number(value) || json_number_value(value) == 0) continue;
        json_object_set_new(config, key[i], json_real(0));
        changed = true;
    }
    return changed;
}

static Err put_config(const char *dir, const char *name, json_t *config, Arena *a)
{
    const char *text;
    TRY(config_text(config, a, &text));
    return hf_put_text(dir, name, text);
}

Err hf_keep_files(const Source *from, const char *dir, bool tokenizer, Arena *a)
{
    const HfWriteSettings w = {.from = from, .extra_dir = from->extra_dir, .type = HF_AS_STORED};
    json_t *config = NULL;
    int copied;
    if (mkdir(dir, 0777) != 0)
        return err_fail(ERR_IO, "%s: cannot be made: %s", dir, strerror(errno));
    Err err = make_config(&w, a, &config);
    json_t *original = json_deep_copy(config);
    if (err == OK && clear_dropout(config)) err = put_config(dir, HF_ORIGINAL_CONFIG, original, a);
    if (err == OK) err = put_config(dir, "config.json", config, a);
    json_decref(original);
    json_decref(config);
    if (err == OK && tokenizer) err = hf_copy_tokenizer(from->extra_dir, dir, &copied);
    TRY(err);
    return disk_sync_folder(dir);
}
