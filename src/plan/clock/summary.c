/* summary.c -- compiles a job of one or two stages and reads the summaries of its units.
 *
 * Ranks that differ along dp have equal programs, so those with coordinate 0 are compiled. Seconds
 * and bytes of a unit are the greatest of these ranks; seconds of a RUN come from playing it on all
 * of them together. */
#include "plan/clock/summary.h"

#include <string.h>
#include "plan/clock/parts.h"
#include "schedule/gen/generate.h"
#include "schedule/packs.h"

typedef struct {
    StepClock clock;
    ClockInput in; /* of the reduced job */
    JobSettings job;
    Mesh mesh;
    Cluster device; /* the cluster without launches by the host, which are played across RUNs */
    Job **rank;     /* [clock.n_tapes] */
    Arena *arena, *temp;
    LayoutSummary *out;
} Summarizer;

static double larger(double a, double b) { return a > b ? a : b; }

/* True if a parameter is of several units, and stages may part them; a V keeps both ends. */
static bool is_apart(const Model *m, bool ends_meet)
{
    for (int i = 0; i < m->n_params; i++)
        for (int h = 1; h < m->param[i].n_holders; h++)
            if (!ends_meet || m->param[i].holder[0] > 0 || m->param[i].holder[h] < m->n_units - 1)
                return true;
    return false;
}

Err clock_ends_meet(const JobSettings *job, Arena *temp, bool *out)
{
    const GeneratorRow *row;
    *out = job->parallel.mesh.pp <= 1;
    if (*out || schedule_is_file(job_schedule(job))) return OK;
    TRY(schedule_generator(job_schedule(job), temp, &row));
    *out = row->order == CHUNKS_V;
    return OK;
}

/* Slices of a micro-batch: as set, or the default of the job's schedule. */
static Err slices_of(const JobSettings *job, Arena *temp, int *out)
{
    const GeneratorRow *row;
    const char *name = job_schedule(job);
    *out = job->parallel.slices > 0 ? job->parallel.slices : 1;
    if (job->parallel.slices > 0 || schedule_is_file(name)) return OK;
    TRY(schedule_generator(name, temp, &row));
    if (row->slices > 0) *out = row->slices;
    return OK;
}

/* The smallest job whose units have the programs and the packs of the given one. */
static Err reduce_job(Summarizer *s, const ClockInput *in)
{
    JobSettings *job = &s->job;
    ParallelSettings *p = &job->parallel;
    Model model;
    int slices;
    bool ends_meet;
    *job = *in->job;
    TRY(slices_of(job, s->temp, &slices));
    TRY(clock_ends_meet(job, s->temp, &ends_meet));
    TRY(model_build(job->config, job->dtype, job->batch, s->temp, &model));
    p->mesh.pp = p->mesh.pp > 1 && is_apart(&model, ends_meet) ? 2 : 1;
    p->schedule = slices > 1 ? "gpipe" : "1f1b";
    p->slices = slices;
    p->chunks = p->group = p->rank = 0;
    p->evict = false;
    p->split = NULL;
    job->split = false;
    job->sizes_only = true;
    job->n_stage_rules = 0;
    if (job->micros > 2) job->micros = 2; /* a second one adds to the gradients of the first */
    TRY(mesh_sized(&p->mesh, &s->mesh));
    s->in = (ClockInput){.cluster = in->cluster, .job = job, .mesh = &s->mesh};
    s->device = *in->cluster;
    s->device.host_launch_s = s->device.host_member_s = 0;
    return OK;
}

static Err compile_ranks(Summarizer *s)
{
    StepClock *c = &s->clock;
    Job *shared;
    *c = (StepClock){.in = &s->in, .arena = s->temp};
    TRY(clock_assign(c, clock_equal_axes(&s->in)));
    TRY(ARENA_NEW(s->temp, c->n_tapes, &s->rank));
    TRY(ARENA_NEW(s->temp, 1, &shared));
    TRY(job_share(&s->job, s->temp, shared));
    for (int i = 0; i < c->n_tapes; i++) {
        TRY(ARENA_NEW(s->temp, 1, &s->rank[i]));
        TRY(job_compile_rank(shared, c->tape[i].rank, s->temp, s->rank[i]));
    }
    return OK;
}

