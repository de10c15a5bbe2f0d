/* verify.c -- compares a layout with its reference in each grade. */
#include "verify/verify.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/math.h"
#include "schedule/check/check.h"
#include "schedule/gen/generate.h"
#include "verify/mixed.h"
#include "verify/choices.h"
#include "job/batch.h"

#define F64_BOUND 1e-10
#define BF16_BOUND 1.5

const char *grade_name(Grade g)
{
    static const char *const name[N_GRADES] = {"f64", "exact", "bounded", "bf16"};
    return name[g];
}

static int dp_of(const ParallelSettings *p)
{
    return (p->mesh.dp_replicate ? p->mesh.dp_replicate : 1) *
           (p->mesh.dp_shard ? p->mesh.dp_shard : 1);
}

static const char *schedule_of(const VerifySettings *s, const ParallelSettings *p)
{
    return p->schedule ? p->schedule : s->schedule;
}

/* True if sequences are cut into slices. Sums are then over slices too, and the reference needs the
 * same slices. */
static bool in_slices(const VerifySettings *s, const ParallelSettings *p)
{
    int n;
    const GeneratorRow *row = schedule_generators(&n);
    for (int i = 0; i < n && p->slices == 0; i++)
        if (strcmp(row[i].name, schedule_of(s, p)) == 0) return row[i].slices > 1;
    return p->slices > 1;
}

/* Rows of a micro-batch; in slices it is one sequence. */
static BatchShape batch_of(const VerifySettings *s, const ParallelSettings *p)
{
    return (BatchShape){in_slices(s, p) ? 1 : s->batch.sequences, s->batch.seq_len};
}

static TrialSettings trial_of(const VerifySettings *s, const ParallelSettings *layout, Grade grade,
                              int dp)
{
    const bool f64 = grade == GRADE_F64;
    const int64_t each = batch_of(s, layout).sequences;
    TrialSettings t = {.job = {.kind = JOB_STEP,
                               .config = s->config,
                               .dtype = f64 ? F64 : s->dtype,
                               .batch = batch_of(s, layout),
                               .schedule = s->schedule,
                               .compile = s->compile,
                               .optim = s->optim,
                               .parallel = *layout},
                       .device = f64 ? &device_ref : s->device,
                       .transport = f64 ? NULL : s->transport,
                       .processes = s->processes,
                       .global = s->global ? s->global : 2 * each * dp - each + (each > 1),
                       .steps = s->steps,
                       .lr = s->lr,
                       .seed = s->seed,
                       .documents = s->documents,
                       .blank = s->blank,
                       .poison = true};
    t.job.n_stage_rules = s->n_stage_rules;
    t.job.origin = s->origin;
    for (int i = 0; i < s->n_stage_rules; i++) t.job.stage[i] = s->stage[i];
    if (f64) t.job.compile.prepack = NULL; /* ref has no panel format */
    return t;
}

static TrialSettings with_sgd(TrialSettings t)
{
    t.job.optim.kind = OPTIM_SGD;
    t.job.optim.clip = 0; /* it would hide a gradient of wrong scale */
    t.steps = 1;
    return t;
}

static double bound_of(Grade grade, const Trial *reference)
{
    switch (grade) {
    case GRADE_F64:
        return F64_BOUND;
    case GRADE_EXACT:
        return 0;
    case GRADE_BF16:
        return BF16_BOUND;
    default:
        return reference->bound;
    }
}

/* The trial of one rank in f64, given the choices of experts of another. */
static Err run_exact(const TrialSettings *one, const Trial *given, Arena *arena, Trial *exact)
{
    TrialSettings t = *one;
    t.job.dtype = F64;
    t.job.compile.prepack = NULL; /* ref has no panel format */
    t.device = &device_ref;
    t.transport = NULL;
    t.given = given->choices;
    return trial_run(&t, arena, exact);
}

/* Ties of the layout and of one rank; the widest of both for its bound. */
static void take_ties(VerifyLine *line, const Trial *here, const Trial *given, const Trial *exact)
{
    const ChoiceTies own = choices_ties(given->choices, exact->choices);
    const ChoiceTies one = choices_ties(exact->choices, exact->choices);
    const ChoiceTies *widest = choices_wider(&own, &one) ? &own : &one;
    line->ties = own.ties;
    line->one_ties = one.ties;
    line->tie = widest->tie;
    line->tie_bound = widest->bound;
    line->same_choices = !here->choices->differs;
    snprintf(line->tie_at, sizeof line->tie_at, "%s", exact->model->unit[widest->unit].name);
}

