/* schedule.c -- a job's action lists: generated over chunks, expanded to units, with all transfers.
 *
 *     1f1b, 2 stages          stage 0 | F0 F1 B0 B1         over chunks: as people write it
 *     units 0..1 and 2..3     F0.0 F1.0 send.F1.0>1 ...     over units: this list is linked
 *     zero 3                  gather.0 F0.0 drop.0 ...      plus gathers and drops */
#include "job/job_parts.h"

#include <stdio.h>
#include <string.h>
#include "base/math.h"
#include "schedule/check/check.h"
#include "schedule/chunks.h"
#include "schedule/evict.h"
#include "schedule/expand.h"
#include "schedule/gen/generate.h"
#include "schedule/moves.h"
#include "schedule/passes.h"
#include "schedule/reduce.h"

const char *job_schedule(const JobSettings *settings)
{
    return settings->parallel.schedule ? settings->parallel.schedule : settings->schedule;
}

/* Removes everything but F and its sends and receives. */
static void keep_forward(Schedule *s)
{
    for (int stage = 0; stage < s->stages; stage++) {
        int n = 0;
        for (int i = 0; i < s->n[stage]; i++) {
            const Action *a = &s->list[stage][i];
            const bool moves = a->kind == A_RUN || a->kind == A_SEND || a->kind == A_RECV;
            if (moves && a->phase == PHASE_F) s->list[stage][n++] = *a;
        }
        s->n[stage] = n;
    }
}

/* Micro-batches that the rank sums before a REDUCE; 0 if nothing is sent. */
static int reduce_group(const Job *job, PackSwitches row)
{
    const int fold = job->settings.parallel.fold;
    if (fold > 1) return job->settings.micros / fold;
    if (job->mesh.world == 1 && row.reduce == REDUCE_AFTER_LAST) return 0;
    return switches_group(row, job->settings.micros);
}

/* True if another stage holds a parameter of the pack too (tied weights). */
static bool is_shared(const Model *m, int pack)
{
    for (int k = 0; k < m->pack[pack].n_params; k++)
        if (model_is_shared(m, m->pack[pack].param[k])) return true;
    return false;
}

/* The switches of a pack. Gradients shared by several stages are summed once, at the end of the
 * step: in the middle, each of two stages could wait for the other. */
static PackSwitches row_of(const Job *job, int pack, bool shared)
{
    const UnitOptions *o = &job->unit[job->model.pack[pack].unit];
    PackSwitches row = switches_of_zero(job_pack_zero(job, pack), o->reduce_each);
    if (shared) row.reduce = REDUCE_AFTER_LAST;
    return row;
}

/* True if each unit adds to its gradients in order of micro-batches: in the head F does, in all
 * other units W or B. All stages are checked, so that all ranks agree. */
static bool adds_in_order(const Schedule *chunks)
{
    const int last = chunks->chunks - 1;
    const bool head_alone = chunks->first_unit[last + 1] - chunks->first_unit[last] == 1;
    for (int stage = 0; stage < chunks->stages; stage++)
        for (int c = 0; c < chunks->chunks; c++) {
            int forward = 0, backward = 0; /* the latest micro-batch of each */
            for (int i = 0; i < chunks->n[stage] && chunks->stage_of[c] == stage; i++) {
                const Action *a = &chunks->list[stage][i];
                const bool f = a->phase == PHASE_F, w = a->phase == PHASE_W || a->phase == PHASE_B;
                if (a->kind != A_RUN || a->unit != c) continue;
                if (f && c == last && a->micro < forward) return false;
                if (w && !(c == last && head_alone) && a->micro < backward) return false;
                if (f) forward = a->micro;
                if (w) backward = a->micro;
            }
        }
    return true;
}

/* ERR_CONFIG if gradients are reduced several times a step and the schedule adds micro-batches to
 * them out of order. */
static Err check_order(const Job *job, const int *group)
{
    const ParallelSettings *set = &job->settings.parallel;
    bool several = false;
    for (int p = 0; p < job->model.n_packs; p++)
        several = several || (group[p] > 0 && group[p] < job->settings.micros);
    if (!several || adds_in_order(&job->chunks)) return OK;
    char key[REASON_BYTES];
    const char *out = job_reduces_each(job, key);
    if (set->fold > 1) {
        snprintf(key, sizeof key, "numerics.fold=%d", set->fold);
        out = "numerics.fold=1";
    }
    return err_fail(
        ERR_CONFIG,
        "parallel.schedule=%s with %s: gradients are reduced several times a step, in the order of "
        "micro-batches, but this schedule adds to them in another order; order its backward "
        "phases by micro-batch, or set %s",
        job_schedule(&job->settings), key, out);
}

