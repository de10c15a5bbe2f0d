/* fuzz.h -- shared by the fuzz targets: memory that is freed after each input, and bytes as a file
 * for parsers that take a path. */
#ifndef FUZZ_FUZZ_H
#define FUZZ_FUZZ_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/arena.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Returns the arena of this process, emptied. */
static inline Arena *fuzz_arena(void)
{
    static Arena arena;
    if (!arena.base && arena_open(&arena, "fuzz", ARENA_PLENTY) != OK) abort();
    arena_rewind(&arena, 0);
    return &arena;
}

/* Returns the path of a file in memory with these bytes, valid until the next call. */
static inline const char *fuzz_file(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) fd = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    return path;
}

#endif