/* Both against f64 given the same choices of experts; without experts, or with the same choices on
 * both, that is one trial. */
static Err compare_errors(const TrialSettings *one, const Trial *there, const Trial *here,
                          VerifyLine *line, Arena *arena, TrialGap *gap)
{
    Trial exact, given;
    TRY(run_exact(one, there, arena, &exact));
    given = exact;
    if (here->choices && !choices_same(here->choices, there->choices))
        TRY(run_exact(one, here, arena, &given));
    *gap = trial_error(&exact, there, &given, here, one->steps);
    if (here->choices) take_ties(line, here, &given, &exact);
    return OK;
}

/* Runs the trial under the layout and under its reference. */
static Err compare(const TrialSettings *t, VerifyLine *line, Arena *arena, TrialGap *gap,
                   double *bound)
{
    TrialSettings other = *t;
    Trial here, there;
    other.job.parallel = line->reference;
    if (t->job.config->experts.balance_global)
        other.job.batch.sequences *= dp_of(&line->layout) / dp_of(&line->reference);
    TRY(trial_run(t, arena, &here));
    TRY(trial_run(&other, arena, &there));
    *gap = (TrialGap){.same = true, .same_text = true};
    *bound = 0;
    if (here.absent || there.absent) return OK;
    if (line->grade == GRADE_BF16)
        TRY(compare_errors(&other, &there, &here, line, arena, gap));
    else
        *gap = trial_gap(&there, &here, t->steps);
    *bound = bound_of(line->grade, &there);
    if (here.copies > line->copies) line->copies = here.copies;
    line->sent_bytes += here.sent_bytes;
    line->predicted_bytes += here.predicted_bytes;
    return OK;
}

static void take_worse(VerifyLine *line, const TrialGap *g)
{
    line->loss = fmax(line->loss, g->loss);
    line->norm = fmax(line->norm, g->norm);
    line->valid = fmax(line->valid, g->valid);
    line->same_text = line->same_text && g->same_text;
    line->weight = fmax(line->weight, g->weight);
    if (g->gradient > line->gradient) {
        line->gradient = g->gradient;
        snprintf(line->worst, sizeof line->worst, "%s", g->gradient_at);
    }
}

static Err run_line(const VerifySettings *s, VerifyLine *line, Arena *arena)
{
    const int dp = dp_of(&line->layout);
    TrialSettings adamw = trial_of(s, &line->layout, line->grade, dp);
    TrialSettings sgd = with_sgd(adamw);
    TrialGap gap, later = {.same = true};
    double bound;
    const size_t mark = arena_mark(arena);
    adamw.generates = line->grade == GRADE_F64 && !s->config->full_mask;
    line->same_text = line->same_choices = true;
    sgd.routes = line->grade == GRADE_BF16;
    TRY(compare(&sgd, line, arena, &gap, &bound));
    take_worse(line, &gap);
    if (line->grade == GRADE_F64 || line->grade == GRADE_EXACT) {
        TRY(compare(&adamw, line, arena, &later, &bound));
        if (line->grade == GRADE_F64) take_worse(line, &later);
    }
    line->bound = bound;
    const bool near = line->loss <= line->bound && line->norm <= line->bound &&
                      line->valid <= line->bound && line->gradient <= line->bound &&
                      line->weight <= line->bound;
    const bool same = gap.same && later.same;
    line->ok = (line->grade == GRADE_EXACT ? same : near) && line->copies == 0 && line->same_text &&
               line->same_choices && line->tie <= line->tie_bound &&
               line->sent_bytes == line->predicted_bytes;
    arena_rewind(arena, mark);
    return OK;
}

/* True if the stages add to gradients in the order of micro-batches, and no gradient is summed over
 * several stages (tied weights). */
