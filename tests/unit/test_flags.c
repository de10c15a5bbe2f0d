/* test_flags.c -- flags.def against the verbs themselves: each flag that help lists is accepted, no
 * other is, and the examples use no others. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "cli/flags.h"
#include "support/run_command.h"

/* Runs the command with one argument: `sheaf train WORD` or `sheaf data build WORD`. */
static int run_with(const char *command, const char *word)
{
    const char *verb = flag_verb(command);
    return verb == command ? SHEAF(command, word) : SHEAF(verb, command, word);
}

/* A flag without its value, or with a value that it does not take, is refused by name. */
static void every_flag_is_accepted(void **state)
{
    (void)state;
    char word[80], message[120];
    int n = 0;
    for (const FlagRow *r = flag_rows; r->command; r++) {
        if (r->kind != ROW_FLAG) continue;
        snprintf(word, sizeof word, "%s%s", r->name, r->value ? "" : "=1");
        snprintf(message, sizeof message, "%s: %s %s", r->command, r->name,
                 r->value ? "needs a value" : "takes no value");
        assert_int_equal(run_with(r->command, word), 2);
        assert_printed(message);
        n++;
    }
    assert_true(n >= 50);
}

static void no_other_flag_is_accepted(void **state)
{
    (void)state;
    static const char *const commands[] = {"train", "verify",   "explain", "simulate",
                                           "build", "show",     "check",   "reshape",
                                           "eval",  "generate", "inspect"};
    char message[120];
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        assert_int_equal(run_with(commands[i], "--xyzzyxyzzy"), 2);
        snprintf(message, sizeof message, "--xyzzyxyzzy: unknown flag; `sheaf help %s` lists all",
                 flag_verb(commands[i]));
        assert_printed(message);
    }
    assert_int_equal(SHEAF("train", "--supervize"), 2);
    assert_printed("did you mean --supervise?");
}

/* The last value would win without a word; --stop is a list. */
static void no_flag_is_given_twice(void **state)
{
    (void)state;
    assert_int_equal(SHEAF("generate", "x", "-p", "one", "-p", "two"), 2);
    assert_printed("generate: -p is given again; keep one");
    assert_int_equal(SHEAF("simulate", "--cluster=a", "--json", "--cluster", "b"), 2);
    assert_printed("simulate: --cluster is given again; keep one");
    assert_int_equal(SHEAF("data", "build", "-o", "a", "-o", "b"), 2);
    assert_printed("build: -o is given again; keep one");
    assert_int_equal(SHEAF("generate", "nothere", "-p", "x", "--stop", "a", "--stop", "b"), 2);
    assert_printed("nothere: is not a folder");
    assert_int_equal(SHEAF("profile", "run.ranks=2"), 2);
    assert_printed("run.ranks=2: takes no file and reads no key");
}

static void assert_help(const char *verb, const char *name)
{
    char line[80];
    assert_int_equal(SHEAF("help", verb), 0);
    snprintf(line, sizeof line, "\n    %s ", name);
    assert_printed(line);
}

static void help_lists_every_flag(void **state)
{
    (void)state;
    for (const FlagRow *r = flag_rows; r->command; r++)
        if (r->kind == ROW_FLAG || r->kind == ROW_PLACE)
            assert_help(flag_verb(r->command), r->name);
    assert_help("train", "--supervise N"); /* whatever the table has */
    assert_help("train", "--trace FILE");
    assert_help("reshape", "--shard-size S");
    assert_help("data", "--eot TOKEN");
    assert_help("verify", "--layouts LIST");
}

static bool has_example(const char *command)
{
    for (const FlagRow *r = flag_rows; r->command; r++)
        if (r->kind == ROW_EXAMPLE && strcmp(r->command, command) == 0) return true;
    return false;
}

/* Calls flag_find for every word of a line that looks like a flag. */
static void assert_known_flags(const char *command, const char *line)
{
    for (const char *at = strchr(line, ' '); at; at = strchr(at + 1, ' ')) {
        const int length = (int)strcspn(at + 1, " =");
        if (at[1] == '-' && !flag_find(command, at + 1, length))
            fail_msg("%s: %.*s is no flag, but is in: %s", command, length, at + 1, line);
    }
}

static void examples_use_the_flags(void **state)
{
    (void)state;
    char start[60];
    for (const FlagRow *r = flag_rows; r->command; r++) {
        if (r->kind == ROW_PART) assert_true(has_example(r->name));
        if (r->kind != ROW_EXAMPLE) continue;
        const char *verb = flag_verb(r->command);
        snprintf(start, sizeof start, "sheaf %s%s%s ", verb, verb == r->command ? "" : " ",
                 verb == r->command ? "" : r->command);
        const char *line = strstr(r->name, start);
        if (!line) fail_msg("\"%s\" is no example of %s", r->name, r->command);
        assert_known_flags(r->command, line);
    }
    for (const Verb *v = verbs; v->name; v++) {
        assert_known_flags(v->name, v->usage);
        if (v->run && strcmp(v->name, "data") != 0) assert_true(has_example(v->name));
    }
}

static void help_is_an_argument_too(void **state)
{
    (void)state;
    assert_int_equal(SHEAF("train", "run.yaml", "--help"), 0);
    assert_printed("--supervise N");
    assert_int_equal(SHEAF("data", "build", "-h"), 0);
    assert_printed("sheaf data build IN... -o OUT");
    assert_int_equal(SHEAF("reshape", "--help"), 0);
    assert_printed("--shard-size S");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flag_is_accepted), cmocka_unit_test(no_other_flag_is_accepted),
        cmocka_unit_test(no_flag_is_given_twice), cmocka_unit_test(help_lists_every_flag),
        cmocka_unit_test(examples_use_the_flags), cmocka_unit_test(help_is_an_argument_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
