/* autotune_cache.c -- the autotune cache: the algorithm of each GEMM on a device, measured once,
 * equal on all ranks, and stored. It is loaded from the first of these that exists:
 *
 *     run.dir/kernels.txt   the bits of a run depend on it
 *     the checkpoint        of a run that resumes in another folder
 *     the user's cache      measured by an earlier run on the same kind of GPU
 *
 *     rank 0: load, measure the missing GEMMs, save; then rank 1; then rank 2; ...
 *
 * Ranks with the same GEMMs therefore use the same algorithms, and a later start measures
 * nothing. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "train/loop_parts.h"

enum { PATH_BYTES = 1200 };

static bool is_there(const char *path) { return path && access(path, R_OK) == 0; }

static Err read_text(const char *path, Arena *a, const char **out)
{
    FILE *f = fopen(path, "r");
    if (!f) return err_fail(ERR_IO, "%s: cannot be read", path);
    Text t = text_in(a);
    char line[1024];
    while (fgets(line, sizeof line, f)) text_add(&t, "%s", line);
    fclose(f);
    return text_done(&t, out);
}

/* Replaces the file atomically. */
static Err write_text(const char *path, const char *text)
{
    char next[PATH_BYTES + 8];
    snprintf(next, sizeof next, "%s.next", path);
    FILE *f = fopen(next, "w");
    const bool good = f && fputs(text, f) >= 0;
    if (!f || fclose(f) != 0 || !good || rename(next, path) != 0)
        return err_fail(ERR_IO, "%s: cannot be written; is the disk full?", path);
    return OK;
}

/* True if the file has another version than this program's: its keys of GEMMs differ. */
static bool is_of_another_form(const char *path)
{
    char word[16] = "";
    int version = AUTOTUNE_VERSION;
    FILE *f = fopen(path, "r");
    if (!f) return false;
    const bool known = fscanf(f, "sheaf %15s %d", word, &version) == 2;
    fclose(f);
    return known && (strcmp(word, "autotune") != 0 || version != AUTOTUNE_VERSION);
}

/* Rank 0, before all others. Loads the first cache that exists; one of another GPU does not apply,
 * and its GEMMs are measured again. */
static Err load_first(TrainLoop *l, const TrainStart *start, const char *path)
{
    const Rank *r = &l->rank;
    const char *saved = start->from ? start->from->scalars.kernels : "";
    if (!is_there(path) && saved && *saved) TRY(write_text(path, saved));
    if (is_there(path) && is_of_another_form(path)) {
        loop_warn(l, "%s has another version than this program's: GEMMs are measured again", path);
        return OK;
    }
    if (is_there(path)) return r->runtime->autotune->load(r->context, path);
    if (is_there(l->s->autotune_cache))
        (void)r->runtime->autotune->load(r->context, l->s->autotune_cache);
    fprintf(l->s->out,
            "autotuning GEMMs that are not in the cache, which takes seconds; the results are "
            "stored in %s\n",
            path);
    fflush(l->s->out);
    return OK;
}

/* Loads the results of earlier ranks, measures this rank's missing GEMMs, saves all. */
static Err autotune_rank(TrainLoop *l, const TrainStart *start, const char *path)
{
    const Rank *r = &l->rank;
    char next[PATH_BYTES + 8];
    TRY(loop_is_first(l) ? load_first(l, start, path)
                         : r->runtime->autotune->load(r->context, path));
    r->runtime->autotune->measure(r->context, true);
    Err err = rank_autotune(&l->rank);
    if (err == OK && l->s->valid_job) err = rank_autotune(&l->valid);
    r->runtime->autotune->measure(r->context, false);
    TRY(err);
    snprintf(next, sizeof next, "%s.next", path);
    TRY(r->runtime->autotune->save(r->context, next));
    return rename(next, path) == 0 ? OK : err_fail(ERR_IO, "%s: cannot be written", path);
}

Err loop_autotune(TrainLoop *l, const TrainStart *start)
{
    const TrainSettings *s = l->s;
    char path[PATH_BYTES];
    if (rank_on_host(&l->rank) || !l->rank.runtime->autotune) return OK;
    snprintf(path, sizeof path, "%s/kernels.txt", s->dir);
    for (int turn = 0; turn < s->world->ranks; turn++)
        TRY(world_agree(s->world, turn == s->world->rank ? autotune_rank(l, start, path) : OK));
    TRY(world_agree(s->world, read_text(path, s->world->arena, &l->autotune_text)));
    if (loop_is_first(l) && s->autotune_cache)
        (void)write_text(s->autotune_cache, l->autotune_text);
    return OK;
}