static bool adds_in_order(const VerifySettings *s, const ParallelSettings *p, Arena *temp)
{
    const int dp = dp_of(p);
    const TrialSettings t = trial_of(s, p, GRADE_EXACT, dp);
    const Pipeline pipe = {.stages = p->mesh.pp,
                           .micros = (int)batch_micros(t.global, t.job.batch.sequences, dp, 1),
                           .chunks = p->chunks,
                           .slices = p->slices,
                           .group = p->group};
    Schedule made;
    const size_t mark = arena_mark(temp);
    const bool in_order = !s->config->tied && !schedule_is_file(job_schedule(&t.job)) &&
                          schedule_generate(job_schedule(&t.job), &pipe, temp, &made) == OK &&
                          schedule_in_order(&made);
    arena_rewind(temp, mark);
    return in_order;
}

/* True if the cuts of slices depend on the number of stages. */
static bool cuts_by_stages(const VerifySettings *s, const ParallelSettings *p)
{
    return strcmp(schedule_of(s, p), "terapipe") == 0;
}

/* The layout that gives the same bits: ZeRO 0 on the same mesh (ZeRO 1 with dp_replicate) with as
 * many reductions; one stage instead of several; or one rank with numerics.fold. False if there is
 * none. */
static bool uniform_reference(const VerifySettings *s, const ParallelSettings *p, Arena *temp,
                              ParallelSettings *reference)
{
    const bool each = p->reduce_each || p->zero >= 2;
    *reference = *p;
    reference->zero = 0;
    reference->reduce_each = each;
    reference->live = reference->fold = 0;
    if (p->mesh.dp_replicate > 1) { /* ZeRO 0 sums over both dp axes at once: another order */
        reference->zero = 1;
        return p->zero > 1;
    }
    if (p->zero > 0 || p->zero_weights) return true;
    if (p->mesh.pp > 1) {
        const bool sliced = in_slices(s, p);
        reference->mesh.pp = 1;
        reference->split = NULL;
        reference->chunks = reference->group = 0;
        reference->evict = false;
        if (!sliced) reference->schedule = NULL;
        return adds_in_order(s, p, temp) && !(sliced && cuts_by_stages(s, p));
    }
    if (p->mesh.tp > 1 || p->mesh.cp > 1 || p->mesh.dp_replicate > 1 || each ||
        p->mesh.dp_shard < 2)
        return false;
    if (p->mesh.ep > 1 || p->mesh.etp > 1) return false; /* experts add up rows of several ranks */
    reference->mesh = (MeshSizes){0};
    reference->fold = p->mesh.dp_shard;
    return true;
}

/* The same for a layout whose units differ: uniform recomputation, and ZeRO 0 for all units. Units
 * that share the order of sums of other ranks keep it. */
static Err exact_reference(const VerifySettings *s, const ParallelSettings *p, Arena *arena,
                           ParallelSettings *reference, bool *exists)
{
    const TrialSettings t = trial_of(s, p, GRADE_EXACT, dp_of(p));
    *exists = uniform_reference(s, p, arena, reference) &&
              !(reference->fold > 1 && s->config->experts.balance_global); /* it counts over dp */
    bool same = true;
    TRY(operator_reference(p->zero_weights, reference->zero, p->zero >= 2, arena,
                           &reference->zero_weights, &same));
    *exists = *exists && (same || p->reduce_each);
    if (!p->units) return OK;
    *reference = *p;
    reference->live = 0;
    return mixed_reference(&t.job, p->mesh.dp_replicate > 1, arena, &reference->units, exists);
}

/* With a balance loss over all dp ranks one rank computes the same if its micro-batches are those
 * of all of them together; then a capacity would count over these too. */
static Err check_reference(const ModelConfig *c)
{
    if (!c->experts.balance_global || c->experts.capacity <= 0) return OK;
    return err_fail(ERR_CONFIG,
                    "verify: optim.aux_level=global with parallel.capacity=%g: the loss counts the "
                    "micro-batches of all data-parallel ranks together, the capacity counts each, "
                    "so no single rank computes the same; set optim.aux_level=micro or "
                    "parallel.capacity=0",
                    c->experts.capacity);
}

