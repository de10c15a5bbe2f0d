/* space.c -- enumerates the points of a space: meshes first, then the choices that each allows. */
#include "plan/search/space.h"

#include <string.h>
#include "job/batch.h"

enum { MAX_MICRO = 8 };

typedef struct {
    const PlanSpace *s;
    Arena *arena;
    PlanPoint *at;
    int n, cap;
} PointList;

typedef struct {
    const char *name;
    int chunks;  /* 0: the default */
    bool merged; /* runs B */
} ScheduleChoice;

/* terapipe and seq1f1b, which slice sequences, are not in the space. */
static const ScheduleChoice schedules[] = {
    {"1f1b", 0, true}, {"interleaved", 2, true}, {"interleaved", 4, true}, {"gpipe", 0, true},
    {"bfs", 2, true},  {"zbh1", 0, false},       {"zbh2", 0, false},       {"izb", 2, false},
    {"zbv", 0, false}, {"dualpipev", 0, false},
};
enum { N_SCHEDULES = sizeof schedules / sizeof *schedules };

PlanFixed plan_fixed_none(void)
{
    return (PlanFixed){
        .zero = -1, .recompute = -1, .sequence = -1, .tp_search = -1, .context = -1, .by_cost = -1};
}

int plan_dp(const PlanPoint *p) { return p->mesh.dp_replicate * p->mesh.dp_shard; }

PlanPoint plan_uniform(const PlanPoint *p, const UnitOptions *o)
{
    PlanPoint q = *p;
    q.zero = o->zero;
    q.zero_weights = o->zero_weights;
    q.recompute = o->recompute;
    q.offload = o->offload_names && strcmp(o->offload_names, PLAN_OFFLOAD) == 0;
    q.unit = NULL;
    return q;
}

bool plan_same_mesh(const PlanPoint *a, const PlanPoint *b)
{
    const MeshSizes *x = &a->mesh, *y = &b->mesh;
    return plan_dp(a) == plan_dp(b) && x->tp == y->tp && x->cp == y->cp && x->pp == y->pp &&
           x->ep == y->ep && x->etp == y->etp;
}

bool plan_has_schedule(const char *name)
{
    for (int i = 0; i < N_SCHEDULES; i++)
        if (strcmp(schedules[i].name, name) == 0) return true;
    return false;
}

bool plan_is_merged(const PlanPoint *p)
{
    for (int i = 0; i < N_SCHEDULES; i++)
        if (strcmp(schedules[i].name, p->schedule) == 0) return schedules[i].merged;
    return false;
}

static Err add_point(PointList *l, const PlanPoint *p)
{
    if (l->n == l->cap) {
        PlanPoint *more;
        l->cap = l->cap ? 2 * l->cap : 4096;
        TRY(ARENA_NEW(l->arena, l->cap, &more));
        if (l->n) memcpy(more, l->at, (size_t)l->n * sizeof *more);
        l->at = more;
    }
    l->at[l->n++] = *p;
    return OK;
}

static bool allows(int fixed, int value) { return fixed < 0 || fixed == value; }

/* ---- choices within a mesh, innermost first ---- */

static Err add_zeros(PointList *l, PlanPoint p)
{
    const int ranks = plan_dp(&p) * p.mesh.cp;
    /* Replicas of shards that are whole: the same as without replicas. */
    for (p.zero = p.mesh.dp_replicate > 1 ? 1 : 0; p.zero <= (ranks > 1 ? 3 : 0); p.zero++)
        if (allows(l->s->fixed.zero, p.zero)) TRY(add_point(l, &p));
    return OK;
}

static Err add_recomputes(PointList *l, PlanPoint p)
{
    for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
        p.recompute = (Recompute)r;
        if (allows(l->s->fixed.recompute, r)) TRY(add_zeros(l, p));
    }
    return OK;
}

/* Megatron's layouts of weights and those of a search, which differ in few weights where the stream
 * is whole: they are not searched there, unless the run asks for it. */
static Err add_weights(PointList *l, PlanPoint p)
{
    const int fixed = l->s->fixed.tp_search;
    const bool searches = p.mesh.tp > 1 && (p.sequence || fixed == 1);
    p.tp_weights = p.mesh.tp > 1 ? l->s->fixed.tp_weights : NULL;
    for (int search = 0; search <= searches; search++) {
        p.tp_search = search;
        if (p.mesh.tp == 1 || allows(fixed, search)) TRY(add_recomputes(l, p));
    }
    return OK;
}

static Err add_layouts(PointList *l, PlanPoint p)
{
    static const ContextKind ways[] = {CONTEXT_GATHER, CONTEXT_RING, CONTEXT_ULYSSES};
    for (int sp = 0; sp <= (p.mesh.tp > 1); sp++) {
        if (!allows(l->s->fixed.sequence, sp)) continue;
        p.sequence = sp;
        for (int c = 0; c < (p.mesh.cp > 1 ? 3 : 1); c++) {
            p.context = p.mesh.cp > 1 ? ways[c] : CONTEXT_AUTO;
            if (p.mesh.cp > 1 && !allows(l->s->fixed.context, (int)p.context)) continue;
            TRY(add_weights(l, p));
        }
    }
    return OK;
}

