/* job.c -- the stages of the compiler, one after another. */
#include "train/job.h"

#include "compile/names.h"
#include "schedule/check.h"
#include "schedule/expand.h"
#include "schedule/generate.h"

CompileOptions job_options(const Job *job)
{
    CompileOptions o = job->settings.compile;
    o.mesh = &job->mesh;
    o.strategy = &job->strategy;
    o.rank = job->settings.parallel.rank;
    o.keep_gathered = job->settings.parallel.keep_gathered;
    o.in_order = job->settings.parallel.in_order;
    o.backward = job->settings.kind != JOB_LOSS;
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

static Err compile_kinds(Job *job, Arena *arena)
{
    const CompileOptions o = job_options(job);
    for (int k = 0; k < job->model.n_kinds; k++)
        TRY(compile_unit(&job->model.kind[k], &o, NULL, NULL, arena, &job->program[k]));
    if (!o.backward) return OK;
    if (o.recompute == RECOMPUTE_NAMED)
        TRY(names_check_effect("parallel.recompute", o.recompute_names, NAMES_AGAIN, job->program,
                               job->model.n_kinds, arena));
    return names_check_effect("parallel.offload", o.offload_names, NAMES_OFFLOAD, job->program,
                              job->model.n_kinds, arena);
}

/* Every B as an I and a W right after it. */
static Err split_backward(Schedule *s, Arena *arena)
{
    for (int r = 0; r < s->ranks; r++) {
        Action *list;
        int n = 0;
        TRY(ARENA_NEW(arena, 2 * s->n[r] + 1, &list));
        for (int i = 0; i < s->n[r]; i++) {
            Action a = s->list[r][i];
            if (a.kind == A_RUN && a.phase == PHASE_B) {
                a.phase = PHASE_I;
                list[n++] = a;
                a.phase = PHASE_W;
            }
            list[n++] = a;
        }
        s->list[r] = list;
        s->n[r] = n;
    }
    return OK;
}

static void keep_forward(Schedule *s)
{
    int n = 0;
    for (int i = 0; i < s->n[0]; i++)
        if (s->list[0][i].kind == A_RUN && s->list[0][i].phase == PHASE_F)
            s->list[0][n++] = s->list[0][i];
    s->n[0] = n;
}

static bool has_guests(const Model *m, int unit)
{
    for (int i = 0; i < m->n_params; i++)
        if (m->param[i].holder[0] == unit && m->param[i].n_holders > 1) return true;
    return false;
}

/* Units whose parameters others hold too: their sums are added when all runs are done. */
static Err reduce_holders(const Model *m, Schedule *s, Arena *arena)
{
    Action *list;
    int n = 0, end = 0;
    TRY(ARENA_NEW(arena, s->n[0] + m->n_units, &list));
    for (int i = 0; i < s->n[0]; i++)
        if (s->list[0][i].kind == A_RUN) end = i + 1;
    for (int i = 0; i < end; i++) list[n++] = s->list[0][i];
    for (int u = 0; u < m->n_units; u++)
        if (has_guests(m, u)) list[n++] = action_of(A_REDUCE, u);
    for (int i = end; i < s->n[0]; i++) list[n++] = s->list[0][i];
    s->list[0] = list;
    s->n[0] = n;
    return OK;
}

/* One rank holds one chunk: all units. */
static Err make_schedule(Job *job, Arena *arena)
{
    const JobSettings *set = &job->settings;
    int16_t *first;
    TRY(schedule_generate(set->schedule, 1, set->micros, 1, arena, &job->chunks));
    TRY(ARENA_NEW(arena, 2, &first));
    first[1] = (int16_t)job->model.n_units;
    job->chunks.first_unit = first;
    if (set->split) TRY(split_backward(&job->chunks, arena));
    TRY(schedule_check(&job->chunks, arena));
    TRY(schedule_expand(&job->chunks, set->kind == JOB_STEP ? EXPAND_STEP : EXPAND_RUNS, arena,
                        &job->units));
    TRY(reduce_holders(&job->model, &job->units, arena));
    TRY(schedule_check(&job->units, arena));
    if (set->kind == JOB_LOSS) keep_forward(&job->units);
    return OK;
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
    TRY(compile_kinds(job, arena));
    TRY(make_schedule(job, arena));
    const LinkInput in = {.model = &job->model,
                          .program = job->program,
                          .n_moments = settings->optim.kind == OPTIM_ADAMW ? 2 : 0,
                          .block = settings->optim.block};
    return schedule_link(&job->units, 0, &in, arena, &job->linked);
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
