/* mixed_costs.c -- what each choice of a unit costs, and what each stage holds.
 *
 *     stage 0 of 2, 1f1b     F0 F1 | B0 F2 B1 ...      frames of two micro-batches at the peak
 *     groups                 embed, layers 0 to 15     units of one class in one chunk */
#include "plan/search/mixed_parts.h"

#include <math.h>
#include <string.h>
#include "schedule/gen/generate.h"

static double larger(double a, double b) { return a > b ? a : b; }
static double smaller(double a, double b) { return a < b ? a : b; }

double choice_bytes(const StageGroup *g, const UnitChoice *c)
{
    const UnitSummary *u = &c->summary;
    const double bytes = c->still_bytes + g->held_i * c->frame_i + g->held_w * c->frame_w;
    return g->top ? bytes + (double)u->scratch_bytes[PHASE_F] + (double)u->pack_bytes : bytes;
}

double stage_limit(const MixedCosts *c, int stage, double limit_bytes)
{
    return limit_bytes + c->stage[stage].sent_bytes;
}

double choice_seconds(const SumWeights *w, const UnitChoice *c)
{
    double seconds = 0;
    for (int i = 0; i < N_SUMS; i++) seconds += w->of[i] * c->sum[i];
    return seconds;
}

double stage_before(const SumWeights *w, const MixedStage *stage)
{
    double seconds = 0;
    for (int i = 0; i < N_SUMS; i++)
        if (w->of[i] > 0) seconds += w->of[i] * stage->before[i];
    return seconds;
}

/* ---- choices ---- */

UnitOptions choice_options(const MixedCosts *c, const UnitChoice *choice, int unit)
{
    const JobSettings job = plan_job(&c->s->space, &c->point);
    UnitOptions o = choice->options;
    o.fp8_names = job_unit_options(&job, unit).fp8_names;
    return o;
}

typedef struct {
    int micros, room; /* room: most choices of a class */
    bool merged, overlaps;
} ChoiceTerms;

/* RUNs of a backward phase that need the unit's pack gathered, and the F. */
static int count_uses(const UnitSummary *u, bool merged)
{
    const Phase back = merged ? PHASE_B : PHASE_I;
    return (u->reads >> PHASE_F & 1) + (u->reads >> back & 1);
}

static void fill_sums(const ChoiceTerms *t, UnitChoice *c)
{
    const UnitSummary *u = &c->summary;
    const double m = t->micros, i = u->run[PHASE_I].seconds, w = u->run[PHASE_W].seconds,
                 f = u->run[PHASE_F].seconds, both = u->run[PHASE_B].seconds;
    const double b = t->merged ? both : smaller(both, i + w), back = t->merged ? b : smaller(i, b),
                 end = u->norm_s + u->update_s;
    const double kept = u->gather_s[GATHER_STEP], used = u->gather_s[GATHER_USE],
                 gathers = kept + used * m * count_uses(u, t->merged),
                 last = u->late ? 0 : u->reduce[REDUCE_AFTER_LAST].begun_s,
                 each = u->reduce[REDUCE_AFTER_EACH].begun_s, reduce = last + each,
                 reduces = last + m * each;
    c->sum[SUM_WORK] = m * (f + b) + end;
    c->sum[SUM_DRAIN] = m * (f + back) + end;
    c->sum[SUM_ENDS] = m * (f + b) - b + reduce + end;
    c->sum[SUM_GATHER] = gathers + end;
    c->sum[SUM_REDUCE] = reduces + end;
    c->sum[SUM_FILL] = kept + used + reduces + end;
    if (t->overlaps) return;
    c->sum[SUM_WORK] += gathers + reduces;
    c->sum[SUM_DRAIN] = c->sum[SUM_ENDS] = c->sum[SUM_GATHER] = 0;
    c->sum[SUM_REDUCE] = c->sum[SUM_FILL] = 0;
}

static void fill_choice(const ChoiceTerms *t, UnitChoice *c)
{
    const UnitSummary *u = &c->summary;
    fill_sums(t, c);
    c->still_bytes = (double)u->state_bytes + (double)u->grad_bytes;
    c->frame_i = (double)u->region_bytes[REGION_FRAME_I];
    c->frame_w = (double)u->region_bytes[REGION_FRAME_W];
}

