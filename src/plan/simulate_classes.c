/* simulate_classes.c -- partitions the ranks into classes with equal counts.
 *
 * pp is refined first, since stages have different units. The other axes follow from the last to
 * the first: a shard is cut by tp before it is cut by dp_shard, and its traffic along dp_replicate
 * depends on both. At each axis the coordinates are grouped by a key; one coordinate of each group
 * goes on to the next axis and represents the group.
 *
 *     pp       0 1                             0 | 1
 *     tp       0 1 2 3 4 5 6 7                 0 | 1..7             for stage 0; the same for 1
 *     dp       0 1 2 ... 2047                  0 | 1..611 | 612..   for tp 0; the same for tp 1
 *
 * Two coordinates have the same key if their members have equal shares in every transfer whose
 * group extends along the axis, for all coordinates on the other axes of the group.
 *
 * Along tp every coordinate is compiled, but not for every stage: the keys of one stage hold for
 * all stages whose units are compiled and sharded alike, in the same order, since a key contains
 * all sizes that linking reads. */
#include "plan/simulate.h"

#include <string.h>

static const size_t PACKINGS_BYTES = (size_t)1 << 25;

/* The keys of an axis, kept for stages that are alike. */
typedef struct {
    uint64_t like; /* hash of the axis, the stage's units, and the other coordinates */
    const uint64_t *key;
} AxisKeys;

typedef struct {
    const SimulateInput *in;
    const View *view;
    unsigned data; /* dp axes: programs differ along them only in their homes */
    Arena *arena, *temp;
    Simulation *out;
    int cap;
    Job *shared;       /* what all ranks have in common */
    Job *shared_valid; /* the same of the job for validation; NULL: the run does not validate */
    AxisKeys *known;   /* [n_known] */
    int n_known, cap_known;
} Classifier;

/* A set of ranks while it is refined: any coordinate on the axes that are not refined yet. */
typedef struct {
    int first, last; /* lowest and highest rank, with coordinate 0 on the axes not refined yet */
    int64_t ranks;   /* product over the refined axes */
    const uint64_t *key[MAX_AXES]; /* of each coordinate of a refined axis; NULL: size 1 */
    uint64_t is[MAX_AXES];         /* of the coordinates that are in the set */
} RankSet;

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9E3779B97F4A7C15u + (hash << 6) + (hash >> 2);
    hash *= 0xFF51AFD7ED558CCDu;
    return hash ^ hash >> 33;
}

static uint64_t mix_bytes(uint64_t hash, const void *data, size_t bytes)
{
    uint64_t word;
    for (size_t i = 0; i + sizeof word <= bytes; i += sizeof word) {
        memcpy(&word, (const char *)data + i, sizeof word);
        hash = mix(hash, word);
    }
    return hash;
}

static Err compile(const Classifier *c, const Job *shared, int rank, const LinkedProgram **out)
{
    Job *job;
    c->out->compiled++;
    TRY(ARENA_NEW(c->temp, 1, &job));
    TRY(job_compile_rank(shared, rank, c->temp, job));
    *out = &job->linked;
    return OK;
}

/* The share of member i in the transfer: equal numbers mean equal bytes. */
static uint64_t share_of(const Transfer *t, int i)
{
    const int n = t->group.n;
    switch (t->kind) {
    case COMM_ALL_REDUCE:
        return i < t->from.count % n;
    case COMM_ALL_GATHER:
        return (uint64_t)(t->to_counts ? t->to_counts[i] : 0);
    case COMM_REDUCE_SCATTER:
        return (uint64_t)(t->from_counts ? t->from_counts[i] : 0);
    case COMM_ALL_TO_ALL: /* without counts all parts are equal */
        return t->from_counts || t->to_counts ? (uint64_t)t->group.rank[i] : 0;
    default: /* shares are known only to the member's own program: each gets its own key */
        return (uint64_t)t->group.rank[i];
    }
}

