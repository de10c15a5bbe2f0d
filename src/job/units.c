/* units.c -- the options of each unit: as given, checked, and as they are compiled.
 *
 *     unit       options                         compiled alike
 *     embed      zero 1                          0
 *     layer.0    zero 3, full, sequence          1    x whole: the embedding writes it so
 *     layer.1    zero 3, full, sequence          2    x sharded over tp
 *     layer.2    zero 1, full, sequence          2    ZeRO changes no program
 *     layer.3    zero 1                          4    x sharded over tp, y whole */
#include <stdio.h>
#include <string.h>
#include "base/math.h"
#include "compile/names.h"
#include "job/job_parts.h"

/* The patterns of GEMMs in FP8 of a unit, as the job has them: embedding and head have none. */
static const char *fp8_names(const JobSettings *s, int unit)
{
    const int layers = (int)s->config->n_layers;
    const bool end = unit <= 1 || unit >= layers;
    if (unit == 0 || unit > layers) return NULL;
    return s->compile.fp8.spare_ends && end && layers > 2 ? NULL : s->compile.fp8.names;
}

UnitOptions job_unit_options(const JobSettings *s, int unit)
{
    const ParallelSettings *p = &s->parallel;
    if (p->units) return p->units[unit];
    return (UnitOptions){.recompute = s->compile.recompute,
                         .recompute_names = s->compile.recompute_names,
                         .offload_names = s->compile.offload_names,
                         .fp8_names = fp8_names(s, unit),
                         .zero = p->zero,
                         .zero_weights = p->zero_weights,
                         .reduce_each = p->reduce_each,
                         .keep_gathered = p->keep_gathered,
                         .sequence = p->sequence,
                         .context = p->context};
}

const char *job_recompute_text(const UnitOptions *o)
{
    static const char *const word[] = {
        [RECOMPUTE_NONE] = "none", [RECOMPUTE_SELECTIVE] = "selective", [RECOMPUTE_FULL] = "full"};
    return o->recompute == RECOMPUTE_NAMED ? o->recompute_names : word[o->recompute];
}

