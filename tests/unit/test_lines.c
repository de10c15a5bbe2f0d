/* test_lines.c -- files with one line per step are truncated to a step; incomplete lines are
 * removed, other lines are unchanged. */
#define _DEFAULT_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "support/expect.h"
#include "train/lines.h"

static char dir[] = "/tmp/test_lines_XXXXXX", path[64];

static int make_dir(void **state)
{
    (void)state;
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/m.jsonl", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir); /* fails if another file is left */
}

static void put(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void expect_file(const char *name, const char *want)
{
    char got[4096] = "";
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_true(fread(got, 1, sizeof got - 1, f) < sizeof got - 1);
    fclose(f);
    expect_text(name, got, want);
}

static void later_steps_are_removed(void **state)
{
    static const char three[] = "{\"step\": 1, \"x\": 1}\n{\"step\": 2}\n{\"step\": 3}\n";
    (void)state;
    put(three);
    DO(lines_cut(path, 3));
    expect_file("all stay", three);
    DO(lines_cut(path, 1));
    expect_file("one stays", "{\"step\": 1, \"x\": 1}\n");
    DO(lines_cut(path, 0));
    expect_file("none stays", "");
}

/* A killed process may leave any prefix of a line. */
static void incomplete_lines_are_removed(void **state)
{
    static const char line[] = "{\"step\": 2, \"x\": {\"y\": 1}}\n";
    (void)state;
    for (size_t n = 0; n < sizeof line - 1; n++) {
        char text[128];
        snprintf(text, sizeof text, "{\"step\": 1}\n%.*s", (int)n, line);
        put(text);
        DO(lines_cut(path, 20));
        expect_file("torn", "{\"step\": 1}\n");
    }
}

static void a_truncated_file_is_appended_to(void **state)
{
    FILE *f;
    (void)state;
    put("{\"step\": 1}\n{\"step\": 12}\n{\"st");
    DO(lines_open(path, 1, &f));
    fputs("{\"step\": 2}\n", f);
    fclose(f);
    expect_file("goes on", "{\"step\": 1}\n{\"step\": 2}\n");
    unlink(path);
    DO(lines_cut(path, 5)); /* a missing file is not created */
    assert_int_equal(access(path, F_OK), -1);
    DO(lines_open(path, 0, &f));
    fclose(f);
    expect_file("new", "");
    expect_error("no folder", lines_open("/no/such/folder/x", 0, &f), ERR_IO, "/no/such/folder/x");
}

/* A limit on the size of a file ends a write in the middle, as a full disk does. */
static void set_limit(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_line_is_written_whole_or_not_at_all(void **state)
{
    FILE *f;
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    put("{\"step\": 1}\n");
    DO(lines_open(path, 1, &f));
    for (int i = 0; i < 2; i++) {
        const int64_t mark = lines_mark(f);
        assert_int_equal(mark, 12);
        fprintf(f, "{\"step\": 2, \"long\": \"%0*d\"}\n", i ? 10000 : 3, 0);
        set_limit(20);
        expect_error("full", lines_flush(f, mark), ERR_IO, "File too large");
        set_limit(RLIM_INFINITY);
        expect_file("full", "{\"step\": 1}\n");
    }
    fputs("{\"step\": 3}\n", f);
    DO(lines_flush(f, 12));
    fclose(f);
    expect_file("room again", "{\"step\": 1}\n{\"step\": 3}\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(later_steps_are_removed),
                                       cmocka_unit_test(incomplete_lines_are_removed),
                                       cmocka_unit_test(a_truncated_file_is_appended_to),
                                       cmocka_unit_test(a_line_is_written_whole_or_not_at_all)};
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
