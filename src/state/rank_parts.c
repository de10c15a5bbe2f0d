/* rank_parts.c -- lists the contents of a rank's homes as boxes of tensors.
 *
 *     home of a pack   |piece of q: elements 20..48 of the rank's `use` shard|piece of k ...
 *     boxes of q       the end of a row, whole rows, the start of a row; with offsets at home
 *
 * Everything follows from the layouts and the pack's stage, so it can be computed for any rank. */
#include "state/tensors.h"

#include <stdlib.h>

/* A piece of a parameter: a range of elements of the `use` shard, and its boxes. */
typedef struct {
    int param, pack;
    int64_t at; /* offset of the piece in the home */
    Holding held;
    const HeldPiece *piece;
    int64_t n;
} ParamRange;

typedef struct {
    const LinkedProgram *lp;
    int rank;
    bool owned;
    Arena *arena;
    ParamRange *range;
    int n;
    int64_t boxes;
} PartLister;

/* Adds the row-major elements [lo, hi) of the rank's `use` shard. */
static Err add_piece(PartLister *l, int pack, const HomePiece *p)
{
    const Home *home = &l->lp->pack[pack].home;
    const HomeParam *h = &home->param[p->param];
    const Model *m = l->lp->model;
    ParamRange *s = &l->range[l->n];
    const int param = m->pack[pack].param[p->param], copy_of = m->param[param].copy_of;
    if (copy_of >= 0 && l->owned) return OK; /* written with the original */
    *s = (ParamRange){copy_of >= 0 ? copy_of : param,
                      pack,
                      p->at,
                      holding_of(&h->use, home->mesh, &h->shape, l->rank),
                      NULL,
                      0};
    s->held.is_flat = true;
    s->held.flat.from = p->lo;
    s->held.flat.count = p->hi - p->lo;
    TRY(holding_pieces(&s->held, l->arena, &s->piece, &s->n));
    l->boxes += s->n;
    l->n++;
    return OK;
}

static Err list_pack(PartLister *l, int pack, const HomePiece **piece, int *n)
{
    const Home *home = &l->lp->pack[pack].home;
    HomeRank has;
    TRY(home_rank(home, l->rank, l->arena, &has));
    *piece = has.piece;
    *n = has.n_pieces;
    return l->owned ? home_owned(home, &has, l->rank, l->arena, piece, n) : OK;
}

/* Lists all pieces of the rank, pack by pack. */
static Err list_all(PartLister *l)
{
    const LinkedProgram *lp = l->lp;
    const unsigned pp = mesh_axes(lp->mesh, VIEW_DENSE, "pp");
    const int stage = mesh_part(lp->mesh, VIEW_DENSE, pp, l->rank), packs = lp->model->n_packs;
    const HomePiece **piece;
    int *n, total = 0;
    TRY(ARENA_NEW(l->arena, packs, &piece));
    TRY(ARENA_NEW(l->arena, packs, &n));
    for (int p = 0; p < packs; p++) {
        if (lp->pack[p].stage != stage) continue;
        TRY(list_pack(l, p, &piece[p], &n[p]));
        total += n[p];
    }
    TRY(ARENA_NEW(l->arena, total, &l->range));
    for (int p = 0; p < packs; p++)
        for (int i = 0; i < n[p]; i++) TRY(add_piece(l, p, &piece[p][i]));
    return OK;
}

static int by_box(const void *a, const void *b)
{
    const StatePart *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    for (int d = 0; d < x->box.ndim; d++)
        if (x->box.lo[d] != y->box.lo[d]) return x->box.lo[d] < y->box.lo[d] ? -1 : 1;
    return 0;
}

/* Creates one part per box; `tensor` is the parameter for now. */
static void fill_boxes(const PartLister *l, StatePart *part)
{
    int64_t n = 0;
    for (int i = 0; i < l->n; i++) {
        const ParamRange *s = &l->range[i];
        for (int64_t k = 0; k < s->n; k++) {
            StatePart *p = &part[n++];
            *p = (StatePart){.tensor = s->param,
                             .pack = s->pack,
                             .box = s->piece[k].box,
                             .at = s->at + s->piece[k].at};
            for (int d = 0; d < p->box.ndim; d++) p->stride[d] = s->held.stride[d];
        }
    }
    if (n > 1) qsort(part, (size_t)n, sizeof *part, by_box);
}

/* Replicates the parts for each role. Tensors are numbered by parameter without copies,
 * see state_tensors. */
static void fill_roles(const Model *m, int roles, const StatePart *base, int64_t n, StateParts *out)
{
    int tensor = 0, param = 0;
    for (int64_t from = 0, to; from < n; from = to) {
        for (; param < base[from].tensor; param++) tensor += m->param[param].copy_of < 0;
        for (to = from; to < n && base[to].tensor == param;) to++;
        for (int role = 0; role < roles; role++)
            for (int64_t i = from; i < to; i++) {
                out->part[out->n] = base[i];
                out->part[out->n++].tensor = tensor * roles + role;
            }
    }
}

Err state_parts(const LinkedProgram *lp, int rank, bool owned, Arena *a, StateParts *out)
{
    PartLister l = {.lp = lp, .rank = rank, .owned = owned, .arena = a};
    const int roles = 1 + lp->n_moments;
    StatePart *base;
    StateParts made = {0};
    TRY(list_all(&l));
    TRY(ARENA_NEW(a, l.boxes, &base));
    TRY(ARENA_NEW(a, l.boxes * roles, &made.part));
    fill_boxes(&l, base);
    fill_roles(lp->model, roles, base, l.boxes, &made);
    *out = made;
    return OK;
}
