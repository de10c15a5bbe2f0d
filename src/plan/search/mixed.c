/* mixed.c -- families of plans, best-first.
 *
 *     level      bound of a family                     cost
 *     ideal      flops alone                           a microsecond
 *     scaled     one sequence of the layout            a compilation for each layout
 *     units      compiled units, any ZeRO level        one for each micro-batch
 *     played     the coarse clock, each number of a unit the least of its choices
 *     bounded    relaxed knapsacks of its stages       one for each recomputation
 *     solved     exact knapsacks; its plans are played a hundred milliseconds */
#include "plan/search/mixed_parts.h"

#include <math.h>
#include <string.h>

typedef enum {
    FAMILY_IDEAL,
    FAMILY_SCALED,
    FAMILY_UNITS,
    FAMILY_PLAYED,
    FAMILY_BOUNDED,
    FAMILY_SOLVED
} FamilyLevel;

enum { MAX_LINKS = 8, MAX_SOLVES = 16 };
/* The search ends when the best bound left is this close to the best time. */
static const double CLOSE = 1e-3;
/* A plan that leaves less of the memory is not solved again. */
static const double SLACK = 0.001;
/* The step of a limit that nothing bounds. */
static const double LOOSER = 0.02;

typedef struct {
    PlanSearch *s;
    const MixedRequest *r;
    MixedFamily *family;
    int n;
    int *open, n_open; /* families by their bounds */
    MixedPlan *best;
    double best_s; /* of this search and of plans whose layers are alike */
} MixedSearch;

static bool same_family(const PlanPoint *a, const PlanPoint *b)
{
    return memcmp(&a->mesh, &b->mesh, sizeof a->mesh) == 0 && a->micro == b->micro &&
           a->sequence == b->sequence && a->tp_search == b->tp_search && a->context == b->context &&
           a->schedule == b->schedule && a->chunks == b->chunks && a->by_cost == b->by_cost;
}

/* The nodes of a family follow each other. */
static Err list_families(MixedSearch *m)
{
    const PlanSearch *s = m->s;
    const int fixed = s->space.fixed.recompute;
    TRY(ARENA_NEW(s->arena, s->n + 1, &m->family));
    for (int i = 0; i < s->n; i++) {
        if (i > 0 && same_family(&s->node[i].point, &s->node[i - 1].point)) continue;
        MixedFamily *f = &m->family[m->n++];
        *f = (MixedFamily){.point = s->node[i].point, .level = FAMILY_IDEAL};
        f->point.zero = 0;
        f->point.recompute = fixed >= 0 ? (Recompute)fixed : RECOMPUTE_NONE;
        LayoutBound layout;
        PlanBound bound;
        TRY(cache_ideal(m->s, &f->point, &layout));
        const Err err = search_any_bound(m->s, &f->point, &layout, &bound);
        if (err != OK && err != ERR_CONFIG) return err;
        if (err == OK && bound.memory_bytes <= m->r->limit_bytes)
            f->bound_s = bound.step_s;
        else
            m->n--; /* none fits */
    }
    return OK;
}

/* The plan with numbers of units in place of a split by cost, which recomputation would move. */
static Err fix_split(MixedSearch *m, PlanPoint *p)
{
    const int16_t *first, *class_of;
    const Schedule *moves;
    Text t = text_in(m->s->arena);
    if (!p->by_cost) return OK;
    TRY(cache_moves(m->s, p, &moves));
    TRY(cache_chunks(m->s, p, moves->chunks, &first, &class_of));
    for (int k = 0; k < moves->chunks; k++)
        text_add(&t, "%s%d", k ? "," : "", first[k + 1] - first[k]);
    return text_done(&t, &p->split);
}

/* Times and links a plan; *bytes is INFINITY if the compiler refuses it. */
static Err examine(MixedSearch *m, const PlanPoint *p, CoarseTime *time, double *bytes)
{
    PlanSearch *s = m->s;
    *bytes = (double)INFINITY;
    s->counts.timed++;
    Err err = plan_time(s, p, time);
    if (err == OK && time->step_s >= m->best_s) return OK;
    if (err == OK) {
        s->counts.linked++;
        err = plan_link(s, p, bytes);
    }
    if (err == ERR_CONFIG) *bytes = (double)INFINITY;
    return err == ERR_CONFIG ? OK : err;
}

