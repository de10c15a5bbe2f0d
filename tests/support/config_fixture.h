/* config_fixture.h -- a run file on disk and the Config that is read from it. */
#ifndef TESTS_SUPPORT_CONFIG_FIXTURE_H
#define TESTS_SUPPORT_CONFIG_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "cli/config/keys.h"

typedef struct {
    Arena arena;
    char path[64];
} Fixture;

static inline int open_fixture(void **state)
{
    static Fixture f;
    memset(&f, 0, sizeof f);
    strcpy(f.path, "/tmp/sheaf-run-XXXXXX");
    const int fd = mkstemp(f.path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(arena_open(&f.arena, "test", ARENA_PLENTY), OK);
    *state = &f;
    return 0;
}

static inline int close_fixture(void **state)
{
    Fixture *f = *state;
    unlink(f->path);
    arena_close(&f->arena);
    return 0;
}

static inline Err load_bytes(Fixture *f, const char *yaml, size_t n, Config *out)
{
    FILE *file = fopen(f->path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(yaml, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    arena_rewind(&f->arena, 0);
    return config_load(f->path, NULL, 0, &f->arena, out);
}

static inline Err load_arg(Fixture *f, const char *argument, Config *out)
{
    const char *set[] = {"model.name=gpt2-tiny", argument};
    arena_rewind(&f->arena, 0);
    return config_load(NULL, set, 2, &f->arena, out);
}

static inline void assert_message(const char *part)
{
    if (!strstr(err_text(), part)) fail_msg("\"%s\" is not in: %s", part, err_text());
}

#endif