Err verify_layout(const VerifySettings *s, const ParallelSettings *given, Arena *arena,
                  VerifyLine *line, int *n)
{
    ParallelSettings reference, settled = *given;
    const ParallelSettings *layout = &settled;
    bool exact = false;
    *n = 0;
    TRY(check_reference(s->config));
    if (given->zero_weights == layout_operators_mark) {
        const TrialSettings t = trial_of(s, given, GRADE_EXACT, dp_of(given));
        TRY(operator_rules(&t.job, arena, &settled.zero_weights));
    }
    if (given->tp_weights == layout_tp_mark) {
        const TrialSettings t = trial_of(s, given, GRADE_EXACT, dp_of(given));
        TRY(tp_rules(&t.job, arena, &settled.tp_weights));
    }
    if (given->units == &layout_mixed_mark) {
        const TrialSettings t = trial_of(s, &settled, GRADE_EXACT, dp_of(given));
        TRY(mixed_units(&t.job, arena, &settled.units));
    }
    if (!s->on_device_only) line[(*n)++] = (VerifyLine){.layout = *layout, .grade = GRADE_F64};
    if (!s->is_plain) {
        TRY(exact_reference(s, layout, arena, &reference, &exact));
        if (exact && !s->own_order)
            line[(*n)++] =
                (VerifyLine){.layout = *layout, .reference = reference, .grade = GRADE_EXACT};
        reference = (ParallelSettings){0};
        if (layout->units) {
            const TrialSettings t = trial_of(s, layout, GRADE_BF16, dp_of(layout));
            TRY(precise_units(&t.job, arena, &reference.units));
        }
        line[(*n)++] =
            (VerifyLine){.layout = *layout,
                         .reference = reference,
                         .grade = dtype_is_narrow(s->dtype) ? GRADE_BF16 : GRADE_BOUNDED};
    }
    for (int i = 0; i < *n; i++) TRY(run_line(s, &line[i], arena));
    return OK;
}

/* Frames, rows and columns of different numbers. */
static void shrink_clips(ModelConfig *c)
{
    enum { FRAMES = 3, TOKEN_ROWS = 2, TOKEN_COLUMNS = 4, TEXT = 3 };
    ClipConfig *x = &c->clip;
    c->frames = min_i64(c->frames, FRAMES);
    x->patch = min_i64(x->patch, 2);
    x->height = min_i64(x->height / x->patch, TOKEN_ROWS) * x->patch;
    x->width = min_i64(x->width / x->patch, TOKEN_COLUMNS) * x->patch;
    x->channels = min_i64(x->channels, 3);
    x->text_length = min_i64(x->text_length, TEXT);
    x->text_width = min_i64(x->text_width, TEXT + 2);
    c->places = x->height / x->patch * (x->width / x->patch);
    c->max_positions = c->frames * c->places;
}

/* Groups of two experts or more, that divide them and have room for a token's choices. */
static void shrink_groups(ExpertConfig *x)
{
    while (x->groups > 1 && (x->n % x->groups || x->n / x->groups < 2)) x->groups--;
    if (x->groups <= 1) return;
    const int64_t each = x->n / x->groups, least = (x->chosen + each - 1) / each;
    x->chosen_groups = max_i64(least, min_i64(x->chosen_groups, x->groups - 1));
}

bool verify_shrink(const ModelConfig *config, ModelConfig *out)
{
    enum { LAYERS = 2, HEAD_SIZE = 8, HEADS = 8, VOCAB = 211, EXPERTS = 8 };
    ModelConfig c = *config;
    const int64_t group = c.n_heads / c.n_kv_heads;
    c.n_layers = min_i64(c.n_layers, c.frames ? c.clip.dims : LAYERS); /* a layer of each kind */
    c.head_size = min_i64(c.head_size, HEAD_SIZE);
    c.n_heads = min_i64(c.n_heads, group > HEADS ? group : HEADS / group * group);
    c.n_kv_heads = c.n_heads / group;
    c.width = min_i64(c.width, c.n_heads * c.head_size);
    c.ff_width = min_i64(c.ff_width, 2 * c.width + 3); /* has few divisors */
    c.vocab = min_i64(c.vocab, VOCAB);
    if (c.frames) shrink_clips(&c);
    c.experts.n = min_i64(c.experts.n, EXPERTS);
    c.experts.chosen = min_i64(c.experts.chosen, (c.experts.n + 1) / 2);
    c.experts.width = min_i64(c.experts.width, c.width + 3);
    c.experts.shared_width = min_i64(c.experts.shared_width, c.width + 5);
    c.experts.sparse_step = min_i64(c.experts.sparse_step, LAYERS); /* the last one has experts */
    c.experts.dense_first = min_i64(c.experts.dense_first, LAYERS - 1);
    shrink_groups(&c.experts);
    *out = c;
    return memcmp(&c, config, sizeof c) != 0;
}