static bool is_here(const Summarizer *s, int i, int unit)
{
    const LinkedProgram *lp = &s->rank[i]->linked;
    return lp->unit[unit].stage == lp->stage;
}

/* Lets the ranks that were recorded meet without the others: the reduction of tied weights also
 * has ranks of the other stage that holds them. */
static Err meet_recorded(Summarizer *s)
{
    StepClock *c = &s->clock;
    const size_t mark = arena_mark(s->temp);
    int *last; /* [channels]: 1 + the last tape that begins a transfer on it */
    TRY(ARENA_NEW(s->temp, c->n_channels + 1, &last));
    for (int i = 0; i < c->n_tapes; i++)
        for (int e = 0; e < c->tape[i].n; e++) {
            const ClockEvent *event = &c->tape[i].event[e];
            if (event->event != EVENT_BEGIN || last[event->channel] == i + 1) continue;
            if (last[event->channel] == 0) c->channel[event->channel].members = 0;
            c->channel[event->channel].members++;
            last[event->channel] = i + 1;
        }
    arena_rewind(s->temp, mark);
    return OK;
}

/* Plays a part of the unit on the ranks that hold it. */
static Err play_part(Summarizer *s, int unit, const ClockPart *part, StepTime *out)
{
    StepClock *c = &s->clock;
    for (int i = 0; i < c->n_tapes; i++) {
        c->tape[i].n = 0;
        if (is_here(s, i, unit))
            TRY(clock_record_part(c, &s->rank[i]->linked, part, s->temp, &c->tape[i]));
    }
    TRY(clock_recorded(c));
    TRY(meet_recorded(s));
    return clock_play(c, &s->device, out);
}

/* Adds the seconds of a part. */
static Err add_seconds(Summarizer *s, int unit, ClockPart part, double *out)
{
    StepTime time;
    TRY(play_part(s, unit, &part, &time));
    *out += time.step_s;
    return OK;
}

/* The host's seconds to launch the kernels and transfers, on the rank with most; and whether it
 * waits. */
static double launch_seconds(const StepClock *c, const Cluster *cluster, bool *waits)
{
    double most = 0;
    for (int i = 0; i < c->n_tapes; i++) {
        double seconds = 0;
        for (int e = 0; e < c->tape[i].n; e++) {
            const ClockEvent *event = &c->tape[i].event[e];
            if (event->event == EVENT_WORK) seconds += cluster->host_launch_s;
            if (event->event == EVENT_BEGIN)
                seconds += cluster_launch_s(cluster, c->channel[event->channel].group.n);
            *waits = *waits || event->event == EVENT_WAIT;
        }
        most = larger(most, seconds);
    }
    return most;
}

/* If waits within the RUN stop the host, its launches are part of the RUN's seconds. */
static Err play_run(Summarizer *s, Action run, RunSummary *out)
{
    const Cluster *cluster = s->in.cluster;
    StepTime time;
    bool waits = false;
    TRY(play_part(s, run.unit, &(ClockPart){.kind = PART_RUN, .run = run}, &time));
    const double host_s = launch_seconds(&s->clock, cluster, &waits);
    const bool stops = cluster->stops_host & (1u << TRANSFER_TP | 1u << TRANSFER_CP) && waits;
    if (stops) TRY(clock_play(&s->clock, cluster, &time));
    *out = (RunSummary){.seconds = time.step_s,
                        .tp_s = time.path_s[TIME_TP] + time.path_s[TIME_EP],
                        .cp_s = time.path_s[TIME_CP],
                        .host_s = stops ? 0 : host_s};
    return OK;
}

static Err play_runs(Summarizer *s, int unit, UnitSummary *u)
{
    const int slices = s->out->slices;
    RunSummary *run;
    TRY(ARENA_NEW(s->arena, slices * N_PHASES, &run));
    for (int q = 0; q < slices; q++)
        for (int phase = 0; phase < N_PHASES; phase++)
            TRY(play_run(s, action_run((Phase)phase, unit, 0, q), &run[q * N_PHASES + phase]));
    u->run = run;
    return OK;
}

