/* bound.c -- sums over the units of each stage. Time that a plan may hide is in no term. */
#include "plan/search/bound.h"

#include <math.h>
#include <string.h>
#include "schedule/gen/generate.h"

/* The RUNs and parameters of a unit, a chunk or a stage. */
typedef struct {
    double f, b;         /* of one micro-batch: F, and the backward phases */
    double back;         /* until dx leaves: B, or I if W may come later */
    double top_f, top_b; /* of its last unit */
    double reduce, layer_reduce, gather, norm, update;
    double frame, state; /* bytes: of a micro-batch; of weights, moments and gradients */
} PartBound;

typedef struct {
    const BoundInput *in;
    int stages, micros;
    bool merged, overlaps;
    bool late; /* the ends' gradients are reduced beside all others: tied, on two stages */
    double send_s;
    PartBound class[MAX_BOUND_CLASSES];
} Bounder;

static double larger(double a, double b) { return a > b ? a : b; }
static double smaller(double a, double b) { return a < b ? a : b; }

/* State comes from as far as all of it reaches, which is at least its own bytes: no slower than the
 * fastest point of the curve from there on. */
static double fastest_Bps(const CostRates *r, double bytes)
{
    if (!r->memory) return r->memory_Bps;
    double most = cost_curve_at(r->memory, bytes);
    for (int i = 0; i < r->memory->n; i++)
        if (r->memory->x[i] >= bytes) most = larger(most, r->memory->y[i]);
    return most;
}

static double memory_seconds(const CostRates *r, double bytes)
{
    return bytes > 0 ? r->launch_s + bytes / fastest_Bps(r, bytes) : 0;
}

enum { N_ZERO = 4 };

/* Groups of packs: ranks that sum their gradients, and those of them that share their state. */
typedef struct {
    double elements[N_ZERO], coded[N_ZERO]; /* by ZeRO level; coded: of coded weights */
    int shards;
    CostGroup data, shard;
} PackGroup;

/* Adds elements of a group that have a ZeRO level and a type: they are a pack. */
static void add_pack(const PlanSpace *s, const PackGroup *g, int zero, bool coded, PackBound *out)
{
    const JobSettings *job = s->base;
    const CostRates *r = &s->cluster->rates;
    const double pack = coded ? g->coded[zero] : g->elements[zero],
                 narrow = (double)dtype_bytes(coded ? E4M3 : job->dtype),
                 wide = (double)dtype_bytes(dtype_wide(job->dtype));
    const double moments = job->optim.kind == OPTIM_ADAMW ? 2 : 0;
    const double master = narrow == wide ? 0 : wide;
    const double home = zero == 0 ? pack : pack / g->shards;
    const PackSwitches row = switches_of_zero(zero, false);
    const bool written = narrow != wide && !coded; /* by the update */
    out->reduce_s[row.reduce] +=
        zero == 0 ? cost_transfer_seconds(r, COMM_ALL_REDUCE, g->data, pack * wide)
                  : cost_transfer_seconds(r, COMM_REDUCE_SCATTER, g->shard, pack * wide);
    if (zero > 0)
        out->gather_s[row.gather] +=
            cost_transfer_seconds(r, COMM_ALL_GATHER, g->shard, pack * narrow);
    out->norm_s += memory_seconds(r, wide * home);
    out->update_s += memory_seconds(r, ((3 + 2 * moments) * wide + (written ? narrow : 0)) * home);
    if (coded) out->quantize_s += memory_seconds(r, (2 * wide + narrow) * home);
    out->state_bytes += (zero == 3 ? home : pack) * narrow + home * (master + moments * wide);
    out->grad_bytes += (zero >= 2 ? home : pack) * wide;
    if (zero == 3) out->pack_bytes += pack * narrow;
    if (zero >= 2) out->work_grad_bytes += pack * wide;
}

static PackBound group_bound(const PlanSpace *s, const PackGroup *g)
{
    PackBound b = {0};
    for (int zero = 0; zero < N_ZERO; zero++) {
        if (g->elements[zero] > 0) add_pack(s, g, zero, false, &b);
        if (g->coded[zero] > 0) add_pack(s, g, zero, true, &b);
    }
    return b;
}

