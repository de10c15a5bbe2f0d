/* test_infer_verbs.c -- `sheaf generate` and `sheaf eval` on a run folder: the output is the same
 * under every layout, the loss is the trainer's, the loss of a choice is a difference of texts. */
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
#include "cli/eval/eval.h"
#include "support/run_command.h"

static char dir[64], run[96], text[96], other[96];

static void write_file(const char *path, const char *what)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(what, f) >= 0 && fclose(f) == 0);
}

/* Writes a text with a pattern to learn: sums in words. */
static void write_text(const char *path, int from, int n)
{
    static const char *const digit[] = {"none", "one", "two", "three", "four", "five", "six"};
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = from; i < from + n; i++)
        fprintf(f, "%s and %s is %s\xc3\xa9;\n", digit[i % 4], digit[i * 7 % 3],
                digit[i % 4 + i * 7 % 3]);
    assert_int_equal(fclose(f), 0);
}

static void do_sheaf(const char *const *words)
{
    if (sheaf(words) != 0) fail_msg("%s %s: %s", words[0], words[1], output);
}
#define DO_SHEAF(...) do_sheaf((const char *const[]){__VA_ARGS__, NULL})

static int open_run(void **state)
{
    (void)state;
    static char file[128], train[128], valid[128], where[128];
    snprintf(dir, sizeof dir, "/tmp/sheaf_infer_XXXXXX");
    if (!mkdtemp(dir)) return 1;
    snprintf(run, sizeof run, "%s/run", dir);
    snprintf(text, sizeof text, "%s/train.txt", dir);
    snprintf(other, sizeof other, "%s/valid.txt", dir);
    snprintf(file, sizeof file, "%s/run.yaml", dir);
    snprintf(train, sizeof train, "data.train=%s", text);
    snprintf(valid, sizeof valid, "data.valid=%s", other);
    snprintf(where, sizeof where, "run.dir=%s", run);
    write_text(text, 0, 400);
    write_text(other, 5, 60); /* 64 samples at most are measured */
    write_file(file, "model:\n  name: llama-tiny\n  hidden_size: 24\n  num_hidden_layers: 2\n"
                     "  num_attention_heads: 4\n  num_key_value_heads: 2\n  head_dim: 8\n"
                     "  intermediate_size: 40\n  max_position_embeddings: 64\n"
                     "data:\n  seq_len: 24\nbatch:\n  global: 8\n  micro: 4\n"
                     "optim:\n  lr: 1e-2\n  warmup: 5\nrun:\n  steps: 60\n  valid_every: 60\n");
    if (SHEAF("train", file, train, valid, where, "run.threads=1") != 0) {
        fputs(output, stderr);
        return 1;
    }
    return 0;
}

static int remove_run(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command);
}

/* The generated text, between the first and the last line of standard error. */
static const char *generated_text(void)
{
    static char out[1 << 14];
    const char *at = strstr(output, "known before the run\n");
    assert_non_null(at);
    at += strlen("known before the run\n");
    const char *note = strstr(at, "positions after that are untrained\n");
    snprintf(out, sizeof out, "%s", note ? strchr(note, '\n') + 1 : at);
    char *end = strstr(out, "done: ");
    assert_non_null(end);
    *end = '\0';
    return out;
}

static void output_is_the_same_under_every_layout(void **state)
{
    (void)state;
    static char want[1 << 14];
    const char *const how[] = {"--no-cache",     "mesh.tp=2",     "mesh.pp=2", "mesh.tp=3",
                               "run.device=ref", "run.threads=2", "mesh.cp=2", "mesh.cp=5"};
    for (int drawn = 0; drawn < 2; drawn++) {
        const char *warm = drawn ? "--temperature=0.9" : "--temperature=0";
        DO_SHEAF("generate", run, "-p", "one and t", "-n", "40", warm);
        snprintf(want, sizeof want, "%s", generated_text());
        assert_memory_equal(want, "one and t", 9);
        assert_in_range(strlen(want), 40, 9 + 40 + 1);
        for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
            DO_SHEAF("generate", run, "-p", "one and t", "-n", "40", warm, how[i]);
            assert_string_equal(generated_text(), want);
        }
    }
}

/* Prompts of a file in batches: the output of each is as if it were alone, in the order of the
 * file. */
