/* home_owned.c -- the owner of each element, which counts and writes it: one rank of its holders.
 *
 * Along replicate axes it is the first rank. If parts of a cut hold copies, it is the first part
 * that holds the element, so a piece may be owned in several runs:
 *
 *     2 key heads on tp=3     tp 0: head 0      tp 1: heads 0 and 1      tp 2: head 1
 *     owned                         head 0                        1               - */
#include "layout/home.h"

/* True if the part is the first of the cut that holds the coordinate. */
static bool is_first(const Cut *c, int part, int64_t coordinate)
{
    for (int earlier = 0; earlier < part; earlier++) {
        const HeldSpans h = held_map(c->map, earlier);
        if (held_find(&h, coordinate) >= 0) return false;
    }
    return true;
}

typedef struct {
    const Home *home;
    int rank;
    HomePiece *out; /* NULL: only count */
    int n;
} OwnedPieces;

static void push_piece(OwnedPieces *s, HomePiece p)
{
    if (s->out) s->out[s->n] = p;
    s->n++;
}

/* True if no earlier part holds a copy of the i-th element of the rank's part of `use`. */
static bool owns(const OwnedPieces *s, const Layout *use, const Holding *held, int64_t i)
{
    for (int n = 0; n < use->n_cuts; n++) {
        const Cut *c = &use->cut[n];
        if (!c->map || !c->map->copies) continue;
        const int64_t local = i / held->stride[c->dim] % held->kept.n[c->dim];
        const int part = mesh_part(s->home->mesh, use->view, c->axes, s->rank);
        if (!is_first(c, part, held_at(&held->dim[c->dim], local))) return false;
    }
    return true;
}

/* The number of consecutive elements that share an owner: those along the dims after the last one
 * with copies. */
static int64_t shared_stretch(const Layout *use, const Holding *held)
{
    int64_t stretch = shape_count(&held->kept);
    for (int n = 0; n < use->n_cuts; n++) {
        const Cut *c = &use->cut[n];
        if (c->map && c->map->copies && held->stride[c->dim] < stretch)
            stretch = held->stride[c->dim];
    }
    return stretch;
}

static void push_owned(OwnedPieces *s, const HomePiece *p)
{
    const HomeParam *param = &s->home->param[p->param];
    const Holding held = holding_of(&param->use, s->home->mesh, &param->shape, s->rank);
    const int64_t stretch = shared_stretch(&param->use, &held);
    int64_t from = -1; /* start of the current owned run */
    for (int64_t i = p->lo; i < p->hi; i = (i / stretch + 1) * stretch) {
        const bool mine = owns(s, &param->use, &held, i);
        if (mine && from < 0) from = i;
        if (mine || from < 0) continue;
        push_piece(s, (HomePiece){p->param, from, i, p->at + from - p->lo});
        from = -1;
    }
    if (from >= 0) push_piece(s, (HomePiece){p->param, from, p->hi, p->at + from - p->lo});
}

static void push_all(OwnedPieces *s, const HomeRank *of)
{
    const Home *h = s->home;
    s->n = 0;
    for (int i = 0; i < of->n_pieces; i++) {
        const Layout *use = &h->param[of->piece[i].param].use;
        const unsigned same = layout_replicate_axes(use, h->mesh) & ~h->shard;
        if (mesh_part(h->mesh, h->view, same, s->rank) == 0) push_owned(s, &of->piece[i]);
    }
}

Err home_owned(const Home *h, const HomeRank *of, int rank, Arena *a, const HomePiece **piece,
               int *n)
{
    OwnedPieces sink = {.home = h, .rank = rank};
    HomePiece *list;
    push_all(&sink, of);
    TRY(ARENA_NEW(a, sink.n, &list));
    sink.out = list;
    push_all(&sink, of);
    *piece = list;
    *n = sink.n;
    return OK;
}
