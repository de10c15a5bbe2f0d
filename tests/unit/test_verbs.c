/* test_verbs.c -- the command from argv to exit status: help from the tables, verbs that are not
 * there yet, verbs that never were. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "cli/config/keys.h"
#include "cli/verbs.h"

static char said[1 << 16];

/* Runs `sheaf WORD WORD`, with what it says on `fd` in `said`. */
static int sheaf(int fd, const char *first, const char *second)
{
    char *argv[] = {"sheaf", (char *)first, (char *)second, NULL};
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    const int kept = dup(fd);
    assert_true(kept >= 0 && dup2(fileno(file), fd) == fd);
    const int status = cli_run(first ? second ? 3 : 2 : 1, argv);
    fflush(stdout);
    dup2(kept, fd);
    close(kept);
    rewind(file);
    said[fread(said, 1, sizeof said - 1, file)] = '\0';
    fclose(file);
    return status;
}

static void assert_said(const char *part)
{
    if (!strstr(said, part)) fail_msg("\"%s\" is not in: %s", part, said);
}

static void help_lists_verbs_and_sections(void **state)
{
    (void)state;
    assert_int_equal(sheaf(1, "help", NULL), 0);
    for (const Verb *v = verbs; v->name; v++) assert_said(v->name);
    for (int i = 0; i < section_count(); i++) assert_said(section_at(i)->meaning);
    assert_int_equal(sheaf(1, "--help", NULL), 0);
    assert_said("sheaf explain");
    assert_int_equal(sheaf(1, "--version", NULL), 0);
    assert_said("sheaf " SHEAF_VERSION "\n");
    assert_said("\ncuda"); /* the card, or why there is none */
}

static void help_knows_every_key(void **state)
{
    (void)state;
    for (int i = 0; i < N_KEYS; i++) {
        const Key *key = key_at((KeyId)i);
        assert_int_equal(sheaf(1, "help", key->path), 0);
        assert_said(key->meaning);
        if (key->works) assert_said("  today    only ");
        assert_int_equal(sheaf(1, "help", key->section), 0);
        assert_said(key->meaning);
    }
    assert_int_equal(sheaf(1, "help", "schedule"), 0); /* of two sections */
    assert_said("optim.schedule");
    assert_said("parallel.schedule");
    assert_int_equal(sheaf(1, "help", "model.head_dim"), 0);
    assert_said("llama mistral qwen2 qwen3");
    assert_int_equal(sheaf(1, "help", "model.name"), 0);
    assert_said("llama3-8b");
    assert_int_equal(sheaf(1, "help", "plan"), 0);
    assert_said("(not yet)");
    assert_int_equal(sheaf(1, "help", "mesh"), 0);
    assert_said("(not yet)");
    assert_int_equal(sheaf(1, "help", "batch"), 0);
    assert_null(strstr(said, "(not yet)"));
}

static void refusals_leave_with_two(void **state)
{
    (void)state;
    assert_int_equal(sheaf(2, "plan", "run.yaml"), 2);
    assert_said("sheaf: plan: not yet in this version; today: ");
    assert_said("explain, simulate, data, ");
    assert_int_equal(sheaf(2, "trian", NULL), 2);
    assert_said("did you mean train?");
    assert_int_equal(sheaf(2, "xyzzyxyzzy", NULL), 2);
    assert_said("unknown verb; today: ");
    assert_int_equal(sheaf(2, NULL, NULL), 2);
    assert_said("sheaf: no verb");
    assert_int_equal(sheaf(2, "help", "optim.rl"), 2);
    assert_said("did you mean optim.lr?");
}

static void exit_status_tells_requests_from_failures(void **state)
{
    (void)state;
    assert_int_equal(cli_fail(err_fail(ERR_CONFIG, "a bad request, said by a test")), 2);
    assert_int_equal(cli_fail(err_fail(ERR_IO, "a failure, said by a test")), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_lists_verbs_and_sections),
        cmocka_unit_test(help_knows_every_key),
        cmocka_unit_test(refusals_leave_with_two),
        cmocka_unit_test(exit_status_tells_requests_from_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
