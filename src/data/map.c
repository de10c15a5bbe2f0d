/* map.c -- maps files with mmap. The mapping stays valid after the descriptor is closed. */
#define _POSIX_C_SOURCE 200809L
#include "data/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static Err map_open(int fd, const char *path, Bytes *out)
{
    struct stat s;
    if (fstat(fd, &s) != 0) return err_fail(ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    if (S_ISDIR(s.st_mode))
        return err_fail(ERR_IO, "%s: is a folder; give the files in it (%s/*)", path, path);
    if (!S_ISREG(s.st_mode))
        return err_fail(ERR_IO, "%s: is no plain file; write its content to one first", path);
    *out = (Bytes){.bytes = (size_t)s.st_size};
    if (s.st_size == 0) return OK;
    void *at = mmap(NULL, out->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED)
        return err_fail(ERR_IO, "%s: cannot map its %zu bytes: %s", path, out->bytes,
                        strerror(errno));
    out->at = at;
    return OK;
}

Err map_file(const char *path, Bytes *out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* no wait for a FIFO */
    if (fd < 0) return err_fail(ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    const Err err = map_open(fd, path, out);
    close(fd);
    return err;
}

void unmap(Bytes *map)
{
    if (map->at) munmap((void *)map->at, map->bytes);
    *map = (Bytes){0};
}

bool map_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}
