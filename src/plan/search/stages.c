/* stages.c -- searches arrangements of devices and splits of units; stages.h has the method. */
#include "plan/search/stages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/search/stages_parts.h"
#include "schedule/gen/generate.h"

enum { FIRST_ARRANGEMENTS = 3 };

/* Arrangements that take at most this times the best step have their units moved. */
static const double NEAR = 1.05;

/* ---- the clock ---- */

static Err fits(StageSearch *s, const StageChoice *choice, bool *out)
{
    const size_t mark = arena_mark(s->s->temp);
    const double *bytes;
    double *speed, *room;
    TRY(ARENA_NEW(s->s->temp, s->stages, &speed));
    TRY(ARENA_NEW(s->s->temp, s->stages, &room));
    TRY(stage_link(s, choice->count, &bytes));
    stage_devices(s, choice->at, speed, room);
    *out = true;
    for (int i = 0; i < s->stages; i++) *out = *out && bytes[i] <= room[i];
    arena_rewind(s->s->temp, mark);
    return OK;
}

/* Plays the units in this order of the nodes; NULL: on nodes that are alike. */
static Err play(StageSearch *s, const int16_t *count, const int *at, double *step_s)
{
    const size_t mark = arena_mark(&s->clocks);
    Cluster cluster = cluster_alike(s->r->cluster);
    PlanPoint p;
    StepTime t;
    TRY(stage_point(s, count, &p));
    const JobSettings job = search_job(s->s, &p);
    if (at) TRY(cluster_ordered(s->r->cluster, at, s->n, &s->clocks, &cluster));
    const ClockInput in = {.cluster = &cluster, .job = &job, .mesh = &s->mesh, .keeps_order = true};
    s->opened++;
    const Err err = clock_step(&in, &s->clocks, s->s->temp, &t);
    arena_rewind(&s->clocks, mark);
    *step_s = err == OK ? t.step_s : (double)INFINITY;
    return err == ERR_CONFIG ? OK : err;
}

/* Plays the choice, if it fits. */
static Err play_choice(StageSearch *s, StageChoice *choice)
{
    bool fit;
    choice->step_s = (double)INFINITY;
    TRY(fits(s, choice, &fit));
    return fit ? play(s, choice->count, choice->at, &choice->step_s) : OK;
}

static void copy_choice(const StageSearch *s, const StageChoice *from, StageChoice *to)
{
    memcpy(to->at, from->at, (size_t)s->n * sizeof *to->at);
    memcpy(to->count, from->count, (size_t)s->chunks * sizeof *to->count);
    to->step_s = from->step_s;
}

static Err new_choice(StageSearch *s, StageChoice *out)
{
    TRY(ARENA_NEW(s->s->arena, s->n, &out->at));
    return ARENA_NEW(s->s->arena, s->chunks, &out->count);
}

/* ---- arrangements ---- */

/* The formula: the pipeline fills with one micro-batch, then the slowest stage has the others. */
static double guess(const StageSearch *s, const StageChoice *choice, const double *speed)
{
    double all = 0, most = 0;
    for (int i = 0; i < s->stages; i++) {
        double seconds = 0;
        for (int c = 0, u = 0; c < s->chunks; c++)
            for (int k = 0; k < choice->count[c]; k++, u++)
                if (s->stage_of[c] == i) seconds += s->cost[u] / speed[i];
        all += seconds;
        most = fmax(most, seconds);
    }
    return all * s->stages / s->chunks + (s->micros - 1) * most;
}

/* Adds the arrangement s->kind_at: nodes of a kind in the order of their numbers. */
static Err add_arrangement(StageSearch *s)
{
    StageChoice *choice = &s->choice[s->n_choices];
    int next[MAX_DEVICE_KINDS] = {0};
    double *speed, *room;
    bool found;
    TRY(new_choice(s, choice));
    for (int b = 0; b < s->n; b++) {
        int *at = &next[s->kind_at[b]];
        while (s->kind_of[*at] != s->kind_at[b]) ++*at;
        choice->at[b] = (*at)++;
    }
    if (s->deals)
        TRY(stage_deal(s, choice->at, false, choice->count, &found));
    else
        memcpy(choice->count, s->given, (size_t)s->chunks * sizeof *s->given);
    const size_t mark = arena_mark(s->s->temp);
    TRY(ARENA_NEW(s->s->temp, s->stages, &speed));
    TRY(ARENA_NEW(s->s->temp, s->stages, &room));
    stage_devices(s, choice->at, speed, room);
    choice->step_s = guess(s, choice, speed);
    arena_rewind(s->s->temp, mark);
    choice->number = s->n_choices++;
    return OK;
}

