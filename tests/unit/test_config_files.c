/* test_config_files.c -- run files of any bytes: read, or refused with file, line and reason. */
#define _POSIX_C_SOURCE 200809L
#include "support/config_fixture.h"

static void bad_files_have_positions(void **state)
{
    static const struct {
        const char *yaml;
        int line;
        const char *message;
    } bad[] = {
        {"model:\n  name: gpt2\nmodl:\n  name: x\n", 3, "did you mean model?"},
        {"modl:\n", 1, "did you mean model?"},
        {"model:\n  nam: gpt2\n", 2, "unknown key"},
        {"optim:\n  lr: 1\n  lr: 2\n", 3, "given again"},
        {"model:\n  n_layer: 1\n  n_layer: 1\n", 3, "given again"},
        {"optim:\n  lr: 1\nrun:\n  seed: 1\noptim:\n  clip: 1\n", 5, "the first is in line 1"},
        {"optim:\n  lr: &a 1\n", 2, "an anchor"},
        {"optim: &o\n  lr: 1\n", 1, "an anchor"},
        {"optim:\n  lr: *a\n", 2, "an alias"},
        {"optim:\n  lr: !!float 1\n", 2, "a tag"},
        {"%YAML 1.1\n---\noptim:\n  lr: 1\n", 1, "a directive"},
        {"optim:\n  lr: 1\n---\noptim:\n  lr: 2\n", 3, "a second document"},
        {"optim:\n  lr:\n    low: 1\n", 3, "keys hold plain values"},
        {"model:\n  rope_scaling: {factor: 8}\n", 2, "rope_scaling.factor: 8"},
        {"data:\n  train: [a, [b]]\n", 2, "inside of a list"},
        {"data:\n  train: [a, \"\"]\n", 2, "an item that is empty"},
        {"optim:\n  lr: [1, 2]\n", 2, "a list, and the key takes one value"},
        {"optim: 3\n", 1, "a section holds keys"},
        {"- a\n- b\n", 1, "not a map of sections"},
        {"just text\n", 1, "not a map of sections"},
        {"? [a]\n: 1\n", 1, "sections are plain names"},
        {"optim:\n  ? [a]\n  : 1\n", 2, "keys are plain names"},
        {"optim:\n  lr: \"3e-4\"\n", 2, "remove the quotes"},
        {"model:\n  n_layer: \"2\"\n", 2, "remove the quotes"},
        {"optim:\n  lr:\n", 2, "no value"},
        {"optim:\n  lr: ~\n", 2, "no value"},
        {"run:\n  fresh: yes\n", 2, "must be true or false"},
        {"run:\n  seed: 1.5\n", 2, "must be a whole number"},
        {"mesh:\n\n  ep: 0\n", 3, "too small; the least is 1"},
        {"optim: {lr: 1]\n", 1, "not YAML"},
        {"optim:\n\tlr: 1\n", 2, "not YAML"},
        {"model:\n  name: \"a\\0b\"\n", 2, "a NUL character"},
        {"model:\n  name: a\xff\n", 2, "byte 0xFF is not UTF-8"},
        {"model:\n  name: \xc0\xaf\n", 2, "not UTF-8"},     /* an overlong form */
        {"model:\n  name: \xed\xa0\x80\n", 2, "not UTF-8"}, /* half of a pair */
        {"model:\n  name: \xe2\x82", 2, "not UTF-8"},       /* cut short by the end */
        {"model:\n  <<: 1\n", 2, "unknown key"},
    };
    Fixture *f = *state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Config c;
        char place[96];
        if (load_bytes(f, bad[i].yaml, strlen(bad[i].yaml), &c) != ERR_CONFIG)
            fail_msg("taken: %s", bad[i].yaml);
        assert_message(bad[i].message);
        snprintf(place, sizeof place, "%s:%d:", f->path, bad[i].line);
        assert_message(place);
    }
}

static void odd_bytes_and_sizes(void **state)
{
    Fixture *f = *state;
    Config c;
    assert_int_equal(load_bytes(f, "model:\n\0", 8, &c), ERR_CONFIG);
    assert_message("a NUL byte");
    assert_int_equal(load_bytes(f, "", 0, &c),
                     ERR_CONFIG); /* an empty file is valid, but names no model */
    assert_message("model.name is not set");
    assert_int_equal(load_bytes(f, "---\n...\n", 8, &c), ERR_CONFIG);
    assert_message("model.name is not set");
    const size_t big = MAX_YAML_BYTES + 1;
    char *spaces = malloc(big);
    assert_non_null(spaces);
    memset(spaces, '\n', big);
    assert_int_not_equal(load_bytes(f, spaces, big, &c), OK);
    assert_message(f->path);
    memset(spaces, '[', 200000); /* deeply nested, if it were parsed */
    assert_int_equal(load_bytes(f, spaces, 200000, &c), ERR_CONFIG);
    free(spaces);
    assert_int_equal(config_load("/nowhere/run.yaml", NULL, 0, &f->arena, &c), ERR_IO);
    assert_message("/nowhere/run.yaml");
    static const char name[] = "model:\n  name: gr\xc3\xb6\xc3\x9f"
                               "e-\xe2\x82\xac-\xf0\x9f\x8c\xbe\n";
    assert_int_equal(load_bytes(f, name, sizeof name - 1, &c), OK); /* UTF-8 of 2, 3 and 4 bytes */
    assert_int_equal(strlen(c.model_name), 2 + 2 + 2 + 2 + 3 + 1 + 4);
}

/* A byte order mark, as some editors write it, is no part of the first key. */
static void a_byte_order_mark_is_skipped(void **state)
{
    Fixture *f = *state;
    Config c;
    static const char yaml[] = "\xef\xbb\xbfmodel:\n  name: gpt2-tiny\noptim:\n  lr: 1e-3\n";
    if (load_bytes(f, yaml, sizeof yaml - 1, &c) != OK) fail_msg("%s", err_text());
    assert_string_equal(c.model_name, "gpt2-tiny");
    assert_true(c.optim_lr == 1e-3);
}

/* Any bytes give an error or a configuration. */
static void mutated_files_never_crash(void **state)
{
    static const char yaml[] = "model:\n  name: gpt2-tiny\n  n_layer: 2\n"
                               "optim: {lr: 1e-3, kind: sgd}\n"
                               "parallel:\n  recompute: [\"*.mlp.*\", b]\n"
                               "run:\n  seed: 12\n  threads: 2 # two\n";
    static const char pieces[] = "{}[]\"',:0123456789.eE-+\n\t &*!|>%@`?#~\\\x80\xff\xc3";
    Fixture *f = *state;
    int taken = 0;
    uint64_t seed = 11;
    for (int round = 0; round < 3000; round++) {
        char text[sizeof yaml];
        size_t n = sizeof yaml - 1;
        Config c;
        memcpy(text, yaml, n);
        for (int k = 0; k <= round % 4; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const size_t at = (size_t)(seed >> 33) % n;
            text[at] = pieces[(seed >> 20) % sizeof pieces]; /* including the NUL at its end */
            if (seed >> 61 == 7) n = at + 1;
        }
        const Err err = load_bytes(f, text, n, &c);
        taken += err == OK;
        if (err != OK) assert_true(strlen(err_text()) > 10);
    }
    assert_in_range(taken, 100, 2900); /* some are accepted, some refused */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bad_files_have_positions, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(odd_bytes_and_sizes, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(a_byte_order_mark_is_skipped, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(mutated_files_never_crash, open_fixture, close_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
