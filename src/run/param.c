/* param.c -- access to parameters: where their parts are on this rank, and their initial values.
 *
 *     home of the rank    piece 0: rows 3.. of q     piece 1: all of k     piece 2: first rows of v
 *
 * Every element has an index in its whole parameter, which does not depend on the layout. Initial
 * values are drawn by that index, and the pieces of all ranks are assembled by it. */
#include <math.h>

#include "base/philox.h"
#include "run/rank_parts.h"

static DType part_type(const LinkedProgram *lp, ParamPart part)
{
    const bool weight = part == PART_WEIGHT || (part == PART_MASTER && lp->no_master);
    return weight ? lp->model->dtype : dtype_wide(lp->model->dtype);
}

/* Element 0 of the home. */
static char *home_base(const Rank *r, int unit, ParamPart part)
{
    const UnitMemory *at = &r->settings.program->unit[unit];
    const size_t place[] = {at->weights, at->master, at->reduced_grads, at->moments[0],
                            at->moments[1]};
    MUST(place[part] != NO_BASE, "unit %d: the list has no memory for part %d", unit, (int)part);
    return r->base[part == PART_GRAD ? ARENA_STEP : ARENA_STATE] + place[part];
}

Tensor rank_home(const Rank *r, int unit, ParamPart part)
{
    const LinkedProgram *lp = r->settings.program;
    const Span shard = lp->unit[unit].mine.shard;
    return (Tensor){home_base(r, unit, part), part_type(lp, part), 1, {shard.hi - shard.lo}, {1}};
}

/* The index of a parameter among those of its pack. */
static int pack_index(const LinkedProgram *lp, int param)
{
    const int unit = lp->model->param[param].holder[0];
    const Unit *u = &lp->model->unit[unit];
    int at = 0;
    for (int k = 0; u->param[k] != param; k++)
        at += lp->model->param[u->param[k]].holder[0] == unit;
    return at;
}

Tensor rank_param(const Rank *r, int param, ParamPart part)
{
    const LinkedProgram *lp = r->settings.program;
    const Param *p = &lp->model->param[param];
    const UnitMemory *at = &lp->unit[p->holder[0]];
    const HomeParam *h = &at->home.param[pack_index(lp, param)];
    const Holding held = holding_of(&h->use, lp->mesh, &h->shape, lp->rank);
    Tensor t = {.dtype = part_type(lp, part), .ndim = held.kept.ndim};
    const int64_t from = lp->param_at[param] - at->mine.shard.lo;
    if (part == PART_WEIGHT && at->pack != NO_BASE) {
        t.data =
            r->base[ARENA_STATE] + at->pack + (size_t)lp->param_at[param] * dtype_bytes(t.dtype);
    } else {
        MUST(from >= 0 && lp->param_at[param] + lp->param_count[param] <= at->mine.shard.hi,
             "rank %d has only pieces of %s at home", lp->rank, p->name);
        t.data = home_base(r, p->holder[0], part) + (size_t)from * dtype_bytes(t.dtype);
    }
    for (int i = 0; i < t.ndim; i++) {
        t.n[i] = held.kept.n[i];
        t.stride[i] = held.stride[i];
    }
    return t;
}

int rank_pieces(const Rank *r, int unit) { return r->settings.program->unit[unit].mine.n_pieces; }

RankPiece rank_piece(const Rank *r, int unit, int i)
{
    const LinkedProgram *lp = r->settings.program;
    const UnitMemory *at = &lp->unit[unit];
    const HomePiece *p = &at->mine.piece[i];
    const HomeParam *h = &at->home.param[p->param];
    const Unit *u = &lp->model->unit[unit];
    RankPiece out = {.unit = unit, .lo = p->lo, .hi = p->hi, .at = p->at};
    for (int k = 0, n = -1; k < u->n_params; k++) {
        n += lp->model->param[u->param[k]].holder[0] == unit;
        if (n != p->param) continue;
        const int copy_of = lp->model->param[u->param[k]].copy_of;
        out.param = copy_of >= 0 ? copy_of : u->param[k];
        break;
    }
    out.held = holding_of(&h->use, lp->mesh, &h->shape, lp->rank);
    return out;
}

