/* programs.c -- compiles the programs of a job: a class per set of units that are compiled alike, a
 * variant per length of a slice (variants.c).
 *
 *     layers    0 1 2 3 | 4 5 6 7        stages 0 and 1
 *     alike     1 1 3 3   3 3 3 3
 *     stage 0   1 1 2 2   2 2 2 2        classes
 *     stage 1   1 1 1 1   1 1 1 1        only the streams of units of other stages matter there
 *
 * Units of other stages are in a class of this stage with the same stream, if there is one. Their
 * own programs are compiled if this rank stores frames of them, or if a name has to be checked. */
#include <string.h>
#include "compile/names.h"
#include "job/job_parts.h"

int job_stage(const Job *job)
{
    const unsigned pp = mesh_axes(&job->mesh, VIEW_DENSE, "pp");
    return mesh_part(&job->mesh, VIEW_DENSE, pp, job->settings.parallel.rank);
}

CompileOptions job_compile_options(const Job *job, const UnitOptions *unit)
{
    const ContextKind context = unit->context == CONTEXT_AUTO ? job->context : unit->context;
    CompileOptions o = job->settings.compile;
    o.recompute = unit->recompute;
    o.recompute_names = unit->recompute_names;
    o.offload_names = unit->offload_names;
    o.fp8.names = unit->fp8_names;
    o.mesh = &job->mesh;
    o.strategy = job->strategy_of ? &job->strategy_of[unit->sequence * N_CONTEXTS + context] : NULL;
    o.context = job->context_plan[context];
    o.rank = job->settings.parallel.rank;
    o.keep_gathered = unit->keep_gathered;
    o.expert_rows = job->settings.parallel.expert_rows;
    o.rounds = job->settings.parallel.rounds;
    o.balance_global = job->settings.config->experts.balance_global;
    o.in_order = job->settings.parallel.in_order;
    o.backward = job_has_backward(&job->settings);
    if (job->settings.kind == JOB_GENERATE && job->settings.session.cached)
        o.session_rows = job->settings.session.sequences * job_cache_rows(job);
    return o;
}

CompileOptions job_options(const Job *job, int class, int variant)
{
    const int unit = job->class_unit[class];
    CompileOptions o = job_compile_options(job, &job->unit[unit]);
    o.x = &job->stream[unit];
    o.fp8.coded = o.fp8.code_weights ? job->coded[unit] : 0;
    const JobVariant *v = &job->variant[variant];
    if (job->slices.n > 1) o.slice_rows = v->rows;
    if (!v->strategy) return o;
    if (job->unit[unit].context == CONTEXT_GATHER) o.context = job->slice_plan;
    o.slice_at = v->at;
    o.slice_tokens = job->strategy.tokens;
    o.strategy = &v->strategy[o.strategy - job->strategy_of];
    o.x = &v->stream[unit];
    return o;
}

static bool has_names(const UnitOptions *o) { return o->recompute_names || o->offload_names; }

/* True if unit `of` has the x and the y of unit u, and their transfers. */
static bool same_streams(const Job *job, int u, int of)
{
    return job->model.unit[u].kind == job->model.unit[of].kind &&
           job->unit[u].sequence == job->unit[of].sequence &&
           job->unit[u].context == job->unit[of].context &&
           layout_equal(&job->stream[u], &job->stream[of]);
}

/* The unit whose program a unit of another stage gets on this rank. */
static int stand_in(const Job *job, const int16_t *stage, int u, int here)
{
    for (int of = 0; of < job->model.n_units; of++)
        if (stage[of] == here && same_streams(job, u, of)) return job->alike[of];
    for (int of = 0; of < u; of++)
        if (same_streams(job, u, of) && !has_names(&job->unit[of])) return job->alike[of];
    return job->alike[u];
}