/* Adds a choice to a class, or to all of them if `only` is negative. */
static Err add_choice(MixedCosts *c, const ChoiceTerms *t, const UnitOptions *o, int only)
{
    const PlanPoint q = plan_uniform(&c->point, o);
    UnitSummary class[MAX_BOUND_CLASSES];
    LayoutSummary sum;
    const Err err = search_pack_bounds(c->s, &q, class, &sum);
    if (err == ERR_CONFIG) return OK;
    TRY(err);
    if (c->n_classes == 0) {
        c->base = sum;
        c->n_classes = sum.n_classes;
        c->base.class = NULL;
        for (int k = 0; k < sum.n_classes; k++) TRY(ARENA_NEW(c->s->temp, t->room, &c->choice[k]));
    }
    for (int k = 0; k < sum.n_classes; k++) {
        if (only >= 0 && k != only) continue;
        MUST(c->n[k] < t->room, "room for %d choices", t->room);
        UnitChoice *to = &c->choice[k][c->n[k]++];
        *to = (UnitChoice){.options = *o, .summary = class[k]};
        fill_choice(t, to);
    }
    return OK;
}

static bool allows(int fixed, int value) { return fixed < 0 || fixed == value; }

bool plan_mixes(const PlanSpace *s) { return s->fixed.zero < 0 || s->fixed.recompute < 0; }

/* True if copies to the host and back expose less of a layer's frame than recomputation of all of
 * it repeats. */
static bool offload_pays(const MixedCosts *c)
{
    const double host_Bps = c->s->space.cluster->rates.host_Bps;
    for (int k = 0; k < c->n_classes; k++)
        for (int i = 0; i < c->n[k]; i++) {
            const UnitChoice *u = &c->choice[k][i];
            const double f = u->summary.run[PHASE_F].seconds, b = u->summary.run[PHASE_B].seconds,
                         copy = (u->frame_i + u->frame_w) / host_Bps;
            if (u->options.recompute == RECOMPUTE_NONE && u->frame_i > 0 &&
                larger(copy - f, 0) + larger(copy - b, 0) < f)
                return true;
        }
    return false;
}

/* Adds the choices of a class in which some weights have another ZeRO level than the rest. */
static Err add_splits(MixedCosts *c, const ChoiceTerms *t, int class, int unit, int zeros)
{
    const PlanSpace *space = &c->s->space;
    const JobSettings job = plan_job(space, &c->point);
    const WeightSplits *splits;
    UnitOptions o = job_unit_options(&job, 0);
    o.reduce_each = false;
    TRY(cache_splits(c->s, unit, &splits));
    for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++)
        for (int i = 0; i < splits->n && allows(space->fixed.recompute, r); i++)
            for (o.zero = c->point.mesh.dp_replicate > 1; o.zero <= zeros; o.zero++)
                for (int level = o.zero + 1; level <= zeros; level++) {
                    o.recompute = (Recompute)r;
                    TRY(weight_rules(splits, i, level, c->s->arena, &o.zero_weights));
                    TRY(add_choice(c, t, &o, class));
                }
    return OK;
}

/* Adds y to the frames: up to the last phase in which the unit, or any choice of the next, reads
 * it. */
static void add_streams(MixedCosts *c)
{
    unsigned by = ~0u;
    for (int k = 0; k < c->n_classes; k++)
        for (int i = 0; i < c->n[k]; i++)
            if (c->choice[k][i].summary.x_read) by &= c->choice[k][i].summary.x_read;
    for (int k = 0; k < c->n_classes; k++)
        for (int i = 0; i < c->n[k]; i++) {
            UnitChoice *u = &c->choice[k][i];
            const unsigned all = by | u->summary.y_read;
            if (all >> PHASE_W & 1)
                u->frame_w += (double)u->summary.y_bytes;
            else if (all >> PHASE_I & 1)
                u->frame_i += (double)u->summary.y_bytes;
        }
}

