/* job.c -- the stages of the compiler, one after another. */
#include "train/job.h"

#include <string.h>
#include "compile/names.h"
#include "schedule/check.h"
#include "schedule/chunks.h"
#include "schedule/evict.h"
#include "schedule/expand.h"
#include "schedule/generate.h"
#include "schedule/passes.h"
#include "schedule/reduce.h"
#include "train/slices.h"

/* The stage that the job's rank is on. */
static int stage_of(const Job *job)
{
    const unsigned pp = mesh_axes(&job->mesh, VIEW_DENSE, "pp");
    return mesh_part(&job->mesh, VIEW_DENSE, pp, job->settings.parallel.rank);
}

CompileOptions job_options(const Job *job)
{
    CompileOptions o = job->settings.compile;
    for (int i = job->settings.n_stage_rules - 1; i >= 0; i--) {
        const StageRecompute *s = &job->settings.stage[i];
        if (stage_of(job) >= s->first && stage_of(job) <= s->last) o.recompute = s->recompute;
    }
    o.mesh = &job->mesh;
    o.strategy = &job->strategy;
    o.rank = job->settings.parallel.rank;
    o.keep_gathered = job->settings.parallel.keep_gathered;
    o.in_order = job->settings.parallel.in_order;
    o.backward = job->settings.kind != JOB_LOSS;
    o.slice_rows = job->slices.n > 1 ? slices_longest(&job->slices) : 0;
    return o;
}

static Err check_names(const Job *job, Arena *temp)
{
    const CompileOptions *o = &job->settings.compile;
    const Model *m = &job->model;
    if (o->recompute == RECOMPUTE_NAMED)
        TRY(names_check("parallel.recompute", o->recompute_names, m->kind, m->n_kinds, temp));
    return names_check("parallel.offload", o->offload_names, m->kind, m->n_kinds, temp);
}

/* Slices of one length share their programs. */
static Err compile_slices(Job *job, Arena *arena)
{
    const int n = job->slices.n;
    const int64_t *cut = job->slices.cut, longest = slices_longest(&job->slices);
    CompileOptions o = job_options(job);
    job->by_slice = job->program;
    if (n > 1) TRY(ARENA_NEW(arena, (int64_t)job->model.n_kinds * n, &job->by_slice));
    for (int k = 0; k < job->model.n_kinds; k++)
        for (int q = 0; q < n; q++) {
            Program *p = &job->by_slice[k * n + q];
            const int64_t rows = cut[q + 1] - cut[q];
            int same = 0;
            while (cut[same + 1] - cut[same] != rows) same++;
            if (n > 1) o.slice_rows = rows;
            if (same < q)
                *p = job->by_slice[k * n + same];
            else
                TRY(compile_unit(&job->model.kind[k], &o, NULL, NULL, arena, p));
            if (n > 1 && rows == longest) job->program[k] = *p;
        }
    return OK;
}

static Err compile_kinds(Job *job, Arena *arena)
{
    const CompileOptions o = job_options(job);
    TRY(compile_slices(job, arena));
    if (!o.backward) return OK;
    if (o.recompute == RECOMPUTE_NAMED)
        TRY(names_check_effect("parallel.recompute", o.recompute_names, NAMES_AGAIN, job->program,
                               job->model.n_kinds, arena));
    return names_check_effect("parallel.offload", o.offload_names, NAMES_OFFLOAD, job->program,
                              job->model.n_kinds, arena);
}

const char *job_schedule(const JobSettings *settings)
{
    return settings->parallel.schedule ? settings->parallel.schedule : settings->schedule;
}

static void keep_forward(Schedule *s)
{
    for (int rank = 0; rank < s->ranks; rank++) {
        int n = 0;
        for (int i = 0; i < s->n[rank]; i++) {
            const Action *a = &s->list[rank][i];
            const bool moves = a->kind == A_RUN || a->kind == A_SEND || a->kind == A_RECV;
            if (moves && a->phase == PHASE_F) s->list[rank][n++] = *a;
        }
        s->n[rank] = n;
    }
}

