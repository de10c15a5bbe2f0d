/* disk.h -- file operations of a checkpoint: positioned reads, complete writes, and fsync.
 *
 * Every error names the file and the reason: "cannot write: No space left on device". Failed writes
 * also name the way out. */
#ifndef STATE_DISK_H
#define STATE_DISK_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

enum { DISK_PATH_BYTES = 1024 };

/* Local. Writes "FOLDER/NAME" to a buffer of DISK_PATH_BYTES; ERR_CONFIG if it is too long. */
Err disk_path(const char *folder, const char *name, char *out);

/* Local. Opens a plain file for reading. ERR_CHECK if it does not exist. ERR_IO if it cannot be
 * opened (permissions, too many open files), which does not imply damage. */
Err disk_open(const char *path, int *fd);
Err disk_length(int fd, const char *path, int64_t *out);
/* Local. Reads exactly `bytes` bytes at `at`. ERR_CHECK: the file ends before, or the disk
 * lost them. */
Err disk_read(int fd, const char *path, int64_t at, void *out, size_t bytes);
void disk_close(int fd);

/* Local. Creates an empty file for writing; truncates an existing one. */
Err disk_create(const char *path, int *fd);
/* Local. Opens an existing file for writing, without truncation. */
Err disk_reopen(const char *path, int *fd);
/* Local. Writes all `bytes` bytes at `at`, in as many calls as needed. */
Err disk_write(int fd, const char *path, int64_t at, const void *from, size_t bytes);
/* Local. fsync, then close; also closes after an error. */
Err disk_finish(int fd, const char *path);
/* Local. fsync of a folder: makes created, renamed and removed names durable. */
Err disk_sync_folder(const char *path);

#endif
