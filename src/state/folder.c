/* folder.c -- lists the checkpoints of a folder, reads `latest`, and removes the remains
 * of crashes.
 *
 * Only our own names are touched: step-N, step-N.tmp, step-N.damaged, latest, latest.tmp. Other
 * files belong to the user. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "state/disk.h"
#include "state/folder.h"
#include "state/folder_parts.h"
#include "state/hash.h"

enum { MAX_QUARANTINED = 1000 };

static const char *const point_name[N_SAVE_POINTS] = {
    [SAVE_SNAPSHOT] = "snapshot",
    [SAVE_FOLDER] = "folder",
    [SAVE_HALF] = "half",
    [SAVE_DATA] = "data",
    [SAVE_SYNCED] = "synced",
    [SAVE_MANIFEST_HALF] = "manifest-half",
    [SAVE_MANIFEST] = "manifest",
    [SAVE_RENAMED] = "renamed",
    [SAVE_LATEST_HALF] = "latest-half",
    [SAVE_LATEST] = "latest",
    [SAVE_REMOVING] = "removing",
    [SAVE_DONE] = "done",
};

const char *save_point_name(SavePoint p) { return point_name[p]; }

int save_point_of(const char *name)
{
    for (int i = 0; i < N_SAVE_POINTS; i++)
        if (strcmp(name, point_name[i]) == 0) return i;
    return -1;
}

Generation generation_of(int64_t step)
{
    Generation g = {.step = step};
    snprintf(g.name, sizeof g.name, "step-%08lld", (long long)step);
    return g;
}

/* Parses step-N; false unless N is written exactly as generation_of writes it. */
static bool read_generation(const char *name, Generation *out)
{
    if (strncmp(name, "step-", 5) != 0) return false;
    const Generation g = generation_of(strtoll(name + 5, NULL, 10));
    if (g.step < 0 || strcmp(g.name, name) != 0) return false;
    *out = g;
    return true;
}

/* True also for a link to a folder: a user may keep a checkpoint on another disk. */
static bool is_folder(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static bool is_link(const char *path)
{
    struct stat s;
    return lstat(path, &s) == 0 && S_ISLNK(s.st_mode);
}

static int newest_first(const void *a, const void *b)
{
    const Generation *x = a, *y = b;
    return x->step > y->step ? -1 : x->step < y->step;
}

Err folder_list(const char *checkpoints, Arena *a, Generation **out, int *n)
{
    DIR *dir = opendir(checkpoints);
    int count = 0, cap = 0;
    Generation *list = NULL;
    char path[DISK_PATH_BYTES];
    Err err = OK;
    if (!dir && errno != ENOENT)
        return err_fail(ERR_IO, "%s: cannot open the folder: %s", checkpoints, strerror(errno));
    for (struct dirent *e; dir && err == OK && (errno = 0, e = readdir(dir));) {
        Generation g, *more;
        if (!read_generation(e->d_name, &g)) continue;
        err = disk_path(checkpoints, g.name, path);
        if (err != OK || !is_folder(path)) continue;
        if (count == cap) {
            cap = cap ? 2 * cap : 16;
            err = ARENA_NEW(a, cap, &more);
            if (err != OK) continue;
            if (count) memcpy(more, list, (size_t)count * sizeof *list);
            list = more;
        }
        list[count++] = g;
    }
    if (dir && err == OK && errno) /* else a checkpoint would seem missing */
        err = err_fail(ERR_IO, "%s: cannot read the folder: %s", checkpoints, strerror(errno));
    if (dir) closedir(dir);
    TRY(err);
    if (count > 1) qsort(list, (size_t)count, sizeof *list, newest_first);
    *out = list;
    *n = count;
    return OK;
}

/* ---- latest ---- */

void latest_line(const Generation *g, uint64_t manifest_hash, char *out)
{
    int n = snprintf(out, LATEST_BYTES, "%s ", g->name);
    hash_digits(manifest_hash, out + n);
    n += HASH_DIGITS;
    out[n] = ' ';
    hash_digits(hash_bytes(out, (size_t)n), out + n + 1);
    out[n + 1 + HASH_DIGITS] = '\n';
    out[n + 2 + HASH_DIGITS] = '\0';
}

Err folder_latest(const char *checkpoints, Generation *out, uint64_t *manifest_hash, bool *found)
{
    char path[DISK_PATH_BYTES], text[LATEST_BYTES + 1] = "", line[LATEST_BYTES];
    Generation g = {0};
    uint64_t hash = 0;
    int64_t length = 0;
    int fd;
    TRY(disk_path(checkpoints, "latest", path));
    *found = false;
    struct stat s;
    if (lstat(path, &s) != 0 && errno == ENOENT) return OK;
    TRY(disk_open(path, &fd));
    Err err = disk_length(fd, path, &length);
    const size_t n = length < LATEST_BYTES ? (size_t)length : LATEST_BYTES;
    if (err == OK) err = disk_read(fd, path, 0, text, n);
    disk_close(fd);
    TRY(err);
    char *space = memchr(text, ' ', n);
    if (space) *space = '\0';
    const bool readable = space && read_generation(text, &g) &&
                          n - (size_t)(space - text) > HASH_DIGITS &&
                          hash_of_digits(space + 1, &hash);
    if (space) *space = ' ';
    if (readable) latest_line(&g, hash, line); /* the only valid form */
    if (!readable || strlen(line) != n || memcmp(line, text, n) != 0)
        return err_fail(ERR_CHECK,
                        "%s: damaged: it is not a line with a checkpoint's name, its manifest's "
                        "hash and the hash of both",
                        path);
    *out = g;
    *manifest_hash = hash;
    *found = true;
    return OK;
}

/* ---- removal and quarantine ---- */

/* Counts the files of a folder, so that a test can stop a removal at half of them. */
static int count_files(DIR *dir)
{
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) n += e->d_name[0] != '.';
    rewinddir(dir);
    return n;
}

