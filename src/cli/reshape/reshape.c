/* reshape.c -- `sheaf reshape SRC DST [key=value ...]`: rewrites a checkpoint for another layout.
 *
 *     SRC    a run folder, its checkpoints/ or one step-N/ in it; or a Hugging Face folder
 *     DST    a new run folder: config.yaml, checkpoints/step-N/, checkpoints/latest, and hf/ with
 *            the other files of a Hugging Face source; with --hf a Hugging Face folder
 *            (hf.c)
 *
 * The configuration is that of the checkpoint. Arguments may change how the work is distributed
 * over ranks, but not the model, the data or the optimizer. DST is written as DST.tmp and renamed
 * when it is complete. A run can resume under another layout without reshape; a checkpoint in the
 * layout of its ranks is read with fewer seeks, one file per rank. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cli/args.h"
#include "base/clock.h"
#include "cli/config/print.h"
#include "cli/reshape/reshape.h"
#include "cli/verbs.h"
#include "state/disk.h"
#include "state/folder_parts.h"
#include "state/reshape.h"
#include "verify/layouts.h"

/* ---- the target ---- */

static Err make_folder(const char *path)
{
    if (mkdir(path, 0777) == 0) return OK;
    return err_fail(ERR_IO, "%s: cannot be made: %s", path, strerror(errno));
}

static Err open_target(Reshape *r)
{
    if (strlen(r->target) > MAX_RUN_DIR || !r->target[0])
        return err_fail(ERR_CONFIG, "reshape: DST has %zu characters; it must have 1 to %d",
                        strlen(r->target), MAX_RUN_DIR);
    if (access(r->target, F_OK) == 0)
        return err_fail(ERR_CONFIG,
                        "reshape: %s exists already, and nothing is overwritten; choose another "
                        "DST, or remove it",
                        r->target);
    snprintf(r->dir, sizeof r->dir, "%s.tmp", r->target);
    if (access(r->dir, F_OK) == 0)
        return err_fail(
            ERR_CONFIG,
            "reshape: %s exists already: another reshape is writing it, or was interrupted; remove "
            "it if none is running",
            r->dir);
    TRY(make_folder(r->dir));
    snprintf(r->checkpoints, sizeof r->checkpoints, "%s/checkpoints", r->dir);
    return make_folder(r->checkpoints);
}

/* Removes the files and folders of open_target, reshape_config and reshape_extra_files.
 * state_reshape removes its own after an error. */
static void remove_target(const Reshape *r)
{
    char path[MAX_RUN_DIR + 64];
    snprintf(path, sizeof path, "%s/config.yaml", r->dir);
    (void)unlink(path);
    snprintf(path, sizeof path, "%s/" HF_EXTRA_DIR, r->dir);
    (void)folder_remove(path, NULL, NULL);
    (void)rmdir(r->checkpoints);
    (void)rmdir(r->dir);
}

/* Renames DST.tmp to DST, durably: the folder and its parent are synced. */
static Err name_target(const Reshape *r)
{
    char parent[MAX_RUN_DIR + 8];
    snprintf(parent, sizeof parent, "%s", r->target);
    char *slash = strrchr(parent, '/');
    if (slash) slash[slash == parent] = '\0';
    TRY(disk_sync_folder(r->dir));
    if (rename(r->dir, r->target) != 0)
        return err_fail(ERR_IO, "%s: cannot be renamed to %s: %s", r->dir, r->target,
                        strerror(errno));
    return disk_sync_folder(slash ? parent : ".");
}

void reshape_at(void *context, int64_t done)
{
    Reshape *r = context;
    progress_at(&r->progress, done);
}

static int64_t bytes_of_all(const StateTensors *t)
{
    int64_t bytes = 0;
    for (int i = 0; i < t->n; i++)
        bytes += shape_count(&t->tensor[i].shape) * (int64_t)dtype_bytes(t->tensor[i].dtype);
    return bytes;
}

static Err write_target(Reshape *r, ReshapeResult *out)
{
    StateScalars scalars = r->from.manifest.scalars;
    Text t = text_in(&r->arena);
    config_print(&r->config, &t);
    TRY(text_done(&t, &scalars.config));
    const ReshapeSettings set = {.from = &r->from.manifest,
                                 .to = &r->job.linked,
                                 .checkpoints = r->checkpoints,
                                 .scalars = &scalars,
                                 .buffer_bytes = r->buffer_bytes,
                                 .progress = reshape_at,
                                 .context = r,
                                 .temp = &r->temp};
    r->progress = progress_begin("reshape", r->target, bytes_of_all(&r->from.manifest.tensors));
    const Err err = state_reshape(&set, out);
    progress_end(&r->progress);
    return err;
}

