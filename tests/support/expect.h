/* expect.h -- what tests of graphs and programs share: calls that must work, messages that must
 * name what is wrong, and texts that must be equal. */
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

/* The call failed with this code, and its message says this. */
static inline void expect_error(const char *name, Err got, Err want, const char *part)
{
    if (got != want)
        fail_msg("%s: code %d, not %d%s%s", name, (int)got, (int)want, got ? ": " : "",
                 got ? err_text() : "");
    if (!strstr(err_text(), part))
        fail_msg("%s: the message is \"%s\"; it should say \"%s\"", name, err_text(), part);
}

/* Equal texts; else both are shown from the first line that differs. */
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
