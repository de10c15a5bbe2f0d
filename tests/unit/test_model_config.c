/* test_model_config.c -- presets, config.json files and overrides give the requested model, or an
 * error with the reason. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "model/config.h"

typedef struct {
    Arena arena;
    char folder[64], path[80];
} Fixture;

static int open_fixture(void **state)
{
    static Fixture f;
    memset(&f, 0, sizeof f);
    strcpy(f.folder, "/tmp/sheaf-model-XXXXXX");
    assert_non_null(mkdtemp(f.folder));
    snprintf(f.path, sizeof f.path, "%s/config.json", f.folder);
    assert_int_equal(arena_open(&f.arena, "test", ARENA_PLENTY), OK);
    *state = &f;
    return 0;
}

static int close_fixture(void **state)
{
    Fixture *f = *state;
    unlink(f->path);
    rmdir(f->folder);
    arena_close(&f->arena);
    return 0;
}

static void write_bytes(const Fixture *f, const char *bytes, size_t n)
{
    FILE *file = fopen(f->path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static Err load_json(Fixture *f, const char *json, ModelConfig *out)
{
    write_bytes(f, json, strlen(json));
    arena_rewind(&f->arena, 0);
    return model_config_load(f->path, NULL, 0, &f->arena, out);
}

/* One override of a preset. */
static Err load_with(Fixture *f, const char *preset, const char *key, const char *value,
                     ModelConfig *out)
{
    const ModelField field = {key, value, "run.yaml:7", 1};
    arena_rewind(&f->arena, 0);
    return model_config_load(preset, &field, 1, &f->arena, out);
}

static void assert_says(const char *part)
{
    if (!strstr(err_text(), part)) fail_msg("\"%s\" is not in: %s", part, err_text());
}

static int64_t layer_params(const ModelConfig *c)
{
    const int64_t q = c->n_heads * c->head_size, kv = c->n_kv_heads * c->head_size;
    if (c->family ==
        FAMILY_GPT2) /* two norms with weight and bias; four attention and two mlp projections */
        return 4 * c->width + 4 * c->width * (c->width + 1) + 2 * c->width * c->ff_width +
               c->ff_width + c->width;
    return 2 * c->width + c->width * (q + 2 * kv) + (c->qkv_bias ? q + 2 * kv : 0) + q * c->width +
           (c->qk_norm ? 2 * c->head_size : 0) + 3 * c->width * c->ff_width;
}

/* Published parameter counts, which detect any wrong size of a preset. */
static void presets_have_published_sizes(void **state)
{
    static const struct {
        const char *name;
        int64_t params;
    } known[] = {{"gpt2", 124439808},         {"gpt2-124m", 124439808},
                 {"gpt2-medium", 354823168},  {"gpt2-350m", 354823168},
                 {"gpt2-large", 774030080},   {"gpt2-774m", 774030080},
                 {"gpt2-xl", 1557611200},     {"gpt2-1558m", 1557611200},
                 {"llama2-7b", 6738415616},   {"llama3-8b", 8030261248},
                 {"llama3.2-1b", 1235814400}, {"mistral-7b", 7241732096},
                 {"qwen2-0.5b", 494032768},   {"qwen3-0.6b", 596049920},
                 {"llama3-70b", 70553706496}, {"llama3.1-405b", 405853388800},
                 {"qwen2-7b", 7615616512}};
    Fixture *f = *state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        ModelConfig c;
        arena_rewind(&f->arena, 0);
        assert_int_equal(model_config_load(known[i].name, NULL, 0, &f->arena, &c), OK);
        const bool gpt2 = c.family == FAMILY_GPT2;
        const int64_t ends = c.vocab * c.width * (c.tied ? 1 : 2) + (gpt2 ? 2 : 1) * c.width +
                             (gpt2 ? c.max_positions * c.width : 0);
        assert_int_equal(ends + c.n_layers * layer_params(&c), known[i].params);
    }
}

static void every_preset_loads(void **state)
{
    Fixture *f = *state;
    int tiny = 0;
    for (int i = 0; model_preset_name(i); i++) {
        ModelConfig c;
        arena_rewind(&f->arena, 0);
        assert_int_equal(model_config_load(model_preset_name(i), NULL, 0, &f->arena, &c), OK);
        assert_string_equal(c.name, model_preset_name(i));
        tiny += c.vocab == 256;
    }
    assert_int_equal(tiny, 5);
}

