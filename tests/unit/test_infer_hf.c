/* test_infer_hf.c -- `sheaf generate` and `sheaf eval` on a Hugging Face folder with a tokenizer of
 * bytes: end tokens, tokens of a choice, text that is not UTF-8, lengths of choices. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <jansson.h>
#include "data/tasks.h"
#include "data/unicode.h"
#include "support/expect.h"
#include "support/run_command.h"

static char dir[64];

static void write_file(const char *name, const char *what)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(what, f) >= 0 && fclose(f) == 0);
}

/* The character that represents a byte in the files of byte-level BPE. */
static int stands_for(int byte, int *hidden)
{
    const bool shown = (byte > ' ' && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    return shown ? byte : 256 + (*hidden)++;
}

/* One token per byte, and <e>; `after`: a template appends <e> to each text. */
static void write_tokenizer(bool after)
{
    static const char *const level = "{s:s, s:b, s:b, s:b}";
    json_t *vocab = json_object(), *post = json_null();
    for (int byte = 0, hidden = 0; byte < 256; byte++) {
        unsigned char name[MAX_UTF8 + 1] = "";
        name[utf8_put((uint32_t)stands_for(byte, &hidden), name)] = '\0';
        json_object_set_new(vocab, (const char *)name, json_integer(byte));
    }
    if (after)
        post = json_pack("{s:s, s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], s:[], s:{s:{s:s, s:[i]}}}",
                         "type", "TemplateProcessing", "single", "Sequence", "id", "A", "type_id",
                         0, "SpecialToken", "id", "<e>", "type_id", 0, "pair", "special_tokens",
                         "<e>", "id", "<e>", "ids", 256);
    json_t *file = json_pack(
        "{s:s, s:[{s:i, s:s, s:b, s:b, s:b, s:b, s:b}], s:o, s:o, s:o, s:{s:s, s:o, s:[]}}",
        "version", "1.0", "added_tokens", "id", 256, "content", "<e>", "single_word", 0, "lstrip",
        0, "rstrip", 0, "normalized", 0, "special", 1, "post_processor", post, "pre_tokenizer",
        json_pack(level, "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex",
                  1),
        "decoder",
        json_pack(level, "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex",
                  1),
        "model", "type", "BPE", "vocab", vocab, "merges");
    assert_non_null(file);
    char *text = json_dumps(file, 0);
    write_file("tokenizer.json", text);
    free(text);
    json_decref(file);
}

static char run[96];

/* A small model with 257 tokens, trained for one step, as a Hugging Face folder. */
static int open_folder(void **state)
{
    (void)state;
    char train[128], where[128];
    snprintf(dir, sizeof dir, "/tmp/sheaf_infer_hf_XXXXXX");
    if (!mkdtemp(dir)) return 1;
    write_file("train.txt", "a text of some words, from which one step is made\n");
    snprintf(run, sizeof run, "%s/run", dir);
    snprintf(train, sizeof train, "data.train=%s/train.txt", dir);
    snprintf(where, sizeof where, "run.dir=%s", run);
    int status = SHEAF("train", "model.name=llama-tiny", "model.vocab_size=257",
                       "model.hidden_size=24", "model.num_hidden_layers=1",
                       "model.intermediate_size=40", train, where, "data.tokenizer=bytes",
                       "data.seq_len=8", "batch.global=2", "run.steps=1", "run.threads=1");
    snprintf(dir + strlen(dir), 8, "/hf");
    if (status == 0) status = SHEAF("reshape", run, dir, "--hf");
    if (status != 0) fputs(output, stderr);
    return status;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    *strrchr(dir, '/') = '\0';
    snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command);
}

/* eos_token_id may be a token, a list or null. Any other value is refused, not read as token 0 and
 * not ignored. */
static void eos_token_forms(void **state)
{
    (void)state;
    const char *const bad[] = {"\"x\"", "[1, \"x\"]", "1.5", "-1", "{}"};
    char what[256] = "{\"eos_token_id\": [0";
    write_tokenizer(false);
    for (int i = 0; i < 5; i++) {
        char line[64];
        snprintf(line, sizeof line, "{\"eos_token_id\": %s}", bad[i]);
        write_file("generation_config.json", line);
        assert_int_equal(SHEAF("generate", dir, "-p", "1 2", "--ids", "-n", "2"), 2);
        assert_printed("generation_config.json: eos_token_id: must be a token");
    }
    for (int i = 1; i < 17; i++) snprintf(what + strlen(what), 16, ", %d", i);
    strcat(what, "]}");
    write_file("generation_config.json", what);
    assert_int_equal(SHEAF("generate", dir, "-p", "1 2", "--ids", "-n", "2"), 2);
    assert_printed("more than 16 tokens");
    write_file("generation_config.json", "{\"eos_token_id\": null}");
    assert_int_equal(SHEAF("generate", dir, "-p", "1 2", "--ids", "-n", "2"), 0);
}

/* A folder with 257 tokens and no tokenizer need not be a model of bytes. A run that was trained on
 * bytes is one. */