/* The last action of a kind of the pack: a second REDUCE adds to the sum of the first. */
static int last_action(const LinkedProgram *lp, int pack, ActionKind kind)
{
    int at = lp->n - 1;
    while (at >= 0 && (lp->list[at].action.kind != kind || lp->list[at].action.unit != pack)) at--;
    return at;
}

/* Seconds of transfers of a unit, by view of the mesh. */
typedef struct {
    double gather[2][MAX_VIEWS], reduce[2][MAX_VIEWS]; /* by GatherWhen, by ReduceWhen */
} ViewSeconds;

/* The transfers of a pack and its end of the step. Lists of ranks of one stage are alike. */
static Err add_pack(Summarizer *s, const Job *job, int pack, ViewSeconds *views, UnitSummary *u)
{
    const LinkedProgram *lp = &job->linked;
    const PackSwitches *row = &job->switches[pack];
    const int gather = last_action(lp, pack, A_GATHER), reduce = last_action(lp, pack, A_REDUCE);
    const int unit = lp->model->pack[pack].unit, view = lp->model->pack[pack].view;
    ReduceSummary *r = &u->reduce[row->reduce];
    if (reduce >= 0) {
        TRY(add_seconds(s, unit, (ClockPart){.kind = PART_BEFORE, .at = reduce}, &r->before_s));
        TRY(add_seconds(s, unit, (ClockPart){.kind = PART_BEGUN, .at = reduce},
                        &views->reduce[row->reduce][view]));
        TRY(add_seconds(s, unit, (ClockPart){.kind = PART_AFTER, .at = reduce}, &r->after_s));
    }
    if (gather >= 0)
        TRY(add_seconds(s, unit, (ClockPart){.kind = PART_BEGUN, .at = gather},
                        &views->gather[row->gather][view]));
    TRY(add_seconds(s, unit, (ClockPart){.kind = PART_NORM, .pack = pack}, &u->norm_s));
    TRY(add_seconds(s, unit, (ClockPart){.kind = PART_QUANTIZE, .pack = pack}, &u->quantize_s));
    return add_seconds(s, unit, (ClockPart){.kind = PART_UPDATE, .pack = pack}, &u->update_s);
}

/* Packs of several views are gathered and reduced over several groups. Where transfers overlap and
 * do not share links, these take place at the same time, and the longest counts. */
static void add_beside(bool beside, const double by_view[MAX_VIEWS], double *out)
{
    double sum = 0, most = 0;
    for (int v = 0; v < MAX_VIEWS; v++) {
        sum += by_view[v];
        most = larger(most, by_view[v]);
    }
    *out += beside ? most : sum;
}

/* The gathers before each use of packs of other units whose parameters the unit reads too. */
static Err add_tied(Summarizer *s, const Job *job, int unit, ViewSeconds *views)
{
    const LinkedProgram *lp = &job->linked;
    const Unit *of = &job->model.unit[unit];
    int last = -1;
    for (int k = 0; k < of->n_params; k++) {
        const Param *p = &job->model.param[of->param[k]];
        const int pack = p->pack, owner = job->model.pack[pack].unit;
        if (owner == unit || pack == last || job->switches[pack].gather != GATHER_USE) continue;
        const int gather = last_action(lp, pack, A_GATHER);
        last = pack;
        if (gather >= 0)
            TRY(add_seconds(s, owner, (ClockPart){.kind = PART_BEGUN, .at = gather},
                            &views->gather[GATHER_USE][job->model.pack[pack].view]));
    }
    return OK;
}

static Err add_packs(Summarizer *s, const Job *job, int unit, UnitSummary *u)
{
    const Unit *of = &job->model.unit[unit];
    const Cluster *c = s->in.cluster;
    const bool beside = c->overlaps && !(c->serial >> TRANSFER_DP & 1) && !c->share_links;
    ViewSeconds views = {0};
    for (int p = of->first_pack; p < of->first_pack + of->n_packs; p++)
        TRY(add_pack(s, job, p, &views, u));
    TRY(add_tied(s, job, unit, &views));
    for (int when = 0; when < 2; when++) {
        add_beside(beside, views.gather[when], &u->gather_s[when]);
        add_beside(beside, views.reduce[when], &u->reduce[when].begun_s);
    }
    return OK;
}

