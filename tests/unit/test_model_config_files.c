/* test_model_config_files.c -- contents of config.json files: unsupported features, unknown and
 * harmless keys, damage. Files that Sheaf writes are read back. */
#define _POSIX_C_SOURCE 200809L
#include "support/model_fixture.h"

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
        cmocka_unit_test_setup_teardown(hub_gpt2_needs_its_dropouts_off, open_fixture,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(features_are_never_dropped, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(bad_files_say_why, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(harmless_keys_pass, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(unknown_keys_are_ignored_by_name, open_fixture,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(what_is_written_reads_back, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(mutated_files_never_crash, open_fixture, close_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
