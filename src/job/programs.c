/* programs.c -- compiles the programs of a job: a class per kind of unit, a variant per length of a
 * slice. */
#include "compile/names.h"
#include "job/job_parts.h"
#include "job/slices.h"

int job_stage(const Job *job)
{
    const unsigned pp = mesh_axes(&job->mesh, VIEW_DENSE, "pp");
    return mesh_part(&job->mesh, VIEW_DENSE, pp, job->settings.parallel.rank);
}

CompileOptions job_kind_options(const Job *job)
{
    CompileOptions o = job->settings.compile;
    o.recompute = job_recompute(&job->settings, job_stage(job));
    o.mesh = &job->mesh;
    o.strategy = &job->strategy;
    o.context = job->context_plan;
    o.rank = job->settings.parallel.rank;
    o.keep_gathered = job->settings.parallel.keep_gathered;
    o.in_order = job->settings.parallel.in_order;
    o.backward = job_has_backward(&job->settings);
    if (job->settings.kind == JOB_GENERATE && job->settings.session.cached)
        o.session_rows = job->settings.session.sequences * job_cache_rows(job);
    return o;
}

CompileOptions job_options(const Job *job, int class, int variant)
{
    CompileOptions o = job_kind_options(job);
    (void)class;
    o.slice_rows = job->slices.n > 1 ? job->variant_rows[variant] : 0;
    return o;
}

/* Numbers the lengths of slices, the longest first; slices of one length share a variant. */
static Err find_variants(Job *job, Arena *arena)
{
    const SlicePlan *s = &job->slices;
    const int micros = job->settings.micros;
    int16_t *variant_of;
    int n = 1;
    TRY(ARENA_NEW(arena, (int64_t)micros * s->n, &variant_of));
    TRY(ARENA_NEW(arena, s->n, &job->variant_rows));
    job->variant_rows[0] = slices_longest(s);
    for (int q = 0; q < s->n; q++) {
        const int64_t rows = s->cut[q + 1] - s->cut[q];
        int v = 0;
        while (v < n && job->variant_rows[v] != rows) v++;
        if (v == n) job->variant_rows[n++] = rows;
        for (int m = 0; m < micros; m++) variant_of[m * s->n + q] = (int16_t)v;
    }
    job->programs.variant_of = variant_of;
    job->programs.n_variants = n;
    job->programs.micros = micros;
    job->programs.slices = s->n;
    return OK;
}

static Err find_classes(Job *job, Arena *arena)
{
    const Model *m = &job->model;
    int16_t *class_of, *kind_of;
    TRY(ARENA_NEW(arena, m->n_units, &class_of));
    TRY(ARENA_NEW(arena, m->n_kinds, &kind_of));
    for (int u = 0; u < m->n_units; u++) class_of[u] = (int16_t)m->unit[u].kind;
    for (int k = 0; k < m->n_kinds; k++) kind_of[k] = (int16_t)k;
    job->programs.class_of = class_of;
    job->programs.kind_of = kind_of;
    job->programs.n_classes = m->n_kinds;
    return OK;
}

static const char *recompute_text(const CompileOptions *o)
{
    static const char *const word[] = {
        [RECOMPUTE_NONE] = "none", [RECOMPUTE_SELECTIVE] = "selective", [RECOMPUTE_FULL] = "full"};
    return o->recompute == RECOMPUTE_NAMED ? o->recompute_names : word[o->recompute];
}

static Err check_effects(const Job *job, Arena *temp)
{
    const CompileOptions o = job_kind_options(job);
    const NamesTarget target = {job->program, job->programs.n_classes, recompute_text(&o)};
    if (!o.backward) return OK;
    if (o.recompute == RECOMPUTE_NAMED)
        TRY(names_check_effect("parallel.recompute", o.recompute_names, NAMES_RECOMPUTED, &target,
                               temp));
    return names_check_effect("parallel.offload", o.offload_names, NAMES_OFFLOAD, &target, temp);
}

Err job_compile_programs(Job *job, Arena *arena)
{
    ProgramTable *t = &job->programs;
    TRY(find_variants(job, arena));
    TRY(find_classes(job, arena));
    TRY(ARENA_NEW(arena, (int64_t)t->n_variants * t->n_classes, &job->program));
    t->program = job->program;
    for (int v = 0; v < t->n_variants; v++)
        for (int c = 0; c < t->n_classes; c++) {
            const CompileOptions o = job_options(job, c, v);
            TRY(compile_unit(&job->model.kind[t->kind_of[c]], &o, NULL, NULL, arena,
                             &job->program[v * t->n_classes + c]));
        }
    return check_effects(job, arena);
}