/* Packs of two groups: their transfers may run at the same time. */
static PackBound both_bounds(const PackBound *a, const PackBound *b)
{
    PackBound sum = {.norm_s = a->norm_s + b->norm_s,
                     .update_s = a->update_s + b->update_s,
                     .quantize_s = a->quantize_s + b->quantize_s,
                     .state_bytes = a->state_bytes + b->state_bytes,
                     .grad_bytes = a->grad_bytes + b->grad_bytes,
                     .pack_bytes = a->pack_bytes + b->pack_bytes,
                     .work_grad_bytes = a->work_grad_bytes + b->work_grad_bytes};
    for (int when = 0; when < 2; when++) {
        sum.reduce_s[when] = larger(a->reduce_s[when], b->reduce_s[when]);
        sum.gather_s[when] = larger(a->gather_s[when], b->gather_s[when]);
    }
    return sum;
}

/* Divides the elements by ZeRO level. */
static void divide(const PlanPoint *p, const UnitBound *unit, PackGroup *dense, PackGroup *experts)
{
    if (!p->zero_weights || !unit->weight) {
        dense->elements[p->zero] = unit->pack;
        dense->coded[p->zero] = unit->coded;
        if (p->mesh.ep == 1) return;
        experts->elements[p->zero] = unit->experts;
        experts->coded[p->zero] = unit->coded_experts;
        return;
    }
    for (int i = 0; i < unit->n_weights; i++) {
        const WeightSummary *w = &unit->weight[i];
        const int level = job_weight_level(p->zero_weights, w->name);
        PackGroup *to = w->view == VIEW_EXPERT && p->mesh.ep > 1 ? experts : dense;
        (w->coded ? to->coded : to->elements)[level < 0 ? p->zero : level] += w->count;
    }
}

/* The groups of a unit's packs; those of experts are in use with ep alone. */
static void groups_of(const PlanSpace *s, const PlanPoint *p, const UnitBound *unit,
                      PackGroup *dense, PackGroup *experts)
{
    const CostRates *r = &s->cluster->rates;
    const int shards = p->mesh.dp_shard * p->mesh.cp, stage = plan_dp(p) * p->mesh.cp * p->mesh.tp,
              grid = p->mesh.ep * p->mesh.etp;
    *dense = (PackGroup){.shards = shards,
                         .data = cost_group_strided(r, plan_dp(p) * p->mesh.cp, p->mesh.tp),
                         .shard = cost_group_strided(r, shards, p->mesh.tp)};
    *experts = (PackGroup){0};
    divide(p, unit, dense, experts);
    if (p->mesh.ep == 1) return;
    experts->shards = stage / grid;
    experts->data = experts->shard = cost_group_strided(r, stage / grid, grid);
}

PackBound pack_bound(const PlanSpace *s, const PlanPoint *p, const UnitBound *unit)
{
    PackGroup dense, experts;
    groups_of(s, p, unit, &dense, &experts);
    const PackBound a = group_bound(s, &dense);
    if (p->mesh.ep == 1) return a;
    const PackBound b = group_bound(s, &experts);
    return both_bounds(&a, &b);
}

static double least_reduce(const PlanSpace *s, const PackGroup *g)
{
    const CostRates *r = &s->cluster->rates;
    double bytes = 0;
    for (int zero = 0; zero < N_ZERO; zero++)
        bytes +=
            (g->elements[zero] + g->coded[zero]) * (double)dtype_bytes(dtype_wide(s->base->dtype));
    if (bytes == 0) return 0;
    return smaller(cost_parts_seconds(r, COMM_ALL_REDUCE, g->data, bytes),
                   cost_parts_seconds(r, COMM_REDUCE_SCATTER, g->shard, bytes));
}

double pack_least_reduce(const PlanSpace *s, const PlanPoint *p, const UnitBound *unit)
{
    PackGroup dense, experts;
    groups_of(s, p, unit, &dense, &experts);
    return larger(least_reduce(s, &dense), p->mesh.ep == 1 ? 0 : least_reduce(s, &experts));
}

static double reduces(const PackBound *p) { return p->reduce_s[0] + p->reduce_s[1]; }
static double gathers(const PackBound *p) { return p->gather_s[0] + p->gather_s[1]; }