static void a_batch_does_not_change_the_output(void **state)
{
    (void)state;
    static char want[1 << 14];
    char path[128], one[64];
    const char *const prompt[] = {"one and t", "n", "three and two is five\xc3\xa9;\ntwo",
                                  "two and", "t"};
    snprintf(path, sizeof path, "%s/prompts.jsonl", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    want[0] = '\0';
    for (int i = 0; i < 5; i++) {
        json_t *line = json_pack("{s:s}", "prompt", prompt[i]);
        json_dumpf(line, f, 0);
        fputs(i == 2 ? "\n\n" : "\n", f);
        json_decref(line);
        DO_SHEAF("generate", run, "-p", prompt[i], "-n", "9");
        strncat(want, generated_text(), sizeof want - strlen(want) - 1);
    }
    fclose(f);
    for (int batch = 1; batch <= 6; batch++) {
        snprintf(one, sizeof one, "--batch=%d", batch);
        DO_SHEAF("generate", run, "--prompts", path, "-n", "9", one,
                 batch == 3 ? "mesh.tp=2" : "mesh.tp=1");
        assert_string_equal(generated_text(), want);
    }
}

static json_t *printed_json(void)
{
    json_error_t why;
    const char *at = strchr(output, '{');
    json_t *root = at ? json_loads(at, JSON_DISABLE_EOF_CHECK, &why) : NULL;
    if (!root) fail_msg("no JSON in: %s", output);
    return root;
}

/* The text ends before the stop string, even if several tokens form it; JSON has the reason. */
static void stop_strings_end_the_text(void **state)
{
    (void)state;
    DO_SHEAF("generate", run, "-p", "one", "-n", "30", "--json");
    json_t *all = printed_json();
    const json_t *o = json_array_get(json_object_get(all, "outputs"), 0);
    const char *whole = json_string_value(json_object_get(o, "text"));
    assert_string_equal(json_string_value(json_object_get(o, "end")), "length");
    assert_int_equal(json_array_size(json_object_get(o, "ids")), 30);
    assert_true(json_integer_value(json_object_get(all, "cache_bytes")) > 0);
    char stop[8] = "";
    memcpy(stop, whole + 11, 4);
    const size_t first = (size_t)(strstr(whole, stop) - whole);
    DO_SHEAF("generate", run, "-p", "one", "-n", "30", "--json", "--stop", "never", "--stop", stop);
    json_t *cut = printed_json();
    o = json_array_get(json_object_get(cut, "outputs"), 0);
    const char *got = json_string_value(json_object_get(o, "text"));
    assert_string_equal(json_string_value(json_object_get(o, "end")), "stop");
    assert_int_equal(strlen(got), first);
    assert_memory_equal(got, whole, first);
    json_decref(all);
    json_decref(cut);
    DO_SHEAF("generate", run, "-p", "one", "-n", "30", "--stop", stop); /* and on the terminal */
    assert_int_equal(strlen(generated_text()), 3 + first + 1);
}

/* Generation ends with the positions of the model, also after a prompt of one token, or at -n. */
static void generation_ends_with_the_context(void **state)
{
    (void)state;
    const struct {
        const char *prompt, *n, *end;
        size_t ids;
    } c[] = {{"t", "500", "context", 64},
             {"two", "500", "context", 62},
             {"t", "64", "length", 64},
             {"two", "62", "length", 62}};
    for (int i = 0; i < 4; i++) {
        DO_SHEAF("generate", run, "-p", c[i].prompt, "-n", c[i].n, "--json");
        json_t *all = printed_json();
        const json_t *o = json_array_get(json_object_get(all, "outputs"), 0);
        assert_string_equal(json_string_value(json_object_get(o, "end")), c[i].end);
        assert_int_equal(json_array_size(json_object_get(o, "ids")), c[i].ids);
        json_decref(all);
    }
}

static void generate_refuses(void **state)
{
    (void)state;
    char longer[128];
    memset(longer, 'a', 100);
    longer[100] = '\0';
    assert_int_equal(SHEAF("generate", run, "-p", longer), 2);
    assert_printed("prompt 1 has 100 tokens");
    assert_printed("has 64 positions");
    assert_int_equal(SHEAF("generate", "/nowhere", "-p", "a"), 2);
    assert_printed("/nowhere: is not a folder");
    assert_int_equal(SHEAF("generate", dir, "-p", "a"), 2);
    assert_printed("give a run folder");
    assert_int_equal(SHEAF("generate", run), 2);
    assert_printed("no prompt");
    assert_int_equal(SHEAF("generate", run, "-p", ""), 2);
    assert_printed("the prompt is empty");
    assert_int_equal(SHEAF("generate", run, "-p", "a", "optim.lr=1"), 2);
    assert_printed("optim.lr: generate does not read it");
    assert_int_equal(SHEAF("generate", run, "-p", "a", "mesh.cp=4", "mesh.cp_heads=2"), 2);
    assert_printed("mesh.cp_heads=2: generate does not shard heads over cp, whose ranks share the "
                   "KV cache; leave it out");
    assert_int_equal(SHEAF("generate", run, "-p", "a", "--top-k", "3"), 2);
    assert_printed("--top-k: has no effect at temperature 0");
    assert_int_equal(SHEAF("generate", run, "-p", "a", "mesh.dp=2"), 2);
    assert_printed("mesh.dp=2");
    assert_int_equal(SHEAF("generate", run, "-p", "1 999", "--ids"), 2);
    assert_printed("token 999");
    assert_int_equal(SHEAF("generate", run, "-p", "a", "--top-p", "7", "--temperature", "1"), 2);
    assert_printed("top-p 7");
    assert_int_equal(SHEAF("generate", run, "-p", "a", "-n", "0"), 2);
    assert_printed("-n 0");
}

/* A line that is not a prompt is refused with its number; no invalid id is read as token 0. */
/* Inference has no master weights: bf16 takes about half of the memory of f32, on one rank and with
 * tensor parallelism. */
static void bf16_takes_less_memory(void **state)
{
    (void)state;
    static const char *const mesh[] = {"mesh.tp=1", "mesh.tp=2"};
    static const char *const type[] = {"precision.compute=f32", "precision.compute=bf16"};
    for (int m = 0; m < 2; m++) {
        double bytes[2];
        for (int t = 0; t < 2; t++) {
            DO_SHEAF("generate", run, "-p", "ab", "-n", "2", "--json", mesh[m], type[t]);
            json_t *o = printed_json();
            bytes[t] = (double)json_integer_value(json_object_get(o, "memory_bytes"));
            json_decref(o);
        }
        assert_true(bytes[1] > 0.4 * bytes[0]);
        if (bytes[1] > 0.7 * bytes[0]) fail_msg("bf16 %g, f32 %g bytes", bytes[1], bytes[0]);
    }
}

/* A NUL is a byte like any other: in JSONL, in ids and in the decoded text. */
static void nul_bytes_are_kept(void **state)
{
    (void)state;
    char path[128];
    json_error_t why;
    snprintf(path, sizeof path, "%s/nul.jsonl", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"prompt\": \"a\\u0000b\"}\n{\"ids\": [97, 0, 98]}\n", f);
    fclose(f);
    DO_SHEAF("generate", run, "--prompts", path, "-n", "1", "--json");
    json_t *o = json_loads(strchr(output, '{'), JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &why);
    assert_non_null(o);
    for (size_t i = 0; i < 2; i++) {
        const json_t *one = json_array_get(json_object_get(o, "outputs"), i);
        const json_t *prompt = json_object_get(one, "prompt");
        assert_int_equal(json_string_length(prompt), 3);
        assert_memory_equal(json_string_value(prompt), "a\0b", 3);
        assert_int_equal(json_integer_value(json_object_get(one, "prompt_tokens")), 3);
    }
    json_decref(o);
}

static void bad_prompts_are_refused(void **state)
{
    (void)state;
    char path[128], both[128];
    snprintf(path, sizeof path, "%s/none.jsonl", dir);
    const char *const line[] = {"{\"ids\": [1, \"a\"]}",
                                "ids[1] is not a whole number",
                                "{\"ids\": [1.5]}",
                                "ids[0] is not a whole number",
                                "{\"ids\": [999]}",
                                "token 999",
                                "{\"ids\": [1], \"ids\": [2]}",
                                "duplicate",
                                "{\"ids\": [1], \"prompt\": \"a\"}",
                                "must be {",
                                "{\"ids\": 5}",
                                "must be {"};
    for (int i = 0; i < 12; i += 2) {
        snprintf(both, sizeof both, "\n%s\n", line[i]);
        write_file(path, both);
        assert_int_equal(SHEAF("generate", run, "--prompts", path, "-n", "1"), 2);
        assert_printed(line[i + 1]);
        assert_printed("none.jsonl:2: ");
    }
}

static double eval_loss(const char *how, const char *value, int64_t *tokens)
{
    DO_SHEAF("eval", run, "--text", other, "--json", how, value);
    json_t *o = printed_json();
    const double loss = json_real_value(json_object_get(o, "loss"));
    if (tokens) *tokens = json_integer_value(json_object_get(o, "tokens"));
    const double bits = json_real_value(json_object_get(o, "bits_per_byte"));
    assert_true(fabs(bits - loss / log(2)) < 1e-9 * bits); /* a token is a byte */
    json_decref(o);
    return loss;
}

/* The last valid_loss in the trainer's metrics. */
static double valid_loss(void)
{
    char path[128], line[4096];
    double loss = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "\"valid_loss\":");
        if (at) loss = strtod(at + 13, NULL);
    }
    fclose(f);
    return loss;
}

