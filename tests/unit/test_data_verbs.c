/* test_data_verbs.c -- `sheaf data` and `sheaf inspect` from argv to exit status and output: the
 * built file is the one shown, and messages name the way out. */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>
#include "support/data_test.h"
#include "support/run_command.h"

static void built_files_are_shown(void **state)
{
    (void)state;
    const char *text = scratch_text("a.txt", "one \"text\"\n");
    const char *lines = scratch_text("b.jsonl", "{\"text\": \"two\"}\n{\"text\": \"three\"}\n");
    const char *out = scratch("out.bin"), *pair = scratch("pair.bin");
    scratch("pair.idx");

    assert_int_equal(SHEAF("data", "build", text, lines, "-o", out), 0);
    assert_printed("out.bin: 19 tokens in 3 documents, a token file of llm.c, uint16\n");
    assert_printed("--format megatron keeps borders");
    assert_int_equal(SHEAF("data", "show", out), 0);
    assert_printed("  tokens     19 (38 B)\n  documents  1\n");
    assert_printed("  starts     \"one \\\"text\\\"\\ntwothree\"\n");

    assert_int_equal(SHEAF("data", "build", text, lines, "--format", "megatron",
                           "--tokenizer=bytes", "-o", pair),
                     0);
    assert_printed("pair.bin: 19 tokens in 3 documents, a Megatron pair, uint16\n");
    assert_int_equal(SHEAF("inspect", pair, out), 0);
    assert_printed("a Megatron pair, uint16\n  tokens     19 (38 B)\n  documents  3\n");
    assert_printed("out.bin: a token file of llm.c, uint16\n");

    assert_int_equal(SHEAF("data", "build", lines, "--from", "text", "-o", out), 0);
    assert_int_equal(SHEAF("data", "show", out), 0);
    assert_printed("starts     \"{\\\"text\\\": \\\"two\\\"}");
}

static void a_check_has_a_status(void **state)
{
    (void)state;
    static const int64_t id[] = {7, 50256, 1000, 50256, 8};
    Buffer b = llmc_file(20240520, 1, id, 5, 2);
    const char *good = scratch_write("good.bin", &b);
    b.bytes--;
    const char *cut = scratch_write("cut.bin", &b);
    assert_int_equal(SHEAF("data", "check", good), 0);
    assert_printed(
        "good.bin: valid: a token file of llm.c, uint16, 5 tokens in 3 documents, ids 7 to ");
    assert_int_equal(SHEAF("data", "check", good, "--vocab", "50257"), 0);
    assert_int_equal(SHEAF("data", "check", good, "--vocab", "50256"), 1);
    assert_printed("good.bin: token 1 (byte 1026) is 50256, and the vocabulary has 50256 ids");
    assert_int_equal(SHEAF("data", "check", cut, good), 1); /* the other file is checked too */
    assert_printed("cut.bin: byte 8: 5 tokens are 10 bytes, and 9 follow the header");
    assert_printed("good.bin: valid");
    assert_int_equal(SHEAF("data", "show", good), 0);
    assert_printed("documents  3, each starts with token 50256, as in llm.c\n");
    assert_printed("starts     7 50256 1000 50256 8\n");
    assert_int_equal(SHEAF("data", "check", scratch_text("no.txt", "")), 1);
    assert_printed("no.txt: contains no token");
    buffer_free(&b);
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    const char *text = scratch_text("t.txt", "text"), *nul = scratch("nul");
    Buffer b = {0};
    buffer_raw(&b, "a\0b", 3);
    scratch_write("nul", &b);
    buffer_free(&b);
    assert_int_equal(SHEAF("data"), 2);
    assert_printed("data: needs build, show or check; `sheaf data --help` describes them");
    assert_int_equal(SHEAF("data", "chekc"), 2);
    assert_printed("did you mean check?");
    assert_int_equal(SHEAF("data", "build", text), 2);
    assert_printed("no output; give it as -o corpus.bin");
    assert_int_equal(SHEAF("data", "build", "-o", text), 2);
    assert_printed("no input; give text or JSONL files");
    assert_int_equal(SHEAF("data", "build", text, "-o", text), 2);
    assert_printed("already exists and is not a token file");
    const char *device = scratch("device"); /* a link, so that the test cannot harm the device */
    assert_int_equal(symlink("/dev/null", device), 0);
    assert_int_equal(SHEAF("data", "build", text, "-o", device), 2);
    assert_printed("device: already exists and is a link to a device; choose another name");
    assert_int_equal(SHEAF("data", "build", nul, "-o", scratch("n.bin")), 2);
    assert_printed("`--from text` takes its bytes as they are");
    assert_int_equal(SHEAF("data", "build", text, "-o", scratch("n.bin"), "--tokenizer", "gpt2"),
                     1);
    assert_printed("gpt2: cannot open");
    assert_int_equal(SHEAF("data", "check", text, "--vocab", "many"), 2);
    assert_printed("--vocab many: must be the number of ids");
    assert_int_equal(SHEAF("data", "show", text, "--vocab", "3"), 2);
    assert_printed("--vocab: unknown flag");
    assert_int_equal(SHEAF("data", "show", "--format", "unit16", text), 2);
    assert_printed("did you mean uint16?");
    assert_int_equal(SHEAF("data", "--help"), 0);
    assert_printed("sheaf data build IN... -o OUT");
}