/* Lists the arrangements of block b and those after it: within a stage, kinds rise. */
static Err arrange_from(StageSearch *s, int b, int *left)
{
    if (b == s->n) return add_arrangement(s);
    const bool same = b > 0 && stage_first(s, b - 1) == stage_last(s, b);
    for (int k = same ? s->kind_at[b - 1] : 0; k < s->n_kinds; k++) {
        if (left[k] == 0 || s->n_choices == MAX_ARRANGEMENTS) continue;
        s->kind_at[b] = k;
        left[k]--;
        TRY(arrange_from(s, b + 1, left));
        left[k]++;
    }
    return OK;
}

/* Lists the arrangements whose kinds are runs of blocks, in every order of the kinds. */
static Err arrange_runs(StageSearch *s, int b, int *left)
{
    if (b == s->n) return add_arrangement(s);
    for (int k = 0; k < s->n_kinds; k++) {
        const int run = left[k];
        if (run == 0 || s->n_choices == MAX_ARRANGEMENTS) continue;
        for (int i = 0; i < run; i++) s->kind_at[b + i] = k;
        left[k] = 0;
        TRY(arrange_runs(s, b + run, left));
        left[k] = run;
    }
    return OK;
}

static int by_step(const void *pa, const void *pb)
{
    const StageChoice *a = pa, *b = pb;
    if (a->step_s != b->step_s) return a->step_s < b->step_s ? -1 : 1;
    return a->number - b->number;
}

/* All arrangements, or runs of kinds if these are too many; the best by the formula first. */
static Err list_arrangements(StageSearch *s)
{
    int left[MAX_DEVICE_KINDS] = {0};
    for (int i = 0; i < s->n; i++) left[s->kind_of[i]]++;
    TRY(arrange_from(s, 0, left));
    if (s->n_choices == MAX_ARRANGEMENTS) {
        s->n_choices = 0;
        TRY(arrange_runs(s, 0, left));
    }
    qsort(s->choice, (size_t)s->n_choices, sizeof *s->choice, by_step);
    return OK;
}

/* Plays an arrangement with the units that are dealt to it, or else with the given ones. */
static Err play_arrangement(StageSearch *s, StageChoice *choice)
{
    bool found = false;
    if (s->deals) TRY(stage_deal(s, choice->at, true, choice->count, &found));
    if (!found) memcpy(choice->count, s->given, (size_t)s->chunks * sizeof *s->given);
    TRY(play_choice(s, choice));
    if (choice->step_s < s->best.step_s) copy_choice(s, choice, &s->best);
    return OK;
}

/* Plays arrangements, the best by the formula first, with half of the splits; a few if the plan is
 * far slower than another. */
static Err play_arrangements(StageSearch *s)
{
    const double best_guess = s->choice[0].step_s;
    int n = 0;
    for (; n < s->n_choices && s->opened < (s->r->max_splits + 1) / 2; n++) {
        if (s->choice[n].step_s > 1.5 * best_guess && s->best.step_s < (double)INFINITY) break;
        if (n >= FIRST_ARRANGEMENTS && s->best.step_s > NEAR * s->r->best_s) break;
        TRY(play_arrangement(s, &s->choice[n]));
    }
    s->n_choices = n;
    qsort(s->choice, (size_t)n, sizeof *s->choice, by_step);
    return OK;
}

/* Moves a unit if the step gets shorter and the stages fit. */
static Err try_move(StageSearch *s, StageChoice *choice, int from, int to, bool *better)
{
    double step_s;
    bool fit = false;
    choice->count[from]--;
    choice->count[to]++;
    TRY(play(s, choice->count, choice->at, &step_s));
    if (step_s < choice->step_s * (1 - 1e-12)) TRY(fits(s, choice, &fit));
    if (fit) {
        choice->step_s = step_s;
        *better = true;
        return OK;
    }
    choice->count[from]++;
    choice->count[to]--;
    return OK;
}

/* Moves single units between chunks while the step gets shorter. */
static Err move_units(StageSearch *s, StageChoice *choice)
{
    for (bool better = true; better;) {
        better = false;
        for (int i = 0; i < s->chunks * s->chunks && s->opened < s->r->max_splits; i++) {
            const int from = i / s->chunks, to = i % s->chunks;
            if (from != to && choice->count[from] > 1) TRY(try_move(s, choice, from, to, &better));
        }
    }
    if (choice->step_s < s->best.step_s) copy_choice(s, choice, &s->best);
    return OK;
}

/* ---- the whole search ---- */

