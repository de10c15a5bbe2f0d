/* reshape.c -- `sheaf reshape SRC DST [key=value ...]`: a checkpoint for another layout.
 *
 *     SRC    a run folder, its checkpoints/, or one step-N/ in it: what is read
 *     DST    a new run folder: config.yaml, checkpoints/step-N/, checkpoints/latest
 *
 * The configuration is the one that the checkpoint was made with, and what is given changes how the
 * work is laid over ranks; what is trained, and on what, stays. DST has its name only when it is
 * whole: until then it is DST.tmp. A run needs no reshape to go on under another layout; a checkpoint
 * that lies as its ranks want it is read with fewer seeks, and by one file each. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "cli/args.h"
#include "cli/config_print.h"
#include "cli/reshape.h"
#include "cli/verbs.h"
#include "state/disk.h"
#include "state/reshape.h"
#include "train/layouts.h"

static const char *const usage =
    "sheaf reshape SRC DST [key=value ...]    a checkpoint rewritten for another layout\n"
    "    SRC              a run folder, a checkpoints folder (of both the newest), or a step "
    "folder\n"
    "    DST              a new run folder; `sheaf train ... run.dir=DST` goes on from it\n"
    "    key=value        mesh.*, parallel.*, numerics.*, precision.*, run.*, batch.micro\n"
    "    --buffer MIB     memory for tensors: 64";

static bool is_folder(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static bool is_there(const char *folder, const char *name)
{
    char path[DISK_PATH_BYTES];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path &&
           access(path, F_OK) == 0;
}

/* ---- the source ---- */

static Err read_step(Reshape *r, const char *dir)
{
    const char *kept;
    TRY(arena_string(&r->arena, dir, &kept)); /* the manifest borrows it */
    TRY(manifest_read(kept, &r->arena, &r->manifest));
    return manifest_check_files(&r->manifest, &r->temp);
}

/* The newest that is whole; those that are not are named. */
static Err read_newest(Reshape *r, const char *checkpoints)
{
    char dir[DISK_PATH_BYTES];
    Generation *g;
    int n;
    TRY(folder_list(checkpoints, &r->arena, &g, &n));
    for (int i = 0; i < n; i++) {
        TRY(disk_path(checkpoints, g[i].name, dir));
        const Err err = read_step(r, dir);
        if (err == OK || i + 1 == n) return err;
        fprintf(stderr, "sheaf: %s\nsheaf: %s is damaged; the one before it is used\n", err_text(),
                g[i].name);
    }
    return err_fail(ERR_CONFIG,
                    "reshape: %s: no checkpoint is there; SRC is a run folder, its checkpoints "
                    "folder or a step-N folder of it",
                    r->source);
}

static Err read_source(Reshape *r)
{
    char path[DISK_PATH_BYTES];
    if (!is_folder(r->source)) return err_fail(ERR_CONFIG, "reshape: %s: is no folder", r->source);
    if (is_there(r->source, "manifest.json")) return read_step(r, r->source);
    TRY(disk_path(r->source, "checkpoints", path));
    return read_newest(r, is_folder(path) ? path : r->source);
}

/* ---- the target ---- */

static Err make_folder(const char *path)
{
    if (mkdir(path, 0777) == 0) return OK;
    return err_fail(ERR_IO, "%s: cannot be made: %s", path, strerror(errno));
}

static Err open_target(Reshape *r)
{
    if (strlen(r->target) > RUNDIR_MAX || !r->target[0])
        return err_fail(ERR_CONFIG, "reshape: DST has %zu characters; 1 to %d are possible",
                        strlen(r->target), RUNDIR_MAX);
    if (access(r->target, F_OK) == 0)
        return err_fail(ERR_CONFIG,
                        "reshape: %s is there already; nothing is overwritten: choose "
                        "another DST, or remove it",
                        r->target);
    snprintf(r->dir, sizeof r->dir, "%s.tmp", r->target);
    if (access(r->dir, F_OK) == 0)
        return err_fail(
            ERR_CONFIG,
            "reshape: %s is there already, left by a reshape that did not end, or being "
            "written by another; remove it when none runs",
            r->dir);
    TRY(make_folder(r->dir));
    snprintf(r->checkpoints, sizeof r->checkpoints, "%s/checkpoints", r->dir);
    return make_folder(r->checkpoints);
}

/* All that open_target and reshape_config made; state_reshape has cleared up after itself. */
static void remove_target(const Reshape *r)
{
    char path[RUNDIR_MAX + 64];
    snprintf(path, sizeof path, "%s/config.yaml", r->dir);
    (void)unlink(path);
    (void)rmdir(r->checkpoints);
    (void)rmdir(r->dir);
}

