/* fit.c -- ways to fit, by what they cost: less to keep first, then smaller products, then state cut
 * over ranks, then everything computed twice. */
#include "cli/fit.h"

#include <stdio.h>
#include "base/text.h"
#include "cli/config/job.h"

enum { WAYS = 3 };

typedef struct {
    const char *recompute; /* NULL: as it is */
    int64_t zero;          /* -1: as it is */
    int shrink;            /* of batch.micro: divided by */
} Way;

static const Way ways[] = {{"selective", -1, 1}, {NULL, -1, 2},        {NULL, 1, 1},
                           {"selective", -1, 2}, {NULL, 3, 1},         {NULL, -1, 8},
                           {"full", -1, 1},      {"selective", -1, 8}, {"full", -1, 2},
                           {"full", -1, 8},      {"full", 3, 8}};

int64_t fit_bytes(const Job *job, const Job *valid, bool device)
{
    int64_t bytes = 0;
    for (int a = 0; a < N_ARENAS; a++) {
        if (device && a == ARENA_HOST) continue;
        bytes += (int64_t)job->linked.bytes[a];
        if (valid) bytes += (int64_t)rank_extra_bytes(&valid->linked, &job->linked, (ArenaId)a);
    }
    return bytes;
}

/* The configuration that a way makes of this one; false: it is none. */
static bool apply(const Way *w, const char *const *word, Config *c)
{
    if (w->recompute) c->parallel_recompute = (TextList){1, word, *word};
    if (w->zero >= 0 && (c->mesh_dp_shard < 2 || c->parallel_zero >= w->zero)) return false;
    if (w->zero >= 0) c->parallel_zero = w->zero;
    if (w->shrink > c->batch_micro) return false;
    c->batch_micro /= w->shrink;
    return true;
}

/* Does it only do more of what one that was found does? */
static bool is_more(const Way *w, const Way *const *found, int n)
{
    for (int i = 0; i < n; i++)
        if (found[i]->recompute == w->recompute && found[i]->zero == w->zero &&
            found[i]->shrink < w->shrink)
            return true;
    return false;
}

static Err takes(const Fit *f, const Config *c, int64_t *out)
{
    const size_t mark = arena_mark(f->temp);
    const bool validates = c->run_valid_every > 0;
    JobSettings set;
    Job *job;
    TRY(config_job(c, f->model, &set));
    TRY(ARENA_NEW(f->temp, 2, &job));
    Err err = job_compile(&set, f->temp, &job[0]);
    set.kind = JOB_LOSS;
    if (err == OK && validates) err = job_compile(&set, f->temp, &job[1]);
    if (err == OK) *out = f->ranks * fit_bytes(&job[0], validates ? &job[1] : NULL, f->device);
    arena_rewind(f->temp, mark);
    return err;
}

static void say_way(const Way *w, const Config *c, int64_t bytes, Text *t)
{
    char need[24];
    const char *join = "";
    if (w->recompute) {
        text_add(t, "parallel.recompute=%s", w->recompute);
        join = " ";
    }
    if (w->zero >= 0) {
        text_add(t, "%sparallel.zero=%lld", join, (long long)w->zero);
        join = " ";
    }
    if (w->shrink > 1) text_add(t, "%sbatch.micro=%lld", join, (long long)c->batch_micro);
    text_add(t, " (%s)", text_bytes(bytes, need));
}

Err fit_check(const Fit *f)
{
    char need[24], have[24];
    const char *text;
    const Way *way[WAYS];
    int found = 0;
    if (f->takes <= f->has) return OK;
    Text t = text_in(f->temp);
    Arena tries;
    TRY(arena_open(&tries, "ways to fit", ARENA_PLENTY));
    const Fit inner = {f->config, f->model, f->device, 0, 0, f->ranks, NULL, &tries};
    for (size_t i = 0; i < sizeof ways / sizeof *ways && found < WAYS; i++) {
        Config c = *f->config;
        int64_t bytes = 0;
        if (is_more(&ways[i], way, found) || !apply(&ways[i], &ways[i].recompute, &c) ||
            takes(&inner, &c, &bytes) != OK || bytes > f->has)
            continue;
        text_add(&t, "%s", found ? "; " : "");
        way[found++] = &ways[i];
        say_way(&ways[i], &c, bytes, &t);
    }
    arena_close(&tries);
    if (found == 0)
        text_add(&t, "none of the usual: a smaller data.seq_len or model, or more ranks");
    TRY(text_done(&t, &text));
    return err_fail(ERR_CONFIG,
                    "the run takes %s %s, %s of it is there; what fits, the cheapest first: %s; "
                    "`sheaf explain` shows what takes it",
                    text_bytes(f->takes, need), f->what, text_bytes(f->has, have), text);
}
