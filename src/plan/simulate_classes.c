/* simulate_classes.c -- which ranks count alike.
 *
 * Stages come first, since they hold different units. Then axes are taken from the last to the first:
 * what a rank holds is cut by tp before it is cut by dp_shard, and what copies of it send along
 * dp_replicate depends on both. At each axis the coordinates fall into sorts; from each sort one
 * goes on to the next axis, and stands for all.
 *
 *     pp       0 1                             0 | 1
 *     tp       0 1 2 3 4 5 6 7                 0 | 1..7             for stage 0, and likewise for 1
 *     dp       0 | 1..611 | 612..2047          for the tp coordinate 0, and likewise for 1
 *
 * Two coordinates are of one sort when, in every transfer whose group lies along the axis, their
 * members take the same parts, for all coordinates on the other axes of the group. */
#include "plan/simulate.h"

#include <string.h>

typedef struct {
    const SimulateInput *in;
    const View *view;
    unsigned data; /* axes along which programs differ in what they hold at home alone */
    Arena *arena, *temp;
    Simulation *out;
    int cap;
} Classing;

/* A set of ranks while it is refined: all coordinates are open on the axes still to come. */
typedef struct {
    int first, last; /* with 0, and with the highest coordinate, on open axes left as they are */
    int64_t ranks;   /* over the axes done */
} Part;

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

static Err compile(const Classing *c, int rank, const LinkedProgram **out)
{
    JobSettings settings = *c->in->job;
    Job *job;
    settings.parallel.rank = rank;
    c->out->compiled++;
    TRY(ARENA_NEW(c->temp, 1, &job));
    TRY(job_compile(&settings, c->temp, job));
    *out = &job->linked;
    return OK;
}

/* What member i of the group takes part with; equal numbers, equal bytes. */
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
    default: /* only its own program tells: every member is a sort of its own */
        return (uint64_t)t->group.rank[i];
    }
}

typedef struct {
    const Classing *c;
    int axis;
    uint64_t *key;  /* [size of the axis] */
    uint64_t *seen; /* what was mixed in before: most units are alike */
    int n_seen, cap_seen;
} Sorting;