static Err add_choices(MixedCosts *c, const ChoiceTerms *t, ChoiceRange range)
{
    const PlanSpace *space = &c->s->space;
    const PlanPoint *p = &c->point;
    const JobSettings job = plan_job(space, p);
    const int zeros = plan_dp(p) * p->mesh.cp > 1 ? range.most_zero : 0;
    UnitOptions o = job_unit_options(&job, 0);
    o.reduce_each = false;
    for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++)
        for (o.zero = 0; o.zero <= zeros; o.zero++) {
            o.recompute = (Recompute)r;
            if (allows(space->fixed.recompute, r) && allows(space->fixed.zero, o.zero))
                TRY(add_choice(c, t, &o, -1));
        }
    const bool free = allows(space->fixed.recompute, RECOMPUTE_NONE) && !o.offload_names &&
                      !space->fixed.keeps_offload;
    o.recompute = RECOMPUTE_NONE;
    o.offload_names = PLAN_OFFLOAD;
    for (o.zero = 0; o.zero <= zeros && free && c->n_classes && offload_pays(c); o.zero++)
        if (allows(space->fixed.zero, o.zero)) TRY(add_choice(c, t, &o, -1));
    if (!c->n_classes) return err_fail(ERR_CONFIG, "the compiler refuses this layout");
    for (int k = 0; k < c->n_classes && range.weights && space->fixed.zero < 0; k++) {
        int unit = 0;
        while (c->base.class_of[unit] != k) unit++;
        TRY(add_splits(c, t, k, unit, zeros));
    }
    return OK;
}

/* ---- stages ---- */

/* Micro-batches of each chunk of the stage whose frames are held when most are. */
static void count_held(const MixedCosts *c, int stage, double *held_i, double *held_w, double *now)
{
    const Schedule *s = c->moves;
    double most = -1;
    double *now_i = now, *now_w = now + s->chunks;
    memset(now, 0, 2 * (size_t)s->chunks * sizeof *now);
    for (int i = 0; i < s->n[stage]; i++) {
        const Action *a = &s->list[stage][i];
        double all = 0;
        if (a->kind != A_RUN) continue;
        const double share = 1.0 / s->slices;
        if (a->phase == PHASE_F) now_i[a->unit] += share, now_w[a->unit] += share;
        for (int k = 0; k < s->chunks && a->phase == PHASE_F; k++)
            all += (now_i[k] + now_w[k]) * (c->first_unit[k + 1] - c->first_unit[k]);
        if (a->phase == PHASE_F && all > most) {
            most = all;
            memcpy(held_i, now_i, (size_t)s->chunks * sizeof *held_i);
            memcpy(held_w, now_w, (size_t)s->chunks * sizeof *held_w);
        }
        if (a->phase == PHASE_I || a->phase == PHASE_B) now_i[a->unit] -= share;
        if (a->phase == PHASE_W || a->phase == PHASE_B) now_w[a->unit] -= share;
    }
}

static Err add_groups(const MixedCosts *c, int chunk, double held_i, double held_w, MixedStage *to)
{
    for (int u = c->first_unit[chunk], end; u < c->first_unit[chunk + 1]; u = end) {
        for (end = u + 1; end < c->first_unit[chunk + 1]; end++)
            if (c->class_of[end] != c->class_of[u]) break;
        if (to->n == MAX_STAGE_GROUPS)
            return err_fail(ERR_CONFIG, "plan: more than %d kinds of units on a stage",
                            MAX_STAGE_GROUPS);
        const bool top = end - u == 1 && end == c->first_unit[chunk + 1];
        to->group[to->n++] = (StageGroup){
            c->class_of[u], u, end - u, held_i, held_w, top && c->moves->chunks == c->stages};
    }
    return OK;
}

/* The least seconds of a phase of a class under any choice. */
static double least(const MixedCosts *c, int class, Phase phase)
{
    double seconds = HUGE_VAL;
    for (int i = 0; i < c->n[class]; i++)
        seconds = smaller(seconds, c->choice[class][i].summary.run[phase].seconds);
    return seconds;
}

static double least_of_chunk(const MixedCosts *c, int chunk, Phase phase)
{
    double seconds = 0;
    for (int u = c->first_unit[chunk]; u < c->first_unit[chunk + 1]; u++)
        seconds += least(c, c->class_of[u], phase);
    return seconds;
}