Tensor rank_piece_data(const Rank *r, const RankPiece *p, ParamPart part)
{
    const DType dtype = part_type(r->settings.program, part);
    return (Tensor){home_base(r, p->unit, part) + (size_t)p->at * dtype_bytes(dtype),
                    dtype,
                    1,
                    {p->hi - p->lo},
                    {1}};
}

int64_t rank_piece_global(const RankPiece *p, int64_t i)
{
    return holding_global(&p->held, p->lo + i);
}

/* Initial values of a range of a piece, computed tile by tile. */
typedef struct {
    Tensor w;     /* destination in host memory */
    int64_t from; /* first element, counted in the piece */
    const RankPiece *piece;
    bool whole; /* the rank has the whole parameter: indices need no translation */
    Init init;
    double std;
    Random random;
} InitRange;

enum { INIT_TILE = 1 << 14, INIT_BLOCK = 1 << 9 };

/* Normal numbers for the elements [from, from + n) of the range. */
static void init_normal(const InitRange *s, int64_t from, int n, double *out)
{
    uint64_t global[INIT_BLOCK];
    for (int i = 0; i < n; i++) {
        const int64_t at = s->from + from + i;
        global[i] = (uint64_t)(s->whole ? s->piece->lo + at : rank_piece_global(s->piece, at));
    }
    random_normals(&s->random, global, n, out);
    for (int i = 0; i < n; i++) out[i] *= s->std;
}

static void init_tile(void *work, int64_t tile)
{
    const InitRange *s = work;
    double x[INIT_BLOCK];
    const int64_t count = s->w.n[0];
    const int64_t end = (tile + 1) * INIT_TILE < count ? (tile + 1) * INIT_TILE : count;
    for (int i = 0; i < INIT_BLOCK; i++) x[i] = s->init == INIT_ONES ? 1.0 : 0.0;
    for (int64_t from = tile * INIT_TILE; from < end; from += INIT_BLOCK) {
        const int n = (int)(end - from < INIT_BLOCK ? end - from : INIT_BLOCK);
        if (s->init == INIT_NORMAL) init_normal(s, from, n, x);
        for (int i = 0; i < n && s->w.dtype == F64; i++) ((double *)s->w.data)[from + i] = x[i];
        for (int i = 0; i < n && s->w.dtype != F64; i++)
            ((float *)s->w.data)[from + i] = (float)x[i];
    }
}

/* The home of a unit on another stage is empty. */
Err rank_publish(Rank *r)
{
    for (int u = 0; u < r->settings.program->model->n_units; u++) TRY(optimize_publish(r, u));
    return OK;
}

/* Writes in place if the arenas are host memory, else through the staging buffer. */
static Err init_piece(Rank *r, InitRange *s)
{
    const Tensor home = s->w;
    const size_t each = dtype_bytes(home.dtype);
    int64_t most = home.n[0];
    if (!rank_on_host(r)) {
        TRY(memory_staging(r, &s->w.data));
        most = (int64_t)(STAGING_BYTES / each);
    }
    for (s->from = 0; s->from < home.n[0]; s->from += most) {
        const int64_t left = home.n[0] - s->from;
        s->w.n[0] = left < most ? left : most;
        team_run(r->settings.team, (s->w.n[0] + INIT_TILE - 1) / INIT_TILE, init_tile, s);
        if (!rank_on_host(r))
            TRY(rank_write(r, (char *)home.data + (size_t)s->from * each, (size_t)s->w.n[0] * each,
                           s->w.data));
    }
    return OK;
}

Err rank_init_weights(Rank *r, uint64_t seed)
{
    const LinkedProgram *lp = r->settings.program;
    MUST(part_type(lp, PART_MASTER) == dtype_wide(lp->model->dtype),
         "initial weights of %s without a master copy", dtype_name(lp->model->dtype));
    TRY(rank_fill(r, r->base[ARENA_STATE], 0, lp->bytes[ARENA_STATE]));
    for (int u = 0; u < lp->model->n_units; u++) {
        for (int i = 0; i < rank_pieces(r, u); i++) {
            const RankPiece piece = rank_piece(r, u, i);
            const Param *q = &lp->model->param[piece.param];
            InitRange s = {rank_piece_data(r, &piece, PART_MASTER),
                           0,
                           &piece,
                           shape_count(&piece.held.kept) == q->count,
                           q->info.init,
                           q->info.std,
                           random_named(seed, q->name)};
            TRY(init_piece(r, &s));
        }
    }
    return rank_publish(r);
}