/* The files behind the link belong to the user. */
static Err remove_link(const char *path)
{
    if (unlink(path) == 0 || errno == ENOENT) return OK;
    return err_fail(ERR_IO, "%s: cannot remove the link: %s", path, strerror(errno));
}

Err folder_remove(const char *path, void (*half)(void *context), void *context)
{
    int gone = 0;
    Err err = OK;
    if (is_link(path)) return remove_link(path);
    DIR *dir = opendir(path);
    if (!dir && errno == ENOENT) return OK;
    if (!dir) return err_fail(ERR_IO, "%s: cannot open the folder: %s", path, strerror(errno));
    const int at_half = count_files(dir) / 2;
    for (struct dirent *e; err == OK && (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (half && gone++ == at_half) half(context);
        if (unlinkat(dirfd(dir), e->d_name, 0) != 0 && errno != ENOENT)
            err = err_fail(ERR_IO, "%s/%s: cannot remove: %s", path, e->d_name, strerror(errno));
    }
    closedir(dir);
    TRY(err);
    if (rmdir(path) != 0 && errno != ENOENT)
        return err_fail(ERR_IO, "%s: cannot remove the folder: %s", path, strerror(errno));
    return OK;
}

static bool is_left(const char *name)
{
    char stem[sizeof((Generation *)0)->name];
    Generation g;
    const size_t n = strlen(name);
    if (n <= 4 || strcmp(name + n - 4, ".tmp") != 0 || n - 4 >= sizeof stem) return false;
    snprintf(stem, sizeof stem, "%.*s", (int)(n - 4), name);
    return read_generation(stem, &g);
}

Err folder_tidy(const char *checkpoints)
{
    char path[DISK_PATH_BYTES];
    DIR *dir = opendir(checkpoints);
    Err err = OK;
    if (!dir && errno == ENOENT) return OK;
    if (!dir)
        return err_fail(ERR_IO, "%s: cannot open the folder: %s", checkpoints, strerror(errno));
    for (struct dirent *e; err == OK && (e = readdir(dir));) {
        const bool line = strcmp(e->d_name, "latest.tmp") == 0;
        if (!line && !is_left(e->d_name)) continue;
        err = disk_path(checkpoints, e->d_name, path);
        if (err == OK && !line) err = folder_remove(path, NULL, NULL);
        if (err == OK && line && unlink(path) != 0 && errno != ENOENT)
            err = err_fail(ERR_IO, "%s: cannot remove: %s", path, strerror(errno));
    }
    closedir(dir);
    return err;
}

Err folder_quarantine(const char *checkpoints, const Generation *g, char *out)
{
    char from[DISK_PATH_BYTES], to[DISK_PATH_BYTES], name[QUARANTINE_BYTES];
    struct stat s;
    TRY(disk_path(checkpoints, g->name, from));
    for (int i = 1; i <= MAX_QUARANTINED; i++) {
        snprintf(name, sizeof name, i > 1 ? "%s.damaged-%d" : "%s.damaged", g->name, i);
        TRY(disk_path(checkpoints, name, to));
        if (lstat(to, &s) == 0) continue;
        if (rename(from, to) != 0)
            return err_fail(ERR_IO, "%s: cannot rename to %s: %s", from, name, strerror(errno));
        snprintf(out, QUARANTINE_BYTES, "%s", name);
        return disk_sync_folder(checkpoints);
    }
    return err_fail(ERR_IO, "%s: %d damaged checkpoints are kept next to it already; remove some",
                    from, MAX_QUARANTINED);
}