/* As on the model hub, with dropout: each dropout is refused until an override sets it to 0. */
static const char hub_gpt2[] =
    "{\"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"],"
    "\"attn_pdrop\": 0.1, \"bos_token_id\": 50256, \"embd_pdrop\": 0.1, \"eos_token_id\": 50256,"
    "\"initializer_range\": 0.03, \"layer_norm_epsilon\": 1e-05, \"model_type\": \"gpt2\","
    "\"n_ctx\": 1024, \"n_embd\": 768, \"n_head\": 12, \"n_layer\": 11, \"n_positions\": 1024,"
    "\"resid_pdrop\": 0.1, \"summary_activation\": null, \"summary_first_dropout\": 0.1,"
    "\"task_specific_params\": {\"text-generation\": {\"do_sample\": true}}, \"vocab_size\": "
    "50257}";

static void hub_gpt2_needs_its_dropouts_off(void **state)
{
    Fixture *f = *state;
    ModelConfig c;
    const ModelField off[] = {{"attn_pdrop", "0", "command line", 2},
                              {"embd_pdrop", "0.0", "command line", 2},
                              {"resid_pdrop", "0", "run.yaml:3", 1}};
    assert_int_equal(load_json(f, hub_gpt2, &c), ERR_CONFIG);
    assert_says("attn_pdrop=0.1");
    assert_says("set model.attn_pdrop=0");
    assert_int_equal(model_config_load(f->folder, off, 3, &f->arena, &c), OK); /* the folder */
    assert_int_equal(c.family, FAMILY_GPT2);
    assert_int_equal(c.n_layers, 11);
    assert_int_equal(c.ff_width, 3072);
    assert_true(c.tied && c.qkv_bias && c.o_bias && c.mlp_bias);
    assert_true(c.init_std == 0.03);
    ModelConfig used, parsed; /* inference ignores dropout */
    assert_int_equal(model_config_inference(f->folder, &f->arena, &used), OK);
    assert_int_equal(model_config_parse(used.name, hub_gpt2, strlen(hub_gpt2), &f->arena, &parsed),
                     OK);
    c.name = used.name;
    assert_memory_equal(&used, &c, sizeof c);
    assert_memory_equal(&parsed, &c, sizeof c);
}

/* Unsupported features of real files are refused by name, in training and in inference. */
static void features_are_never_dropped(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"\"auto_map\": {\"AutoModel\": \"x.Model\"}", "auto_map"},
        {"\"quantization_config\": {\"bits\": 4}", "quantization_config"},
        {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}", "rope_type=yarn"},
        {"\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 4.0}", "rope_type=dynamic"},
        {"\"rope_parameters\": {\"rope_type\": \"longrope\", \"long_factor\": [1.0]}",
         "long_factor"},
        {"\"partial_rotary_factor\": 0.5", "partial_rotary_factor=0.5"},
        {"\"hidden_act\": \"gelu\"", "hidden_act=gelu"},
        {"\"attn_logit_softcapping\": 50.0", "attn_logit_softcapping"},
        {"\"num_local_experts\": 8", "num_local_experts"},
        {"\"use_sliding_window\": true, \"sliding_window\": 9, \"max_window_layers\": 1",
         "1 of 2 layers"},
        {"\"layer_types\": [\"full_attention\", \"chunked_attention\"]", "chunked_attention"},
    };
    Fixture *f = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ModelConfig c;
        char text[512];
        snprintf(
            text, sizeof text,
            "{\"model_type\": \"qwen2\", \"vocab_size\": 5, \"hidden_size\": 8, "
            "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
            "\"intermediate_size\": 9, \"max_position_embeddings\": 32, %s}",
            cases[i].text);
        assert_int_equal(model_config_parse("config.json", text, strlen(text), &f->arena, &c),
                         ERR_CONFIG);
        assert_says(cases[i].says);
        assert_int_equal(load_json(f, text, &c), ERR_CONFIG);
        assert_says(cases[i].says);
    }
}