static void keep_best(MixedSearch *m, const PlanPoint *p, const CoarseTime *time, double bytes)
{
    m->best_s = time->step_s;
    m->best->found = true;
    m->best->point = *p;
    m->best->time = *time;
    m->best->memory_bytes = bytes;
}

/* Limits of the bytes that a solver counts: low is too little, high too much. */
typedef struct {
    double now, low, high;
} LimitSearch;

/* The solver counts `counted` bytes for a plan that has `bytes`: others are taken to differ by as
 * much. */
static void move_limit(LimitSearch *l, double most, double counted, double bytes)
{
    double next = most - (bytes - counted);
    if (bytes > most) {
        l->high = counted;
        if (next >= counted) next = counted * (1 - 1e-6);
    } else {
        l->low = l->now;
    }
    l->now = next > l->low && next < l->high ? next
             : isfinite(l->high)             ? (l->low + l->high) / 2
                                             : l->now * (1 + LOOSER);
}

/* No plan was better: more bytes may have one. */
static void raise_limit(LimitSearch *l)
{
    l->low = l->now;
    l->now = isfinite(l->high) ? (l->low + l->high) / 2 : l->now * (1 + LOOSER);
}

/* Solves with limits that fall until the linked plan fits, or rise while it leaves memory or is no
 * better. *bound_s is raised to the bound of the family's plans. *best: a limit to try second, or
 * 0; becomes that of the best plan, if one is found. */
static Err solve(MixedSearch *m, const MixedCosts *c, double *bound_s, double *best)
{
    const double most = m->r->limit_bytes, second = *best;
    LimitSearch l = {.now = most, .high = (double)INFINITY};
    for (int i = 0, links = 0; i < MAX_SOLVES && links < MAX_LINKS; i++) {
        PlanPoint p;
        CoarseTime time;
        double bytes = 0, counted, bound = *bound_s;
        TRY(mixed_solve(c, l.now, &bound, &p, &time, &counted));
        if (i == 0) *bound_s = bound;
        if (i == 0 && second == 0 && time.step_s >= m->best_s) return OK;
        if (time.step_s < m->best_s) {
            TRY(fix_split(m, &p));
            TRY(examine(m, &p, &time, &bytes));
        }
        if (time.step_s < m->best_s) {
            links++;
            if (!isfinite(bytes)) return OK;
            if (bytes <= most) keep_best(m, &p, &time, bytes);
            if (bytes <= most) *best = l.now;
            if (bytes <= most && most - bytes < SLACK * most) return OK;
            move_limit(&l, most, counted, bytes);
        } else {
            raise_limit(&l);
        }
        if (i == 0 && second > 0) l.now = second;
        if (l.high - l.low < SLACK * most) return OK;
    }
    return OK;
}

/* Solves the family with choices for units, then with choices for single weights: these are more,
 * so their lists are rounded more. Only the latter bound all its plans. Schedules that add up
 * micro-batches in another order refuse ZeRO 2 and 3: then the levels below are tried too. */
static Err solve_family(MixedSearch *m, MixedFamily *f, MixedCosts *c)
{
    PlanSearch *s = m->s;
    const int linked = s->counts.linked;
    const double best_s = m->best_s;
    double units_s = 0, limit = 0;
    m->best->solved++;
    TRY(mixed_open(s, &f->point, (ChoiceRange){3, false}, c));
    TRY(solve(m, c, &units_s, &limit));
    TRY(mixed_open(s, &f->point, (ChoiceRange){3, true}, c));
    TRY(solve(m, c, &f->bound_s, &limit));
    if (m->best_s < best_s || s->counts.linked == linked) return OK;
    TRY(mixed_open(s, &f->point, (ChoiceRange){1, true}, c));
    return solve(m, c, &units_s, &limit);
}

