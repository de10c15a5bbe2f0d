/* resume.c -- finding the checkpoint to go on from, and loading it. */
#define _DEFAULT_SOURCE
#include "train/resume.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "state/load.h"

typedef struct {
    TrainLoop *l;
    Arena *arena; /* of the rank; what is read of a damaged one is rewound */
    Generation at;
    char path[1200];
    Manifest *manifest;
    Generation said; /* by `latest`, with the hash of its manifest; step -1: nothing */
    uint64_t said_hash;
    int damaged; /* that were set aside so far */
} Search;

/* Rank 0. `latest` only confirms: a crash may have come between it and the checkpoint that it
 * should name. */
static Err check_latest(Search *q, const Generation *newest, bool any)
{
    const char *folder = q->l->s->save.folder;
    bool found = false;
    const Err err = folder_latest(folder, &q->said, &q->said_hash, &found);
    if (!found) q->said.step = -1;
    if (err == ERR_CHECK && !q->damaged)
        loop_warn(q->l, "%s; the newest checkpoint that is whole is used", err_text());
    if (err != OK && err != ERR_CHECK) return err;
    if (!any && (found || err == ERR_CHECK || loop_was_saved(q->l)))
        return err_fail(
            ERR_CHECK,
            "%s: there was a checkpoint, and none is whole now; put one back, or set "
            "run.fresh=true to start over (the run folder is renamed, not deleted), or choose "
            "another run.dir",
            folder);
    if (any && q->said.step > newest->step && !q->damaged)
        loop_warn(q->l, "%s/latest names %s, which is not there; %s is used", folder, q->said.name,
                  newest->name);
    return OK;
}

/* Rank 0. The newest that has its name; step -1: there is none, and there was none. */
static Err find_newest(Search *q, int64_t *step)
{
    Generation *list;
    int n;
    const char *folder = q->l->s->save.folder;
    TRY(folder_list(folder, q->arena, &list, &n));
    TRY(check_latest(q, list, n > 0));
    *step = n > 0 ? list[0].step : -1;
    return OK;
}

/* Rank 0 tells the others. */
static Err spread_step(TrainLoop *l, int64_t *step)
{
    *l->sums = (Sums){.step = loop_is_first(l) ? (double)(*step + 1) : 0};
    TRY(loop_add_up(l, REDUCE_SUM));
    *step = (int64_t)l->sums->step - 1;
    return OK;
}

/* Rank 0 alone decides what is damaged: a rank that cannot see the folder has not found damage. Nor
 * has one that may not read, or has too many files open (ERR_IO): nothing is set aside for that. */
static Err read_whole(Search *q)
{
    TRY(manifest_read(q->path, q->arena, q->manifest));
    TRY(manifest_check_files(q->manifest, q->arena));
    if (q->said.step == q->at.step && q->said_hash != q->manifest->hash)
        loop_warn(q->l,
                  "%s: whole, but not the one that was saved last: its manifest hashes to %016llx, "
                  "latest says %016llx; it is used",
                  q->path, (unsigned long long)q->manifest->hash, (unsigned long long)q->said_hash);
    return OK;
}

static Err set_aside(Search *q)
{
    char why[1024], name[64];
    TrainLoop *l = q->l;
    snprintf(why, sizeof why, "%s", err_text());
    q->damaged++;
    Err err = loop_is_first(l) ? folder_set_aside(l->s->save.folder, &q->at, name) : OK;
    if (loop_is_first(l) && err == OK)
        loop_warn(l, "%s: damaged: %s; it is %s now, and the checkpoint before it is used", q->path,
                  why, name);
    return world_agree(l->s->world, err);
}

/* Loads what rank 0 has found whole. */
static Err load(Search *q, bool *damaged)
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
        err = err_fail(err, "%s; run.dir must be in a file system that all ranks see", err_text());
    TRY(world_agree(w, err));
    TRY(world_same(w, q->manifest->hash, "checkpoint", "run.dir must be the same folder for all"));
    TRY(world_agree(w, resume_same_job(q->path, &q->manifest->scalars, &l->s->save.job)));
    set.what = manifest_is_weights(q->manifest) ? LOAD_WEIGHTS : LOAD_ALL;
    err = world_agree(w, state_load(&set, &loaded));
    *damaged = err == ERR_CHECK;
    return *damaged ? OK : err;
}

/* The newest of those that are left: *go_on when it was damaged and is no longer among them. */
static Err try_newest(Search *q, bool *go_on, bool *found)
{
    TrainLoop *l = q->l;
    WorldRank *w = l->s->world;
    int64_t step = -1;
    *go_on = *found = false;
    TRY(world_agree(w, loop_is_first(l) ? find_newest(q, &step) : OK));
    TRY(spread_step(l, &step));
    if (step < 0) return OK;
    q->at = generation_of(step);
    snprintf(q->path, sizeof q->path, "%s/%s", l->s->save.folder, q->at.name);
    const Err whole = world_agree(w, loop_is_first(l) ? read_whole(q) : OK);
    if (whole != OK && whole != ERR_CHECK) return whole;
    *go_on = whole != OK;
    if (whole == OK) TRY(load(q, go_on));
    *found = !*go_on;
    return *go_on ? set_aside(q) : OK;
}

/* Rank 0. A run that was killed before its first checkpoint has left lines, and nothing else. */
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
    Search q = {.l = l, .arena = w->arena};
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
                              .what = LOAD_WEIGHTS,
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