static void llama_in_old_and_new_words(void **state)
{
    static const char *const rope[] = {
        "\"rope_theta\": 5000, \"rope_scaling\": {\"rope_type\": \"llama3\", \"type\": \"llama3\", "
        "\"factor\": 8, \"low_freq_factor\": 1.5, \"high_freq_factor\": 4.5, "
        "\"original_max_position_embeddings\": 77}",
        "\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 5000.0, \"factor\": 8.0, "
        "\"low_freq_factor\": 1.5, \"high_freq_factor\": 4.5, "
        "\"original_max_position_embeddings\": 77}"};
    Fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        char json[1024];
        ModelConfig c;
        snprintf(json, sizeof json,
                 "{\"model_type\": \"llama\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
                 "\"num_attention_heads\": 6, \"num_key_value_heads\": 2, \"head_dim\": 10, "
                 "\"intermediate_size\": 44, \"vocab_size\": 61, \"max_position_embeddings\": 616, "
                 "\"attention_bias\": true, \"mlp_bias\": false, \"hidden_act\": \"silu\", %s}",
                 rope[i]);
        assert_int_equal(load_json(f, json, &c), OK);
        assert_int_equal(c.head_size, 10);
        assert_true(c.qkv_bias && c.o_bias && !c.mlp_bias && !c.tied);
        assert_int_equal(c.rope.scaling, ROPE_LLAMA3);
        assert_true(c.rope.theta == 5000 && c.rope.factor == 8);
        assert_true(c.rope.low == 1.5 && c.rope.high == 4.5);
        assert_int_equal(c.rope.original, 77);
        assert_true(c.norm_eps == 1e-6); /* not set: the default of the class */
    }
}

static void windows(void **state)
{
    Fixture *f = *state;
    ModelConfig c;
    assert_int_equal(load_with(f, "mistral-7b", "sliding_window", "null", &c), OK);
    assert_int_equal(c.window, 0);
    assert_int_equal(load_with(f, "qwen2-0.5b", "sliding_window", "512", &c), OK);
    assert_int_equal(c.window, 0); /* use_sliding_window is off */
    const ModelField on[] = {{"use_sliding_window", "true", "a", 1},
                             {"sliding_window", "512", "a", 1},
                             {"max_window_layers", "0", "a", 1}};
    assert_int_equal(model_config_load("qwen2-0.5b", on, 3, &f->arena, &c), OK);
    assert_int_equal(c.window, 512);
    assert_int_equal(model_config_load("qwen2-0.5b", on, 2, &f->arena, &c), ERR_CONFIG);
    assert_says("needs max_window_layers");
    const ModelField mixed[] = {on[0], on[1], {"max_window_layers", "5", "a", 1}};
    assert_int_equal(model_config_load("qwen2-0.5b", mixed, 3, &f->arena, &c), ERR_CONFIG);
    assert_says("19 of 24 layers");
}

static void higher_levels_win(void **state)
{
    Fixture *f = *state;
    ModelConfig c;
    const ModelField set[] = {{"n_layer", "7", "run.yaml:4", 1},
                              {"num_hidden_layers", "5", "command line", 2}};
    assert_int_equal(model_config_load("gpt2", set, 2, &f->arena, &c), OK);
    assert_int_equal(c.n_layers, 5);
    const ModelField both[] = {set[0], {"num_hidden_layers", "5", "run.yaml:5", 1}};
    assert_int_equal(model_config_load("gpt2", both, 2, &f->arena, &c), ERR_CONFIG);
    assert_says("two values for one thing");
    assert_int_equal(load_with(f, "llama3.2-1b", "rope_scaling", "null", &c), OK);
    assert_int_equal(c.rope.scaling, ROPE_PLAIN);
    assert_true(c.rope.factor == 1 && c.rope.theta == 500000);
}