static void loss_equals_the_trainers(void **state)
{
    (void)state;
    int64_t tokens;
    const double want = valid_loss();
    const double loss = eval_loss("run.threads=1", NULL, &tokens);
    assert_true(want > 0.1);
    if (fabs(loss - want) > 2e-6 * want) fail_msg("loss %.9g, the trainer's %.9g", loss, want);
    FILE *f = fopen(other, "r");
    fseek(f, 0, SEEK_END);
    assert_int_equal(tokens, ftell(f) - 1);
    fclose(f);
    const char *const mesh[] = {"mesh.tp=2", "mesh.pp=2", "mesh.dp=2",
                                "mesh.tp=3", "mesh.cp=2", "mesh.cp=3"};
    for (int i = 0; i < 6; i++) {
        const double same = eval_loss(mesh[i], NULL, NULL);
        if (fabs(same - loss) > 2e-6 * loss) fail_msg("%s: %.9g, not %.9g", mesh[i], same, loss);
    }
    assert_true(fabs(eval_loss("--stride", "24", NULL) - loss) < 1e-12);
}

/* The loss of a whole text in nats, in one window. */
static double nats(const char *what)
{
    char path[128];
    snprintf(path, sizeof path, "%s/piece.txt", dir);
    write_file(path, what);
    DO_SHEAF("eval", run, "--text", path, "--json", "--seq-len", "64");
    json_t *o = printed_json();
    const double sum = json_real_value(json_object_get(o, "loss")) *
                       (double)json_integer_value(json_object_get(o, "tokens"));
    json_decref(o);
    return sum;
}

