/* run_dir.c -- creates, locks and renames the folder of a run. */
#define _DEFAULT_SOURCE
#include "train/run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "state/disk.h"

/* Syncs the parent, so that a new folder and the checkpoints in it survive a power failure. */
static Err sync_above(const char *path)
{
    char above[1024];
    snprintf(above, sizeof above, "%s", path);
    char *slash = strrchr(above, '/');
    if (slash) slash[slash == above] = '\0';
    return disk_sync_folder(slash ? above : ".");
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static Err make_folders(const char *path)
{
    char part[1024];
    snprintf(part, sizeof part, "%s", path);
    for (char *s = part + 1;; s++) {
        const char end = *s;
        if (end != '/' && end != '\0') continue;
        *s = '\0';
        if (mkdir(part, 0777) == 0)
            TRY(sync_above(part));
        else if (errno != EEXIST)
            return err_fail(ERR_IO, "run.dir=%s: folder %s cannot be created: %s", path, part,
                            strerror(errno));
        else if (!is_folder(part))
            return err_fail(ERR_CONFIG, "run.dir=%s: %s is a file; choose another folder", path,
                            part);
        if (end == '\0') return OK;
        *s = '/';
    }
}

enum { LOCK_SLEEP_US = 20000, LOCK_TRIES = 100 };

static Err open_lock(RunDir *d, const char *path)
{
    run_dir_close(d);
    TRY(make_folders(d->path)); /* a fresh start may just have renamed it */
    d->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    return d->lock < 0 ? err_fail(ERR_IO, "%s: cannot be created: %s", path, strerror(errno)) : OK;
}

/* True if the open lock file is no longer the one at `path`: a fresh start of another process has
 * renamed the folder in the meantime. */
static bool is_other_file(int fd, const char *path)
{
    struct stat mine, there;
    return fstat(fd, &mine) != 0 || stat(path, &there) != 0 || mine.st_ino != there.st_ino ||
           mine.st_dev != there.st_dev;
}

/* True if another process holds the lock, or the folder was renamed. */
static bool try_lock(const RunDir *d, const char *path)
{
    return flock(d->lock, LOCK_EX | LOCK_NB) != 0 || is_other_file(d->lock, path);
}

static Err take_lock(RunDir *d)
{
    char path[1100], pid[32] = "";
    bool bad = false;
    snprintf(path, sizeof path, "%s/lock", d->path);
    TRY(open_lock(d, path));
    for (int i = 0; i < LOCK_TRIES && (bad = try_lock(d, path)); i++) {
        usleep(LOCK_SLEEP_US);
        if (is_other_file(d->lock, path)) TRY(open_lock(d, path));
    }
    if (bad) {
        const ssize_t n = read(d->lock, pid, sizeof pid - 1);
        pid[n > 0 ? strcspn(pid, "\n") : 0] = '\0';
        run_dir_close(d);
        return err_fail(
            ERR_CONFIG,
            "run.dir=%s: process %s trains there; wait for it, stop it, or choose another run.dir",
            d->path, pid[0] ? pid : "(unknown)");
    }
    const int n = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (ftruncate(d->lock, 0) != 0 || pwrite(d->lock, pid, (size_t)n, 0) != n)
        return err_fail(ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    return OK;
}

static bool has_file(const RunDir *d, const char *name, int64_t least_bytes)
{
    char path[1100];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    return stat(path, &st) == 0 && st.st_size >= least_bytes;
}

static bool has_run(const RunDir *d)
{
    return has_file(d, "metrics.jsonl", 1) || has_file(d, "checkpoints", 0);
}

/* Refuses a folder with a config.yaml of the user, which the run would overwrite. Every run creates
 * its lock first and config.yaml last, so a config.yaml without any other file of a run is not from
 * one. config.yaml is looked up first: another process may be creating all of them now. */
static Err check_config(const RunDir *d)
{
    if (!has_file(d, "config.yaml", 0) || has_file(d, "lock", 0) || has_run(d)) return OK;
    return err_fail(ERR_CONFIG,
                    "%s/config.yaml: exists already, and no run has written it; the run would "
                    "overwrite it: move it out of the folder or choose another run.dir",
                    d->path);
}

/* Writes the path of the folder itself. If run.dir is a link, that is its target: the old and the
 * new run stay on the disk that the link chooses. */
static Err resolve(const RunDir *d, char out[sizeof d->path])
{
    struct stat st;
    snprintf(out, sizeof d->path, "%s", d->path);
    if (lstat(d->path, &st) != 0 || !S_ISLNK(st.st_mode)) return OK;
    char *target = realpath(d->path, NULL);
    const size_t length = target ? strlen(target) : 0;
    Err err = OK;
    if (!target)
        err = err_fail(ERR_IO, "run.dir=%s: the link cannot be followed: %s", d->path,
                       strerror(errno));
    else if (length > MAX_RUN_DIR)
        err = err_fail(ERR_CONFIG,
                       "run.dir=%s: a link to a path of %zu characters; at most %d are possible",
                       d->path, length, MAX_RUN_DIR);
    else
        memcpy(out, target, length + 1);
    free(target);
    return err;
}

/* Renames the folder to the first free name of PATH.1, PATH.2, ... and creates an empty one. */
static Err move_aside(RunDir *d)
{
    char path[sizeof d->path];
    struct stat st;
    TRY(resolve(d, path));
    for (int i = 1; i < 100000; i++) {
        snprintf(d->old, sizeof d->old, "%s.%d", path, i);
        if (lstat(d->old, &st) == 0) continue;
        if (rename(path, d->old) == 0) return make_folders(path);
        return err_fail(ERR_IO, "run.dir=%s: cannot be renamed to %s: %s", d->path, d->old,
                        strerror(errno));
    }
    return err_fail(ERR_IO, "run.dir=%s: no free name to move it to", d->path);
}

Err run_dir_open(RunDir *d, const char *path, bool fresh)
{
    *d = (RunDir){.lock = -1};
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    if (length == 0 || length > MAX_RUN_DIR)
        return err_fail(ERR_CONFIG, "run.dir: the path has %zu characters; use 1 to %d", length,
                        MAX_RUN_DIR);
    memcpy(d->path, path, length);
    TRY(check_config(d));
    TRY(make_folders(d->path));
    TRY(take_lock(d));
    if (!fresh || !has_run(d)) return OK;
    TRY(move_aside(d));
    run_dir_close(d);
    return take_lock(d);
}

Err run_dir_make(const char *path) { return make_folders(path); }

void run_dir_close(RunDir *d)
{
    if (d->lock >= 0) close(d->lock);
    d->lock = -1;
}
