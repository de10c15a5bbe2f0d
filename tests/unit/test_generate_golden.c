/* test_generate_golden.c -- greedy generation equals that of the transformers library over 200
 * tokens: from its own folders, with and without a KV cache, on one rank and on meshes, and with a
 * repetition penalty. The two largest logits of each position differ enough that the order of sums
 * does not matter (tests/golden/generate/make.py). */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <jansson.h>
#include "support/run_command.h"

static const char *const family[] = {"gpt2",    "llama",     "mistral",   "qwen2", "qwen3",
                                     "mixtral", "qwen2_moe", "qwen3_moe", "dots1"};
enum { FAMILIES = sizeof family / sizeof *family, TOKENS = 200 };

static json_t *expected(const char *name)
{
    char path[1200];
    json_error_t why;
    snprintf(path, sizeof path, "tests/golden/generate/%s/expected.json", name);
    json_t *root = json_load_file(path, 0, &why);
    if (!root) fail_msg("%s: %s", path, why.text);
    return root;
}

/* The line of output that lists ids. */
static void compare(const char *name, const char *how, const json_t *want)
{
    const char *at = output;
    while (at && !(*at >= '0' && *at <= '9')) at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL;
    if (!at) fail_msg("%s, %s: no tokens in: %s", name, how, output);
    for (size_t i = 0; i < TOKENS; i++) {
        char *end;
        const long got = strtol(at, &end, 10);
        if (end == at) fail_msg("%s, %s: %d tokens alone", name, how, (int)i);
        if (got != (long)json_integer_value(json_array_get(want, i)))
            fail_msg("%s, %s: token %d is %ld, not %d", name, how, (int)i, got,
                     (int)json_integer_value(json_array_get(want, i)));
        at = end;
    }
}

static void expect_tokens(const char *name, const char *how, bool punished)
{
    char dir[1200], prompt[128] = "", penalty[64];
    json_t *root = expected(name);
    const json_t *ids = json_object_get(root, "prompt");
    for (size_t i = 0; i < json_array_size(ids); i++)
        snprintf(prompt + strlen(prompt), sizeof prompt - strlen(prompt), "%d ",
                 (int)json_integer_value(json_array_get(ids, i)));
    assert_true(json_real_value(json_object_get(root, "margin")) > 1e-3);
    snprintf(dir, sizeof dir, "tests/golden/generate/%s", name);
    snprintf(penalty, sizeof penalty, "--repetition-penalty=%g",
             punished ? json_real_value(json_object_get(root, "penalty")) : 1.0);
    const int status = SHEAF("generate", dir, "-p", prompt, "--ids", "-n", "200", "--ignore-eos",
                             penalty, "run.threads=1", how);
    if (status != 0) fail_msg("%s, %s: %s", name, how, output);
    compare(name, how, json_object_get(root, punished ? "punished" : "greedy"));
    json_decref(root);
}

static void tokens_equal_transformers(void **state)
{
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        expect_tokens(family[i], "run.device=cpu", false);
        expect_tokens(family[i], "run.device=ref", false);
        expect_tokens(family[i], "run.device=cpu", true);
    }
}

static void without_a_cache(void **state)
{
    (void)state;
    for (int i = 0; i < FAMILIES; i++) expect_tokens(family[i], "--no-cache", false);
}

static void on_meshes(void **state)
{
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        expect_tokens(family[i], "mesh.tp=2", false);
        expect_tokens(family[i], "mesh.pp=2", false);
        expect_tokens(family[i], "mesh.tp=3", true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_equal_transformers),
        cmocka_unit_test(without_a_cache),
        cmocka_unit_test(on_meshes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