/* At most `live` packs stay gathered between two visits of a stage's units. */
static double saved_gathers(const MixedCosts *c, int visits)
{
    double longest = 0;
    for (int k = 0; k < c->n_classes; k++)
        for (int i = 0; i < c->n[k]; i++)
            longest = larger(longest, c->choice[k][i].summary.gather_s[GATHER_USE]);
    return (visits - 1) * c->base.live * longest;
}

/* Seconds beside the sums: of the chunks before the stage's first one, in and out. */
static void fill_before(const MixedCosts *c, const ChoiceTerms *t, int stage, MixedStage *to)
{
    const Schedule *s = c->moves;
    const bool one = s->chunks == s->stages;
    const int top = c->class_of[c->first_unit[stage + 1] - 1];
    double in = 0, out = 0;
    for (int k = 0; k < stage; k++) {
        in += least_of_chunk(c, k, PHASE_F);
        out += smaller(least_of_chunk(c, k, PHASE_B),
                       t->merged ? HUGE_VAL : least_of_chunk(c, k, PHASE_I));
    }
    const double saved = saved_gathers(c, 2 * t->micros * (s->chunks / s->stages));
    to->before[SUM_WORK] = in + (one && t->merged ? out : 0) - (t->overlaps ? 0 : saved);
    to->before[SUM_DRAIN] = one && t->overlaps ? in + out : -HUGE_VAL;
    to->before[SUM_ENDS] =
        one && t->overlaps
            ? in + smaller(least(c, top, PHASE_B),
                           t->merged ? HUGE_VAL : least(c, top, PHASE_I) + least(c, top, PHASE_W))
            : -HUGE_VAL;
    to->before[SUM_GATHER] = t->overlaps ? -saved : -HUGE_VAL;
    to->before[SUM_REDUCE] = t->overlaps ? in : -HUGE_VAL;
    to->before[SUM_FILL] = one && t->overlaps ? 0 : -HUGE_VAL;
}

static Err open_stages(MixedCosts *c, const ChoiceTerms *t)
{
    const Schedule *s = c->moves;
    double *held;
    TRY(ARENA_NEW(c->s->temp, 4 * s->chunks, &held));
    TRY(ARENA_NEW(c->s->temp, s->stages, &c->stage));
    c->stages = s->stages;
    for (int i = 0; i < s->stages; i++) {
        count_held(c, i, held, held + s->chunks, held + 2 * s->chunks);
        for (int k = 0; k < s->chunks; k++)
            if (s->stage_of[k] == i)
                TRY(add_groups(c, k, held[k], held[s->chunks + k], &c->stage[i]));
        const MixedStage *g = &c->stage[i];
        const StageGroup *last = &g->group[g->n - 1];
        for (int k = 0; k < c->n[last->class] && s->stages > 1; k++)
            c->stage[i].sent_bytes =
                larger(c->stage[i].sent_bytes,
                       last->held_w * (double)c->choice[last->class][k].summary.y_bytes);
        fill_before(c, t, i, &c->stage[i]);
    }
    return OK;
}

Err mixed_open(PlanSearch *s, const PlanPoint *family, ChoiceRange range, MixedCosts *out)
{
    const Cluster *cluster = s->space.cluster;
    *out = (MixedCosts){.s = s, .point = *family};
    out->point.recompute = RECOMPUTE_NONE;
    TRY(cache_moves(s, &out->point, &out->moves));
    if (!out->moves) return err_fail(ERR_CONFIG, "the compiler refuses this schedule");
    const ChoiceTerms t = {.micros = out->moves->micros,
                           .room = range.weights ? MAX_UNIT_CHOICES : MAX_PLAIN_CHOICES,
                           .merged = plan_is_merged(family) && !s->space.base->split,
                           .overlaps = cluster->overlaps && !(cluster->serial >> TRANSFER_DP & 1)};
    TRY(add_choices(out, &t, range));
    add_streams(out);
    TRY(cache_chunks(s, &out->point, out->moves->chunks, &out->first_unit, &out->class_of));
    return open_stages(out, &t);
}
