/* checkpoint.c -- when a checkpoint is written, and what ranks tell each other of it.
 *
 *     step 20     all ranks begin to write what they own               saver_begin
 *     step 21 ..  each adds up: so many have written, so many failed   the sums of the step
 *     step 23     all have: rank 0 commits
 *     step 24     committed: said, and the next may begin
 *
 * All ranks see the same sums, so all are in the same state of the same save, and nothing is sent
 * for it besides. Before the next save, and at the end, the sums are made in a loop of their own. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <unistd.h>

#include "train/loop_parts.h"

enum { NAP_US = 500 };

/* That a run was saved is known also when all its checkpoints are gone, as when the disk that they
 * were on is not mounted: then it must not start over by itself. */
static void mark_path(const TrainLoop *l, char path[1200])
{
    snprintf(path, 1200, "%.1100s/saved", l->s->dir);
}

bool loop_was_saved(const TrainLoop *l)
{
    char path[1200];
    mark_path(l, path);
    return access(path, F_OK) == 0;
}

static void mark_saved(const TrainLoop *l)
{
    char path[1200];
    mark_path(l, path);
    FILE *f = loop_was_saved(l) ? NULL : fopen(path, "w");
    if (f)
        fputs("This run was saved: it goes on from checkpoints/, and starts over only with "
              "run.fresh=true.\n",
              f);
    if (f) fclose(f);
}

Err loop_open_saver(TrainLoop *l)
{
    static const char *const lines[] = {"metrics.jsonl", "samples.jsonl", "skipped.jsonl", NULL};
    const SaveSettings *save = &l->s->save;
    const SaverSettings set = {.rank = &l->rank,
                               .checkpoints = save->folder,
                               .ranks = l->s->world->ranks,
                               .keep = (int)save->keep,
                               .room = save_room(save->every),
                               .hook = save->hook,
                               .beside = l->s->dir,
                               .lines = lines};
    return save->folder ? saver_open(&set, l->s->world->arena, &l->saver) : OK;
}

void loop_put_saver(const TrainLoop *l, Sums *sums)
{
    if (l->saving == SAVING_NOTHING) return;
    const SaverState state = saver_poll(l->saver);
    sums->settled = state == SAVER_WRITTEN || state == SAVER_FAILED;
    sums->failed = state == SAVER_FAILED;
    sums->committed = state == SAVER_COMMITTED;
    sums->saved_bytes = state == SAVER_FAILED ? 0 : (double)saver_written(l->saver);
}

static void say_committed(const TrainLoop *l)
{
    char bytes[24];
    fprintf(l->s->out,
            "%scheckpoint of step %lld is whole: %s in %s; the step waited %.1f ms for it\n",
            l->s->terminal ? "\r\033[K" : "", (long long)l->saving_step,
            text_bytes((int64_t)l->sums->saved_bytes, bytes), l->s->save.folder,
            1e3 * saver_blocked_s(l->saver));
    fflush(l->s->out);
}

/* With what is left, in words. */
static Err refuse_to_go_on(const TrainLoop *l, Err err)
{
    char before[64] = "no checkpoint was written before it";
    if (l->saved_step > 0)
        snprintf(before, sizeof before, "the checkpoint of step %lld is whole",
                 (long long)l->saved_step);
    return err_fail(
        err,
        "step %lld: its checkpoint cannot be written: %s; %s; when there is room, start "
        "the run again and it goes on from there%s",
        (long long)l->saving_step, err_text(), before,
        l->s->save.despite_errors ? "" : "; or set run.on_save_error=continue");
}

/* Of an error of any rank all ranks learn; what was half written is removed. */
static Err end_failed(TrainLoop *l)
{
    WorldRank *w = l->s->world;
    const bool mine = saver_poll(l->saver) == SAVER_FAILED;
    Err err = mine ? err_fail(ERR_IO, "%s", saver_error(l->saver)) : OK;
    err = world_agree(w, err);
    MUST(err != OK, "a save that failed on no rank");
    if (err == ERR_PEER) return err;
    err = refuse_to_go_on(l, err);
    const bool ends = l->at.step == l->s->lr.steps || l->sums->stops > 0;
    const bool last = ends && l->saving_step == l->at.step;
    if (l->s->save.despite_errors && !last) {
        if (loop_is_first(l))
            loop_warn(l, "%s; training goes on (run.on_save_error=continue)", err_text());
        err = OK;
        w->agreed = false; /* it is over */
    }
    const Err removed = saver_end(l->saver, true);
    if (removed != OK) loop_warn(l, "%s", err_text());
    l->saving = SAVING_NOTHING;
    return err;
}

Err loop_saver_moved(TrainLoop *l)
{
    const bool all = l->sums->settled >= l->s->world->ranks;
    if (l->saving == SAVING_NOTHING) return OK;
    if (l->saving == SAVING_WRITES && !all) return OK;
    if (l->sums->failed > 0) return end_failed(l);
    if (l->saving == SAVING_WRITES) {
        if (loop_is_first(l)) saver_commit(l->saver);
        l->saving = SAVING_COMMITS;
        return OK;
    }
    if (l->sums->committed == 0) return OK;
    l->saved_step = l->saving_step;
    l->saving = SAVING_NOTHING;
    if (loop_is_first(l)) mark_saved(l), say_committed(l);
    return saver_end(l->saver, false);
}

Err loop_drain_saver(TrainLoop *l)
{
    const double stops = l->sums->stops; /* the step's: the sums are made anew */
    while (l->saving != SAVING_NOTHING) {
        *l->sums = (Sums){0};
        loop_put_saver(l, l->sums);
        TRY(loop_add_up(l, REDUCE_SUM));
        l->sums->stops = stops;
        TRY(loop_saver_moved(l));
        if (l->saving != SAVING_NOTHING) usleep(NAP_US);
    }
    return OK;
}

Err loop_save(TrainLoop *l)
{
    const SaveSettings *save = &l->s->save;
    StateScalars now = save->job;
    if (l->kernels) now.kernels = l->kernels;
    if (!save->folder || l->saved_step == l->at.step) return OK;
    TRY(loop_drain_saver(l));
    now.step = l->at.step;
    now.cursor = l->at.cursor;
    now.tokens = l->at.tokens;
    now.skipped = l->at.skipped;
    l->saving_step = l->at.step;
    l->saving = SAVING_WRITES;
    return saver_begin(l->saver, &now);
}
