/* expect.h -- checks for tests of graphs and programs: calls that must succeed, error messages,
 * equal texts. */
#ifndef TESTS_SUPPORT_EXPECT_H
#define TESTS_SUPPORT_EXPECT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/arena.h"
#include "base/err.h"

#define DO(call)                                                                                   \
    do {                                                                                           \
        if ((call) != OK) fail_msg("%s: %s", #call, err_text());                                   \
    } while (0)

/* Checks the error code, and that the message contains `part`. */
static inline void expect_error(const char *name, Err got, Err want, const char *part)
{
    if (got != want)
        fail_msg("%s: code %d, not %d%s%s", name, (int)got, (int)want, got ? ": " : "",
                 got ? err_text() : "");
    if (!strstr(err_text(), part))
        fail_msg("%s: the message is \"%s\"; it should say \"%s\"", name, err_text(), part);
}

/* Checks that two texts are equal; if not, prints both from the first line that differs. */
static inline void expect_text(const char *name, const char *got, const char *want)
{
    size_t same = 0, line = 0;
    while (got[same] && got[same] == want[same]) {
        same++;
        if (got[same - 1] == '\n') line = same;
    }
    if (got[same] != want[same])
        fail_msg("%s differs.\ngot:\n%s\nwant:\n%s", name, got + line, want + line);
}

#endif