static Err add_actions(Summarizer *s, const Job *job, int unit, UnitSummary *u)
{
    const LinkedProgram *lp = &job->linked;
    TRY(add_packs(s, job, unit, u));
    for (int i = 0; i < lp->n; i++)
        if (lp->list[i].prepacks && lp->list[i].action.unit == unit)
            TRY(add_seconds(s, unit, (ClockPart){.kind = PART_PREPACKS, .at = i}, &u->prepack_s));
    return OK;
}

static double cells_of(const LinkedProgram *lp, int unit)
{
    const Unit *of = &lp->model->unit[unit];
    int64_t cells = 0;
    for (int p = of->first_pack; p < of->first_pack + of->n_packs; p++) {
        const PackMemory *m = &lp->pack[p];
        for (int i = 0; i < m->group.n; i++) cells += (m->counts[i] + lp->block - 1) / lp->block;
    }
    return (double)cells;
}

/* The scales of the unit's coded weights, by the ranks that share them. */
static void add_scales(const LinkedProgram *lp, int unit, UnitSummary *u)
{
    const Unit *of = &lp->model->unit[unit];
    double cells[MAX_SCALES] = {0};
    for (int p = of->first_pack; p < of->first_pack + of->n_packs; p++)
        for (int i = 0; i < lp->pack[p].n_coded; i++) {
            const CodedWeight *w = &lp->pack[p].coded[i];
            for (int s = 0; s < MAX_SCALES; s++)
                if (w->at >= lp->scales[s].first && w->at < lp->scales[s].first + lp->scales[s].n)
                    cells[s] += (double)coded_cells(w);
        }
    for (int s = 0; s < MAX_SCALES; s++) u->scale_cells[s] = larger(u->scale_cells[s], cells[s]);
}

/* The elements of the unit's own weights: the greatest of its ranks. */
static Err add_weights(Summarizer *s, const LinkedProgram *lp, int unit, UnitSummary *u)
{
    const Unit *of = &lp->model->unit[unit];
    const Graph *g = &lp->model->kind[of->kind];
    WeightSummary *weight = (WeightSummary *)(uintptr_t)u->weight;
    if (!weight) TRY(ARENA_NEW(s->arena, of->n_params + 1, &weight));
    u->weight = weight;
    u->n_weights = 0;
    for (int k = 0; k < of->n_params; k++) {
        const int param = of->param[k];
        if (lp->model->param[param].holder[0] != unit) continue;
        WeightSummary *w = &weight[u->n_weights++];
        if (!w->name) TRY(arena_string(s->arena, g->param[k].name, &w->name));
        w->view = lp->model->param[param].info.view;
        w->coded = lp->model->param[param].info.coded;
        w->count = larger(w->count, (double)lp->param_count[param]);
    }
    return OK;
}

/* True if a parameter of the unit's packs is on two stages. */
static bool is_late(const Model *m, const Unit *of)
{
    for (int p = of->first_pack; p < of->first_pack + of->n_packs; p++)
        for (int k = 0; k < m->pack[p].n_params; k++)
            if (model_is_shared(m, m->pack[p].param[k])) return true;
    return false;
}

static bool reads_packs(const Unit *of, const PackSet *set)
{
    for (int p = of->first_pack; p < of->first_pack + of->n_packs; p++)
        if (packs_has(set, p)) return true;
    return false;
}