static Err check_parallel(const Job *job)
{
    const ParallelSettings *p = &job->settings.parallel;
    const int dp = mesh_parts(&job->mesh, VIEW_DENSE, mesh_axes(&job->mesh, VIEW_DENSE, "dp"));
    if (p->rank < 0 || p->rank >= job->mesh.world)
        return err_fail(ERR_CONFIG, "rank %d: the mesh has ranks 0 to %d", p->rank,
                        job->mesh.world - 1);
    if (p->zero < 0 || p->zero > 3)
        return err_fail(ERR_CONFIG, "parallel.zero=%d: levels are 0 to 3", p->zero);
    if (p->fold <= 1) return OK;
    if (p->mesh.pp > 1)
        return err_fail(ERR_CONFIG,
                        "numerics.fold=%d with mesh.pp=%d: a fold imitates the order of sums of so "
                        "many ranks on one; set mesh.pp=1 or numerics.fold=1",
                        p->fold, p->mesh.pp);
    if (dp > 1)
        return err_fail(ERR_CONFIG,
                        "numerics.fold=%d with dp=%d: a fold imitates the order of sums of so many "
                        "ranks on one; set mesh.dp=1 or numerics.fold=1",
                        p->fold, dp);
    if (p->reduce_each || p->zero >= 2)
        return err_fail(ERR_CONFIG,
                        "numerics.fold=%d with reductions after each micro-batch (parallel.zero=%d "
                        "or parallel.reduce=each): it imitates reductions after the last; set "
                        "parallel.reduce=last and parallel.zero=0 or 1",
                        p->fold, p->zero);
    if (job->settings.micros % p->fold != 0)
        return err_fail(ERR_CONFIG,
                        "numerics.fold=%d: the rank has %d micro-batches, which are not so many "
                        "equal groups; set batch.global so that they are",
                        p->fold, job->settings.micros);
    return OK;
}

/* How many micro-batches are summed on the rank before a REDUCE; 0 where nothing is sent. */
static int reduce_group(const Job *job, UnitSwitches row)
{
    const int fold = job->settings.parallel.fold;
    if (fold > 1) return job->settings.micros / fold;
    if (job->mesh.world == 1 && row.reduce == REDUCE_AFTER_LAST) return 0;
    return switches_group(row, job->settings.micros);
}

/* Does another stage hold a parameter of the unit's pack too? */
static bool is_shared(const Model *m, int unit)
{
    const Unit *u = &m->unit[unit];
    for (int k = 0; k < u->n_params; k++)
        if (m->param[u->param[k]].holder[0] == unit && model_is_shared(m, u->param[k])) return true;
    return false;
}

/* The row of a unit. What several stages sum is summed once a step, after all that they run: on the
 * way one would wait for another that waits for it. */
static UnitSwitches row_of(const Job *job, bool shared)
{
    const ParallelSettings *p = &job->settings.parallel;
    UnitSwitches row = switches_of_zero(p->zero, p->reduce_each);
    if (shared) row.reduce = REDUCE_AFTER_LAST;
    return row;
}

/* Adds what the units' rows of switches ask for. */
static Err add_transfers(Job *job, Arena *arena)
{
    const JobSettings *set = &job->settings;
    const ParallelSettings *p = &set->parallel;
    const int n = job->model.n_units;
    const UnitPacks *packs;
    int *group, *sums;
    bool *apart, *late;
    Schedule reduced, *from = &job->units;
    TRY(packs_of_model(&job->model, job->program, arena, &packs));
    TRY(ARENA_NEW(arena, n, &group));
    TRY(ARENA_NEW(arena, n, &apart));
    TRY(ARENA_NEW(arena, n, &late));
    TRY(ARENA_NEW(arena, n, &sums));
    TRY(ARENA_NEW(arena, n, &job->switches));
    TRY(ARENA_NEW(arena, n, &job->gathers));
    for (int u = 0; u < n; u++) {
        late[u] = is_shared(&job->model, u);
        job->switches[u] = row_of(job, late[u]);
        group[u] = reduce_group(job, job->switches[u]);
        apart[u] = group[u] > 0 && job->switches[u].reduce == REDUCE_AFTER_EACH;
    }
    if (set->kind == JOB_LOSS) {
        keep_forward(from);
    } else {
        TRY(schedule_reduces(from, &(ReduceInput){packs, group, apart, late}, arena, &reduced,
                             sums));
        from = &reduced;
    }
    const GatherInput gather = {job->switches, packs, p->live ? p->live : 2};
    Schedule gathered;
    TRY(schedule_gathers(from, &gather, arena, &gathered, job->gathers));
    job->units = gathered;
    return OK;
}

/* Flops of a unit, there and back, at full extents. */
static double unit_cost(const Job *job, int unit)
{
    const Program *p = &job->program[job->model.unit[unit].kind];
    double flops = 0;
    for (int i = 0; i < p->n_instr; i++)
        if (p->instr[i].phase == PHASE_F || p->instr[i].phase == PHASE_B)
            flops += p->instr[i].flops;
    return flops;
}

