/* peers.c -- candidate senders and receivers of a rank's elements.
 *
 * On one mesh, ranks that differ only along `varies` together hold the elements that each of them
 * wants, so senders and receivers are within that group. Over two meshes the senders are found by
 * number:
 *
 *     from dp=3 tp=2, a weight sharded on tp   0 1 | 2 3 | 4 5     columns 0 and 1 of three rows
 *     rank 3 of the new mesh wants column 0: its holders are 0 2 4; 2 is nearest (4 is as near)
 *
 * Groups are walked cut by cut, and a branch that cannot intersect the wanted box is left at once.
 * The cost is the sum of the parts of the cuts, not their product. */
#include "layout/peers.h"

#include <stdlib.h>

typedef struct {
    const Sharding *place;
    unsigned free; /* axes to walk; the others keep the coordinates of the rank */
    Box wanted;
    int32_t *rank; /* capacity: all combinations of the free axes */
    int n;
} PeerWalk;

static int parts_of(const Sharding *p, unsigned axes)
{
    return mesh_parts(p->mesh, p->layout.view, axes);
}

static int moved(const Sharding *p, unsigned axes, int part, int rank)
{
    return mesh_move(p->mesh, p->layout.view, axes, part, rank);
}

static unsigned stage_axes(const Sharding *p) { return mesh_axes(p->mesh, p->layout.view, "pp"); }

bool sharding_has(const Sharding *p, int rank)
{
    if (rank >= p->mesh->world) return false;
    return p->stage == ALL_STAGES ||
           mesh_part(p->mesh, p->layout.view, stage_axes(p), rank) == p->stage;
}

static int on_stage(const Sharding *p, int rank)
{
    return p->stage == ALL_STAGES ? rank : moved(p, stage_axes(p), p->stage, rank);
}

/* `h` is the remainder of `rank` after the cuts before `cut`; `used` are their axes. */
static void walk(PeerWalk *w, int cut, int rank, const Holding *h, unsigned used)
{
    const Layout *l = &w->place->layout;
    const Box bounds = holding_bounds(h);
    if (!box_intersect(&bounds, &w->wanted, NULL)) return;
    const unsigned fresh = cut < l->n_cuts ? l->cut[cut].axes & ~used : ~used;
    const unsigned vary = fresh & w->free;
    const int n = parts_of(w->place, vary);
    for (int part = 0; part < n; part++) {
        const int to = moved(w->place, vary, part, rank);
        if (cut == l->n_cuts) {
            w->rank[w->n++] = to;
            continue;
        }
        const Cut *c = &l->cut[cut];
        Holding less = *h;
        holding_narrow(&less, c, parts_of(w->place, c->axes),
                       mesh_part(w->place->mesh, l->view, c->axes, to));
        walk(w, cut + 1, to, &less, used | c->axes);
    }
}

static Err walk_from(const Reshard *r, const Sharding *place, unsigned free, int rank, Box wanted,
                     Arena *a, RankList *out)
{
    PeerWalk w = {.place = place, .free = free, .wanted = wanted};
    const Holding all = holding_all(&r->shape);
    TRY(ARENA_NEW(a, parts_of(place, free), &w.rank));
    walk(&w, 0, rank, &all, 0);
    *out = (RankList){w.n, w.rank};
    return OK;
}

/* Among the ranks that differ from `rank` only along `free`, the one whose number is nearest to
 * `target`; the lower of two. Digit by digit: the nearest value is in the block that contains the
 * target, or in the one before or after it. `low` is the value of the digits before `axis`. */
static int nearest(const View *v, unsigned free, int axis, const int *coord, int low, int target)
{
    int stride = 1, best = -1;
    if (axis == v->n_axes) return low;
    for (int i = axis + 1; i < v->n_axes; i++) stride *= v->size[i];
    const bool is_free = free >> axis & 1;
    const int block = target > low ? (target - low) / stride : 0;
    for (int digit = is_free ? block - 1 : coord[axis]; digit <= block + 1 || !is_free; digit++) {
        const int clamped = digit < 0 ? 0 : digit < v->size[axis] ? digit : v->size[axis] - 1;
        const int rank = nearest(v, free, axis + 1, coord, low + clamped * stride, target);
        const int distance = abs(rank - target), best_distance = abs(best - target);
        if (best < 0 || distance < best_distance || (distance == best_distance && rank < best))
            best = rank;
        if (!is_free) break;
    }
    return best;
}

/* The replica of `from` that sends to rank `to` of another mesh. */
static int nearest_equal(const Reshard *r, int from, int to)
{
    const Sharding *p = &r->from;
    const unsigned fixed = r->varies | (p->stage == ALL_STAGES ? 0 : stage_axes(p));
    int coord[MAX_AXES];
    mesh_coords(p->mesh, p->layout.view, from, coord);
    return nearest(&p->mesh->view[p->layout.view], ~fixed, 0, coord, 0, to);
}

Err peers_senders(const Reshard *r, const StoredPieces *to, Arena *a, RankList *out)
{
    const Box wanted = holding_bounds(&to->holding);
    const int start = on_stage(&r->from, r->one_mesh ? to->rank : 0);
    TRY(walk_from(r, &r->from, r->varies, start, wanted, a, out));
    if (r->one_mesh) return OK;
    int32_t *rank = (int32_t *)out->rank;
    for (int i = 0; i < out->n; i++) rank[i] = nearest_equal(r, rank[i], to->rank);
    return OK;
}

Err peers_receivers(const Reshard *r, const StoredPieces *from, Arena *a, RankList *out)
{
    const Box held = holding_bounds(&from->holding);
    const Sharding *to = &r->to;
    const unsigned pp = stage_axes(to);
    if (!r->one_mesh) {
        const unsigned all = mesh_all_axes(to->mesh, to->layout.view);
        const unsigned free = to->stage == ALL_STAGES ? all : all & ~pp;
        TRY(walk_from(r, to, free, on_stage(to, 0), held, a, out));
        int32_t *rank = (int32_t *)out->rank;
        int n = 0;
        for (int i = 0; i < out->n; i++)
            if (nearest_equal(r, from->rank, rank[i]) == from->rank) rank[n++] = rank[i];
        out->n = n;
        return OK;
    }
    unsigned free = r->varies;
    int start = from->rank;
    if (r->from.stage != ALL_STAGES && to->stage == ALL_STAGES) free |= pp;
    if (r->from.stage != ALL_STAGES) start = on_stage(to, start);
    if (!sharding_has(to, start)) { /* each stage of `from` serves itself; `to` is on another */
        *out = (RankList){0, NULL};
        return OK;
    }
    return walk_from(r, to, free, start, held, a, out);
}

int peers_summand(const Reshard *r, int rank)
{
    return mesh_part(r->from.mesh, r->from.layout.view, r->summed, rank);
}
