/* disk.h -- files as a checkpoint needs them: read at a place, written whole, and on the disk when
 * we say so. Every error names the file and the reason: "cannot write: No space left on device". */
#ifndef STATE_DISK_H
#define STATE_DISK_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

enum { DISK_PATH_BYTES = 1024 };

/* Local. "FOLDER/NAME" in DISK_PATH_BYTES; ERR_CONFIG when that is too few. */
Err disk_path(const char *folder, const char *name, char *out);

/* Local. A plain file, for reading: ERR_CHECK when there is none of that name, ERR_IO when there is
 * one that cannot be opened (rights, too many open files): that says nothing of what is in it. */
Err disk_open(const char *path, int *fd);
Err disk_length(int fd, const char *path, int64_t *out);
/* Local. All of `bytes` from `at` on. ERR_CHECK: the file ends before, or the disk has lost them. */
Err disk_read(int fd, const char *path, int64_t at, void *out, size_t bytes);
void disk_close(int fd);

/* Local. An empty file, for writing; what was there is gone. */
Err disk_create(const char *path, int *fd);
/* Local. The same file once more, as it is. */
Err disk_reopen(const char *path, int *fd);
/* Local. All of `bytes` at `at`, however many calls that takes. */
Err disk_write(int fd, const char *path, int64_t at, const void *from, size_t bytes);
/* Local. fsync, then close; closed also after an error. */
Err disk_finish(int fd, const char *path);
/* Local. fsync of a folder: names made, changed and removed in it stay so. */
Err disk_sync_folder(const char *path);

#endif