/* The least of each part over the ZeRO levels of the space: units may choose by themselves. */
static PackBound least_pack_bound(const Bounder *b, const UnitBound *unit)
{
    const int fixed = b->in->space->fixed.zero;
    PlanPoint p = *b->in->point;
    PackBound least = {0};
    int n = 0;
    for (p.zero = 0; p.zero <= (plan_dp(&p) * p.mesh.cp > 1 ? 3 : 0); p.zero++) {
        if (fixed >= 0 && fixed != p.zero) continue;
        const PackBound one = pack_bound(b->in->space, &p, unit);
        if (n++ == 0) least = one;
        least.reduce_s[0] = smaller(reduces(&least), reduces(&one));
        least.gather_s[0] = smaller(gathers(&least), gathers(&one));
        least.reduce_s[1] = least.gather_s[1] = 0;
        least.norm_s = smaller(least.norm_s, one.norm_s);
        least.update_s = smaller(least.update_s, one.update_s);
        least.state_bytes = smaller(least.state_bytes, one.state_bytes);
        if (fixed < 0)
            least.reduce_s[0] =
                smaller(least.reduce_s[0], pack_least_reduce(b->in->space, &p, unit));
        least.grad_bytes = smaller(least.grad_bytes, one.grad_bytes);
    }
    return least;
}

static PartBound class_bound(const Bounder *b, const UnitBound *u)
{
    const bool unknown = b->in->any_zero || (b->in->point->zero_weights && !u->weight);
    const PackBound p =
        unknown ? least_pack_bound(b, u) : pack_bound(b->in->space, b->in->point, u);
    const double i = u->run_s[PHASE_I], w = u->run_s[PHASE_W];
    const double back = b->merged ? u->run_s[PHASE_B] : smaller(u->run_s[PHASE_B], i + w);
    return (PartBound){.f = u->run_s[PHASE_F],
                       .b = back,
                       .back = b->merged ? back : smaller(i, back),
                       .reduce = reduces(&p),
                       .gather = gathers(&p),
                       .norm = p.norm_s,
                       .update = p.update_s,
                       .frame = b->in->any_zero ? 0 : u->frame_bytes,
                       .state = p.state_bytes + p.grad_bytes};
}

static void add_unit(const Bounder *b, int unit, bool is_layer, PartBound *to)
{
    const PartBound *u = &b->class[b->in->class_of[unit]];
    to->f += u->f;
    to->b += u->b;
    to->back += u->back;
    to->top_f = u->f;
    to->top_b = u->b;
    if (is_layer || !b->late) to->reduce += u->reduce;
    if (is_layer) to->layer_reduce += u->reduce;
    to->gather += u->gather;
    to->norm += u->norm;
    to->update += u->update;
    to->frame += u->frame;
    to->state += u->state;
}

static void add_chunk(const Bounder *b, int chunk, PartBound *to)
{
    const int16_t *first = b->in->first_unit;
    const int last = first[b->in->chunks] - 1;
    for (int u = first[chunk]; u < first[chunk + 1]; u++) add_unit(b, u, u > 0 && u < last, to);
}

/* The most micro-batches whose frames a stage holds at once, at least. */
static double in_flight(const Bounder *b, int stage)
{
    if (b->in->chunks > b->stages) return 1;
    if (strcmp(b->in->point->schedule, "gpipe") == 0) return b->micros;
    return smaller(b->micros, b->stages - stage);
}

/* `before`: the chunks before the stage's first one. */
static double stage_seconds(const Bounder *b, int stage, const PartBound *s,
                            const PartBound *before)
{
    const bool one = b->in->chunks == b->stages; /* one chunk per stage */
    /* Of several levels, each gather and reduction counts once: level 1. */
    const bool several = b->in->any_zero || b->in->point->zero_weights;
    const int zero = several ? 1 : b->in->point->zero;
    const double m = b->micros, hops = stage * b->send_s;
    const double head = before->f + hops, busy = m * (s->f + s->b);
    double t = head + busy;
    if (one && b->merged) t += before->back + hops;
    if (!b->overlaps)
        return larger(t, head + busy + s->gather + (zero >= 2 ? m : 1) * s->layer_reduce);
    if (one && !b->merged) t = larger(t, head + m * s->f + m * s->back + before->back + hops);
    if (one && zero <= 1) t = larger(t, head + busy - (s->b - s->top_b) + s->reduce);
    if (zero >= 2) t = larger(t, head + m * s->layer_reduce);
    if (one && zero > 0) t = larger(t, s->gather + s->top_f + (m - 1) * s->f + m * s->b);
    return t;
}

/* Of the fastest hop to the next stage, between their first ranks. Without numbers of single pairs
 * this is the first one: no other is inside of a narrower block. */