typedef struct {
    const Classifier *c;
    int axis, rank; /* rank: whose program is visited */
    uint64_t *key;  /* [size of the axis] */
    uint64_t *seen; /* hashes of transfers mixed in before: most units are equal */
    int n_seen, cap_seen;
} AxisSorter;

/* The axes of the expert view along which the members differ; 0 if they are no group of it alone. A
 * dense axis may cross several groups of such axes. They are alike, so a rank has the share of its
 * index in its own group. */
static unsigned expert_axes(const Mesh *m, RankList group)
{
    const View *v = &m->view[VIEW_EXPERT];
    unsigned axes = 0;
    if (mesh_parts(m, VIEW_DENSE, group_axes(m, group)) == group.n) return 0;
    for (int axis = 0; axis < v->n_axes; axis++)
        for (int i = 1; i < group.n && !(axes >> axis & 1); i++)
            if (mesh_part(m, VIEW_EXPERT, 1u << axis, group.rank[i]) !=
                mesh_part(m, VIEW_EXPERT, 1u << axis, group.rank[0]))
                axes |= 1u << axis;
    return mesh_parts(m, VIEW_EXPERT, axes) == group.n ? axes : 0;
}

/* True if an equal transfer of an equal unit was mixed in before. */
static bool seen_before(AxisSorter *s, const Transfer *t)
{
    uint64_t hash = mix(mix((uint64_t)t->kind, (uint64_t)t->group.n),
                        (uint64_t)t->from.count % (uint64_t)t->group.n);
    const int64_t *counts = t->kind == COMM_ALL_GATHER ? t->to_counts : t->from_counts;
    if (counts) hash = mix_bytes(hash, counts, (size_t)t->group.n * sizeof *counts);
    hash = mix(hash, (uint64_t)t->group.rank[0]);
    hash = mix(hash, (uint64_t)t->group.rank[t->group.n - 1]);
    for (int i = 0; i < s->n_seen; i++)
        if (s->seen[i] == hash) return true;
    if (s->n_seen < s->cap_seen) s->seen[s->n_seen++] = hash;
    return false;
}

static Err sort_by_transfer(void *context, const Transfer *t, int64_t times)
{
    AxisSorter *s = context;
    const Mesh *mesh = s->c->in->mesh;
    (void)times;
    if (!(group_axes(mesh, t->group) >> s->axis & 1) || seen_before(s, t)) return OK;
    const unsigned experts = expert_axes(mesh, t->group);
    for (int i = 0; i < t->group.n && !experts; i++) {
        const int at = mesh_part(mesh, VIEW_DENSE, 1u << s->axis, t->group.rank[i]);
        s->key[at] = mix(s->key[at], share_of(t, i));
    }
    for (int at = 0; at < s->c->view->size[s->axis] && experts; at++) {
        const int rank = mesh_move(mesh, VIEW_DENSE, 1u << s->axis, at, s->rank);
        s->key[at] = mix(s->key[at], share_of(t, mesh_part(mesh, VIEW_EXPERT, experts, rank)));
    }
    return OK;
}

static Err hash_transfer(void *context, const Transfer *t, int64_t times)
{
    uint64_t *hash = context;
    const int64_t parts[] = {t->kind, t->group.n, t->from.count, t->to.count, times};
    *hash = mix_bytes(*hash, parts, sizeof parts);
    if (t->from_counts)
        *hash = mix_bytes(*hash, t->from_counts, (size_t)t->group.n * sizeof *t->from_counts);
    if (t->to_counts)
        *hash = mix_bytes(*hash, t->to_counts, (size_t)t->group.n * sizeof *t->to_counts);
    return OK;
}

/* Hashes the sizes that linking reads: those of the programs of the stage's units and of the rank's
 * part of their packs. */