static Err add_schedules(PointList *l, PlanPoint p)
{
    const PlanFixed *f = &l->s->fixed;
    const int units = (int)l->s->base->config->n_layers + 2;
    for (int i = 0; i < (p.mesh.pp > 1 ? N_SCHEDULES : 1); i++) {
        const ScheduleChoice *c = &schedules[i];
        if (p.mesh.pp > 1 && f->schedule && strcmp(f->schedule, c->name) != 0) continue;
        if (f->chunks && p.mesh.pp > 1 && c->chunks != f->chunks) continue;
        if (c->chunks * p.mesh.pp > units) continue;
        p.schedule = c->name;
        p.chunks = c->chunks;
        for (int split = 0; split <= (p.mesh.pp > 1); split++) {
            p.by_cost = split;
            if (p.mesh.pp == 1 || allows(f->by_cost, split)) TRY(add_layouts(l, p));
        }
    }
    return OK;
}

static Err add_micros(PointList *l, PlanPoint p)
{
    const PlanSpace *s = l->s;
    const int64_t each = (s->global + plan_dp(&p) - 1) / plan_dp(&p);
    const int64_t most = s->max_micro ? s->max_micro : MAX_MICRO;
    if (s->fixed.micro) {
        p.micro = s->fixed.micro;
        return add_schedules(l, p);
    }
    for (p.micro = 1; p.micro <= most && p.micro <= each; p.micro *= 2) TRY(add_schedules(l, p));
    return OK;
}

/* ---- meshes ---- */

static bool fits(int fixed, int value) { return fixed == 0 || fixed == value; }

/* Replicas whose shards are spread over one block of a level of the machine. */
static Err add_replicas(PointList *l, const PlanPoint *whole)
{
    const CostRates *r = &l->s->cluster->rates;
    const int fixed = l->s->fixed.dp_replicate, dp = whole->mesh.dp_shard;
    const int inner = whole->mesh.cp * whole->mesh.tp;
    PlanPoint p = *whole;
    if (fits(fixed, 1)) TRY(add_micros(l, *whole));
    for (int n = 2; n <= dp; n++) {
        bool is_block = fixed == n;
        for (int i = 0; i < r->n_levels; i++)
            is_block = is_block || r->level[i].ranks == dp / n * inner;
        if (dp % n != 0 || !fits(fixed, n) || !is_block || dp / n * whole->mesh.cp == 1) continue;
        p.mesh.dp_replicate = n;
        p.mesh.dp_shard = dp / n;
        TRY(add_micros(l, p));
    }
    return OK;
}

/* Expert grids: experts over ep, their width over nothing or as many ranks as tp. */
static Err add_experts(PointList *l, PlanPoint p)
{
    const PlanFixed *f = &l->s->fixed;
    const int64_t experts = l->s->base->config->experts.n;
    const int stage = plan_dp(&p) * p.mesh.cp * p.mesh.tp;
    if (fits(f->ep, 1) && fits(f->etp, 1)) TRY(add_replicas(l, &p));
    for (p.mesh.ep = 2; p.mesh.ep <= experts && p.mesh.ep <= stage; p.mesh.ep++) {
        if (experts % p.mesh.ep != 0 || !fits(f->ep, p.mesh.ep)) continue;
        for (int i = 0; i < (p.mesh.tp > 1 ? 2 : 1); i++) {
            p.mesh.etp = i ? p.mesh.tp : 1;
            if (stage % (p.mesh.ep * p.mesh.etp) == 0 && fits(f->etp, p.mesh.etp))
                TRY(add_replicas(l, &p));
        }
    }
    return OK;
}

static Err add_mesh(PointList *l, int tp, int cp, int pp)
{
    const PlanSpace *s = l->s;
    const PlanFixed *f = &s->fixed;
    const int dp = s->ranks / (tp * cp * pp);
    const PlanPoint p = {
        .mesh = {
            .dp_replicate = 1, .dp_shard = dp, .tp = tp, .pp = pp, .cp = cp, .ep = 1, .etp = 1}};
    if (!fits(f->tp, tp) || !fits(f->cp, cp) || !fits(f->pp, pp) || !fits(f->dp, dp)) return OK;
    if ((f->over_cp && cp == 1) || (f->over_tp && tp == 1) || (f->over_pp && pp == 1)) return OK;
    if (dp > s->global) return OK; /* ranks without a sequence */
    return add_experts(l, p);
}

Err plan_points(const PlanSpace *s, Arena *arena, PlanPoint **out, int *n)
{
    PointList l = {.s = s, .arena = arena};
    const ModelConfig *model = s->base->config;
    const int node = s->cluster->rates.level[0].ranks;
    const int64_t least = s->min_tokens ? s->min_tokens : MIN_CP_TOKENS;
    for (int tp = 1; tp <= s->ranks && tp <= model->n_heads; tp++) {
        if (s->ranks % tp != 0 || (node && tp > node)) continue;
        for (int cp = 1; cp <= s->ranks / tp; cp++) {
            if (s->ranks / tp % cp != 0 || (cp > 1 && s->base->batch.seq_len / cp < least))
                continue;
            for (int pp = 1; pp <= s->ranks / tp / cp && pp <= model->n_layers + 2; pp++)
                if (s->ranks / tp / cp % pp == 0) TRY(add_mesh(&l, tp, cp, pp));
        }
    }
    *out = l.at;
    *n = l.n;
    return OK;
}