static void choice_losses_are_differences(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/tasks.jsonl", dir);
    write_file(
        path,
        "{\"context\": \"one and two is\", \"choices\": [\"three\", \"a word\", \"x\"], \"gold\": "
        "0}\n\n"
        "{\"ctx\": \"two and one is \", \"endings\": [\"qqqqq\", \"three\"], \"label\": \"1\"}\n"
        "{\"query\": \"\", \"choices\": [\"one and\", \"zzz\"], \"gold\": 1}\n");
    const double first = nats("one and two is"), second = nats("two and one is");
    const double want[] = {nats("one and two is three") - first,
                           nats("one and two is a word") - first,
                           nats("one and two is x") - first,
                           nats("two and one is qqqqq") - second,
                           nats("two and one is three") - second,
                           nats("\none and"),
                           nats("\nzzz")};
    const char *const how[] = {"mesh.tp=1", "mesh.tp=2", "mesh.pp=2", "mesh.dp=3", "mesh.cp=4"};
    for (int h = 0; h < 5; h++) {
        DO_SHEAF("eval", run, "--tasks", path, "--json", how[h]);
        json_t *o = printed_json();
        size_t k = 0;
        for (size_t t = 0; t < 3; t++) {
            const json_t *loss =
                json_object_get(json_array_get(json_object_get(o, "results"), t), "loss");
            for (size_t i = 0; i < json_array_size(loss); i++, k++) {
                const double got = json_real_value(json_array_get(loss, i));
                if (fabs(got - want[k]) > 1e-5 * (want[k] + first))
                    fail_msg("%s, choice %d: %g, not %g", how[h], (int)k, got, want[k]);
            }
        }
        assert_int_equal(k, 7);
        assert_true(want[1] < want[0] ? true : want[0] / 5 < want[1]);
        const int right =
            (want[0] < want[1] && want[0] < want[2]) + (want[4] < want[3]) + (want[6] < want[5]);
        const int norm = (want[0] / 5 < want[1] / 6 && want[0] / 5 < want[2]) +
                         (want[4] < want[3]) + (want[6] / 3 < want[5] / 7);
        assert_true(fabs(json_real_value(json_object_get(o, "acc")) - right / 3.0) < 1e-9);
        assert_true(fabs(json_real_value(json_object_get(o, "acc_norm")) - norm / 3.0) < 1e-9);
        json_decref(o);
    }
}