static void hash_units(const LinkedProgram *lp, uint64_t *hash)
{
    const ProgramTable *t = &lp->programs;
    for (int u = 0; u < lp->model->n_units; u++) {
        const Unit *of = &lp->model->unit[u];
        if (lp->unit[u].stage != lp->stage) continue;
        if (u > 0 && lp->unit[u - 1].stage == lp->stage && t->class_of[u] == t->class_of[u - 1])
            continue; /* as the unit before */
        for (int p = of->first_pack; p < of->first_pack + of->n_packs; p++)
            *hash = mix(*hash, (uint64_t)lp->pack[p].mine.pack_count);
        *hash = mix(*hash, (uint64_t)lp->unit[u].tied_count);
        for (int v = 0; v < t->n_variants; v++) {
            const Program *program = &t->program[v * t->n_classes + t->class_of[u]];
            *hash = mix(*hash, (uint64_t)program->n_instr);
            *hash = mix_bytes(*hash, program->bytes, sizeof program->bytes);
        }
    }
}

/* Hashes everything that is counted in a program; not the rank's index in its groups. */
static Err hash_program(const LinkedProgram *lp, uint64_t *hash)
{
    RankCount count;
    hash_units(lp, hash);
    TRY(count_rank(lp, &count));
    *hash = mix_bytes(*hash, count.bytes, sizeof count.bytes);
    *hash = mix_bytes(*hash, &count.flops, sizeof count.flops);
    *hash = mix_bytes(*hash, &count.flops_recomputed, sizeof count.flops_recomputed);
    return linked_visit(lp, hash_transfer, hash);
}

/* Memory that saves of `rank` need; the program of any rank is enough to compute it. */
static Err count_save(const Classifier *c, const LinkedProgram *lp, int rank, size_t *out)
{
    int64_t bytes = 0;
    if (c->in->save != SAVE_MEMORY_NONE) TRY(saver_bytes(lp, rank, c->in->save, c->temp, &bytes));
    *out = (size_t)bytes;
    return OK;
}

/* Memory of validation that is not shared with training; as in train_bytes. */
static Err count_valid(const Classifier *c, const LinkedProgram *lp, int rank, RankCount *out)
{
    const LinkedProgram *valid;
    if (!c->shared_valid) return OK;
    TRY(compile(c, c->shared_valid, rank, &valid));
    out->valid_bytes = program_set_extra_bytes(&(ProgramSet){2, {lp, valid}});
    out->pinned_bytes += valid->pinned_bytes;
    out->total_bytes += out->valid_bytes + valid->pinned_bytes;
    return OK;
}

static Err mix_save(const AxisSorter *s, const LinkedProgram *lp, int at, uint64_t *key)
{
    size_t bytes;
    const int rank = mesh_move(s->c->in->mesh, VIEW_DENSE, 1u << s->axis, at, lp->rank);
    TRY(count_save(s->c, lp, rank, &bytes));
    *key = mix(*key, bytes);
    return OK;
}

/* Computes the key of each coordinate of the axis: equal keys mean equal counts. Along a data axis
 * one program is enough for all coordinates. */
static Err find_keys(const Classifier *c, int axis, int rank, uint64_t *key)
{
    const bool data = c->data >> axis & 1;
    const size_t mark = arena_mark(c->temp);
    for (int at = 0; at < c->view->size[axis]; at++) {
        const LinkedProgram *lp;
        AxisSorter s = {c, axis, 0, NULL, NULL, 0, 1024};
        uint64_t own = 0;
        if (at > 0 && data) break;
        TRY(compile(c, c->shared, mesh_move(c->in->mesh, VIEW_DENSE, 1u << axis, at, rank), &lp));
        TRY(ARENA_NEW(c->temp, c->view->size[axis], &s.key));
        TRY(ARENA_NEW(c->temp, s.cap_seen, &s.seen));
        s.rank = lp->rank;
        TRY(linked_visit(lp, sort_by_transfer, &s));
        if (!data) TRY(hash_program(lp, &own));
        for (int i = data ? 0 : at; i < (data ? c->view->size[axis] : at + 1); i++) {
            key[i] = mix(own, s.key[i]);
            TRY(mix_save(&s, lp, i, &key[i]));
        }
        arena_rewind(c->temp, mark);
    }
    return OK;
}

