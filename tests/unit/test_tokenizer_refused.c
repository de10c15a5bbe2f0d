/* Unsupported features of a tokenizer.json are errors that name the feature and its place in the
 * file; so are files that are no tokenizer. Each row changes one thing in a valid file. */
#include <jansson.h>
#include "data/tokenizer.h"
#include "support/data_test.h"

/* The place, the JSON to put there (NULL: removed), and the message. A place is a path of names and
 * numbers with dots. */
typedef struct {
    const char *place, *value, *says;
} Row;

static json_t *step_to(json_t *at, const char *name, size_t n)
{
    char key[64];
    snprintf(key, sizeof key, "%.*s", (int)n, name);
    return json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
}

static void change(json_t *root, const Row *row)
{
    const char *name = row->place, *dot;
    json_t *at = root, *value = row->value ? json_loads(row->value, JSON_DECODE_ANY, NULL) : NULL;
    for (; (dot = strchr(name, '.')); name = dot + 1)
        assert_non_null(at = step_to(at, name, (size_t)(dot - name)));
    if (row->value) assert_non_null(value);
    if (json_is_array(at))
        assert_int_equal(json_array_set_new(at, (size_t)atoi(name), value), 0);
    else if (value)
        assert_int_equal(json_object_set_new(at, name, value), 0);
    else
        assert_int_equal(json_object_del(at, name), 0);
}

static Err load_changed(const char *kind, const Row *row)
{
    char source[64];
    Tokenizer *t;
    snprintf(source, sizeof source, "tests/golden/tokenizer/%s.json", kind);
    json_t *root = json_load_file(source, 0, NULL);
    assert_non_null(root);
    if (row) change(root, row);
    const char *path = scratch("t.json");
    assert_int_equal(json_dump_file(root, path, JSON_COMPACT), 0);
    json_decref(root);
    const Err err = tokenizer_load(path, &arena, &t);
    if (err == OK) tokenizer_close(t);
    return err;
}

static void refuses(const char *kind, const Row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        refused(load_changed(kind, &rows[i]), ERR_CONFIG, rows[i].says);
        assert_non_null(strstr(err_text(), "t.json: "));
    }
}
#define REFUSES(kind, rows) refuses((kind), (rows), sizeof(rows) / sizeof *(rows))

static void features_are_named(void **state)
{
    (void)state;
    static const Row rows[] = {
        {"speed", "9", "t.json: speed: is not known here; known are: version"},
        {"version", "\"2.0\"", "version: \"2.0\"; only 1.0 is supported"},
        {"truncation", "{\"max_length\": 9}", "truncation: is not supported"},
        {"padding", "{}", "padding: is not supported"},
        {"normalizer", "{\"type\": \"NFKC\"}", "normalizer: NFKC is not supported"},
        {"normalizer",
         "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": "
         "\"Lowercase\"}]}",
         "normalizer.normalizers[1]: Lowercase is not supported"},
        {"normalizer.strip", "true", "normalizer.strip: is not known here"},
        {"pre_tokenizer", "null", "pre_tokenizer: has no ByteLevel"},
        {"pre_tokenizer", "{\"type\": \"Metaspace\"}", "pre_tokenizer: Metaspace is not supported"},
        {"pre_tokenizer.pretokenizers.0", "{\"type\": \"Digits\", \"individual_digits\": true}",
         "pre_tokenizer.pretokenizers[0]: Digits is not supported"},
        {"pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", "behavior Removed is not"},
        {"pre_tokenizer.pretokenizers.0.invert", "true", "[0]: invert true is not supported"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"^a\"",
         "pre_tokenizer.pretokenizers[0].pattern: the pattern ^a has \"^\" at byte 0"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Glob\": \"*\"}",
         "pattern.Glob: is not known"},
        {"pre_tokenizer.pretokenizers.1.add_prefix_space", "true",
         "pre_tokenizer.pretokenizers[1]: add_prefix_space after a Split"},
        {"pre_tokenizer.pretokenizers.0", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}",
         "pre_tokenizer.pretokenizers[1]: ByteLevel after ByteLevel"},
        {"post_processor", "{\"type\": \"RobertaProcessing\"}",
         "post_processor: RobertaProcessing is not supported"},
        {"post_processor.processors.1.single.0.SpecialToken.id", "\"<s>\"",
         "post_processor.processors[1].single[0]: <s> is not among the special_tokens"},
        {"post_processor.processors.1.single.1.Sequence.id", "\"B\"", "single[1]: Sequence B"},
        {"decoder", "null", "decoder: null; only ByteLevel is supported"},
        {"decoder", "{\"type\": \"WordPiece\"}", "decoder: WordPiece is not supported"},
        {"model.type", "\"Unigram\"", "model.type: Unigram; only BPE is supported"},
        {"model.dropout", "0.1", "model.dropout: random merges"},
        {"model.byte_fallback", "true", "model.byte_fallback: true"},
        {"model.end_of_word_suffix", "\"</w>\"", "model: end_of_word_suffix is set"},
        {"model.continuing_subword_prefix", "\"##\"", "model: continuing_subword_prefix is set"},
        {"model.seed", "1", "model.seed: is not known here"},
    };
    assert_int_equal(load_changed("llama3", NULL), OK);
    REFUSES("llama3", rows);
}

