/* checkpoint.c -- saves that overlap training: when they begin, commit and end.
 *
 *     step 20     all ranks begin to write the boxes that they own           saver_begin
 *     step 21 ..  the sums of the step count ranks that have written or failed
 *     step 23     all have written: rank 0 commits
 *     step 24     committed: reported; the next save may begin
 *
 * All ranks see the same sums and therefore are in the same phase of the same save; no extra
 * transfers are needed. Before the next save, and at the end, loop_drain_saver repeats the sums
 * without steps. A run with run.save_every=0 has no memory for a copy of its state: its saves by
 * time are written from the state, and the next step waits. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "train/loop_parts.h"

enum { POLL_US = 500 };

/* The file `saved` shows that the run was saved, even if its checkpoints are missing (a disk that
 * is not mounted, say). Such a run must not restart at step 1. */
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
        fputs("This run was saved: it resumes from checkpoints/, and restarts only with "
              "run.fresh=true.\n",
              f);
    if (f) fclose(f);
}

Err loop_open_saver(TrainLoop *l)
{
    static const char *const run_logs[] = {"metrics.jsonl", "samples.jsonl", "skipped.jsonl", NULL};
    const SaveSettings *save = &l->s->save;
    const SaverSettings set = {.rank = &l->rank,
                               .checkpoints = save->folder,
                               .ranks = l->s->world->ranks,
                               .keep = (int)save->keep,
                               .memory = save_memory(save->every),
                               .hook = save->hook,
                               .run_dir = l->s->dir,
                               .run_logs = run_logs};
    return save->folder ? saver_open(&set, l->s->world->arena, &l->saver) : OK;
}

void loop_add_save_state(const TrainLoop *l, StepSums *sums)
{
    if (l->saving == SAVE_IDLE) return;
    const SaverState state = saver_poll(l->saver);
    sums->settled = state == SAVER_WRITTEN || state == SAVER_FAILED;
    sums->failed = state == SAVER_FAILED;
    sums->committed = state == SAVER_COMMITTED;
    sums->saved_bytes = state == SAVER_FAILED ? 0 : (double)saver_written(l->saver);
}

static void report_committed(const TrainLoop *l)
{
    char bytes[24];
    const bool copied = l->s->save.every > 0;
    const double waited_s = copied ? saver_blocked_s(l->saver) : now_s() - l->save_began_s;
    fprintf(l->s->out,
            "%scheckpoint of step %lld is complete: %s in %s; the step waited %.1f ms for it\n",
            l->s->terminal ? "\r\033[K" : "", (long long)l->saving_step,
            text_bytes((int64_t)l->sums->saved_bytes, bytes), l->s->save.folder, 1e3 * waited_s);
    fflush(l->s->out);
}

/* The error of a failed save, with the checkpoint that is left. Its cause and the way out are in
 * err_text(). run.on_save_error=continue has no effect on the last save of a run. */
static Err save_error(const TrainLoop *l, Err err, bool last)
{
    char left[96] = "no checkpoint was written before it: the run starts again at step 1";
    if (l->saved_step > 0)
        snprintf(left, sizeof left,
                 "the checkpoint of step %lld is complete: started again, the run resumes there",
                 (long long)l->saved_step);
    const bool can_continue = !last && !l->s->save.despite_errors;
    return err_fail(err, "step %lld: its checkpoint cannot be written: %s; %s%s",
                    (long long)l->saving_step, err_text(), left,
                    can_continue ? "; run.on_save_error=continue trains on without it" : "");
}

/* Ends a save that failed on some rank: all ranks get the error, and the incomplete checkpoint is
 * removed. */
static Err end_failed(TrainLoop *l)
{
    WorldRank *w = l->s->world;
    const bool mine = saver_poll(l->saver) == SAVER_FAILED;
    Err err = mine ? err_fail(ERR_IO, "%s", saver_error(l->saver)) : OK;
    err = world_agree(w, err);
    MUST(err != OK, "a save failed on no rank");
    if (err == ERR_PEER) return err;
    const bool asked = l->sums->stops > 0 || l->sums->unlogged > 0;
    const bool ends = l->at.step == l->s->lr.steps || asked;
    const bool last = ends && l->saving_step == l->at.step;
    err = save_error(l, err, last);
    if (l->s->save.despite_errors && !last) {
        if (loop_is_first(l))
            loop_warn(l, "%s; training continues (run.on_save_error=continue)", err_text());
        err = OK;
        w->agreed = false; /* the error is handled */
    }
    const Err removed = saver_end(l->saver, true);
    if (removed != OK) loop_warn(l, "%s", err_text());
    l->saving = SAVE_IDLE;
    return err;
}

Err loop_advance_save(TrainLoop *l)
{
    const bool all = l->sums->settled >= l->s->world->ranks;
    if (l->saving == SAVE_IDLE) return OK;
    if (l->saving == SAVE_WRITING && !all) return OK;
    if (l->sums->failed > 0) return end_failed(l);
    if (l->saving == SAVE_WRITING) {
        if (loop_is_first(l)) saver_commit(l->saver);
        l->saving = SAVE_COMMITTING;
        return OK;
    }
    if (l->sums->committed == 0) return OK;
    l->saved_step = l->saving_step;
    l->saving = SAVE_IDLE;
    if (loop_is_first(l)) mark_saved(l), report_committed(l);
    return saver_end(l->saver, false);
}

Err loop_drain_saver(TrainLoop *l)
{
    const StepSums step = *l->sums; /* is overwritten */
    while (l->saving != SAVE_IDLE) {
        *l->sums = (StepSums){0};
        loop_add_save_state(l, l->sums);
        TRY(loop_add_up(l, REDUCE_SUM));
        l->sums->stops = step.stops;
        l->sums->unlogged = step.unlogged;
        TRY(loop_advance_save(l));
        if (l->saving != SAVE_IDLE) usleep(POLL_US);
    }
    return OK;
}

bool loop_save_time(const TrainLoop *l)
{
    const double wait_s = 60 * l->s->save.minutes;
    return loop_is_first(l) && wait_s > 0 && now_s() - l->save_began_s >= wait_s;
}

Err loop_save(TrainLoop *l)
{
    const SaveSettings *save = &l->s->save;
    StateScalars now = save->job;
    if (l->autotune_text) now.kernels = l->autotune_text;
    if (!save->folder || l->saved_step == l->at.step) return OK;
    TRY(loop_drain_saver(l));
    now.step = l->at.step;
    now.cursor = l->at.cursor;
    now.tokens = l->at.tokens;
    now.skipped = l->at.skipped;
    l->saving_step = l->at.step;
    l->saving = SAVE_WRITING;
    l->save_began_s = now_s();
    TRY(saver_begin(l->saver, &now));
    return save->every > 0 ? OK : loop_drain_saver(l);
}