static Err name_target(const Reshape *r)
{
    char parent[RUNDIR_MAX + 8];
    snprintf(parent, sizeof parent, "%s", r->target);
    char *slash = strrchr(parent, '/');
    if (slash) slash[slash == parent] = '\0';
    TRY(disk_sync_folder(r->dir));
    if (rename(r->dir, r->target) != 0)
        return err_fail(ERR_IO, "%s: cannot be renamed to %s: %s", r->dir, r->target,
                        strerror(errno));
    return disk_sync_folder(slash ? parent : ".");
}

static void at_bytes(void *context, int64_t done)
{
    Reshape *r = context;
    progress_at(&r->progress, done);
}

static int64_t state_bytes(const StateTensors *t)
{
    int64_t bytes = 0;
    for (int i = 0; i < t->n; i++)
        bytes += shape_count(&t->tensor[i].shape) * (int64_t)dtype_bytes(t->tensor[i].dtype);
    return bytes;
}

static Err write_target(Reshape *r, ReshapeResult *out)
{
    StateScalars scalars = r->manifest.scalars;
    Text t = text_in(&r->arena);
    config_print(&r->config, &t);
    TRY(text_done(&t, &scalars.config));
    const ReshapeSettings set = {.from = &r->manifest,
                                 .to = &r->job.linked,
                                 .checkpoints = r->checkpoints,
                                 .scalars = &scalars,
                                 .buffer_bytes = r->buffer_bytes,
                                 .progress = at_bytes,
                                 .context = r,
                                 .temp = &r->temp};
    r->progress = progress_begin("reshape", r->target, state_bytes(&r->manifest.tensors));
    const Err err = state_reshape(&set, out);
    progress_end(&r->progress);
    return err;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static Err reshape_into(Reshape *r)
{
    ReshapeResult result;
    char words[LAYOUT_TEXT_BYTES], bytes[24], buffer[24], read[24];
    const double begin_s = now_s();
    TRY(reshape_config(r));
    printf("%s: step %lld, %s, to %s: %s; buffer %s\n", r->manifest.dir,
           (long long)r->manifest.scalars.step,
           text_bytes(state_bytes(&r->manifest.tensors), bytes), r->target,
           layout_words(&r->job.settings.parallel, words), text_bytes(r->buffer_bytes, buffer));
    fflush(stdout);
    TRY(write_target(r, &result));
    TRY(name_target(r));
    printf(
        "%s: %d file%s, %s, of %s read, in %.1f s; `sheaf train` with run.dir=%s goes on there\n",
        r->target, result.files, result.files == 1 ? "" : "s", text_bytes(result.bytes, bytes),
        text_bytes(result.read_bytes, read), now_s() - begin_s, r->target);
    return OK;
}

static Err parse(Reshape *r, int argc, char **argv)
{
    const char *buffer = NULL, *place[2] = {NULL, NULL};
    const Flag flags[] = {{"--buffer", &buffer, NULL}};
    Words words;
    int mib, n = 0, end = 0;
    TRY(args_words(argc, argv, flags, 1, &r->arena, &words));
    TRY(ARENA_NEW(&r->arena, words.n + 1, &r->set));
    for (int i = 0; i < words.n; i++)
        if (n < 2)
            place[n++] = words.at[i];
        else
            r->set[r->n_set++] = words.at[i];
    if (n < 2)
        return err_fail(ERR_CONFIG, "reshape: wants SRC and DST; `sheaf reshape --help` says how");
    r->source = place[0];
    r->target = place[1];
    r->buffer_bytes = RESHAPE_BUFFER;
    if (!buffer) return OK;
    if (sscanf(buffer, "%d%n", &mib, &end) != 1 || buffer[end] || mib < 8 || mib > 1 << 20)
        return err_fail(ERR_CONFIG, "reshape: --buffer %.40s: MiB, 8 to %d", buffer, 1 << 20);
    r->buffer_bytes = (int64_t)mib << 20;
    return OK;
}

static Err reshape(Reshape *r, int argc, char **argv)
{
    TRY(arena_open(&r->arena, "reshape", ARENA_PLENTY));
    TRY(arena_open(&r->temp, "reshape for a while", ARENA_PLENTY));
    TRY(parse(r, argc, argv));
    TRY(reshape_check_keys(r));
    TRY(read_source(r));
    TRY(open_target(r));
    const Err err = reshape_into(r);
    if (err != OK) remove_target(r);
    return err;
}

int verb_reshape(int argc, char **argv)
{
    static Reshape r; /* large */
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        puts(usage);
        return 0;
    }
    r = (Reshape){0};
    const Err err = reshape(&r, argc, argv);
    if (r.arena.base) arena_close(&r.arena);
    if (r.temp.base) arena_close(&r.temp);
    return err == OK ? 0 : cli_fail(err);
}
