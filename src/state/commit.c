/* commit.c -- adds a checkpoint to the folder: the protocol of folder.h, step by step.
 *
 *     step-N.tmp/rank-*.safetensors     headers -> manifest, checked, written, synced
 *     step-N.tmp -> step-N              from here on it is complete, whatever happens
 *     latest.tmp -> latest
 *     the oldest -> .tmp -> removed
 *
 * Before each rename, everything that it makes visible is on disk; after it, the folder is synced.
 * Hence after a crash at any point the final names are those of complete checkpoints. An error
 * before the first rename leaves the folder unchanged except for step-N.tmp. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/write_error.h"
#include "state/disk.h"
#include "state/folder.h"
#include "state/folder_parts.h"
#include "state/hash.h"
#include "state/rank_file.h"

enum { MIN_KEPT = 2, NAME_BYTES = 40 };

typedef struct {
    const CommitSettings *s;
    Generation g;
    char tmp[DISK_PATH_BYTES], path[DISK_PATH_BYTES]; /* step-N.tmp, step-N */
    Arena *temp;
} Commit;

static void reached(const Commit *c, SavePoint point)
{
    const SaveHook *hook = c->s->hook;
    if (hook && hook->at) hook->at(hook->context, point, 0, c->g.step);
}

static Err tmp_path(const char *checkpoints, int64_t step, char *out)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.tmp", generation_of(step).name);
    return disk_path(checkpoints, name, out);
}

static Err move(const char *from, const char *to, const char *folder)
{
    if (rename(from, to) != 0)
        return err_fail(ERR_IO, "%s: cannot rename to %s: %s", from, to, write_error_text(errno));
    return disk_sync_folder(folder);
}

/* ---- the manifest, from the headers ---- */

/* Reads the header of each rank that wrote; n of the others stays 0. */
static Err read_ranks(const Commit *c, RankFile *of_rank)
{
    char name[RANK_FILE_NAME_BYTES], path[DISK_PATH_BYTES];
    struct stat st;
    for (int r = 0; r < c->s->ranks; r++) {
        RankFile *f = &of_rank[r];
        rank_file_name(r, name);
        TRY(disk_path(c->tmp, name, path));
        if (stat(path, &st) != 0 && errno == ENOENT) continue;
        TRY(rank_file_read(path, c->s->tensors, c->temp, f));
        if (f->rank != r || f->step != c->g.step || f->n == 0)
            return err_fail(ERR_CHECK, "%s: contains step %lld, rank %d, %lld parts", path,
                            (long long)f->step, f->rank, (long long)f->n);
    }
    return OK;
}

static Err make_manifest(const Commit *c, Manifest *m)
{
    RankFile *of_rank;
    int64_t n = 0;
    char name[RANK_FILE_NAME_BYTES];
    *m = (Manifest){.dir = c->tmp, .scalars = *c->s->scalars, .tensors = *c->s->tensors};
    TRY(ARENA_NEW(c->temp, c->s->ranks, &of_rank));
    TRY(read_ranks(c, of_rank));
    for (int r = 0; r < c->s->ranks; r++) n += of_rank[r].n;
    TRY(ARENA_NEW(c->temp, n, &m->part));
    TRY(ARENA_NEW(c->temp, c->s->ranks, &m->file));
    for (int r = 0; r < c->s->ranks; r++) {
        const RankFile *f = &of_rank[r];
        if (f->n == 0) continue;
        ManifestFile *file = &m->file[m->n_files];
        rank_file_name(r, name);
        TRY(arena_string(c->temp, name, &file->name));
        file->bytes = f->bytes;
        file->header_hash = f->header_hash;
        for (int64_t i = 0; i < f->n; i++) {
            m->part[m->n_parts] = f->part[i];
            m->part[m->n_parts++].file = m->n_files;
        }
        m->n_files++;
    }
    if (n > 1) qsort(m->part, (size_t)n, sizeof *m->part, manifest_part_order);
    return OK;
}

/* Writes a file in two halves with a save point between them, and syncs it. */
static Err write_file(const Commit *c, const char *path, const char *text, SavePoint half)
{
    const size_t bytes = strlen(text), first = bytes / 2;
    int fd;
    TRY(disk_create(path, &fd));
    Err err = disk_write(fd, path, 0, text, first);
    if (err == OK) {
        reached(c, half);
        err = disk_write(fd, path, (int64_t)first, text + first, bytes - first);
    }
    if (err == OK) return disk_finish(fd, path);
    disk_close(fd); /* keeps the message of the failed write */
    return err;
}

