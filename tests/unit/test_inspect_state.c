/* test_inspect_state.c -- `sheaf inspect` on checkpoints, complete and damaged. */
#define _GNU_SOURCE
#include "support/state_test.h"
#include "support/run_command.h"

static char folder[] = "/tmp/sheaf_inspect_XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[4][128];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof *path, "%s%s%s", folder, *name ? "/" : "", name);
    return out;
}

static void copy_golden(void)
{
    char command[400];
    snprintf(command, sizeof command,
             "rm -rf %s/* && mkdir -p %s/checkpoints && cp -r tests/golden/checkpoint/* "
             "%s/checkpoints && chmod -R u+w %s",
             folder, folder, folder, folder);
    assert_int_equal(system(command), 0);
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    const int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 4, f);
    fclose(f);
}

static const char step[] = "checkpoints/step-00000020";

static void complete_checkpoint(void **state)
{
    (void)state;
    copy_golden();
    assert_int_equal(SHEAF("inspect", in_folder("")), 0); /* as a run folder */
    assert_printed(
        "checkpoints: 1 checkpoint, newest first\n  step-00000020  10,243 tokens, 2.8 KiB\n");
    assert_int_equal(SHEAF("inspect", in_folder(step)), 0);
    assert_printed("step-00000020: a checkpoint\n"
                   "  step       20, 2 updates skipped; 161 samples, 10,243 tokens\n"
                   "  model      llama, 101 parameters\n");
    assert_printed(
        "    layers.0.up  12 x 8  weight moment1 moment2\n    bias         5       weight\n");
    assert_int_equal(SHEAF("inspect", in_folder("checkpoints/step-00000020/manifest.json")), 0);
    assert_printed("step-00000020: a checkpoint\n");
    assert_int_equal(SHEAF("inspect", "--check", in_folder(step)), 0);
    assert_printed("every byte matches its hash");
    assert_int_equal(SHEAF("inspect", in_folder("checkpoints/latest")), 0);
    assert_printed("the newest checkpoint is step-00000020\n");
    assert_int_equal(SHEAF("inspect", "tests/golden/safetensors/official.safetensors"), 0);
    assert_printed("  tensors    9, 130 B of data from byte 624 on\n");
    assert_printed("who: the official library\n");
}

static void damaged_checkpoint(void **state)
{
    (void)state;
    copy_golden();
    flip(in_folder("checkpoints/step-00000020/rank-00001.safetensors"), 850); /* data */
    assert_int_equal(SHEAF("inspect", in_folder(step)), 0);
    assert_int_equal(SHEAF("inspect", "--check", in_folder(step)), 1);
    assert_printed("rank-00001.safetensors");
    flip(in_folder("checkpoints/step-00000020/rank-00001.safetensors"), 20); /* header */
    assert_int_equal(SHEAF("inspect", in_folder(step)), 1);
    assert_printed("rank-00001.safetensors: damaged: the hash of its header");
    assert_int_equal(SHEAF("inspect", in_folder("checkpoints")), 0);
    assert_printed("  step-00000020  cannot be used: ");
    copy_golden();
    flip(in_folder("checkpoints/latest"), 30);
    assert_int_equal(SHEAF("inspect", in_folder("checkpoints/latest")), 1);
    assert_printed("latest: damaged");
    flip(in_folder("checkpoints/step-00000020/manifest.json"), 60);
    assert_int_equal(SHEAF("inspect", in_folder(step)), 1);
    assert_printed("manifest.json: damaged: its hash is");
}

static int make_folder(void **state) { return !mkdtemp(folder) || setup(state); }

static int remove_folder(void **state)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) != 0 || teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(complete_checkpoint),
                                       cmocka_unit_test(damaged_checkpoint)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
