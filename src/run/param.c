/* param.c -- access to parameters: where their parts are on this rank, and their initial values.
 *
 *     home of the rank    piece 0: rows 3.. of q     piece 1: all of k     piece 2: first rows of v
 *
 * Every element has an index in its whole parameter, which does not depend on the layout. Initial
 * values are drawn by that index, and the pieces of all ranks are assembled by it. */
#include <math.h>

#include "base/philox.h"
#include "run/rank_parts.h"

static DType part_type(const LinkedProgram *lp, int pack, ParamPart part)
{
    const bool weight = part == PART_WEIGHT || (part == PART_MASTER && lp->no_master);
    const PackTypes *type = &lp->model->pack[pack].type;
    return weight ? type->use : type->wide;
}

/* Element 0 of the home. */
static char *home_base(const Rank *r, int pack, ParamPart part)
{
    const PackMemory *at = &r->settings.program->pack[pack];
    const size_t place[] = {at->weights, at->master, at->reduced_grads, at->moments[0],
                            at->moments[1]};
    MUST(place[part] != NO_BASE, "pack %d: the list has no memory for part %d", pack, (int)part);
    return r->base[part == PART_GRAD ? ARENA_STEP : ARENA_STATE] + place[part];
}

Tensor rank_home(const Rank *r, int pack, ParamPart part)
{
    const LinkedProgram *lp = r->settings.program;
    const Span shard = lp->pack[pack].mine.shard;
    return (Tensor){
        home_base(r, pack, part), part_type(lp, pack, part), 1, {shard.hi - shard.lo}, {1}};
}

Tensor rank_param(const Rank *r, int param, ParamPart part)
{
    const LinkedProgram *lp = r->settings.program;
    const Param *p = &lp->model->param[param];
    const PackMemory *at = &lp->pack[p->pack];
    const HomeParam *h = &at->home.param[p->pack_index];
    const Holding held = holding_of(&h->use, lp->mesh, &h->shape, lp->rank);
    Tensor t = {.dtype = part_type(lp, p->pack, part), .ndim = held.kept.ndim};
    const int64_t from = lp->param_at[param] - at->mine.shard.lo;
    if (part == PART_WEIGHT && at->whole != NO_BASE) {
        t.data =
            r->base[ARENA_STATE] + at->whole + (size_t)lp->param_at[param] * dtype_bytes(t.dtype);
    } else {
        MUST(from >= 0 && lp->param_at[param] + lp->param_count[param] <= at->mine.shard.hi,
             "rank %d has only pieces of %s at home", lp->rank, p->name);
        t.data = home_base(r, p->pack, part) + (size_t)from * dtype_bytes(t.dtype);
    }
    for (int i = 0; i < t.ndim; i++) {
        t.n[i] = held.kept.n[i];
        t.stride[i] = held.stride[i];
    }
    return t;
}

int rank_pieces(const Rank *r, int pack) { return r->settings.program->pack[pack].mine.n_pieces; }

RankPiece rank_piece(const Rank *r, int pack, int i)
{
    const LinkedProgram *lp = r->settings.program;
    const PackMemory *at = &lp->pack[pack];
    const HomePiece *p = &at->mine.piece[i];
    const HomeParam *h = &at->home.param[p->param];
    const int param = lp->model->pack[pack].param[p->param];
    const int copy_of = lp->model->param[param].copy_of;
    return (RankPiece){.param = copy_of >= 0 ? copy_of : param,
                       .pack = pack,
                       .lo = p->lo,
                       .hi = p->hi,
                       .at = p->at,
                       .held = holding_of(&h->use, lp->mesh, &h->shape, lp->rank)};
}

Tensor rank_piece_data(const Rank *r, const RankPiece *p, ParamPart part)
{
    const DType dtype = part_type(r->settings.program, p->pack, part);
    return (Tensor){home_base(r, p->pack, part) + (size_t)p->at * dtype_bytes(dtype),
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

/* The home of a pack on another stage is empty. */
Err rank_publish(Rank *r)
{
    for (int p = 0; p < r->settings.program->model->n_packs; p++) TRY(optimize_publish(r, p));
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
    TRY(rank_fill(r, r->base[ARENA_STATE], 0, lp->bytes[ARENA_STATE]));
    for (int pack = 0; pack < lp->model->n_packs; pack++) {
        MUST(part_type(lp, pack, PART_MASTER) == lp->model->pack[pack].type.wide,
             "initial weights of %s without a master copy", dtype_name(lp->model->dtype));
        for (int i = 0; i < rank_pieces(r, pack); i++) {
            const RankPiece piece = rank_piece(r, pack, i);
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