static bool codes_weights(const Job *job, int stage)
{
    const Model *m = &job->model;
    for (int p = 0; p < m->n_packs; p++)
        if (pack_is_coded(&m->pack[p]) && schedule_stage_of(&job->units, m->pack[p].unit) == stage)
            return true;
    return false;
}

/* Begins the lists of stages with coded weights by the action that makes their codes. */
static Err add_quantize(Job *job, Arena *arena)
{
    Schedule *s = &job->units;
    for (int stage = 0; stage < s->stages; stage++) {
        Action *list;
        if (!schedule_has_list(s, stage) || !codes_weights(job, stage)) continue;
        TRY(ARENA_NEW(arena, s->n[stage] + 1, &list));
        list[0] = action_of(A_QUANTIZE, 0);
        memcpy(list + 1, s->list[stage], (size_t)s->n[stage] * sizeof *list);
        s->list[stage] = list;
        s->n[stage]++;
    }
    return OK;
}

/* Adds reductions, gathers and drops according to the switches of each pack. */
static Err add_transfers(Job *job, Arena *arena)
{
    const JobSettings *set = &job->settings;
    const ParallelSettings *p = &set->parallel;
    const int n = job->model.n_packs;
    const UnitPacks *packs;
    int *group, *sums;
    bool *apart, *late;
    Schedule reduced, *from = &job->units;
    TRY(packs_of_model(&job->model, &job->programs, arena, &packs));
    TRY(ARENA_NEW(arena, n, &group));
    TRY(ARENA_NEW(arena, n, &apart));
    TRY(ARENA_NEW(arena, n, &late));
    TRY(ARENA_NEW(arena, job->model.n_units, &sums));
    TRY(ARENA_NEW(arena, n, &job->switches));
    TRY(ARENA_NEW(arena, n, &job->gathers));
    for (int k = 0; k < n; k++) {
        late[k] = is_shared(&job->model, k);
        job->switches[k] = row_of(job, k, late[k]);
        group[k] = reduce_group(job, job->switches[k]);
        apart[k] = group[k] > 0 && job->switches[k].reduce == REDUCE_AFTER_EACH;
    }
    if (!job_has_backward(set)) {
        keep_forward(from);
    } else {
        TRY(check_order(job, group));
        TRY(schedule_reduces(from, &(ReduceInput){packs, group, apart, late}, arena, &reduced,
                             sums));
        from = &reduced;
    }
    const GatherInput gather = {job->switches, packs, p->live ? p->live : 2};
    Schedule gathered;
    TRY(schedule_gathers(from, &gather, arena, &gathered, job->gathers));
    job->units = gathered;
    return add_quantize(job, arena);
}

static double program_flops(const Program *p)
{
    double flops = 0;
    for (int i = 0; i < p->n_instr; i++)
        if (p->instr[i].phase == PHASE_F || p->instr[i].phase == PHASE_B)
            flops += p->instr[i].flops;
    return flops;
}

static Err unit_flops(const Job *job, int unit, const Mesh *one, Arena *temp, double *out)
{
    const UnitOptions options = job_unit_options(&job->settings, unit);
    CompileOptions o = job_compile_options(job, &options);
    Program p;
    const size_t mark = arena_mark(temp);
    o.mesh = one;
    o.rank = 0;
    o.prepack = NULL;
    o.backward = job->settings.kind != JOB_GENERATE;
    TRY(compile_unit(&job->model.kind[job->model.unit[unit].kind], &o, NULL, NULL, temp, &p));
    *out = program_flops(&p);
    arena_rewind(temp, mark);
    return OK;
}

/* Every rank must get the same costs, so these do not depend on its shards (uneven over tp), on the
 * recomputation of its stage, or on the job's kind: a forward job for validation has the weights of
 * the training job. */
Err job_unit_costs(const Job *job, Arena *temp, double *cost)
{
    const Model *m = &job->model;
    Mesh one;
    TRY(mesh_sized(&(MeshSizes){0}, &one));
    for (int u = 0; u < m->n_units; u++) {
        const UnitOptions o = job_unit_options(&job->settings, u);
        int same = 0; /* the first unit with as many flops */
        for (; same < u; same++) {
            const UnitOptions a = job_unit_options(&job->settings, same);
            if (m->unit[same].kind == m->unit[u].kind && job_same_recompute(&a, &o)) break;
        }
        if (same < u)
            cost[u] = cost[same];
        else
            TRY(unit_flops(job, u, &one, temp, &cost[u]));
    }
    return OK;
}