/* Bounds the family by knapsacks, or solves it. */
static Err raise_costs(MixedSearch *m, MixedFamily *f)
{
    PlanSearch *s = m->s;
    const size_t mark = arena_mark(s->temp);
    MixedCosts *c;
    double bound = 0;
    TRY(ARENA_NEW(s->temp, 1, &c));
    if (f->level == FAMILY_PLAYED) {
        TRY(mixed_open(s, &f->point, (ChoiceRange){3, true}, c));
        TRY(mixed_bound(c, m->r->limit_bytes, s->temp, &bound));
        if (bound > f->bound_s) f->bound_s = bound;
        f->level = FAMILY_BOUNDED;
    } else {
        TRY(solve_family(m, f, c));
        f->level = FAMILY_SOLVED;
    }
    arena_rewind(s->temp, mark);
    return OK;
}

static Err raise_bound(MixedSearch *m, MixedFamily *f)
{
    LayoutBound layout;
    PlanBound bound;
    if (f->level == FAMILY_IDEAL) {
        TRY(cache_scaled(m->s, &f->point, &layout));
        TRY(search_any_bound(m->s, &f->point, &layout, &bound));
    } else {
        const LayoutUnits *units;
        TRY(cache_units(m->s, &f->point, &units));
        if (!units) return err_fail(ERR_CONFIG, "the compiler refuses this layout");
        TRY(search_any_bound(m->s, &f->point, &units->bound, &bound));
    }
    f->level++;
    if (bound.memory_bytes > m->r->limit_bytes) f->bound_s = (double)INFINITY;
    if (bound.step_s > f->bound_s) f->bound_s = bound.step_s;
    return OK;
}

static double smaller(double a, double b) { return a < b ? a : b; }

/* The least of each number of a unit under any ZeRO level. */
static void take_least(const UnitSummary *u, UnitSummary *least)
{
    double reduce = 0, least_reduce = 0;
    for (int when = 0; when < 2; when++) {
        least->gather_s[when] = smaller(least->gather_s[when], u->gather_s[when]);
        reduce += u->reduce[when].begun_s;
        least_reduce += least->reduce[when].begun_s;
    }
    least->reduce[REDUCE_AFTER_LAST].begun_s = smaller(reduce, least_reduce);
    least->reduce[REDUCE_AFTER_EACH].begun_s = 0;
    least->norm_s = smaller(least->norm_s, u->norm_s);
    least->update_s = smaller(least->update_s, u->update_s);
    least->quantize_s = smaller(least->quantize_s, u->quantize_s);
}

/* Weights of a unit may have several levels: their reductions may take less than one. */
static Err part_reduces(PlanSearch *s, const PlanPoint *p, int n_classes, UnitSummary *least)
{
    const LayoutUnits *units;
    if (s->space.fixed.zero >= 0) return OK;
    TRY(cache_units(s, p, &units));
    for (int k = 0; k < n_classes; k++) {
        double *seconds = &least[k].reduce[REDUCE_AFTER_LAST].begun_s;
        *seconds = smaller(*seconds, pack_least_reduce(&s->space, p, &units->bound.class[k]));
    }
    return OK;
}

/* Plays the family's schedule: no choice of its units is faster. */
static Err raise_played(MixedSearch *m, MixedFamily *f)
{
    PlanSearch *s = m->s;
    UnitSummary least[MAX_BOUND_CLASSES], class[MAX_BOUND_CLASSES];
    LayoutSummary sum;
    CoarseTime time;
    PlanPoint p = f->point;
    int n = 0;
    for (p.zero = 0; p.zero <= (plan_dp(&p) * p.mesh.cp > 1 ? 3 : 0); p.zero++) {
        if (s->space.fixed.zero >= 0 && s->space.fixed.zero != p.zero) continue;
        TRY(search_pack_bounds(s, &p, n ? class : least, &sum));
        for (int k = 0; k < sum.n_classes && n; k++) take_least(&class[k], &least[k]);
        n++;
    }
    TRY(part_reduces(s, &f->point, sum.n_classes, least));
    sum.class = least;
    m->best->bounded++;
    s->counts.played++;
    TRY(search_play(s, &f->point, &sum, NULL, &time));
    if (time.step_s > f->bound_s) f->bound_s = time.step_s;
    f->level = FAMILY_PLAYED;
    return OK;
}