static Err write_manifest(const Commit *c, uint64_t *hash)
{
    char path[DISK_PATH_BYTES];
    Manifest m, parsed;
    const char *text;
    size_t bytes;
    TRY(make_manifest(c, &m));
    TRY(manifest_text(&m, c->temp, &text, &bytes));
    /* Parse the manifest as the loader will: a checkpoint that it would refuse must not
     * be committed. */
    TRY(manifest_parse(c->tmp, text, bytes, c->temp, &parsed));
    TRY(disk_path(c->tmp, "manifest.json", path));
    TRY(write_file(c, path, text, SAVE_MANIFEST_HALF));
    TRY(disk_sync_folder(c->tmp));
    *hash = parsed.hash;
    reached(c, SAVE_MANIFEST);
    return OK;
}

/* Syncs the logs of the run, so that a power failure loses no line of a saved step. A separate
 * descriptor avoids waiting for the lock of the stream that writes them. */
static Err sync_logs(const Commit *c)
{
    char path[DISK_PATH_BYTES];
    struct stat st;
    int fd;
    if (!c->s->run_logs) return OK;
    for (const char *const *name = c->s->run_logs; *name; name++) {
        TRY(disk_path(c->s->run_dir, *name, path));
        if (lstat(path, &st) != 0 && errno == ENOENT) continue;
        TRY(disk_open(path, &fd));
        TRY(disk_finish(fd, path));
    }
    return disk_sync_folder(c->s->run_dir);
}

/* ---- visible names ---- */

static Err write_latest(const Commit *c, uint64_t manifest_hash)
{
    char tmp[DISK_PATH_BYTES], path[DISK_PATH_BYTES], line[LATEST_BYTES];
    TRY(disk_path(c->s->checkpoints, "latest.tmp", tmp));
    TRY(disk_path(c->s->checkpoints, "latest", path));
    latest_line(&c->g, manifest_hash, line);
    TRY(write_file(c, tmp, line, SAVE_LATEST_HALF));
    TRY(move(tmp, path, c->s->checkpoints));
    reached(c, SAVE_LATEST);
    return OK;
}

static void half_removed(void *context) { reached(context, SAVE_REMOVING); }

static Err remove_old(const Commit *c)
{
    const int keep = c->s->keep > MIN_KEPT ? c->s->keep : MIN_KEPT;
    char path[DISK_PATH_BYTES], tmp[DISK_PATH_BYTES];
    Generation *g;
    int n;
    TRY(folder_list(c->s->checkpoints, c->temp, &g, &n));
    for (int i = keep; i < n; i++) {
        if (g[i].step == c->g.step) continue; /* newer ones exist, but this one is the run's */
        TRY(disk_path(c->s->checkpoints, g[i].name, path));
        TRY(tmp_path(c->s->checkpoints, g[i].step, tmp));
        TRY(folder_remove(tmp, NULL, NULL));
        TRY(move(path, tmp, c->s->checkpoints));
        TRY(folder_remove(tmp, half_removed, (void *)(uintptr_t)c));
    }
    return OK;
}

static Err commit(const Commit *c)
{
    uint64_t manifest_hash;
    struct stat st;
    if (lstat(c->path, &st) == 0)
        return err_fail(ERR_IO,
                        "%s: already exists, and a checkpoint is never overwritten; move it away, "
                        "or use another run.dir",
                        c->path);
    TRY(sync_logs(c));
    TRY(write_manifest(c, &manifest_hash));
    TRY(move(c->tmp, c->path, c->s->checkpoints));
    reached(c, SAVE_RENAMED);
    TRY(write_latest(c, manifest_hash));
    TRY(remove_old(c));
    reached(c, SAVE_DONE);
    return OK;
}

Err folder_commit(const CommitSettings *s, Arena *temp)
{
    Commit c = {.s = s, .g = generation_of(s->scalars->step), .temp = temp};
    const size_t mark = arena_mark(temp);
    TRY(tmp_path(s->checkpoints, c.g.step, c.tmp));
    TRY(disk_path(s->checkpoints, c.g.name, c.path));
    const Err err = commit(&c);
    arena_rewind(temp, mark);
    return err;
}

Err folder_begin(const char *checkpoints, int64_t step, char *path, size_t path_bytes)
{
    char made[DISK_PATH_BYTES];
    TRY(tmp_path(checkpoints, step, made));
    if (mkdir(made, 0777) != 0 && errno != EEXIST)
        return err_fail(ERR_IO, "%s: cannot make the folder: %s", made, write_error_text(errno));
    MUST(strlen(made) < path_bytes, "%zu bytes for %s", path_bytes, made);
    snprintf(path, path_bytes, "%s", made);
    return OK;
}

Err folder_abandon(const char *checkpoints, int64_t step)
{
    char path[DISK_PATH_BYTES];
    TRY(tmp_path(checkpoints, step, path));
    return folder_remove(path, NULL, NULL);
}