static bool same_names(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

bool job_same_recompute(const UnitOptions *a, const UnitOptions *b)
{
    return a->recompute == b->recompute &&
           (a->recompute != RECOMPUTE_NAMED || same_names(a->recompute_names, b->recompute_names));
}

/* True if both are compiled to the same program from the same stream. */
static bool same_program(const UnitOptions *a, const UnitOptions *b)
{
    return job_same_recompute(a, b) && same_names(a->offload_names, b->offload_names) &&
           same_names(a->fp8_names, b->fp8_names) && a->keep_gathered == b->keep_gathered &&
           a->sequence == b->sequence && a->context == b->context;
}

bool job_same_options(const UnitOptions *a, const UnitOptions *b)
{
    return same_program(a, b) && a->zero == b->zero && a->reduce_each == b->reduce_each &&
           same_names(a->zero_weights, b->zero_weights);
}

void job_unit_stages(const Job *job, int16_t *stage)
{
    const Schedule *s = &job->chunks;
    for (int c = 0; c < s->chunks; c++)
        for (int u = s->first_unit[c]; u < s->first_unit[c + 1]; u++) stage[u] = s->stage_of[c];
}

const char *job_written_key(const char *origin, const char *key, char buffer[WRITTEN_KEY_BYTES])
{
    snprintf(buffer, WRITTEN_KEY_BYTES, "%.200s%s%s", origin ? origin : "", origin ? ": " : "",
             key);
    return buffer;
}

/* Checks the names of a unit, unless those of the unit before are the same. */
static Err check_names(const Job *job, int unit, Arena *temp)
{
    const Model *m = &job->model;
    const PatternOrigins *from = &job->settings.origin;
    char key[WRITTEN_KEY_BYTES];
    const UnitOptions o = job_unit_options(&job->settings, unit);
    const UnitOptions before = unit ? job_unit_options(&job->settings, unit - 1) : (UnitOptions){0};
    if (o.recompute == RECOMPUTE_NAMED && !same_names(o.recompute_names, before.recompute_names))
        TRY(names_check(job_written_key(from->recompute, "parallel.recompute", key),
                        o.recompute_names, m->kind, m->n_kinds, temp));
    if (o.zero_weights && !same_names(o.zero_weights, before.zero_weights))
        TRY(job_check_weights(job, o.zero_weights, temp));
    if (o.fp8_names && !same_names(o.fp8_names, before.fp8_names)) {
        Fp8Options fp8 = job->settings.compile.fp8;
        fp8.names = o.fp8_names;
        TRY(quantize_check(job_written_key(from->fp8, "precision.fp8", key), &fp8, m->kind,
                           m->n_kinds, temp));
    }
    if (same_names(o.offload_names, before.offload_names)) return OK;
    return names_check(job_written_key(from->offload, "parallel.offload", key), o.offload_names,
                       m->kind, m->n_kinds, temp);
}

const char *job_reduces_each(const Job *job, char key[REASON_BYTES])
{
    UnitOptions most = {0};
    bool each = false;
    for (int u = 0; u < job->model.n_units; u++) {
        const UnitOptions o = job_unit_options(&job->settings, u);
        each = each || o.reduce_each;
        most.zero = max_int(most.zero, o.zero);
        if (job_most_zero(&o) >= 2 && o.zero < 2) most.zero_weights = o.zero_weights;
    }
    if (most.zero >= 2) {
        snprintf(key, REASON_BYTES, "parallel.zero=%d", most.zero);
        return "parallel.zero=0 or 1, with parallel.reduce=last";
    }
    if (most.zero_weights) {
        snprintf(key, REASON_BYTES, "parallel.zero_weights=%.80s", most.zero_weights);
        return "levels 0 and 1 there, with parallel.reduce=last";
    }
    snprintf(key, REASON_BYTES, "parallel.reduce=each");
    return each ? "parallel.reduce=last" : NULL;
}

Err job_check_units(const Job *job, Arena *temp)
{
    const JobSettings *s = &job->settings;
    if (s->parallel.units && s->n_stage_rules)
        return err_fail(ERR_CONFIG,
                        "parallel.recompute has rules for stages, and other keys have rules for "
                        "layers; give the layers of the stages instead");
    for (int u = 0; u < job->model.n_units; u++) {
        const UnitOptions o = job_unit_options(s, u);
        if (o.zero < 0 || o.zero > 3)
            return err_fail(ERR_CONFIG, "parallel.zero=%d: levels are 0 to 3", o.zero);
        TRY(check_names(job, u, temp));
    }
    return OK;
}

/* The recomputation on a stage: the first rule that contains it, or that of the job. */
static void apply_stage_rules(const JobSettings *s, int stage, UnitOptions *o)
{
    for (int i = 0; i < s->n_stage_rules; i++)
        if (stage >= s->stage[i].first && stage <= s->stage[i].last) {
            o->recompute = s->stage[i].recompute;
            return;
        }
}

/* True if GEMMs may run in FP8: not in f64, which others are compared with, and not where text is
 * generated or scored, since the amax of a call depends on what else is in it. */
static bool runs_fp8(const Job *job)
{
    const JobSettings *s = &job->settings;
    return s->dtype != F64 && s->kind != JOB_GENERATE && !s->inference;
}

const char *job_fp8_names(const Job *job, int unit)
{
    const bool ends = unit == 0 || unit == job->model.n_units - 1;
    return runs_fp8(job) && !ends ? job_unit_options(&job->settings, unit).fp8_names : NULL;
}

/* Options without effect get one value, so that they make no class. */
static UnitOptions settled(const Job *job, int unit, int stage)
{
    const MeshSizes *m = &job->settings.parallel.mesh;
    UnitOptions o = job_unit_options(&job->settings, unit);
    apply_stage_rules(&job->settings, stage, &o);
    if (!job_has_backward(&job->settings)) {
        o.recompute = RECOMPUTE_NONE;
        o.offload_names = NULL;
        o.keep_gathered = false;
    }
    if (o.recompute != RECOMPUTE_NAMED) o.recompute_names = NULL;
    o.fp8_names = job_fp8_names(job, unit);
    if (m->tp <= 1) o.sequence = false;
    if (m->cp <= 1 || o.context == CONTEXT_AUTO) o.context = job->context;
    return o;
}

static Err find_stream(Job *job, int unit, Arena *arena)
{
    const UnitOptions *before = &job->unit[unit - 1];
    const Strategy *s = &job->strategy_of[before->sequence * N_CONTEXTS + before->context];
    const Graph *g = &job->model.kind[job->model.unit[unit - 1].kind];
    const int like = job->alike[unit - 1]; /* a unit that writes the stream alike */
    if (like < unit - 1) {
        job->stream[unit] = job->stream[like + 1];
        return OK;
    }
    return strategy_stream(s, g, &job->mesh, arena, &job->stream[unit]);
}

Err job_settle_units(Job *job, Arena *arena)
{
    const Model *m = &job->model;
    int16_t *stage;
    TRY(ARENA_NEW(arena, m->n_units, &stage));
    TRY(ARENA_NEW(arena, m->n_units, &job->unit));
    TRY(ARENA_NEW(arena, m->n_units, &job->stream));
    TRY(ARENA_NEW(arena, m->n_units, &job->alike));
    job_unit_stages(job, stage);
    for (int u = 0; u < m->n_units; u++) {
        int like = 0;
        job->unit[u] = settled(job, u, stage[u]);
        job->stream[u] = layout_replicate(VIEW_DENSE);
        if (u > 0) TRY(find_stream(job, u, arena));
        while (like < u && (m->unit[like].kind != m->unit[u].kind || job->alike[like] != like ||
                            job->coded[like] != job->coded[u] ||
                            !same_program(&job->unit[like], &job->unit[u]) ||
                            !layout_equal(&job->stream[like], &job->stream[u])))
            like++;
        job->alike[u] = (int16_t)like;
    }
    return OK;
}