static Err raise(MixedSearch *m, MixedFamily *f)
{
    const size_t mark = arena_mark(m->s->temp);
    Err (*const next)(MixedSearch * m, MixedFamily * f) = f->level < FAMILY_UNITS    ? raise_bound
                                                          : f->level == FAMILY_UNITS ? raise_played
                                                                                     : raise_costs;
    const Err err = next(m, f);
    arena_rewind(m->s->temp, mark);
    if (err == ERR_CONFIG) f->bound_s = (double)INFINITY;
    return err == ERR_CONFIG ? OK : err;
}

/* ---- families in order of their bounds: a heap ---- */

static bool is_before(const MixedSearch *m, int a, int b)
{
    const double x = m->family[a].bound_s, y = m->family[b].bound_s;
    return x < y || (x <= y && a < b);
}

static void sift_down(MixedSearch *m, int i)
{
    for (int child; (child = 2 * i + 1) < m->n_open; i = child) {
        if (child + 1 < m->n_open && is_before(m, m->open[child + 1], m->open[child])) child++;
        if (is_before(m, m->open[i], m->open[child])) return;
        const int other = m->open[i];
        m->open[i] = m->open[child];
        m->open[child] = other;
    }
}

static Err open_heap(MixedSearch *m)
{
    TRY(ARENA_NEW(m->s->arena, m->n + 1, &m->open));
    m->n_open = m->n;
    for (int i = 0; i < m->n; i++) m->open[i] = i;
    for (int i = m->n / 2 - 1; i >= 0; i--) sift_down(m, i);
    return OK;
}

static void drop_first(MixedSearch *m)
{
    m->open[0] = m->open[--m->n_open];
    sift_down(m, 0);
}

/* True if the next level of the family is beyond a limit. */
static bool is_spent(const MixedSearch *m, const MixedFamily *f)
{
    if (f->level == FAMILY_BOUNDED) return m->best->solved >= m->r->max_solved;
    return f->level >= FAMILY_UNITS && m->best->bounded >= m->r->max_bounded;
}

/* Raises a family up to its plans. */
static Err raise_fully(MixedSearch *m, MixedFamily *f)
{
    while (f->level != FAMILY_SOLVED && f->bound_s < m->best_s * (1 - CLOSE)) TRY(raise(m, f));
    return OK;
}

/* The family of the best plan whose layers are alike: limits may leave no other one solved. */
static Err solve_first(MixedSearch *m)
{
    for (int i = 0; i < m->n && m->r->first; i++)
        if (same_family(&m->family[i].point, m->r->first)) return raise_fully(m, &m->family[i]);
    return OK;
}

/* Takes the family with the smallest bound until no bound is below the best plan; families that
 * are solved, or beyond a limit, leave the heap with their bounds. */
static Err search_families(MixedSearch *m)
{
    while (m->n_open > 0) {
        MixedFamily *f = &m->family[m->open[0]];
        if (f->bound_s >= m->best_s * (1 - CLOSE)) return OK;
        if (f->level == FAMILY_SOLVED || is_spent(m, f)) {
            drop_first(m);
            continue;
        }
        TRY(raise(m, f));
        sift_down(m, 0);
        if (m->s->progress) m->s->progress(m->s->context, &m->s->counts);
    }
    return OK;
}

Err plan_mixed(PlanSearch *s, const MixedRequest *r, MixedPlan *out)
{
    MixedSearch m = {.s = s, .r = r, .best = out, .best_s = r->best_s};
    const size_t mark = arena_mark(s->temp);
    *out = (MixedPlan){0};
    TRY(list_families(&m));
    out->families = m.n;
    TRY(solve_first(&m));
    TRY(open_heap(&m));
    TRY(search_families(&m));
    bool differs;
    if (out->found) TRY(plan_settle(s, &out->point, &differs));
    out->bound_s = m.best_s;
    for (int i = 0; i < m.n; i++)
        if (m.family[i].bound_s < out->bound_s) out->bound_s = m.family[i].bound_s;
    arena_rewind(s->temp, mark);
    return OK;
}