static Err reshape_into(Reshape *r)
{
    ReshapeResult result;
    char words[LAYOUT_TEXT_BYTES], bytes[24], buffer[24], read[24];
    const double begin_s = now_s();
    TRY(reshape_config(r));
    TRY(reshape_extra_files(r));
    printf("%s: step %lld, %s, to %s: %s; buffer %s\n", r->from.manifest.dir,
           (long long)r->from.manifest.scalars.step,
           text_bytes(bytes_of_all(&r->from.manifest.tensors), bytes), r->target,
           layout_words(&r->job.settings.parallel, words), text_bytes(r->buffer_bytes, buffer));
    fflush(stdout);
    TRY(write_target(r, &result));
    TRY(name_target(r));
    printf(
        "%s: %d file%s, %s, of %s read, in %.1f s; `sheaf train` with run.dir=%s resumes there\n",
        r->target, result.files, result.files == 1 ? "" : "s", text_bytes(result.bytes, bytes),
        text_bytes(result.read_bytes, read), now_s() - begin_s, r->target);
    return OK;
}

static Err parse_buffer(Reshape *r, const char *buffer)
{
    int mib, end = 0;
    r->buffer_bytes = RESHAPE_BUFFER;
    if (!buffer) return OK;
    if (r->hf)
        return err_fail(ERR_CONFIG,
                        "reshape: --buffer: with --hf each thread has %d MiB; set "
                        "--threads",
                        HF_THREAD_BYTES >> 20);
    if (sscanf(buffer, "%d%n", &mib, &end) != 1 || buffer[end] || mib < 8 || mib > 1 << 20)
        return err_fail(ERR_CONFIG, "reshape: --buffer %.40s: must be MiB, 8 to %d", buffer,
                        1 << 20);
    r->buffer_bytes = (int64_t)mib << 20;
    return OK;
}

static Err parse(Reshape *r, int argc, char **argv)
{
    const char *buffer = NULL, *place[2] = {NULL, NULL};
    const Flag flags[] = {{"--buffer", &buffer, NULL},      {"--hf", NULL, &r->hf},
                          {"--dtype", &r->dtype, NULL},     {"--shard-size", &r->shard, NULL},
                          {"--threads", &r->threads, NULL}, {"--plan", &r->plan, NULL}};
    PlainArgs words;
    int n = 0;
    TRY(args_plain(argc, argv, flags, 6, &r->arena, &words));
    TRY(ARENA_NEW(&r->arena, words.n + 3, &r->set));
    for (int i = 0; i < words.n; i++)
        if (n < 2)
            place[n++] = words.at[i];
        else
            r->set[r->n_set++] = words.at[i];
    if (n < 2)
        return err_fail(ERR_CONFIG,
                        "reshape: needs SRC and DST; `sheaf reshape --help` describes them");
    r->source = place[0];
    r->target = place[1];
    if (!r->hf && (r->dtype || r->shard || r->threads))
        return err_fail(ERR_CONFIG, "reshape: %s has an effect only with --hf; add it",
                        r->dtype   ? "--dtype"
                        : r->shard ? "--shard-size"
                                   : "--threads");
    return parse_buffer(r, buffer);
}

static Err reshape(Reshape *r, int argc, char **argv)
{
    TRY(arena_open(&r->arena, "reshape", ARENA_PLENTY));
    TRY(arena_open(&r->temp, "reshape scratch", ARENA_PLENTY));
    TRY(parse(r, argc, argv));
    IgnoredKeys ignore;
    TRY(config_ignored_keys(r->set, r->n_set, &r->arena, &ignore));
    TRY(source_open(r->source, F32, &ignore, &r->arena, &r->from));
    if (r->from.note[0]) fprintf(stderr, "sheaf: %s\n", r->from.note);
    if (r->hf && r->plan)
        return err_fail(ERR_CONFIG, "reshape: --plan with --hf: a Hugging Face folder has no "
                                    "layout; leave one of the two out");
    if (r->hf) return reshape_to_hf(r);
    TRY(reshape_check_keys(r));
    TRY(open_target(r));
    const Err err = reshape_into(r);
    if (err != OK) remove_target(r);
    return err;
}

int verb_reshape(int argc, char **argv)
{
    static Reshape r; /* large */
    r = (Reshape){0};
    const Err err = reshape(&r, argc, argv);
    if (r.arena.base) arena_close(&r.arena);
    if (r.temp.base) arena_close(&r.temp);
    return err == OK ? 0 : cli_fail(err);
}