static void bytes_are_not_guessed(void **state)
{
    (void)state;
    char tokenizer[128];
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.json", dir);
    (void)remove(tokenizer);
    assert_int_equal(SHEAF("generate", dir, "-p", "ab", "-n", "2"), 2);
    assert_printed(
        "has no tokenizer.json; give one with --tokenizer FILE (bytes: one token per byte)");
    assert_int_equal(SHEAF("generate", dir, "-p", "ab", "-n", "2", "--tokenizer", "bytes"), 0);
    assert_int_equal(SHEAF("generate", dir, "-p", "1 2", "-n", "2", "--ids"), 0);
    assert_int_equal(SHEAF("generate", run, "-p", "ab", "-n", "2"), 0);
}

static void choice_losses(const char *context, double *out)
{
    char path[128], line[128];
    json_error_t why;
    snprintf(line, sizeof line, "{\"context\": \"%s\", \"choices\": [\"ca\", \"b\"], \"gold\": 1}",
             context);
    write_file("tasks.jsonl", line);
    snprintf(path, sizeof path, "%s/tasks.jsonl", dir);
    if (SHEAF("eval", dir, "--tasks", path, "--json") != 0) fail_msg("%s", output);
    json_t *o = json_loads(strchr(output, '{'), JSON_DISABLE_EOF_CHECK, &why);
    assert_non_null(o);
    const json_t *one = json_array_get(json_object_get(o, "results"), 0);
    for (size_t i = 0; i < 2; i++)
        out[i] = json_real_value(json_array_get(json_object_get(one, "loss"), i));
    json_decref(o);
}

/* The loss of text.txt in nats. */
static double text_loss(void)
{
    char path[128];
    json_error_t why;
    snprintf(path, sizeof path, "%s/text.txt", dir);
    if (SHEAF("eval", dir, "--text", path, "--json") != 0) fail_msg("%s", output);
    json_t *o = json_loads(strchr(output, '{'), JSON_DISABLE_EOF_CHECK, &why);
    assert_non_null(o);
    const double loss = json_real_value(json_object_get(o, "loss")) *
                        (double)json_integer_value(json_object_get(o, "tokens"));
    json_decref(o);
    return loss;
}

/* A token that the template appends is neither part of a choice nor of the context before it. */
static void choices_exclude_appended_tokens(void **state)
{
    (void)state;
    double with[2], without[2];
    write_tokenizer(false);
    choice_losses("ab c", without);
    write_tokenizer(true);
    choice_losses("ab c", with);
    assert_true(without[0] > 0.1 && without[1] > 0.1);
    for (int i = 0; i < 2; i++)
        if (with[i] != without[i]) fail_msg("choice %d: %g, not %g", i, with[i], without[i]);
}

/* A choice without context is scored after an end-of-text token of any name, or after a line break
 * if the model has none. */
static void end_token_precedes_choices(void **state)
{
    (void)state;
    double one[2], other[2];
    write_tokenizer(false);
    write_file("generation_config.json", "{\"eos_token_id\": 256}");
    choice_losses("", one);
    write_file("text.txt", "<e>ca");
    assert_true(fabs(text_loss() - one[0]) < 1e-5 * one[0]);
    write_file("generation_config.json", "{}");
    choice_losses("", other);
    write_file("text.txt", "\nca");
    assert_true(fabs(text_loss() - other[0]) < 1e-5 * other[0]);
    assert_true(fabs(other[0] - one[0]) > 1e-4 * one[0]); /* ten times the tolerance above */
}

static void invalid_utf8_is_reported(void **state)
{
    (void)state;
    char path[128];
    write_tokenizer(false);
    write_file("text.txt", "a\xff"
                           "b \xfe"
                           "c a b c");
    snprintf(path, sizeof path, "%s/text.txt", dir);
    assert_int_equal(SHEAF("eval", dir, "--text", path), 0);
    assert_printed("text.txt: not UTF-8 in 2 places; replaced by U+FFFD");
    assert_int_equal(SHEAF("generate", dir, "--prompts", path, "-n", "1"), 0);
    assert_printed("text.txt:1: not UTF-8 in 2 places; replaced by U+FFFD");
    assert_printed("a\xef\xbf\xbd"
                   "b \xef\xbf\xbd"
                   "c a b c");
}

/* acc_norm divides by characters, as lm-evaluation-harness does. */
static void lengths_are_characters(void **state)
{
    (void)state;
    Arena a;
    ChoiceTasks tasks;
    const char line[] = "{\"context\": \"a\", \"choices\": [\"bc\", \"\u00e9\u6f22\U0001F600\"], "
                        "\"gold\": 0}";
    DO(arena_open(&a, "test", ARENA_PLENTY));
    DO(tasks_parse("x", (Bytes){(const unsigned char *)line, strlen(line)}, &a, &tasks));
    assert_int_equal(tasks.task[0].length[0], 2);
    assert_int_equal(tasks.task[0].length[1], 3);
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eos_token_forms),
        cmocka_unit_test(bytes_are_not_guessed),
        cmocka_unit_test(choices_exclude_appended_tokens),
        cmocka_unit_test(end_token_precedes_choices),
        cmocka_unit_test(invalid_utf8_is_reported),
        cmocka_unit_test(lengths_are_characters),
    };
    return cmocka_run_group_tests(tests, open_folder, remove_folder);
}
