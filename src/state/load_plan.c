/* load_plan.c -- generates the chunks in order, with their readers and receivers. */
#include "state/load_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same_shape(const Shape *a, const Shape *b)
{
    if (a->ndim != b->ndim) return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->n[d] != b->n[d]) return false;
    return true;
}

/* Returns the tensor with that name and role, or -1. It usually has the same index. */
static int find_tensor(const StateTensors *in, const StateTensor *t, int guess)
{
    for (int i = 0; i < in->n; i++) {
        const int at = (guess + i) % in->n;
        if (in->tensor[at].role == t->role && strcmp(in->tensor[at].name, t->name) == 0) return at;
    }
    return -1;
}

/* True for state that weights may lack or have in addition. */
static bool is_optional(const StateTensor *t, LoadScope scope)
{
    return scope == LOAD_WEIGHTS && state_is_marks(t);
}

static Err shapes_differ(const char *dir, const StateTensor *has, const StateTensor *want)
{
    char text[2][128];
    const StateTensor *of[2] = {has, want};
    for (int k = 0; k < 2; k++) {
        int n = snprintf(text[k], sizeof text[k], "%s [", dtype_name(of[k]->dtype));
        for (int d = 0; d < of[k]->shape.ndim && n < (int)sizeof text[k]; d++)
            n += snprintf(text[k] + n, sizeof text[k] - (size_t)n, "%s%lld", d ? ", " : "",
                          (long long)of[k]->shape.n[d]);
    }
    return err_fail(ERR_CONFIG,
                    "%s: %s of %s is %s] there and %s] here; a checkpoint resumes only with the "
                    "model and type that it was made with",
                    dir, state_role_name(has->role), has->name, text[0], text[1]);
}

/* Refuses state that only one of a checkpoint and a run has. */
static Err state_differs(const Manifest *m, const StateTensor *t, bool there)
{
    if (state_is_marks(t) && there)
        return err_fail(ERR_CONFIG,
                        "%s has the marks of delayed scaling, %s: resume with "
                        "precision.compute=fp8 and precision.scaling=delayed, as it was made; or "
                        "begin another run folder with its weights, by model.init",
                        m->dir, t->name);
    if (state_is_marks(t))
        return err_fail(ERR_CONFIG,
                        "%s has no marks of delayed scaling, %s: it was made without "
                        "precision.scaling=delayed; resume without it, or begin another run "
                        "folder with its weights, by model.init",
                        m->dir, t->name);
    return err_fail(ERR_CONFIG,
                    "%s has %s%s of %s, which this model and optimizer %s; it was made with "
                    "optim.kind=%s",
                    m->dir, there ? "" : "no ", state_role_name(t->role), t->name,
                    there ? "do not have" : "need", m->scalars.optim);
}

Err load_match(const Manifest *m, const StateTensors *want, LoadScope scope, int *to)
{
    const StateTensors *has = &m->tensors;
    for (int i = 0; i < want->n; i++) {
        const StateTensor *t = &want->tensor[i];
        if (find_tensor(has, t, i) >= 0 || (scope == LOAD_WEIGHTS && t->role != STATE_WEIGHT) ||
            is_optional(t, scope))
            continue;
        return state_differs(m, t, false);
    }
    for (int i = 0; i < has->n; i++) {
        const StateTensor *t = &has->tensor[i];
        const bool skipped = scope == LOAD_WEIGHTS && t->role != STATE_WEIGHT;
        const int at = skipped ? -1 : find_tensor(want, t, i);
        if (to) to[i] = at;
        if (skipped || (at < 0 && is_optional(t, scope))) continue;
        if (at < 0) return state_differs(m, t, true);
        if (t->dtype != want->tensor[at].dtype || !same_shape(&t->shape, &want->tensor[at].shape))
            return shapes_differ(m->dir, t, &want->tensor[at]);
    }
    return OK;
}

static int by_first_row(const void *a, const void *b)
{
    const LoadTarget *x = a, *y = b;
    if (x->box.lo[0] != y->box.lo[0]) return x->box.lo[0] < y->box.lo[0] ? -1 : 1;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    for (int d = 1; d < x->box.ndim; d++)
        if (x->box.lo[d] != y->box.lo[d]) return x->box.lo[d] < y->box.lo[d] ? -1 : 1;
    return 0;
}

/* Sorts the boxes of one parameter and sets their reach. */
static int64_t sort_wants(LoadTarget *want, int64_t n)
{
    int64_t reach = 0;
    if (n > 1) qsort(want, (size_t)n, sizeof *want, by_first_row);
    for (int64_t i = 0; i < n; i++) {
        if (want[i].box.hi[0] > reach) reach = want[i].box.hi[0];
        want[i].reach = reach;
    }
    return n;
}

/* Counts the boxes of weights only: moments have the same layout. */
static int64_t count_wants(const LoadPlan *p, const StateParts *of, int64_t *count)
{
    int64_t n = 0;
    for (int64_t i = 0; i < of->n; i++) {
        if (of->part[i].tensor % p->roles != STATE_WEIGHT) continue;
        count[of->part[i].tensor / p->roles]++;
        n++;
    }
    return n;
}

