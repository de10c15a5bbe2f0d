/* test_model_config.c -- presets, config.json files and overrides give the requested model, or an
 * error with the reason. */
#define _POSIX_C_SOURCE 200809L
#include "support/model_fixture.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(presets_have_published_sizes, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(every_preset_loads, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(llama_in_old_and_new_words, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(windows, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(higher_levels_win, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(bad_overrides_say_why, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(print_says_it_in_words, open_fixture, close_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