static Err summarize_unit(Summarizer *s, int unit, UnitSummary *u)
{
    const Job *job = NULL;
    UnitSummary *alone = NULL; /* the first rank's */
    for (int i = 0; i < s->clock.n_tapes; i++) {
        if (!is_here(s, i, unit)) continue;
        const LinkedProgram *lp = &s->rank[i]->linked;
        job = s->rank[i];
        clock_add_bytes(job, unit, u);
        if (!alone) {
            TRY(ARENA_NEW(s->arena, 1, &alone));
            clock_add_bytes(job, unit, alone);
        }
        add_scales(lp, unit, u);
        TRY(add_weights(s, lp, unit, u));
        u->norm_cells = larger(u->norm_cells, cells_of(lp, unit));
    }
    if (!clock_same_bytes(u, alone)) u->first = alone;
    const UnitPacks *packs;
    TRY(packs_of_model(&job->model, &job->programs, s->temp, &packs));
    for (int phase = 0; phase < N_PHASES; phase++)
        if (reads_packs(&job->model.unit[unit], &packs[unit].reads[phase]))
            u->reads |= (uint8_t)(1u << phase);
    u->late = is_late(&job->model, &job->model.unit[unit]);
    TRY(arena_string(s->arena, linked_program(&job->linked, unit, 0, 0)->kind, &u->kind));
    TRY(add_actions(s, job, unit, u));
    return play_runs(s, unit, u);
}

/* The members of a group on the first stage. */
static Err copy_group(Summarizer *s, RankList from, RankList *out)
{
    int32_t *rank;
    int n = 0;
    TRY(ARENA_NEW(s->arena, from.n, &rank));
    for (int i = 0; i < from.n; i++)
        if (from.rank[i] < s->out->stage_ranks) rank[n++] = from.rank[i];
    *out = (RankList){n, rank};
    return OK;
}

/* Classes of the units of all stages, by kind. A rank's table has some for units of other stages
 * too, but only their streams are right there (job/programs.c). */
static Err find_classes(Summarizer *s)
{
    const Job *job = s->rank[0];
    LayoutSummary *out = s->out;
    int16_t *class_of;
    TRY(ARENA_NEW(s->arena, out->n_units, &class_of));
    for (int k = 0; k < job->model.n_kinds; k++)
        for (int u = 0; u < out->n_units; u++) {
            if (job->model.unit[u].kind != k) continue;
            class_of[u] = job->alike[u] == u ? (int16_t)out->n_classes++ : class_of[job->alike[u]];
        }
    out->class_of = class_of;
    return ARENA_NEW(s->arena, out->n_classes, &out->class);
}

static Err summarize(Summarizer *s)
{
    LayoutSummary *out = s->out;
    const LinkedProgram *lp = &s->rank[0]->linked;
    *out = (LayoutSummary){.slices = lp->slices,
                           .n_units = lp->model->n_units,
                           .stage_ranks = s->mesh.world / s->job.parallel.mesh.pp,
                           .live = s->job.parallel.live ? s->job.parallel.live : 2};
    TRY(find_classes(s));
    for (int u = 0; u < out->n_units; u++)
        if (s->rank[0]->alike[u] == u) TRY(summarize_unit(s, u, &out->class[out->class_of[u]]));
    TRY(copy_group(s, lp->scalar[TOTALS].group, &out->totals));
    TRY(copy_group(s, lp->scalar[BLOCKS].group, &out->blocks));
    TRY(copy_group(s, lp->scalar[STATS].group, &out->stats));
    out->stat_cells = (double)lp->scalar[STATS].cells;
    for (int i = 0; i < MAX_SCALES; i++)
        if (lp->scales[i].n > 0) TRY(copy_group(s, lp->scales[i].group, &out->scales[i]));
    return copy_group(s, lp->scalar[SQUARES].group, &out->squares);
}

Err clock_summarize(const ClockInput *in, Arena *arena, Arena *temp, LayoutSummary *out)
{
    const size_t mark = arena_mark(temp);
    Summarizer *s;
    if (in->job->parallel.in_order || in->job->parallel.evict)
        return err_fail(ERR_CONFIG, "coarse clock: %s has no summary; play it with the clock",
                        in->job->parallel.evict ? "parallel.evict" : "a job without overlap");
    TRY(ARENA_NEW(temp, 1, &s));
    s->arena = arena;
    s->temp = temp;
    s->out = out;
    TRY(reduce_job(s, in));
    TRY(compile_ranks(s));
    TRY(summarize(s));
    arena_rewind(temp, mark);
    return OK;
}
