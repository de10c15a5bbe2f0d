/* resume.c -- finds the checkpoint to resume from, and loads it. */
#define _DEFAULT_SOURCE
#include "train/resume.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "state/load.h"

typedef struct {
    TrainLoop *l;
    Arena *arena; /* of the rank; rewound after a damaged checkpoint */
    Generation at;
    char path[1200];
    Manifest *manifest;
    Generation latest;    /* named by the file `latest`; step -1: none */
    uint64_t latest_hash; /* of its manifest, as in that file */
    int damaged;          /* checkpoints renamed so far */
} ResumeSearch;

/* Rank 0. Compares the newest checkpoint with the file `latest`. The file may be older: a crash may
 * have happened between a commit and its update. */
static Err check_latest(ResumeSearch *q, const Generation *newest, bool any)
{
    const char *folder = q->l->s->save.folder;
    bool found = false;
    const Err err = folder_latest(folder, &q->latest, &q->latest_hash, &found);
    if (!found) q->latest.step = -1;
    if (err == ERR_CHECK && !q->damaged)
        loop_warn(q->l, "%s; the newest complete checkpoint is used", err_text());
    if (err != OK && err != ERR_CHECK) return err;
    if (!any && (found || err == ERR_CHECK || loop_was_saved(q->l)))
        return err_fail(
            ERR_CHECK,
            "%s: the run was saved, but no checkpoint is complete now; restore one, or set "
            "run.fresh=true to restart (the run folder is renamed, not deleted), or choose "
            "another run.dir",
            folder);
    if (any && q->latest.step > newest->step && !q->damaged)
        loop_warn(q->l, "%s/latest names %s, which does not exist; %s is used", folder,
                  q->latest.name, newest->name);
    return OK;
}

/* Rank 0. The newest committed checkpoint; *step is -1 if there never was one. */
static Err find_newest(ResumeSearch *q, int64_t *step)
{
    Generation *list;
    int n;
    const char *folder = q->l->s->save.folder;
    TRY(folder_list(folder, q->arena, &list, &n));
    TRY(check_latest(q, list, n > 0));
    *step = n > 0 ? list[0].step : -1;
    return OK;
}

/* Sends rank 0's step to all ranks. */
static Err broadcast_step(TrainLoop *l, int64_t *step)
{
    *l->sums = (StepSums){.step = loop_is_first(l) ? (double)(*step + 1) : 0};
    TRY(loop_add_up(l, REDUCE_SUM));
    *step = (int64_t)l->sums->step - 1;
    return OK;
}

/* Rank 0. Only rank 0 decides that a checkpoint is damaged, and only on ERR_CHECK: a folder that a
 * rank cannot see or read, or too many open files (ERR_IO), is no damage. */
static Err check_newest(ResumeSearch *q)
{
    TRY(manifest_read(q->path, q->arena, q->manifest));
    TRY(manifest_check_files(q->manifest, q->arena));
    if (q->latest.step == q->at.step && q->latest_hash != q->manifest->hash)
        loop_warn(q->l,
                  "%s: complete, but not the one that was saved last: the hash of its manifest is "
                  "%016llx, latest contains %016llx; it is used",
                  q->path, (unsigned long long)q->manifest->hash,
                  (unsigned long long)q->latest_hash);
    return OK;
}

/* Rank 0 renames the damaged checkpoint, with a warning. */
static Err set_aside(ResumeSearch *q)
{
    char why[1024], name[64];
    TrainLoop *l = q->l;
    snprintf(why, sizeof why, "%s", err_text());
    q->damaged++;
    Err err = loop_is_first(l) ? folder_quarantine(l->s->save.folder, &q->at, name) : OK;
    if (loop_is_first(l) && err == OK)
        loop_warn(l, "%s: damaged: %s; renamed to %s, the previous checkpoint is used", q->path,
                  why, name);
    return world_agree(l->s->world, err);
}