static void bad_overrides_say_why(void **state)
{
    static const struct {
        const char *preset, *key, *value, *says;
    } bad[] = {
        {"gpt2", "n_embd", "770", "the nearest that does: 768, 780"},
        {"gpt2", "n_embd", "5", "the nearest that does: 12"},
        {"llama3-8b", "num_key_value_heads", "7", "the nearest that does: 4, 8"},
        {"llama3-8b", "num_key_value_heads", "40", "the nearest that does: 32"},
        {"qwen3-0.6b", "head_dim", "127", "head_dim: 126, 128"},
        {"gpt2", "n_layer", "0", "run.yaml:7: model.n_layer=0: too small; the least is 1"},
        {"gpt2", "n_layer", "5000", "the most is 4096"},
        {"gpt2", "n_layer", "2.5", "must be a whole number"},
        {"gpt2", "n_layer", "99999999999999999999", "must be a whole number"},
        {"gpt2", "n_layer", "null", "must be a whole number"},
        {"gpt2", "n_layers", "2", "did you mean n_layer?"},
        {"gpt2", "rms_norm_eps", "1e-5", "a key of llama, and model_type is gpt2"},
        {"llama-tiny", "n_head", "4", "a llama has the key num_attention_heads for it"},
        {"llama-tiny", "rms_norm_eps", "nan", "must be a number"},
        {"llama-tiny", "rms_norm_eps", "0", "too small"},
        {"llama-tiny", "tie_word_embeddings", "yes", "must be true or false"},
        {"llama-tiny", "hidden_act", "gelu", "supports silu swish only"},
        {"llama-tiny", "attention_dropout", "0.1", "set model.attention_dropout=0"},
        {"llama-tiny", "rope_scaling.rope_type", "yarn", "default, linear and llama3"},
        {"llama-tiny", "rope_scaling.rope_type", "llama3", "needs factor, low_freq_factor"},
        {"llama-tiny", "rope_scaling.factor", "2", "without a type"},
        {"llama-tiny", "rope_scaling.low_freq_factor", "2", "numbers of llama3"},
        {"llama-tiny", "rope_scaling", "8", "must be an object or null"},
        {"llama-tiny", "sliding_window", "8", "which has no such key"},
        {"llama-tiny", "use_cache", "true", "changes nothing"},
        {"llama-tiny", "model_type", "deepseek_v3", "it builds gpt2, llama"},
        {"llama-tiny", "model_type", "mixtral", "no num_local_experts"},
        {"mixtral-tiny", "num_experts_per_tok", "5", "of 4 experts"},
        {"qwen3-moe-tiny", "shared_expert_intermediate_size", "5", "which has no such key"},
        {"qwen2-0.5b", "use_sliding_window", "true", "without sliding_window"},
        {"gpt2", "scale_attn_by_inverse_layer_idx", "true", "supports false only"},
        {"gpt3", "n_layer", "2", "did you mean gpt2?"},
        {"", "n_layer", "2", "model.name is not set"},
        {"/", "n_layer", "2", "holds no config.json"},
    };
    Fixture *f = *state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ModelConfig c;
        if (load_with(f, bad[i].preset, bad[i].key, bad[i].value, &c) != ERR_CONFIG)
            fail_msg("%s with %s=%s was taken", bad[i].preset, bad[i].key, bad[i].value);
        assert_says(bad[i].says);
    }
}

#define GPT2_JSON "\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_head\": 2, \"n_positions\": 4"

static void bad_files_say_why(void **state)
{
    static const struct {
        const char *json, *says;
    } bad[] = {
        {"", "not JSON"},
        {"{\"model_type\": \"gpt2\",\n\n oops}", "config.json:3: not JSON"},
        {"[1, 2]", "is one object"},
        {"{}", "no model_type"},
        {"{\"model_type\": 3}", "this version does not build"},
        {"{\"model_type\": \"gpt2\"}", "no vocab_size (tokens in the vocabulary)"},
        {"{" GPT2_JSON ", \"vocab_size\": 5}", "no n_layer"},
        {"{" GPT2_JSON ", \"vocab_size\": 5, \"vocab_size\": 5}", "duplicate"},
        {"{" GPT2_JSON ", \"vocab_size\": 5, \"n_layer\": 1, \"n_ctx\": 5}", "two values for one"},
        {"{" GPT2_JSON ", \"vocab_size\": \"5\", \"n_layer\": 1}", "must be a whole number"},
        {"{" GPT2_JSON ", \"vocab_size\": 5.0, \"n_layer\": 1}", "must be a whole number"},
        {"{" GPT2_JSON ", \"vocab_size\": -5, \"n_layer\": 1}", "too small"},
        {"{" GPT2_JSON ", \"vocab_size\": 5, \"n_layer\": 1, \"x_y\": 1}", "x_y=1: unknown key"},
        {"{" GPT2_JSON ", \"vocab_size\": 5, \"n_layer\": {\"a\": 1}}", "n_layer={...}"},
        {"{" GPT2_JSON ", \"vocab_size\": 5, \"n_layer\": 1e400}", "not JSON"},
        {"{" GPT2_JSON ", \"vocab_size\": 5, \"n_layer\": 1, \"activation_function\": \"relu\"}",
         "activation_function=relu"},
        {"{" GPT2_JSON ", \"vocab_size\": 5, \"n_layer\": 1, \"quantization_config\": {}}",
         "quantization_config"},
        {"{" GPT2_JSON ", \"vocab_size\": 5, \"n_layer\": 1, \"rope_scaling\": {\"type\": \"a\"}}",
         "rope_scaling.type=a"},
        {"{\"model_type\": \"mistral\", \"hidden_size\": 8, \"num_hidden_layers\": 1, "
         "\"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"intermediate_size\": 8, "
         "\"max_position_embeddings\": 8, \"vocab_size\": 8}",
         "no sliding_window"},
        {"{\"model_type\": \"mistral\", \"hidden_size\": 8, \"num_hidden_layers\": 2, "
         "\"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"intermediate_size\": 8, "
         "\"max_position_embeddings\": 8, \"vocab_size\": 8, \"sliding_window\": 4, "
         "\"layer_types\": [\"sliding_attention\", \"full_attention\"]}",
         "1 of 2 layers have a sliding window"},
        {"{\"model_type\": \"qwen2\", \"hidden_size\": 8, \"num_hidden_layers\": 2, "
         "\"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"intermediate_size\": 8, "
         "\"max_position_embeddings\": 8, \"vocab_size\": 8, "
         "\"layer_types\": [\"full_attention\"]}",
         "layer_types names 1 layers"},
    };
    Fixture *f = *state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ModelConfig c;
        if (load_json(f, bad[i].json, &c) != ERR_CONFIG) fail_msg("taken: %s", bad[i].json);
        assert_says(bad[i].says);
        assert_says(f->path);
    }
}