static void inspect_describes_sheaf_files(void **state)
{
    (void)state;
    const char *run =
        scratch_text("run.yaml", "model: {name: llama-tiny}\noptim: {lr: 1e-2, eps: 0.00000001}\n");
    assert_int_equal(SHEAF("inspect", run), 0);
    assert_printed("run.yaml: a run file\nllama-tiny: llama, 2 layers");
    assert_printed("  it sets    model.name=llama-tiny optim.lr=1e-2\n");
    assert_int_equal(SHEAF("inspect", "tests/golden/schedule/1f1b_4x6.txt"), 0);
    assert_printed("a schedule over chunks\n  stages     4, with 48 actions in total\n");
    assert_printed("free of deadlocks");
    const char *metrics =
        scratch_text("metrics.jsonl", "{\"step\": 1, \"loss\": 5.5, \"tokens\": 64}\n"
                                      "{\"step\": 2, \"loss\": 4, \"tokens\": 1128}\n");
    assert_int_equal(SHEAF("inspect", metrics), 0);
    assert_printed(
        "  lines      2\n  steps      1 to 2\n  loss       5.5000 to 4.0000, lowest 4.0000\n"
        "  tokens     1,128\n");
    assert_int_equal(SHEAF("inspect", scratch_text("metrics.jsonl", "{\"st\n{\"step\": 2}\n")), 1);
    assert_printed("metrics.jsonl:1: not JSON");
    const char *model = scratch_text("config.json", "{\"model_type\": \"gpt2\", \"n_layer\": 3, "
                                                    "\"n_embd\": 64, \"n_head\": 4, "
                                                    "\"n_positions\": 32, \"vocab_size\": 300}");
    assert_int_equal(SHEAF("inspect", model), 0);
    assert_printed("the config.json of a model\n");
    assert_printed(": gpt2, 3 layers");
    assert_int_equal(SHEAF("inspect", scratch_text("poem.txt", "roses")), 1);
    assert_printed("poem.txt: not a known file");
    assert_int_equal(SHEAF("inspect", "tests/unit"), 1);
    assert_printed("a folder without config.yaml, config.json, metrics.jsonl or checkpoints");
    assert_int_equal(SHEAF("inspect"), 2);
}

static const char plan[] = "plan:\n  version: 1\n  model: 6ebd3372e58794ad\n  precision: f32\n"
                           "  seq_len: 128\n  batch: 8\n  ranks: 4\nmesh:\n  dp: 2\n  tp: 1\n"
                           "  cp: 1\n  pp: 2\nbatch:\n  micro: 4\nparallel:\n  schedule: zbh1\n"
                           "layers:\n  0-1: [zero 1, zero_weights mlp.*=3, recompute full]\n"
                           "  head: [zero 0]\n";

static void inspect_describes_plans_and_clusters(void **state)
{
    (void)state;
    assert_int_equal(SHEAF("inspect", scratch_text("plan.yaml", plan)), 0);
    assert_printed("plan.yaml: a plan for 4 ranks\n  made for   model 6ebd3372e58794ad, f32, 8 "
                   "sequences of 128 tokens a step\n  choices    mesh.dp=2 mesh.tp=1 mesh.cp=1 "
                   "mesh.pp=2 batch.micro=4 parallel.schedule=zbh1\n  layers 0-1 zero=1 "
                   "zero_weights=mlp.*=3 recompute=full\n  head       zero=0\n");
    assert_int_equal(SHEAF("inspect", scratch_text("plan.yaml", "plan:\n  version: 7\n")), 2);
    assert_int_equal(SHEAF("inspect", "share/clusters/h100-sxm.yaml"), 0);
    assert_printed(
        "h100-sxm.yaml: a cluster file, h100-sxm\n  device     80.0 GiB, memory at 2700");
    assert_printed("  links      of 8 ranks: 8 us, 360 GB/s\n  links      of all ranks: 20 us");
}

/* A killed run: its complete lines are shown, and the whole folder is described. */
static void a_truncated_last_line_is_reported(void **state)
{
    (void)state;
    char folder[] = "/tmp/sheaf-run-XXXXXX", file[64];
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/metrics.jsonl", folder);
    static const char *const content[][2] = {
        {"{\"step\": 3, \"loss\": 5, \"tokens\": 64}\n{\"step\": 4, \"lo",
         "  lines      1, and an incomplete last one: the run was killed"},
        {"{\"step\": 3, \"loss\": 5, \"tokens\": 64}", "  lines      1\n  steps      3 to 3\n"},
        {"{\"st", "  lines      0, and an incomplete last one"},
    };
    for (int i = 0; i < 3; i++) {
        FILE *f = fopen(file, "wb");
        assert_non_null(f);
        fputs(content[i][0], f);
        fclose(f);
        assert_int_equal(SHEAF("inspect", folder), 0);
        assert_printed(content[i][1]);
        if (i < 2) assert_printed("  steps      3 to 3\n  loss       5.0000 to 5.0000");
    }
    remove(file);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(built_files_are_shown),
        cmocka_unit_test(a_check_has_a_status),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(inspect_describes_sheaf_files),
        cmocka_unit_test(inspect_describes_plans_and_clusters),
        cmocka_unit_test(a_truncated_last_line_is_reported),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