/* Finds for each unit the one whose program it runs: of[units], the first of its class. */
static Err find_programs(const Job *job, Arena *temp, int16_t **out)
{
    const int n = job->model.n_units, here = job_stage(job);
    const bool evicts = job_evicts(job);
    int16_t *stage, *of;
    TRY(ARENA_NEW(temp, n, &stage));
    TRY(ARENA_NEW(temp, n, &of));
    job_unit_stages(job, stage);
    for (int u = 0; u < n; u++) {
        const bool own = stage[u] == here || evicts || has_names(&job->unit[u]);
        const bool again = !own && u > 0 && stage[u - 1] != here &&
                           job->alike[u - 1] == job->alike[u] && !has_names(&job->unit[u - 1]);
        of[u] = own ? job->alike[u] : again ? of[u - 1] : (int16_t)stand_in(job, stage, u, here);
    }
    *out = of;
    return OK;
}

static Err find_classes(Job *job, Arena *arena)
{
    const Model *m = &job->model;
    int16_t *class_of, *kind_of, *of;
    int n = 0;
    TRY(find_programs(job, arena, &of));
    TRY(ARENA_NEW(arena, m->n_units, &class_of));
    TRY(ARENA_NEW(arena, m->n_units, &kind_of));
    TRY(ARENA_NEW(arena, m->n_units, &job->class_unit));
    for (int k = 0; k < m->n_kinds; k++)
        for (int u = 0; u < m->n_units; u++) {
            int c = 0;
            if (m->unit[u].kind != k) continue;
            while (c < n && job->class_unit[c] != of[u]) c++;
            if (c == n) {
                job->class_unit[n] = of[u];
                kind_of[n++] = (int16_t)k;
            }
            class_of[u] = (int16_t)c;
        }
    job->programs.class_of = class_of;
    job->programs.kind_of = kind_of;
    job->programs.n_classes = n;
    return OK;
}

static const char *names_of(const Job *job, int class, NamesEffect effect)
{
    const UnitOptions *o = &job->unit[job->class_unit[class]];
    return effect == NAMES_OFFLOAD ? o->offload_names : o->recompute_names;
}

/* Checks that each pattern changes a program of the classes that have it. */
static Err check_effect(const Job *job, NamesEffect effect, Arena *temp)
{
    const PatternOrigins *from = &job->settings.origin;
    const bool offload = effect == NAMES_OFFLOAD;
    char key[WRITTEN_KEY_BYTES];
    const int classes = job->programs.n_classes;
    Program *with;
    job_written_key(offload ? from->offload : from->recompute,
                    offload ? "parallel.offload" : "parallel.recompute", key);
    TRY(ARENA_NEW(temp, classes, &with));
    for (int c = 0; c < classes; c++) {
        const char *names = names_of(job, c, effect);
        int n = 0;
        bool done = !names;
        for (int i = 0; names && i < classes; i++) {
            const char *other = names_of(job, i, effect);
            if (!other || strcmp(names, other) != 0) continue;
            done = done || i < c;
            with[n++] = job->program[i];
        }
        if (done) continue;
        const NamesTarget target = {with, n, job_recompute_text(&job->unit[job->class_unit[c]])};
        TRY(names_check_effect(key, names, effect, &target, temp));
    }
    return OK;
}

Err job_compile_programs(Job *job, Arena *arena)
{
    ProgramTable *t = &job->programs;
    TRY(job_find_variants(job, arena));
    TRY(find_classes(job, arena));
    TRY(ARENA_NEW(arena, (int64_t)t->n_variants * t->n_classes, &job->program));
    t->program = job->program;
    for (int v = 0; v < t->n_variants; v++)
        for (int c = 0; c < t->n_classes; c++) {
            const CompileOptions o = job_options(job, c, v);
            TRY(compile_unit(&job->model.kind[t->kind_of[c]], &o, NULL, NULL, arena,
                             &job->program[v * t->n_classes + c]));
        }
    if (!job_has_backward(&job->settings)) return OK;
    TRY(check_effect(job, NAMES_RECOMPUTED, arena));
    return check_effect(job, NAMES_OFFLOAD, arena);
}