/* Does a file say how many units its chunks have? One each is what it says by saying nothing. */
static Err units_of_file(const Job *job, bool *out)
{
    const Schedule *s = &job->chunks;
    const ParallelSettings *p = &job->settings.parallel;
    bool one_each = true;
    for (int c = 0; c < s->chunks; c++)
        one_each = one_each && s->first_unit[c + 1] - s->first_unit[c] == 1;
    *out = schedule_is_file(job_schedule(&job->settings)) && !one_each;
    if (!*out) return OK;
    if (p->split && strcmp(p->split, "even") != 0)
        return err_fail(ERR_CONFIG,
                        "parallel.split=%s: parallel.schedule=%s says how many units its chunks "
                        "have; leave one of the two out",
                        p->split, job_schedule(&job->settings));
    if (schedule_units(s) == job->model.n_units) return OK;
    return err_fail(ERR_CONFIG,
                    "parallel.schedule=%s has %d units in its chunks; the model has %d (embedding, "
                    "layers, head): change its line `units`, or leave it out",
                    job_schedule(&job->settings), schedule_units(s), job->model.n_units);
}

/* Which units are in which chunk; tied weights whose units are on several stages become copies. */
static Err cut_units(Job *job, Arena *arena)
{
    const char *split = job->settings.parallel.split;
    const int units = job->model.n_units;
    double *cost;
    int16_t *stage;
    TRY(ARENA_NEW(arena, units, &cost));
    TRY(ARENA_NEW(arena, units, &stage));
    for (int u = 0; u < units; u++) cost[u] = unit_cost(job, u);
    const ChunkRequest request = {split ? split : "even", units, job->chunks.chunks, cost};
    bool given;
    TRY(units_of_file(job, &given));
    if (!given) TRY(schedule_chunks(&request, arena, &job->chunks.first_unit));
    for (int c = 0; c < job->chunks.chunks; c++)
        for (int u = job->chunks.first_unit[c]; u < job->chunks.first_unit[c + 1]; u++)
            stage[u] = job->chunks.rank_of[c];
    return model_copy_params(&job->model, stage);
}

static Err generate(Job *job, Arena *arena)
{
    const JobSettings *set = &job->settings;
    const ParallelSettings *p = &set->parallel;
    const Pipeline pipe = {.ranks = p->mesh.pp ? p->mesh.pp : 1,
                           .micros = set->micros,
                           .chunks = p->chunks,
                           .slices = p->slices,
                           .group = p->group};
    const char *name = job_schedule(set);
    if (schedule_is_file(name))
        TRY(schedule_load(name, &pipe, arena, &job->chunks));
    else
        TRY(schedule_generate(name, &pipe, arena, &job->chunks));
    return p->evict ? schedule_evict(&job->chunks, 0, arena, &job->chunks) : OK;
}

static Err make_schedule(Job *job, Arena *arena)
{
    const JobSettings *set = &job->settings;
    TRY(cut_units(job, arena));
    if (set->split) TRY(schedule_split(&job->chunks, arena, &job->chunks));
    TRY(schedule_check(&job->chunks, arena));
    TRY(schedule_expand(&job->chunks, set->kind == JOB_STEP ? EXPAND_STEP : EXPAND_RUNS, arena,
                        &job->units));
    TRY(add_transfers(job, arena));
    return set->kind == JOB_LOSS ? OK : schedule_check(&job->units, arena);
}

static Err link_job(Job *job, Arena *arena)
{
    const JobSettings *set = &job->settings;
    Layout *use;
    TRY(strategy_use(&job->strategy, &job->model, &job->mesh, arena, &use));
    const LinkInput in = {.model = &job->model,
                          .program = job->program,
                          .n_moments = set->optim.kind == OPTIM_ADAMW ? 2 : 0,
                          .mesh = &job->mesh,
                          .rank = set->parallel.rank,
                          .use = use,
                          .block = set->optim.block,
                          .switches = job->switches,
                          .fold = set->parallel.fold,
                          .slice_at = job->slices.cut,
                          .by_slice = job->by_slice,
                          .in_order = set->parallel.in_order};
    return schedule_link(&job->units, stage_of(job), &in, arena, &job->linked);
}

Err job_compile(const JobSettings *settings, Arena *arena, Job *job)
{
    *job = (Job){.settings = *settings};
    TRY(model_build(settings->config, settings->dtype, settings->batch, arena, &job->model));
    TRY(check_names(job, arena));
    TRY(mesh_sized(&settings->parallel.mesh, &job->mesh));
    job->strategy = strategy_with_heads(
        settings->parallel.sequence ? &strategy_tp_sequence : &strategy_tp,
        settings->config->n_heads, settings->config->n_kv_heads, settings->config->head_size);
    TRY(check_parallel(job));
    TRY(generate(job, arena));
    TRY(job_slices(job, arena, &job->slices));
    TRY(compile_kinds(job, arena));
    TRY(make_schedule(job, arena));
    return link_job(job, arena);
}

Err job_open_rank(const Job *job, Comm *comm, Team *team, Rank *out)
{
    const RankSettings set = {.program = &job->linked,
                              .device = &device_ref,
                              .comm = comm,
                              .team = team,
                              .optim = job->settings.optim};
    return rank_open(out, &set);
}
