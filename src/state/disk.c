/* disk.c -- read, write and fsync with full error handling: short transfers, signals, a
 * full disk. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/write_error.h"
#include "state/disk.h"

enum { MAX_IO_BYTES = 1 << 30 }; /* Linux transfers less than 2 GiB per call */

Err disk_path(const char *folder, const char *name, char *out)
{
    const int n = snprintf(out, DISK_PATH_BYTES, "%s/%s", folder, name);
    if (n >= 0 && n < DISK_PATH_BYTES) return OK;
    return err_fail(ERR_CONFIG, "%.60s.../%s: a path of over %d bytes; use a shorter run.dir",
                    folder, name, DISK_PATH_BYTES - 1);
}

static Err failed(const char *path, const char *what)
{
    return err_fail(ERR_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

static Err failed_to_write(const char *path, const char *what)
{
    return err_fail(ERR_IO, "%s: cannot %s: %s", path, what, write_error_text(errno));
}

Err disk_open(const char *path, int *fd)
{
    struct stat s;
    const int got = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* no wait for a pipe */
    if (got < 0 && (errno == ENOENT || errno == ENOTDIR))
        return err_fail(ERR_CHECK, "%s: does not exist: %s", path, strerror(errno));
    if (got < 0) return failed(path, "open");
    if (fstat(got, &s) != 0 || !S_ISREG(s.st_mode)) {
        close(got);
        return err_fail(ERR_CHECK, "%s: not a plain file", path);
    }
    *fd = got;
    return OK;
}

Err disk_length(int fd, const char *path, int64_t *out)
{
    struct stat s;
    if (fstat(fd, &s) != 0) return failed(path, "read its length");
    *out = s.st_size;
    return OK;
}

Err disk_read(int fd, const char *path, int64_t at, void *out, size_t bytes)
{
    char *to = out;
    while (bytes > 0) {
        const ssize_t n = pread(fd, to, bytes < MAX_IO_BYTES ? bytes : MAX_IO_BYTES, at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EIO)
            return err_fail(ERR_CHECK, "%s: cannot read from byte %lld on: %s", path, (long long)at,
                            strerror(errno));
        if (n < 0) return failed(path, "read");
        if (n == 0)
            return err_fail(ERR_CHECK, "%s: ends at byte %lld, %zu bytes too early", path,
                            (long long)at, bytes);
        to += n, at += n, bytes -= (size_t)n;
    }
    return OK;
}

void disk_close(int fd) { close(fd); }

Err disk_create(const char *path, int *fd)
{
    const int got = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (got < 0) return failed_to_write(path, "create");
    *fd = got;
    return OK;
}

Err disk_reopen(const char *path, int *fd)
{
    *fd = open(path, O_WRONLY | O_CLOEXEC);
    return *fd < 0 ? failed_to_write(path, "open for writing") : OK;
}

Err disk_write(int fd, const char *path, int64_t at, const void *from, size_t bytes)
{
    const char *next = from;
    while (bytes > 0) {
        const ssize_t n = pwrite(fd, next, bytes < MAX_IO_BYTES ? bytes : MAX_IO_BYTES, at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed_to_write(path, "write");
        next += n, at += n, bytes -= (size_t)n;
    }
    return OK;
}

Err disk_finish(int fd, const char *path)
{
    const Err err = fsync(fd) != 0 ? failed_to_write(path, "sync") : OK;
    if (close(fd) != 0 && err == OK) return failed_to_write(path, "close"); /* NFS: disk full */
    return err;
}

Err disk_sync_folder(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return failed(path, "open the folder");
    return disk_finish(fd, path);
}