static double hop_seconds(const CostRates *r, const PlanPoint *p, double bytes)
{
    const int stride = plan_dp(p) * p->mesh.cp * p->mesh.tp;
    double least = (double)INFINITY;
    for (int i = 0; i < (r->pairs ? p->mesh.pp - 1 : 1); i++) {
        const int32_t pair[] = {i * stride, (i + 1) * stride};
        const CostGroup g = cost_group(r, (RankList){2, pair});
        least = smaller(least, cost_transfer_seconds(r, COMM_SEND, g, bytes));
    }
    return least;
}

static double send_seconds(const BoundInput *in)
{
    double bytes = (double)INFINITY;
    for (int k = 0; k < in->layout->n; k++)
        if (in->layout->class[k].y_bytes > 0) bytes = smaller(bytes, in->layout->class[k].y_bytes);
    if (!isfinite(bytes)) bytes = 0; /* not known */
    if (in->point->mesh.pp == 1) return 0;
    return hop_seconds(&in->space->cluster->rates, in->point, bytes);
}

static Bounder open_bounder(const BoundInput *in)
{
    const PlanPoint *p = in->point;
    const Cluster *c = in->space->cluster;
    Bounder b = {.in = in,
                 .stages = p->mesh.pp,
                 .micros = plan_job(in->space, p).micros,
                 .merged = plan_is_merged(p) && !in->space->base->split,
                 .overlaps = c->overlaps && !(c->serial >> TRANSFER_DP & 1),
                 .late = in->space->base->config->tied && p->mesh.pp > 1,
                 .send_s = send_seconds(in)};
    for (int k = 0; k < in->layout->n; k++) b.class[k] = class_bound(&b, &in->layout->class[k]);
    return b;
}

Err plan_bound(const BoundInput *in, Arena *temp, PlanBound *out)
{
    const size_t mark = arena_mark(temp);
    const Bounder b = open_bounder(in);
    PartBound before = {0}, *stage;
    double update = 0;
    *out = (PlanBound){0};
    TRY(ARENA_NEW(temp, b.stages, &stage));
    for (int c = 0; c < in->chunks; c++)
        add_chunk(&b, c, &stage[pipeline_stage(in->is_v ? CHUNKS_V : CHUNKS_LOOP, b.stages, c)]);
    for (int i = 0; i < b.stages; i++) {
        const PartBound *s = &stage[i];
        out->step_s = larger(out->step_s, stage_seconds(&b, i, s, &before) + s->norm);
        out->memory_bytes = larger(out->memory_bytes, s->state + in_flight(&b, i) * s->frame);
        update = larger(update, s->update);
        add_chunk(&b, i, &before);
    }
    out->step_s += update;
    arena_rewind(temp, mark);
    return OK;
}

Err bound_check_classes(int n)
{
    if (n <= MAX_BOUND_CLASSES) return OK;
    return err_fail(ERR_CONFIG, "plan: %d classes of units; a search handles %d", n,
                    MAX_BOUND_CLASSES);
}

Err layout_bound(const LayoutSummary *s, DType dtype, int n_moments, LayoutBound *out)
{
    const double narrow = (double)dtype_bytes(dtype), wide = (double)dtype_bytes(dtype_wide(dtype));
    const double each = narrow + (n_moments + (narrow == wide ? 0 : 1)) * wide,
                 of_coded = (double)dtype_bytes(E4M3) + (n_moments + 1) * wide;
    TRY(bound_check_classes(s->n_classes));
    *out = (LayoutBound){.n = s->n_classes};
    for (int k = 0; k < s->n_classes; k++) {
        UnitSummary first = s->class[k];
        const UnitSummary *u = &first;
        UnitBound *to = &out->class[k];
        clock_take_first(&first);
        for (int phase = 0; phase < N_PHASES; phase++) to->run_s[phase] = u->run[phase].seconds;
        to->experts = (double)(u->expert_bytes - u->coded_expert_bytes) / each;
        to->coded_experts = (double)u->coded_expert_bytes / of_coded;
        to->coded = (double)u->coded_bytes / of_coded;
        to->pack = (double)(u->state_bytes - u->coded_bytes - u->expert_bytes) / each;
        to->frame_bytes =
            (double)u->region_bytes[REGION_FRAME_I] + (double)u->region_bytes[REGION_FRAME_W];
        to->y_bytes = (double)u->y_bytes;
        to->weight = u->weight;
        to->n_weights = u->n_weights;
    }
    return OK;
}
