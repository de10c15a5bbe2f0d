/* test_write_error.c -- the way out of a failed write follows from its errno. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/write_error.h"

static void assert_names(int code, const char *part)
{
    const char *text = write_error_text(code);
    assert_memory_equal(text, strerror(code), strlen(strerror(code))); /* the reason is first */
    if (!strstr(text, part)) fail_msg("\"%s\" is not in: %s", part, text);
}

static void the_way_out_follows_from_the_errno(void **state)
{
    (void)state;
    assert_names(ENOSPC, "; free space on that disk");
    assert_names(EDQUOT, "quota");
    assert_names(EFBIG, "ulimit -f");
    assert_names(EROFS, "mount");
    assert_names(EACCES, "permission to write");
    assert_names(EIO, "dmesg");
    assert_names(ENOENT, "make the folder");
    assert_names(EMFILE, "ulimit -n");
}

static void an_unknown_errno_is_only_named(void **state)
{
    (void)state;
    assert_string_equal(write_error_text(EDOM), strerror(EDOM));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_way_out_follows_from_the_errno),
        cmocka_unit_test(an_unknown_errno_is_only_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
