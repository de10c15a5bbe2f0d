/* test_verbs.c -- the command from argv to exit status: help printed from the tables, verbs that
 * are planned, unknown verbs. */
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

static char printed[1 << 16];

/* Runs `sheaf WORD WORD`; its output on `fd` is in `printed`. */
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
    printed[fread(printed, 1, sizeof printed - 1, file)] = '\0';
    fclose(file);
    return status;
}

static void assert_printed(const char *part)
{
    if (!strstr(printed, part)) fail_msg("\"%s\" is not in: %s", part, printed);
}

/* As assert_printed, for text that may be wrapped: runs of white space count as one space. */
static void assert_wrapped(const char *part)
{
    static char folded[sizeof printed];
    size_t n = 0;
    for (const char *c = printed; *c; c++) {
        const bool space = *c == ' ' || *c == '\n';
        if (!space || (n > 0 && folded[n - 1] != ' ')) folded[n++] = space ? ' ' : *c;
    }
    folded[n] = '\0';
    if (!strstr(folded, part)) fail_msg("\"%s\" is not in: %s", part, folded);
}

static void assert_lines_fit(void)
{
    for (const char *line = printed; *line;
         line += strcspn(line, "\n") + (strchr(line, '\n') != NULL))
        if (strcspn(line, "\n") > 100) fail_msg("past 100 columns: %s", line);
}

static void help_lists_verbs_and_sections(void **state)
{
    (void)state;
    assert_int_equal(sheaf(1, "help", NULL), 0);
    assert_lines_fit();
    for (const Verb *v = verbs; v->name; v++) assert_printed(v->name);
    for (int i = 0; i < section_count(); i++) assert_printed(section_at(i)->meaning);
    assert_int_equal(sheaf(1, "--help", NULL), 0);
    assert_printed("sheaf explain");
    assert_int_equal(sheaf(1, "--version", NULL), 0);
    assert_printed("sheaf " SHEAF_VERSION "\n");
    assert_printed("\ncuda"); /* the card, or the reason why there is none */
}

static void help_describes_every_key(void **state)
{
    (void)state;
    for (int i = 0; i < N_KEYS; i++) {
        const Key *key = key_at((KeyId)i);
        assert_int_equal(sheaf(1, "help", key->path), 0);
        assert_lines_fit();
        assert_wrapped(key->meaning);
        if (key->works) assert_printed("  limit    only ");
        assert_int_equal(sheaf(1, "help", key->section), 0);
        assert_lines_fit();
        assert_wrapped(key->meaning);
    }
    assert_int_equal(sheaf(1, "help", "schedule"), 0); /* of two sections */
    assert_printed("optim.schedule");
    assert_printed("parallel.schedule");
    assert_int_equal(sheaf(1, "help", "model.head_dim"), 0);
    assert_printed("llama mistral qwen2 qwen3");
    assert_int_equal(sheaf(1, "help", "model.name"), 0);
    assert_printed("llama3-8b");
    assert_int_equal(sheaf(1, "help", "plan"), 0);
    assert_printed("--explain-choice KEY=VALUE");
    assert_int_equal(sheaf(1, "help", "mesh"), 0);
    assert_wrapped("tokens are sent to their experts by all-to-all");
    assert_int_equal(sheaf(1, "help", "batch"), 0);
    assert_null(strstr(printed, "(not yet)"));
}

static void refusals_exit_with_2(void **state)
{
    (void)state;
    assert_int_equal(sheaf(2, "plan", "model.name=llama-tiny"), 2);
    assert_printed("sheaf: plan: --cluster FILE is missing; share/clusters has some");
    assert_int_equal(sheaf(2, "trian", NULL), 2);
    assert_printed("did you mean train?");
    assert_int_equal(sheaf(2, "xyzzyxyzzy", NULL), 2);
    assert_printed("unknown verb; available: ");
    assert_printed("explain, simulate, plan, profile, data, ");
    assert_int_equal(sheaf(2, NULL, NULL), 2);
    assert_printed("sheaf: no verb");
    assert_int_equal(sheaf(2, "help", "arrange"), 2);
    assert_printed("help: arrange: now parallel.prepack;");
    assert_int_equal(sheaf(2, "help", "optim.rl"), 2);
    assert_printed("did you mean optim.lr?");
}

static void exit_status_separates_requests_from_failures(void **state)
{
    (void)state;
    assert_int_equal(cli_fail(err_fail(ERR_CONFIG, "a bad request, from a test")), 2);
    assert_int_equal(cli_fail(err_fail(ERR_IO, "a failure, from a test")), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_lists_verbs_and_sections),
        cmocka_unit_test(help_describes_every_key),
        cmocka_unit_test(refusals_exit_with_2),
        cmocka_unit_test(exit_status_separates_requests_from_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