/* Loads the checkpoint that rank 0 has checked. */
static Err load(ResumeSearch *q, bool *damaged)
{
    TrainLoop *l = q->l;
    WorldRank *w = l->s->world;
    LoadSettings set = {.manifest = q->manifest,
                        .rank = &l->rank,
                        .comm = w->comm,
                        .all = w->all,
                        .temp = q->arena};
    LoadResult loaded;
    Err err = loop_is_first(l) ? OK : manifest_read(q->path, q->arena, q->manifest);
    if (err != OK)
        err = err_fail(err, "%s; run.dir must be in a file system that all ranks can read",
                       err_text());
    TRY(world_agree(w, err));
    TRY(world_same(w, q->manifest->hash, "checkpoint", "run.dir must be the same folder for all"));
    TRY(world_agree(w, resume_same_job(q->path, &q->manifest->scalars, &l->s->save.job)));
    set.scope = manifest_is_weights(q->manifest) ? LOAD_WEIGHTS : LOAD_ALL;
    err = world_agree(w, state_load(&set, &loaded));
    *damaged = err == ERR_CHECK;
    return *damaged ? OK : err;
}

/* Tries the newest checkpoint. *go_on is true if it was damaged and has been renamed. */
static Err try_newest(ResumeSearch *q, bool *go_on, bool *found)
{
    TrainLoop *l = q->l;
    WorldRank *w = l->s->world;
    int64_t step = -1;
    *go_on = *found = false;
    TRY(world_agree(w, loop_is_first(l) ? find_newest(q, &step) : OK));
    TRY(broadcast_step(l, &step));
    if (step < 0) return OK;
    q->at = generation_of(step);
    snprintf(q->path, sizeof q->path, "%s/%s", l->s->save.folder, q->at.name);
    const Err whole = world_agree(w, loop_is_first(l) ? check_newest(q) : OK);
    if (whole != OK && whole != ERR_CHECK) return whole;
    *go_on = whole != OK;
    if (whole == OK) TRY(load(q, go_on));
    *found = !*go_on;
    return *go_on ? set_aside(q) : OK;
}

/* Rank 0. True if an earlier run wrote metrics: without checkpoints, it was killed before the
 * first. */
static bool has_lines(const TrainLoop *l)
{
    char path[1200];
    struct stat st;
    snprintf(path, sizeof path, "%s/metrics.jsonl", l->s->dir);
    return stat(path, &st) == 0 && st.st_size > 0;
}

Err resume_run(TrainLoop *l, TrainStart *out)
{
    WorldRank *w = l->s->world;
    ResumeSearch q = {.l = l, .arena = w->arena};
    bool go_on = true, found = false;
    *out = (TrainStart){0};
    if (!l->s->save.folder) return OK;
    TRY(world_agree(w, loop_is_first(l) ? folder_tidy(l->s->save.folder) : OK));
    TRY(world_agree(w, ARENA_NEW(w->arena, 1, &q.manifest)));
    const size_t mark = arena_mark(w->arena);
    while (go_on) {
        arena_rewind(w->arena, mark);
        TRY(try_newest(&q, &go_on, &found));
    }
    if (!found) {
        out->restarted = loop_is_first(l) && has_lines(l);
        return OK;
    }
    const StateScalars *s = &q.manifest->scalars;
    l->at = (Position){s->step, s->cursor, s->tokens, s->skipped};
    l->saved_step = s->step;
    out->from = q.manifest;
    return OK;
}

Err resume_init(TrainLoop *l, TrainStart *out)
{
    WorldRank *w = l->s->world;
    const LoadSettings set = {.manifest = l->s->init,
                              .scope = LOAD_WEIGHTS,
                              .rank = &l->rank,
                              .comm = w->comm,
                              .all = w->all,
                              .temp = w->arena};
    LoadResult loaded;
    const bool any = l->s->init && !out->from;
    if (!any) return OK;
    TRY(world_same(w, l->s->init->hash, "weights to start from",
                   "model.init must be the same folder for all"));
    TRY(world_agree(w, state_load(&set, &loaded)));
    out->init = l->s->init;
    return OK;
}
