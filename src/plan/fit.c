/* fit.c -- tries changes of settings in the order of their cost: recompute attention, halve the
 * micro-batch, shard the state (ZeRO), recompute everything, and combinations of these. */
#include "plan/fit.h"

#include "base/math.h"
#include "base/text.h"
#include "job/batch.h"

/* A candidate option; `shrink` divides batch.micro. */
typedef struct {
    const char *recompute;
    Recompute mode; /* of `recompute` */
    int zero, shrink;
} FitCandidate;

static const FitCandidate candidates[] = {{"selective", RECOMPUTE_SELECTIVE, -1, 1},
                                          {NULL, RECOMPUTE_NONE, -1, 2},
                                          {NULL, RECOMPUTE_NONE, 1, 1},
                                          {"selective", RECOMPUTE_SELECTIVE, -1, 2},
                                          {NULL, RECOMPUTE_NONE, 3, 1},
                                          {NULL, RECOMPUTE_NONE, -1, 8},
                                          {"full", RECOMPUTE_FULL, -1, 1},
                                          {"selective", RECOMPUTE_SELECTIVE, -1, 8},
                                          {"full", RECOMPUTE_FULL, -1, 2},
                                          {"full", RECOMPUTE_FULL, -1, 8},
                                          {"full", RECOMPUTE_FULL, 3, 8}};
enum { N_CANDIDATES = sizeof candidates / sizeof *candidates };

int64_t fit_bytes(const Job *job, const Job *valid, bool on_device)
{
    const ProgramSet set = {valid ? 2 : 1, {&job->linked, valid ? &valid->linked : NULL}};
    int64_t bytes = 0;
    for (int a = 0; a < N_ARENAS; a++) {
        if (on_device && a == ARENA_HOST) continue;
        bytes += (int64_t)program_set_bytes(&set, (ArenaId)a);
    }
    return bytes;
}

static int dp_of(const MeshSizes *m)
{
    return (m->dp_replicate ? m->dp_replicate : 1) * (m->dp_shard ? m->dp_shard : 1);
}

static int lowest_zero(const JobSettings *set)
{
    int lowest = 3;
    for (int u = 0; u < (int)set->config->n_layers + 2; u++)
        lowest = min_int(lowest, job_unit_options(set, u).zero);
    return lowest;
}

/* Changes the options of all units that have their own, in a copy of them. */
static Err apply_to_units(const FitCandidate *c, Arena *arena, JobSettings *set)
{
    const int n = (int)set->config->n_layers + 2;
    UnitOptions *units;
    if (!set->parallel.units) return OK;
    TRY(ARENA_NEW(arena, n, &units));
    for (int u = 0; u < n; u++) {
        units[u] = set->parallel.units[u];
        if (c->recompute) units[u].recompute = c->mode;
        units[u].zero = max_int(units[u].zero, c->zero);
    }
    set->parallel.units = units;
    return OK;
}

/* Applies the candidate to `set`. False if it changes nothing or is refused by a training run. */
static bool apply(const FitCandidate *c, int64_t global, Arena *arena, JobSettings *set)
{
    if (c->recompute) { /* replaces patterns and rules per stage */
        set->compile.recompute = c->mode;
        set->compile.recompute_names = NULL;
        set->n_stage_rules = 0;
    }
    if (c->zero >= 0 && (set->parallel.mesh.dp_shard < 2 || lowest_zero(set) >= c->zero))
        return false;
    if (apply_to_units(c, arena, set) != OK) return false;
    if (c->zero >= 0) {
        if (c->zero == 3 && set->compile.prepack)
            return false; /* gathered weights are not prepacked */
        set->parallel.zero = c->zero;
    }
    if (c->shrink > set->batch.sequences) return false;
    set->batch.sequences /= c->shrink;
    const int64_t fold = set->parallel.fold > 1 ? set->parallel.fold : 1;
    const int64_t micros =
        batch_micros(global, set->batch.sequences, dp_of(&set->parallel.mesh), fold);
    set->micros = (int)micros;
    return micros <= MAX_SCHEDULE;
}

/* True if a cheaper option differs from the candidate only in a larger micro-batch. */
static bool is_covered(const FitCandidate *c, const FitCandidate *const *found, int n)
{
    for (int i = 0; i < n; i++)
        if (found[i]->recompute == c->recompute && found[i]->zero == c->zero &&
            found[i]->shrink < c->shrink)
            return true;
    return false;
}

static Err compiled_bytes(const FitRequest *r, const JobSettings *settings, Arena *temp,
                          int64_t *out)
{
    const size_t mark = arena_mark(temp);
    JobSettings set = *settings;
    Job *job;
    set.parallel.rank = 0;
    TRY(ARENA_NEW(temp, 2, &job));
    Err err = job_compile(&set, temp, &job[0]);
    set.kind = JOB_LOSS;
    if (err == OK && r->validates) err = job_compile(&set, temp, &job[1]);
    if (err == OK)
        *out = r->ranks * fit_bytes(&job[0], r->validates ? &job[1] : NULL, r->on_device);
    arena_rewind(temp, mark);
    return err;
}

/* Finds at most MAX_FIT_OPTIONS options that fit, the cheapest in training speed first; returns
 * their number. Compiles one program per option tried. */
static int fit_options(const FitRequest *r, FitOption out[MAX_FIT_OPTIONS])
{
    const FitCandidate *found[MAX_FIT_OPTIONS];
    Arena temp;
    int n = 0;
    if (arena_open(&temp, "fit options", ARENA_PLENTY) != OK) return 0;
    for (int i = 0; i < N_CANDIDATES && n < MAX_FIT_OPTIONS; i++) {
        const FitCandidate *c = &candidates[i];
        JobSettings set = *r->job;
        int64_t bytes = 0;
        if (is_covered(c, found, n) || !apply(c, r->global, &temp, &set) ||
            compiled_bytes(r, &set, &temp, &bytes) != OK || bytes > r->available_bytes)
            continue;
        found[n] = c;
        out[n++] =
            (FitOption){c->recompute, c->zero, c->shrink > 1 ? set.batch.sequences : 0, bytes};
    }
    arena_close(&temp);
    return n;
}

static void fit_option_text(const FitOption *o, Text *t)
{
    char need[24];
    const char *join = "";
    if (o->recompute) {
        text_add(t, "parallel.recompute=%s", o->recompute);
        join = " ";
    }
    if (o->zero >= 0) {
        text_add(t, "%sparallel.zero=%d", join, o->zero);
        join = " ";
    }
    if (o->micro > 0) text_add(t, "%sbatch.micro=%lld", join, (long long)o->micro);
    text_add(t, " (%s)", text_bytes(o->bytes, need));
}

Err fit_check(const FitRequest *r)
{
    char need[24], have[24];
    const char *text;
    FitOption option[MAX_FIT_OPTIONS];
    if (r->needed_bytes <= r->available_bytes) return OK;
    const int n = fit_options(r, option);
    Text t = text_in(r->temp);
    for (int i = 0; i < n; i++) {
        text_add(&t, "%s", i ? "; " : "");
        fit_option_text(&option[i], &t);
    }
    if (n == 0)
        text_add(&t, "none of parallel.recompute, parallel.zero and batch.micro; use a smaller "
                     "data.seq_len or model, or more ranks");
    TRY(text_done(&t, &text));
    return err_fail(ERR_CONFIG,
                    "the run needs %s %s, %s are available; settings that fit, the cheapest first: "
                    "%s; `sheaf explain` lists what uses the memory",
                    text_bytes(r->needed_bytes, need), r->memory,
                    text_bytes(r->available_bytes, have), text);
}
