/* test_arena.h -- an arena for each test of a group: cmocka_unit_test_setup_teardown(test,
 * open_arena, close_arena), where it is *state, or the same as set-up of the group. */
#ifndef SUPPORT_TEST_ARENA_H
#define SUPPORT_TEST_ARENA_H

#include "support/expect.h"

static Arena test_arena;

static inline int open_arena(void **state)
{
    *state = &test_arena;
    return arena_open(&test_arena, "test", (size_t)1 << 32) == OK ? 0 : -1;
}

static inline int close_arena(void **state)
{
    (void)state;
    arena_close(&test_arena);
    return 0;
}

#endif