static void put_wants(LoadPlan *p, const StateParts *of, int rank, int64_t *next)
{
    for (int64_t i = 0; i < of->n; i++) {
        const StatePart *s = &of->part[i];
        if (s->tensor % p->roles != STATE_WEIGHT) continue;
        LoadTarget *w = &p->want[next[s->tensor / p->roles]++];
        *w = (LoadTarget){.rank = rank, .pack = s->pack, .box = s->box, .at = s->at};
        memcpy(w->stride, s->stride, sizeof w->stride);
    }
}

/* Lists the boxes in the homes of all ranks of the mesh, by parameter. */
static Err list_wants(LoadPlan *p, const LinkedProgram *lp, Arena *a)
{
    const int ranks = lp->mesh->world, params = p->tensors.n / p->roles;
    StateParts *of;
    int64_t *next, total = 0;
    TRY(ARENA_NEW(a, ranks, &of));
    TRY(ARENA_NEW(a, params + 1, &p->first));
    TRY(ARENA_NEW(a, params + 1, &next));
    for (int r = 0; r < ranks; r++) {
        TRY(state_parts(lp, r, false, a, &of[r]));
        total += count_wants(p, &of[r], p->first + 1);
    }
    for (int i = 0; i < params; i++) next[i + 1] = p->first[i + 1] += p->first[i];
    TRY(ARENA_NEW(a, total, &p->want));
    for (int r = 0; r < ranks; r++) put_wants(p, &of[r], r, next);
    for (int i = 0; i < params; i++) {
        const int64_t n = sort_wants(p->want + p->first[i], p->first[i + 1] - p->first[i]);
        if (n > p->max_moves) p->max_moves = n;
    }
    return ARENA_NEW(a, p->max_moves, &p->move);
}

Err load_plan_open(LoadPlan *p, const LoadSettings *s, Arena *a)
{
    const Manifest *m = s->manifest;
    const LinkedProgram *lp = s->rank->settings.program;
    int *to;
    *p = (LoadPlan){.manifest = m, .roles = 1 + lp->n_moments};
    TRY(state_tensors(lp, a, &p->tensors));
    TRY(ARENA_NEW(a, m->tensors.n, &to));
    TRY(load_match(m, &p->tensors, s->scope, to));
    p->tensor = to;
    TRY(ARENA_NEW(a, lp->mesh->world, &p->read));
    return list_wants(p, lp, a);
}

/* Returns the first box that may reach the row, by binary search. */
static const LoadTarget *first_reaching(const LoadTarget *want, int64_t n, int64_t row)
{
    int64_t lo = 0;
    while (lo < n) {
        const int64_t mid = lo + (n - lo) / 2;
        if (want[mid].reach <= row)
            lo = mid + 1;
        else
            n = mid;
    }
    return want + lo;
}

static int by_rank(const void *a, const void *b)
{
    const LoadMove *x = a, *y = b;
    if (x->want->rank != y->want->rank) return x->want->rank < y->want->rank ? -1 : 1;
    return x->want < y->want ? -1 : x->want > y->want;
}

/* Finds the intersections of the chunk with the ranks' boxes. */
static int64_t find_moves(const LoadPlan *p, int tensor, const Box *box)
{
    const int param = tensor / p->roles;
    const LoadTarget *want = p->want + p->first[param], *end = p->want + p->first[param + 1];
    int64_t n = 0;
    for (want = first_reaching(want, end - want, box->lo[0]); want < end; want++) {
        if (want->box.lo[0] >= box->hi[0]) break;
        if (!box_intersect(&want->box, box, &p->move[n].box)) continue;
        p->move[n++].want = want;
    }
    if (n > 1) qsort(p->move, (size_t)n, sizeof *p->move, by_rank);
    return n;
}

/* Returns the rank that has read the fewest bytes of those that need the chunk; of several,
 * the first. */
static int choose_reader(const LoadPlan *p, int64_t n)
{
    int best = p->move[0].want->rank;
    for (int64_t i = 1; i < n; i++)
        if (p->read[p->move[i].want->rank] < p->read[best]) best = p->move[i].want->rank;
    return best;
}

/* Skips the parts of tensors that are not loaded. */
static bool skip_parts(LoadPlan *p)
{
    const Manifest *m = p->manifest;
    while (p->part < m->n_parts && p->tensor[m->part[p->part].tensor] < 0) p->part++;
    return p->part < m->n_parts;
}

bool load_plan_next(LoadPlan *p, LoadChunk *out)
{
    const Manifest *m = p->manifest;
    if (!skip_parts(p)) return false;
    const ManifestPart *part = &m->part[p->part];
    int64_t before;
    LoadChunk c = {.part = part,
                   .number = p->chunk,
                   .tensor = p->tensor[part->tensor],
                   .box = part_chunk(&m->tensors, part, p->chunk, &before),
                   .element = dtype_bytes(m->tensors.tensor[part->tensor].dtype),
                   .move = p->move};
    c.n = find_moves(p, c.tensor, &c.box);
    MUST(c.n > 0, "no rank has a box of tensor %d", c.tensor);
    c.reader = choose_reader(p, c.n);
    p->read[c.reader] += load_chunk_bytes(&c);
    if (++p->chunk == part_chunks(&m->tensors, part)) p->chunk = 0, p->part++;
    *out = c;
    return true;
}

int64_t load_moves_of(const LoadChunk *c, int rank, int64_t *first)
{
    int64_t lo = 0, n = 0;
    while (lo < c->n && c->move[lo].want->rank < rank) lo++;
    while (lo + n < c->n && c->move[lo + n].want->rank == rank) n++;
    *first = lo;
    return n;
}