JobSettings plan_job(const PlanSpace *s, const PlanPoint *p)
{
    JobSettings job = *s->base;
    job.batch.sequences = p->micro;
    job.micros = (int)batch_micros(s->global, p->micro, plan_dp(p), 1);
    job.schedule = p->schedule;
    job.compile.recompute = p->recompute;
    job.compile.recompute_names = NULL;
    if (p->offload) job.compile.offload_names = PLAN_OFFLOAD;
    job.n_stage_rules = 0;
    job.parallel.mesh = p->mesh;
    job.parallel.rank = 0;
    job.parallel.units = p->unit;
    job.parallel.zero = p->zero;
    job.parallel.zero_weights = p->zero_weights;
    job.parallel.reduce_each = p->zero >= 2 && !p->zero_weights;
    job.parallel.sequence = p->sequence;
    job.parallel.tp_weights = p->tp_weights;
    job.parallel.tp_choice = NULL;
    job.parallel.context = p->context;
    job.parallel.schedule = p->schedule;
    job.parallel.chunks = p->chunks;
    job.parallel.slices = job.parallel.group = 0;
    job.parallel.split = p->split ? p->split : p->by_cost ? "cost" : "even";
    return job;
}

static bool same_weights(const UnitOptions *a, const UnitOptions *b)
{
    const char *x = a->zero_weights ? a->zero_weights : "",
               *y = b->zero_weights ? b->zero_weights : "";
    return a->zero == b->zero && strcmp(x, y) == 0;
}

static bool same_words(const UnitOptions *a, const UnitOptions *b)
{
    return same_weights(a, b) && !a->offload_names == !b->offload_names &&
           strcmp(job_recompute_text(a), job_recompute_text(b)) == 0;
}

/* "zero 2, mlp.*=3": the level of a unit, and of single weights. */
static void zero_text(const UnitOptions *o, Text *t)
{
    text_add(t, "zero %d", o->zero);
    if (o->zero_weights) text_add(t, ", %s", o->zero_weights);
}

/* "layers=12x(zero 0, recompute none)+36x(zero 3, recompute none)", in the order in which they
 * first occur. */
static void units_text(const UnitOptions *unit, int n, Text *t)
{
    const char *join = " layers=";
    for (int u = 1; u < n - 1; u++) {
        int first = 1, count = 0;
        while (!same_words(&unit[first], &unit[u])) first++;
        for (int k = u; k < n - 1; k++) count += same_words(&unit[k], &unit[u]);
        if (first < u) continue;
        text_add(t, "%s%dx(", join, count);
        zero_text(&unit[u], t);
        text_add(t, ", recompute %s%s%s)", job_recompute_text(&unit[u]),
                 unit[u].offload_names ? ", offload " : "",
                 unit[u].offload_names ? unit[u].offload_names : "");
        join = "+";
    }
    text_add(t, " embed=(");
    zero_text(&unit[0], t);
    text_add(t, ") head=(");
    zero_text(&unit[n - 1], t);
    text_add(t, ")");
}

void plan_point_text(const PlanPoint *p, Text *t)
{
    static const char *const recompute[] = {
        [RECOMPUTE_NONE] = "none", [RECOMPUTE_SELECTIVE] = "selective", [RECOMPUTE_FULL] = "full"};
    text_add(t, "dp=%d", plan_dp(p));
    if (p->mesh.dp_replicate > 1) text_add(t, " (%d replicas)", p->mesh.dp_replicate);
    if (p->mesh.tp > 1) text_add(t, " tp=%d", p->mesh.tp);
    if (p->sequence) text_add(t, " sequence");
    if (p->tp_search) text_add(t, " tp_weights=search");
    if (p->tp_weights && !p->tp_search) text_add(t, " tp_weights=%s", p->tp_weights);
    if (p->mesh.ep > 1) text_add(t, " ep=%d", p->mesh.ep);
    if (p->mesh.etp > 1) text_add(t, " etp=%d", p->mesh.etp);
    if (p->mesh.cp > 1) text_add(t, " cp=%d context=%s", p->mesh.cp, context_name(p->context));
    if (p->mesh.pp > 1) text_add(t, " pp=%d %s", p->mesh.pp, p->schedule);
    if (p->mesh.pp > 1 && p->chunks) text_add(t, " chunks=%d", p->chunks);
    if (p->by_cost) text_add(t, " split=%s", p->split ? p->split : "cost");
    text_add(t, " micro=%lld", (long long)p->micro);
    if (p->unit)
        units_text(p->unit, p->n_units, t);
    else
        text_add(t, " zero=%d recompute=%s", p->zero, recompute[p->recompute]);
}