/* Equal transfers of equal units add nothing. */
static bool seen_before(Sorting *s, const Transfer *t)
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
    Sorting *s = context;
    const Mesh *mesh = s->c->in->mesh;
    (void)times;
    if (!(group_axes(mesh, t->group) >> s->axis & 1) || seen_before(s, t)) return OK;
    for (int i = 0; i < t->group.n; i++) {
        const int at = mesh_part(mesh, VIEW_DENSE, 1u << s->axis, t->group.rank[i]);
        s->key[at] = mix(s->key[at], share_of(t, i));
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

/* All of a program but the rank's place in its groups. */
static Err hash_program(const LinkedProgram *lp, uint64_t *hash)
{
    RankCount count;
    TRY(count_rank(lp, &count));
    *hash = mix_bytes(*hash, count.bytes, sizeof count.bytes);
    *hash = mix_bytes(*hash, &count.flops, sizeof count.flops);
    *hash = mix_bytes(*hash, &count.flops_recomputed, sizeof count.flops_recomputed);
    return linked_visit(lp, hash_transfer, hash);
}

/* What saves of a rank take; any program tells it of all ranks. */
static Err count_save(const Classing *c, const LinkedProgram *lp, int rank, size_t *out)
{
    int64_t bytes = 0;
    if (c->in->save != ROOM_NONE) TRY(saver_bytes(lp, rank, c->in->save, c->temp, &bytes));
    *out = (size_t)bytes;
    return OK;
}

static Err mix_save(const Sorting *s, const LinkedProgram *lp, int at, uint64_t *key)
{
    size_t bytes;
    const int rank = mesh_move(s->c->in->mesh, VIEW_DENSE, 1u << s->axis, at, lp->rank);
    TRY(count_save(s->c, lp, rank, &bytes));
    *key = mix(*key, bytes);
    return OK;
}

/* The sort of each coordinate of the axis: equal keys, equal counts. */
static Err find_keys(const Classing *c, int axis, int rank, uint64_t *key)
{
    const bool data = c->data >> axis & 1;
    const size_t mark = arena_mark(c->temp);
    for (int at = 0; at < c->view->size[axis]; at++) {
        const LinkedProgram *lp;
        Sorting s = {c, axis, NULL, NULL, 0, 1024};
        uint64_t own = 0;
        if (at > 0 && data) break;
        TRY(compile(c, mesh_move(c->in->mesh, VIEW_DENSE, 1u << axis, at, rank), &lp));
        TRY(ARENA_NEW(c->temp, c->view->size[axis], &s.key));
        TRY(ARENA_NEW(c->temp, s.cap_seen, &s.seen));
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
           a->flops == b->flops && a->flops_recomputed == b->flops_recomputed &&
           traffic_equal(&a->traffic, &b->traffic);
}

static Err count_one(const Classing *c, int rank, RankCount *out)
{
    const size_t mark = arena_mark(c->temp);
    const LinkedProgram *lp;
    TRY(compile(c, rank, &lp));
    TRY(count_rank(lp, out));
    TRY(count_save(c, lp, rank, &out->save_bytes));
    out->total_bytes += out->save_bytes;
    arena_rewind(c->temp, mark);
    return OK;
}

static Err add_class(Classing *c, const Part *part)
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
    *k = (RankClass){.first = part->first, .last = part->last, .ranks = part->ranks};
    TRY(count_one(c, k->first, &k->count));
    if (k->last == k->first) return OK;
    TRY(count_one(c, k->last, &last));
    if (count_equal(&k->count, &last)) return OK;
    return err_fail(ERR_CHECK,
                    "simulate: ranks %d and %d were taken to be alike, and their programs count "
                    "differently: %zu and %zu bytes of memory",
                    k->first, k->last, k->count.total_bytes, last.total_bytes);
}

/* The axis that is taken after so many others: pp, which is the first; then from the last on. */
static int axis_at(const Classing *c, int taken)
{
    return taken == 0 ? 0 : c->view->n_axes - taken;
}

static Err refine(Classing *c, int taken, const Part *part)
{
    const Mesh *mesh = c->in->mesh;
    uint64_t *key;
    bool *done;
    if (taken == c->view->n_axes) return add_class(c, part);
    const int axis = axis_at(c, taken), size = c->view->size[axis];
    if (size == 1) return refine(c, taken + 1, part);
    const size_t mark = arena_mark(c->temp);
    TRY(ARENA_NEW(c->temp, size, &key));
    TRY(ARENA_NEW(c->temp, size, &done));
    TRY(find_keys(c, axis, part->first, key));
    for (int at = 0; at < size; at++) {
        Part next = *part;
        int n = 0, last = at;
        if (done[at]) continue;
        for (int i = at; i < size; i++) {
            if (key[i] != key[at]) continue;
            done[i] = true;
            last = i;
            n++;
        }
        next.first = mesh_move(mesh, VIEW_DENSE, 1u << axis, at, part->first);
        next.last = mesh_move(mesh, VIEW_DENSE, 1u << axis, last, part->last);
        next.ranks *= n;
        TRY(refine(c, taken + 1, &next));
    }
    arena_rewind(c->temp, mark);
    return OK;
}

Err simulate_classes(const SimulateInput *in, Arena *arena, Arena *temp, Simulation *out)
{
    Classing c = {.in = in,
                  .view = &in->mesh->view[VIEW_DENSE],
                  .data = mesh_axes(in->mesh, VIEW_DENSE, "dp"),
                  .arena = arena,
                  .temp = temp,
                  .out = out};
    return refine(&c, 0, &(Part){0, 0, 1});
}