#define LLAMA_JSON                                                                                 \
    "\"model_type\": \"llama\", \"hidden_size\": 8, \"num_hidden_layers\": 1, "                    \
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"intermediate_size\": 8, "           \
    "\"max_position_embeddings\": 8, \"vocab_size\": 8"

/* Keys of files on the hub (SmolLM2, unsloth, old GPT-2) that change nothing. */
static void harmless_keys_pass(void **state)
{
    static const char *const extra[] = {
        "\"is_llama_config\": true, \"rope_interleaved\": false, \"transformers.js_config\": "
        "{\"kv_cache_dtype\": {\"fp16\": \"float16\"}}",
        "\"unsloth_version\": \"2024.9\", \"unsloth_fixed\": true",
        "\"torchscript\": false, \"tokenizer_class\": \"GPT2Tokenizer\", \"pruned_heads\": {}",
        "\"do_sample\": true, \"max_length\": 50, \"temperature\": 0.7, \"tie_encoder_decoder\": "
        "false, \"classifier_dropout\": 0.1, \"use_bfloat16\": false",
    };
    static const char *const changes[] = {"\"rope_interleaved\": true",
                                          "\"pruned_heads\": {\"0\": [1]}"};
    Fixture *f = *state;
    ModelConfig c;
    char json[1024];
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++) {
        snprintf(json, sizeof json, "{" LLAMA_JSON ", %s}", extra[i]);
        if (load_json(f, json, &c) != OK) fail_msg("%s", err_text());
    }
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        snprintf(json, sizeof json, "{" LLAMA_JSON ", %s}", changes[i]);
        assert_int_equal(load_json(f, json, &c), ERR_CONFIG);
        assert_says("supports");
    }
}

/* A key that might change the model is skipped only if the caller ignores it. A key that is read
 * cannot be ignored. */
static void unknown_keys_are_ignored_by_name(void **state)
{
    static const char json[] =
        "{" LLAMA_JSON ", \"my_gate\": 2, \"rms_norm_epsi\": 1, \"auto_map\": {\"a\": \"b\"}}";
    static const char *const all[] = {"rms_norm_epsi", "my_gate", "auto_map", "vocab_size"};
    Fixture *f = *state;
    ModelConfig c;
    ModelSource from = {.name = f->path, .ignore = {all, 3}};
    assert_int_equal(load_json(f, json, &c), ERR_CONFIG);
    assert_says("my_gate=2: unknown key, and it might change the model; if it changes nothing, set "
                "model.ignore=my_gate");
    from.ignore.key = all + 1, from.ignore.n = 1;
    assert_int_equal(model_config_open(&from, &f->arena, &c), ERR_CONFIG);
    assert_says("did you mean rms_norm_eps? if it changes nothing, set model.ignore=rms_norm_epsi");
    from.ignore = (IgnoredKeys){all, 2};
    from.inference = true;
    assert_int_equal(model_config_open(&from, &f->arena, &c), ERR_CONFIG);
    assert_says("to run without it, set model.ignore=auto_map");
    from.ignore.n = 3;
    assert_int_equal(model_config_open(&from, &f->arena, &c), OK);
    assert_int_equal(c.vocab, 8);
    from.ignore.n = 4;
    assert_int_equal(model_config_open(&from, &f->arena, &c), ERR_CONFIG);
    assert_says("a llama has this key, so it is not ignored; set model.vocab_size");
}