/* Every token but the first is scored once. All windows are full, except at the end of the text,
 * and so is the context of the scored tokens. */
static void windows_score_each_token_once(void **state)
{
    (void)state;
    for (int64_t n = 2; n < 40; n++)
        for (int64_t len = 1; len < 12; len++)
            for (int64_t stride = 1; stride <= len; stride++) {
                const Windows w = {len, stride, n};
                int64_t next = 1, first, many, from;
                for (int64_t i = 0; i < windows_count(&w); i++) {
                    windows_at(&w, i, &first, &many, &from);
                    assert_int_equal(first + from, next);
                    assert_in_range(many, 2, len + 1);
                    assert_true(i == 0 || from == len + 1 - stride);
                    assert_true(many == len + 1 || first + many == n);
                    assert_true(many > from);
                    next = first + many;
                }
                assert_int_equal(next, n);
            }
    assert_int_equal(windows_count(&(Windows){4, 2, 1}), 0);
}

static void eval_refuses(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/bad.jsonl", dir);
    assert_int_equal(SHEAF("eval", run), 2);
    assert_printed("nothing to measure on");
    assert_int_equal(SHEAF("eval", run, "--text", other, "--tasks", path), 2);
    assert_printed("several files");
    assert_int_equal(SHEAF("eval", run, "--text", other, "--seq-len", "65"), 2);
    assert_printed("has 64 positions");
    assert_int_equal(SHEAF("eval", run, "--text", other, "--stride", "25"), 2);
    assert_printed("--stride 25");
    const char *const line[] = {"{\"choices\": [\"a\", \"b\"], \"gold\": 0}",
                                "context, query or ctx",
                                "{\"context\": \"a\", \"gold\": 0}",
                                "choices or endings",
                                "{\"context\": \"a\", \"choices\": [\"a\"], \"gold\": 0}",
                                "two or more",
                                "{\"context\": \"a\", \"choices\": [\"a\", \"\"], \"gold\": 0}",
                                "or is empty",
                                "{\"context\": \"a\", \"choices\": [\"a\", \"b\"], \"gold\": 2}",
                                "not the index",
                                "{\"context\": \"a\", \"choices\": [\"a\", \"b\"]}",
                                "gold or label",
                                "{\"context\": ",
                                "bad.jsonl:2: "};
    for (int i = 0; i < 14; i += 2) {
        char both[256];
        snprintf(both, sizeof both, "\n%s\n", line[i]);
        write_file(path, both);
        assert_int_equal(SHEAF("eval", run, "--tasks", path), 1);
        assert_printed(line[i + 1]);
        assert_printed("bad.jsonl:2: ");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_the_same_under_every_layout),
        cmocka_unit_test(a_batch_does_not_change_the_output),
        cmocka_unit_test(stop_strings_end_the_text),
        cmocka_unit_test(generation_ends_with_the_context),
        cmocka_unit_test(generate_refuses),
        cmocka_unit_test(bf16_takes_less_memory),
        cmocka_unit_test(nul_bytes_are_kept),
        cmocka_unit_test(bad_prompts_are_refused),
        cmocka_unit_test(loss_equals_the_trainers),
        cmocka_unit_test(choice_losses_are_differences),
        cmocka_unit_test(windows_score_each_token_once),
        cmocka_unit_test(eval_refuses),
    };
    return cmocka_run_group_tests(tests, open_run, remove_run);
}