/* A hash that is equal for ranks of stages that are alike, at equal coordinates on the other
 * axes. */
static uint64_t hash_stage(const Classifier *c, int axis, int rank)
{
    const Job *job = c->shared;
    const Schedule *s = &job->chunks;
    const unsigned pp = mesh_axes(c->in->mesh, VIEW_DENSE, "pp");
    const int stage = mesh_part(c->in->mesh, VIEW_DENSE, pp, rank);
    uint64_t hash = (uint64_t)axis;
    for (int chunk = 0; chunk < s->chunks; chunk++)
        for (int u = s->first_unit[chunk];
             u < s->first_unit[chunk + 1] && s->stage_of[chunk] == stage; u++) {
            const UnitOptions *o = &job->unit[u];
            hash = mix(hash, (uint64_t)job->alike[u] * 8 + (uint64_t)o->zero * 2 + o->reduce_each);
        }
    return mix(hash, (uint64_t)mesh_move(c->in->mesh, VIEW_DENSE, pp, 0, rank));
}

/* As find_keys; uses the keys of an earlier stage that is alike. */
static Err known_keys(Classifier *c, int axis, int rank, uint64_t *key)
{
    const int size = c->view->size[axis];
    const uint64_t like = hash_stage(c, axis, rank);
    uint64_t *kept;
    for (int i = 0; i < c->n_known; i++)
        if (c->known[i].like == like) {
            memcpy(key, c->known[i].key, (size_t)size * sizeof *key);
            return OK;
        }
    TRY(find_keys(c, axis, rank, key));
    if (c->n_known == c->cap_known) return OK;
    TRY(ARENA_NEW(c->arena, size, &kept));
    memcpy(kept, key, (size_t)size * sizeof *key);
    c->known[c->n_known++] = (AxisKeys){like, kept};
    return OK;
}

static bool traffic_equal(const Traffic *a, const Traffic *b)
{
    bool equal = a->n == b->n;
    for (int i = 0; equal && i < a->n; i++) {
        const TrafficRow *x = &a->row[i], *y = &b->row[i];
        equal = x->kind == y->kind && x->scalar == y->scalar && x->axes == y->axes &&
                x->transfers == y->transfers && x->bytes == y->bytes &&
                x->sent_bytes == y->sent_bytes;
    }
    return equal;
}

static bool count_equal(const RankCount *a, const RankCount *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0 && a->save_bytes == b->save_bytes &&
           a->valid_bytes == b->valid_bytes && a->flops == b->flops &&
           a->flops_recomputed == b->flops_recomputed && traffic_equal(&a->traffic, &b->traffic);
}

static Err count_one(const Classifier *c, int rank, RankCount *out)
{
    const size_t mark = arena_mark(c->temp);
    const LinkedProgram *lp;
    TRY(compile(c, c->shared, rank, &lp));
    TRY(count_rank(lp, out));
    TRY(count_save(c, lp, rank, &out->save_bytes));
    TRY(count_valid(c, lp, rank, out));
    out->total_bytes += out->save_bytes;
    arena_rewind(c->temp, mark);
    return OK;
}

static bool has_rank(const Classifier *c, const RankSet *set, int rank)
{
    for (int axis = 0; axis < c->view->n_axes; axis++)
        if (set->key[axis] &&
            set->key[axis][mesh_part(c->in->mesh, VIEW_DENSE, 1u << axis, rank)] != set->is[axis])
            return false;
    return true;
}