static Err open_stages(StageSearch *s, const StageRequest *r, const PlanPoint *p)
{
    JobSettings set = search_job(r->search, p);
    Job *job;
    s->r = r;
    s->s = r->search;
    s->point = p;
    s->each = r->cluster->rates.level[0].ranks;
    s->stages = p->mesh.pp;
    s->micros = set.micros;
    s->best.step_s = (double)INFINITY;
    TRY(mesh_sized(&set.parallel.mesh, &s->mesh));
    s->stage_ranks = s->mesh.world / s->stages;
    s->n = s->mesh.world < s->each ? 1 : s->mesh.world / s->each;
    if (s->mesh.world > s->each && s->mesh.world % s->each != 0)
        return err_fail(ERR_CONFIG,
                        "%d ranks are no whole number of nodes of %d ranks, whose devices "
                        "differ; use a multiple of %d",
                        s->mesh.world, s->each, s->each);
    TRY(ARENA_NEW(s->s->arena, s->n, &s->kind_of));
    TRY(ARENA_NEW(s->s->arena, s->n, &s->kind_at));
    stage_kinds(s);
    TRY(ARENA_NEW(&s->clocks, 1, &job));
    TRY(job_share(&set, &s->clocks, job));
    s->chunks = job->chunks.chunks;
    s->units = job->model.n_units;
    s->stage_of = job->chunks.stage_of;
    TRY(ARENA_NEW(&s->clocks, s->chunks, &s->given));
    for (int c = 0; c < s->chunks; c++)
        s->given[c] = (int16_t)(job->chunks.first_unit[c + 1] - job->chunks.first_unit[c]);
    s->deals = s->stages > 1 && s->n_kinds > 1 && !r->keeps_split && !schedule_is_file(p->schedule);
    TRY(new_choice(s, &s->best));
    TRY(ARENA_NEW(&s->clocks, s->units, &s->cost));
    return job_unit_costs(job, s->s->temp, s->cost);
}

/* The best order of the nodes for the best split, by their links too. */
static Err map_links(StageSearch *s)
{
    const size_t mark = arena_mark(&s->clocks);
    const double *bytes;
    double *need;
    PlanPoint p;
    NodeMap map;
    TRY(stage_link(s, s->best.count, &bytes));
    TRY(stage_point(s, s->best.count, &p));
    const JobSettings job = search_job(s->s, &p);
    const ClockInput in = {.cluster = s->r->cluster, .job = &job, .mesh = &s->mesh};
    TRY(ARENA_NEW(&s->clocks, s->n, &need));
    for (int b = 0; b < s->n; b++)
        for (int i = stage_first(s, b); i <= stage_last(s, b); i++) {
            need[b] = fmax(need[b], bytes[i]);
            if (need[b] > s->r->limit_bytes) need[b] = (double)INFINITY;
        }
    TRY(plan_map(&in, need, s->r->max_plays, &s->clocks, s->s->temp, &map));
    if (map.step_s < s->best.step_s) {
        memcpy(s->best.at, map.at, (size_t)s->n * sizeof *map.at);
        s->best.step_s = map.step_s;
    }
    arena_rewind(&s->clocks, mark);
    return OK;
}

/* The request's plan on nodes that are alike, and in the order of the nodes' numbers, which is the
 * best so far if it fits. */
static Err play_given(StageSearch *s, NodeMap *map)
{
    bool fit;
    memcpy(s->best.count, s->given, (size_t)s->chunks * sizeof *s->given);
    for (int i = 0; i < s->n; i++) s->best.at[i] = i;
    TRY(play(s, s->given, NULL, &map->alike_s));
    TRY(play(s, s->given, s->best.at, &map->in_order_s));
    TRY(fits(s, &s->best, &fit));
    if (fit) s->best.step_s = map->in_order_s;
    return OK;
}

static Err search_stages(StageSearch *s, StagePlan *out)
{
    const double *bytes;
    *out = (StagePlan){.map = {.n = s->n, .at = s->best.at}};
    TRY(play_given(s, &out->map));
    TRY(list_arrangements(s));
    TRY(play_arrangements(s));
    for (int i = 0; i < s->n_choices && s->opened < s->r->max_splits && s->deals; i++)
        if (s->choice[i].step_s <= NEAR * fmin(s->best.step_s, s->r->best_s))
            TRY(move_units(s, &s->choice[i]));
    out->map.step_s = s->best.step_s;
    out->splits = s->opened;
    if (s->best.step_s == (double)INFINITY) return OK;
    if (s->r->cluster->rates.nodes->n_links > 0) TRY(map_links(s));
    out->map.step_s = s->best.step_s;
    TRY(stage_link(s, s->best.count, &bytes));
    for (int i = 0; i < s->stages; i++) out->memory_bytes = fmax(out->memory_bytes, bytes[i]);
    return stage_point(s, s->best.count, &out->point);
}

Err plan_stages(const StageRequest *r, const PlanPoint *p, StagePlan *out)
{
    const size_t mark = arena_mark(r->search->temp);
    StageSearch *s;
    TRY(ARENA_NEW(r->search->temp, 1, &s));
    TRY(arena_open(&s->clocks, "clocks", ARENA_PLENTY));
    Err err = open_stages(s, r, p);
    if (err == OK) err = search_stages(s, out);
    arena_close(&s->clocks);
    arena_rewind(r->search->temp, mark);
    return err;
}