/* Written to a file and read back: the same text, and the same model except for its name. */
static void assert_written(Fixture *f, const ModelConfig *c)
{
    const char *text, *again;
    ModelConfig back;
    Text t = text_in(&f->arena);
    model_config_json(c, &t);
    assert_int_equal(text_done(&t, &text), OK);
    write_bytes(f, text, strlen(text));
    if (model_config_load(f->path, NULL, 0, &f->arena, &back) != OK)
        fail_msg("%s: %s\n%s", c->name, err_text(), text);
    t = text_in(&f->arena);
    model_config_json(&back, &t);
    assert_int_equal(text_done(&t, &again), OK);
    assert_string_equal(text, again);
    back.name = c->name;
    assert_memory_equal(&back, c, sizeof back);
}

static void what_is_written_reads_back(void **state)
{
    Fixture *f = *state;
    ModelConfig c;
    for (int i = 0; model_preset_name(i); i++) {
        assert_int_equal(model_config_load(model_preset_name(i), NULL, 0, &f->arena, &c), OK);
        assert_written(f, &c);
    }
    assert_int_equal(load_with(f, "llama-tiny", "rms_norm_eps", "1.2345678901234567e-6", &c), OK);
    assert_written(f, &c);
    const ModelField window[] = {{"use_sliding_window", "true", "here", 1},
                                 {"sliding_window", "33", "here", 1},
                                 {"max_window_layers", "0", "here", 1}};
    assert_int_equal(model_config_load("qwen3-0.6b", window, 3, &f->arena, &c), OK);
    assert_int_equal(c.window, 33);
    assert_written(f, &c);
}

static void print_says_it_in_words(void **state)
{
    Fixture *f = *state;
    ModelConfig c;
    const char *text;
    assert_int_equal(model_config_load("llama3.2-1b", NULL, 0, &f->arena, &c), OK);
    Text t = text_in(&f->arena);
    model_config_print(&c, &t);
    assert_int_equal(text_done(&t, &text), OK);
    assert_string_equal(text,
                        "llama3.2-1b: llama, 16 layers, vocabulary 128256, up to 131072 positions\n"
                        "  width 2048, feed-forward 8192, 32 heads of 64, 8 for keys and values\n"
                        "  rope theta 500000, llama3 scaling x 32 (low 1, high 4, original 8192)\n"
                        "  tied embedding; norm eps 1e-05; init std 0.02\n");
}

/* Any bytes give a result: a model that passes its own check, or a message. */
static void mutated_files_never_crash(void **state)
{
    static const char pieces[] = "{}[]\",:0123456789.eE-+ntf\\u\x80\xff\n";
    Fixture *f = *state;
    char json[sizeof hub_gpt2];
    uint64_t seed = 7;
    for (int round = 0; round < 3000; round++) {
        size_t n = sizeof hub_gpt2 - 1;
        ModelConfig c;
        memcpy(json, hub_gpt2, n);
        for (int k = 0; k <= round % 4; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const size_t at = (size_t)(seed >> 33) % n;
            json[at] = pieces[(seed >> 20) % sizeof pieces]; /* the NUL at its end too */
            if (seed >> 62 == 3) n = at + 1;
        }
        write_bytes(f, json, n);
        arena_rewind(&f->arena, 0);
        const Err err = model_config_load(f->path, NULL, 0, &f->arena, &c);
        if (err == OK)
            assert_int_equal(model_config_check(&c), OK);
        else
            assert_true(strlen(err_text()) > strlen(f->path));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(presets_have_published_sizes, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(every_preset_loads, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(what_is_written_reads_back, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(hub_gpt2_needs_its_dropouts_off, open_fixture,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(features_are_never_dropped, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(llama_in_old_and_new_words, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(windows, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(higher_levels_win, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(bad_overrides_say_why, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(bad_files_say_why, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(harmless_keys_pass, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(unknown_keys_are_ignored_by_name, open_fixture,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(print_says_it_in_words, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(mutated_files_never_crash, open_fixture, close_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