static Err add_class(Classifier *c, const RankSet *set)
{
    Simulation *s = c->out;
    RankCount last;
    if (s->n == c->cap) {
        RankClass *more;
        c->cap = c->cap ? 2 * c->cap : 16;
        TRY(ARENA_NEW(c->arena, c->cap, &more));
        if (s->n > 0) memcpy(more, s->class, (size_t)s->n * sizeof *more);
        s->class = more;
    }
    RankClass *k = &s->class[s->n++];
    *k = (RankClass){.first = set->first, .last = set->last, .ranks = set->ranks};
    for (int rank = 0; s->class_of && rank < c->in->mesh->world; rank++)
        if (has_rank(c, set, rank)) s->class_of[rank] = set->first;
    TRY(count_one(c, k->first, &k->count));
    if (k->last == k->first) return OK;
    TRY(count_one(c, k->last, &last));
    if (count_equal(&k->count, &last)) return OK;
    return err_fail(ERR_CHECK,
                    "simulate: ranks %d and %d are in one class, but their programs have different "
                    "counts: %zu and %zu bytes of memory",
                    k->first, k->last, k->count.total_bytes, last.total_bytes);
}

/* The axis that is refined after `taken` others: pp, which is axis 0; then from the last one
 * down. */
static int axis_at(const Classifier *c, int taken)
{
    return taken == 0 ? 0 : c->view->n_axes - taken;
}

static Err refine(Classifier *c, int taken, const RankSet *set)
{
    const Mesh *mesh = c->in->mesh;
    uint64_t *key;
    bool *done;
    if (taken == c->view->n_axes) return add_class(c, set);
    const int axis = axis_at(c, taken), size = c->view->size[axis];
    if (size == 1) return refine(c, taken + 1, set);
    const size_t mark = arena_mark(c->temp);
    TRY(ARENA_NEW(c->temp, size, &key));
    TRY(ARENA_NEW(c->temp, size, &done));
    if (taken > 0 && !(c->data >> axis & 1))
        TRY(known_keys(c, axis, set->first, key));
    else
        TRY(find_keys(c, axis, set->first, key));
    for (int at = 0; at < size; at++) {
        RankSet next = *set;
        int n = 0, last = at;
        if (done[at]) continue;
        for (int i = at; i < size; i++) {
            if (key[i] != key[at]) continue;
            done[i] = true;
            last = i;
            n++;
        }
        next.first = mesh_move(mesh, VIEW_DENSE, 1u << axis, at, set->first);
        next.last = mesh_move(mesh, VIEW_DENSE, 1u << axis, last, set->last);
        next.ranks *= n;
        next.key[axis] = key;
        next.is[axis] = key[at];
        TRY(refine(c, taken + 1, &next));
        if (taken == 0 && c->in->progress) c->in->progress(c->in->context, at + 1, size);
    }
    arena_rewind(c->temp, mark);
    return OK;
}

/* Compiles what all ranks share, placements included. */
static Err share(Classifier *c)
{
    JobSettings step = *c->in->job;
    if (!step.compile.places)
        TRY(place_memo_open(c->arena, PLACE_MEMO_OF_JOB, &step.compile.places));
    TRY(pack_memo_open(c->arena, PACKINGS_BYTES, &step.packings));
    JobSettings valid = step;
    valid.kind = JOB_LOSS;
    TRY(ARENA_NEW(c->arena, 1, &c->shared));
    TRY(job_share(&step, c->arena, c->shared));
    if (!c->in->validates) return OK;
    TRY(ARENA_NEW(c->arena, 1, &c->shared_valid));
    return job_share(&valid, c->arena, c->shared_valid);
}

Err simulate_classes(const SimulateInput *in, Arena *arena, Arena *temp, Simulation *out)
{
    Classifier c = {.in = in,
                    .view = &in->mesh->view[VIEW_DENSE],
                    .data = mesh_axes(in->mesh, VIEW_DENSE, "dp"),
                    .arena = arena,
                    .temp = temp,
                    .out = out};
    c.cap_known = 64;
    TRY(ARENA_NEW(arena, c.cap_known, &c.known));
    TRY(share(&c));
    out->shared = c.shared;
    if (in->each_rank) TRY(ARENA_NEW(arena, in->mesh->world, &out->class_of));
    return refine(&c, 0, &(RankSet){.ranks = 1});
}