/* *out is true if a schedule file lists the units of its chunks. One unit each is the default of a
 * file without that list. */
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
                        "parallel.split=%s: the file parallel.schedule=%s lists the units of its "
                        "chunks too; remove one of the two",
                        p->split, job_schedule(&job->settings));
    if (schedule_units(s) == job->model.n_units) return OK;
    return err_fail(ERR_CONFIG,
                    "parallel.schedule=%s has %d units in its chunks; the model has %d (embedding, "
                    "layers, head); change its line `units`, or remove it",
                    job_schedule(&job->settings), schedule_units(s), job->model.n_units);
}

/* Assigns units to chunks. Tied weights whose units are on several stages become copies. */
static Err cut_units(Job *job, Arena *arena)
{
    const char *split = job->settings.parallel.split;
    const int units = job->model.n_units;
    double *cost;
    int16_t *stage;
    TRY(ARENA_NEW(arena, units, &cost));
    TRY(ARENA_NEW(arena, units, &stage));
    if (split && strcmp(split, "cost") == 0) TRY(job_unit_costs(job, arena, cost));
    const ChunkRequest request = {split ? split : "even", units, job->chunks.chunks, cost};
    bool given;
    TRY(units_of_file(job, &given));
    if (!given) TRY(schedule_chunks(&request, arena, &job->chunks.first_unit));
    job_unit_stages(job, stage);
    return model_copy_params(&job->model, stage);
}

bool job_evicts(const Job *job)
{
    const Schedule *s = &job->chunks;
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->n[stage]; i++)
            if (s->list[stage][i].kind == A_EVICT) return true;
    return false;
}

/* A request without effect is refused: the user relies on the memory that it saves. */
static Err check_evicts(const Job *job)
{
    const Schedule *s = &job->chunks;
    if (job_evicts(job)) return OK;
    return err_fail(
        ERR_CONFIG,
        "parallel.evict=true evicts nothing: with parallel.schedule=%s, mesh.pp=%d and "
        "%d micro-batch%s no stage holds enough frames more than its partner; remove "
        "parallel.evict, or use a schedule whose first stages hold more frames than the "
        "last: 1f1b with at least mesh.pp=6 and 6 micro-batches",
        job_schedule(&job->settings), s->stages, s->micros, s->micros == 1 ? "" : "es");
}

Err job_generate(Job *job, Arena *arena)
{
    const JobSettings *set = &job->settings;
    const ParallelSettings *p = &set->parallel;
    const Pipeline pipe = {.stages = p->mesh.pp ? p->mesh.pp : 1,
                           .micros = set->micros,
                           .chunks = p->chunks,
                           .slices = p->slices,
                           .group = p->group};
    const char *name = job_schedule(set);
    if (schedule_is_file(name))
        TRY(schedule_load(name, &pipe, arena, &job->chunks));
    else
        TRY(schedule_generate(name, &pipe, arena, &job->chunks));
    if (!p->evict) return OK;
    TRY(schedule_evict(&job->chunks, 0, arena, &job->chunks));
    return !job_has_backward(set) ? OK : check_evicts(job); /* forward alone keeps no frames */
}

/* Numbers the packs of each unit in the schedule. */
static Err number_packs(Job *job, Arena *arena)
{
    const Model *m = &job->model;
    int16_t *first;
    bool one_each = true;
    if (m->n_packs > MAX_SCHEDULE)
        return err_fail(ERR_CONFIG, "the model has %d packs; allowed are %d", m->n_packs,
                        MAX_SCHEDULE);
    for (int u = 0; u < m->n_units; u++) one_each = one_each && m->unit[u].n_packs == 1;
    job->chunks.first_pack = NULL;
    if (one_each) return OK;
    TRY(ARENA_NEW(arena, m->n_units + 1, &first));
    for (int u = 0; u < m->n_units; u++)
        first[u + 1] = (int16_t)(m->unit[u].first_pack + m->unit[u].n_packs);
    job->chunks.first_pack = first;
    return OK;
}

Err job_make_moves(Job *job, Arena *arena)
{
    TRY(cut_units(job, arena));
    TRY(number_packs(job, arena));
    if (job->settings.split) TRY(schedule_split(&job->chunks, arena, &job->chunks));
    TRY(schedule_moves(&job->chunks, arena, &job->moves));
    return job->moves.stages == 1 ? OK : schedule_check(&job->moves, arena);
}

Err job_make_units(Job *job, int stage, Arena *arena)
{
    const JobSettings *set = &job->settings;
    const ExpandEnd end = set->kind == JOB_STEP ? EXPAND_STEP : EXPAND_RUNS;
    const int stages = job_evicts(job) ? ALL_STAGES : stage;
    TRY(schedule_expand_stage(&job->moves, end, stages, arena, &job->units));
    TRY(add_transfers(job, arena));
    return !job_has_backward(set) ? OK : schedule_check(&job->units, arena);
}
