/* data_test.h -- shared by tests of src/data: an arena, a scratch folder, calls that
 * must succeed. */
#ifndef SUPPORT_DATA_TEST_H
#define SUPPORT_DATA_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "data/tokens.h"
#include "support/token_files.h"

#define DO(call)                                                                                   \
    do {                                                                                           \
        if ((call) != OK) fail_msg("%s", err_text());                                              \
    } while (0)

static Arena arena;

static int setup(void **state)
{
    (void)state;
    return arena_open(&arena, "test", ARENA_PLENTY) != OK;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    arena_close(&arena);
    return 0;
}

/* Checks the error, and that its message contains `part`. */
static inline void refused(Err got, Err want, const char *part)
{
    if (got != want || !strstr(err_text(), part))
        fail_msg("error %d, wanted %d with \"%s\": %s", (int)got, (int)want, part, err_text());
}

static inline void assert_tokens(const Tokens *t, const int64_t *id, int n)
{
    assert_int_equal(t->n_tokens, n);
    for (int i = 0; i < n; i++) assert_int_equal(tokens_at(t, i), id[i]);
}

/* Checks the borders past the first token, found one after another. */
static inline void assert_borders(const Tokens *t, const int *border, int n)
{
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        at = tokens_next_start(t, at, t->n_tokens);
        assert_int_equal(at, border[i]);
    }
    assert_int_equal(tokens_next_start(t, at, t->n_tokens), t->n_tokens);
}

static inline void opens(const char *path, TokenFormat ask, TokenFormat want, Tokens *t)
{
    DO(tokens_open(path, ask, &arena, t));
    assert_int_equal(t->format, want);
}

#endif