static void faults_are_named(void **state)
{
    (void)state;
    static const Row rows[] = {
        {"version", NULL, "must have a string \"version\""},
        {"added_tokens", "7", "added_tokens: must be a list"},
        {"added_tokens.0.content", "\"\"", "added_tokens[0]: its content is empty"},
        {"added_tokens.1.lstrip", "\"yes\"", "added_tokens[1]: \"lstrip\" must be true or false"},
        {"added_tokens.1.id", "-1", "added_tokens[1]: an id is a whole number from 0"},
        {"added_tokens.1.id", "9999", "has id 9999, and the official library reads it as"},
        {"added_tokens.1.stripped", "true", "added_tokens[1].stripped: is not known here"},
        {"model", "[]", "model: must be an object"},
        {"model.vocab", "[]", "model.vocab: must be an object of tokens and their ids"},
        {"model.vocab.the", "1e9", "model.vocab.the: an id is a whole number"},
        {"model.vocab.a", "5", "as has another token"},
        {"model.vocab.a", NULL, "model.vocab: has no token for byte 97 (a)"},
        {"model.merges", "{}", "model.merges: must be a list"},
        {"model.merges.3", "\"a b c\"", "model.merges: [3]: must be two tokens"},
        {"model.merges.3", "[\"a\"]", "model.merges: [3]: must be two tokens"},
        {"model.merges.3", "[\"a\", 5]", "model.merges: [3]: must be two tokens"},
        {"model.merges.3", "\"a \\u2603\"", "model.merges: [3]: \u2603 is not in model.vocab"},
        {"model.merges.3", "\"$ %\"", "model.merges: [3]: $% is not in model.vocab"},
    };
    assert_int_equal(load_changed("gpt2", NULL), OK);
    REFUSES("gpt2", rows);
}

/* Sections without effect are accepted. */
static void what_does_nothing_is_taken(void **state)
{
    (void)state;
    static const Row rows[] = {
        {"model.dropout", "0.0", ""},
        {"model.dropout", NULL, ""},
        {"model.type", NULL, ""},
        {"model.unk_token", "\"<|endoftext|>\"", ""},
        {"model.end_of_word_suffix", "\"\"", ""},
        {"normalizer", "null", ""},
        {"post_processor", "null", ""},
        {"pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}", ""},
        {"pre_tokenizer",
         "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
         "\"pattern\": {\"String\": \"(\"}, \"behavior\": \"Isolated\", "
         "\"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": "
         "false, \"use_regex\": false}]}",
         ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) DO(load_changed("gpt2", &rows[i]));
}

static void no_tokenizer_at_all(void **state)
{
    (void)state;
    Tokenizer *t;
    refused(tokenizer_load(scratch_text("a.json", "{\"version\": "), &arena, &t), ERR_CONFIG,
            "a.json:1: not JSON");
    refused(tokenizer_load(scratch_text("b.json", "[1]"), &arena, &t), ERR_CONFIG,
            "b.json: a tokenizer.json is one object");
    refused(tokenizer_load(scratch_text("c.json", "{\"a\": 1, \"a\": 2}"), &arena, &t), ERR_CONFIG,
            "duplicate");
    refused(tokenizer_load("/nonexistent/t.json", &arena, &t), ERR_IO, "cannot open");
    refused(tokenizer_load("tests", &arena, &t), ERR_CONFIG,
            "tests: the folder contains no tokenizer.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(features_are_named),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(what_does_nothing_is_taken),
        cmocka_unit_test(no_tokenizer_at_all),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
