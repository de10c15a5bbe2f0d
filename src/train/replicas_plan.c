/* replicas_plan.c -- finds the boxes that several ranks hold, and their holders.
 *
 * The boxes that ranks own tile every tensor. The part of such a box that another rank holds is a
 * cell. Cells therefore cover everything that two ranks hold, also where their boxes overlap only
 * partly. */
#include <string.h>

#include "train/replicas_parts.h"

typedef struct {
    Replicas *r;
    const LinkedProgram *lp;
    int ranks;
    StateParts *held, *owned; /* [ranks] */
    Arena *arena;
    int64_t room;
    bool *holds; /* [ranks], of the current cell */
} ReplicaPlanner;

/* Index of the tensor's first part, by binary search: parts are sorted by tensor. */
static int64_t first_of(const StateParts *p, int tensor)
{
    int64_t lo = 0, hi = p->n;
    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (p->part[mid].tensor < tensor)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static bool same_box(const Box *a, const Box *b)
{
    for (int d = 0; d < a->ndim; d++)
        if (a->lo[d] != b->lo[d] || a->hi[d] != b->hi[d]) return false;
    return true;
}

/* The part that contains the whole box; -1: none. */
static int64_t holder_part(const StateParts *p, int tensor, const Box *box)
{
    Box meet;
    for (int64_t i = first_of(p, tensor); i < p->n && p->part[i].tensor == tensor; i++)
        if (box_intersect(&p->part[i].box, box, &meet) && same_box(&meet, box)) return i;
    return -1;
}

static int set_of(ReplicaPlanner *q)
{
    Replicas *r = q->r;
    const size_t bytes = (size_t)q->ranks * sizeof *q->holds;
    for (int s = 0; s < r->n_sets; s++)
        if (memcmp(&r->holds[(int64_t)s * q->ranks], q->holds, bytes) == 0) return s;
    memcpy(&r->holds[(int64_t)r->n_sets * q->ranks], q->holds, bytes);
    return r->n_sets++;
}

/* True if the cell was added before: several ranks may overlap an owned box in the same cell. */
static bool is_known(const Replicas *r, int64_t from, const Box *box)
{
    for (int64_t i = from; i < r->n_cells; i++)
        if (same_box(&r->cell[i].box, box)) return true;
    return false;
}

static Err add_cell(ReplicaPlanner *q, int tensor, const Box *box)
{
    Replicas *r = q->r;
    int n = 0;
    for (int i = 0; i < q->ranks; i++)
        n += q->holds[i] = holder_part(&q->held[i], tensor, box) >= 0;
    if (n < 2) return OK;
    if (r->n_cells == q->room) { /* grow; the old arrays stay in the arena, unused */
        ReplicaCell *more;
        bool *holds;
        q->room = 2 * q->room + 64;
        TRY(ARENA_NEW(q->arena, q->room, &more));
        TRY(ARENA_NEW(q->arena, q->room * q->ranks, &holds)); /* no more sets than cells */
        if (r->n_cells > 0) memcpy(more, r->cell, sizeof *more * (size_t)r->n_cells);
        if (r->n_sets > 0)
            memcpy(holds, r->holds, sizeof *holds * (size_t)r->n_sets * (size_t)q->ranks);
        r->cell = more;
        r->holds = holds;
    }
    const ReplicaCell cell = {tensor, set_of(q), *box,
                              holder_part(&q->held[q->lp->rank], tensor, box)};
    r->cell[r->n_cells++] = cell;
    return OK;
}

/* Adds the cells of a box that `owner` owns. */
static Err cells_of(ReplicaPlanner *q, int owner, const StatePart *own)
{
    const int64_t from = q->r->n_cells;
    for (int i = 0; i < q->ranks; i++) {
        const StateParts *p = &q->held[i];
        for (int64_t k = first_of(p, own->tensor); i != owner && k < p->n; k++) {
            Box meet;
            if (p->part[k].tensor != own->tensor) break;
            if (box_intersect(&p->part[k].box, &own->box, &meet) && !is_known(q->r, from, &meet))
                TRY(add_cell(q, own->tensor, &meet));
        }
    }
    return OK;
}

Err replicas_plan(Replicas *r, const LinkedProgram *lp, int ranks, Arena *a)
{
    ReplicaPlanner q = {.r = r, .lp = lp, .ranks = ranks, .arena = a};
    TRY(state_tensors(lp, a, &r->tensors));
    TRY(ARENA_NEW(a, ranks, &q.held));
    TRY(ARENA_NEW(a, ranks, &q.owned));
    TRY(ARENA_NEW(a, ranks, &q.holds));
    for (int i = 0; i < ranks; i++) {
        TRY(state_parts(lp, i, false, a, &q.held[i]));
        TRY(state_parts(lp, i, true, a, &q.owned[i]));
    }
    for (int i = 0; i < ranks; i++)
        for (int64_t k = 0; k < q.owned[i].n; k++) TRY(cells_of(&q, i, &q.owned[i].part[k]));
    r->parts = q.held[lp->rank];
    if (r->n_sets > 0) return OK;
    return err_fail(ERR_CONFIG,
                    "run.check_every: no two ranks hold the same weights, so there is nothing to "
                    "compare; set run.check_every=0");
}

Err replicas_possible(const LinkedProgram *lp, int ranks, Arena *temp)
{
    Replicas r = {0};
    const size_t mark = arena_mark(temp);
    TRY(replicas_plan(&r, lp, ranks, temp));
    arena_rewind(temp, mark);
    return OK;
}
