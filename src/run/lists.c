/* lists.c -- optimizer lists of a device: many tensors per launch, without the host.
 *
 *     squares   | block 0 of pack 0 | block 1 | ... | -> cells -> clip -> factor, norm
 *     update    | pack p: piece 0 | piece 1 | ... |     reads the factor where clip wrote it
 *
 * A block whose elements this rank counts in several spans gets one sum per span. These sums are in
 * different lists, which run one after another. */
#include <stdlib.h>

#include "run/rank_parts.h"

typedef struct {
    SquaresPiece *piece;
    int *round; /* [n]: number of the piece within its block */
    int n, rounds;
} SquaresRounds;

/* Appends the spans that the rank counts of a pack, split at block boundaries; only counts them
 * while `piece` is NULL. */
static void pack_pieces(const Rank *r, int pack, SquaresRounds *s)
{
    const LinkedProgram *lp = r->settings.program;
    const PackMemory *at = &lp->pack[pack];
    const Tensor home = rank_home(r, pack, PART_GRAD);
    OwnedPart p = OWNED_FIRST;
    if (lp->model->pack[pack].rule != PARAM_BY_OPTIMIZER) return;
    for (; linked_owned_next(lp, pack, &p); s->n++) {
        if (p.round >= s->rounds) s->rounds = p.round + 1;
        if (!s->piece) continue;
        s->round[s->n] = p.round;
        s->piece[s->n] = (SquaresPiece){
            (char *)home.data + (size_t)p.lo * dtype_bytes(home.dtype), p.hi - p.lo,
            optimize_blocks(r) + at->cell[at->me] + p.block, p.round > 0 ? 1.0 : 0.0, home.dtype};
    }
}

static void all_pieces(const Rank *r, SquaresRounds *s)
{
    s->n = 0;
    for (int p = 0; p < r->settings.program->model->n_packs; p++) pack_pieces(r, p, s);
}

/* Memory of the next list of n pieces with so many blocks, from the room of linking: the end of
 * those before. NULL: linking made none, and the device allocates it. */
static Err take_memory(Rank *r, const DeviceListShape *s, int64_t n, int64_t blocks, void **out)
{
    const LinkedProgram *lp = r->settings.program;
    const size_t bytes = list_layout(s, n, blocks).end;
    *out = NULL;
    if (lp->list_bytes == 0) return OK;
    if (bytes > lp->list_bytes - r->lists.bytes)
        return err_fail(ERR_CHECK,
                        "a list of %lld tensors takes %zu bytes, %zu of %zu are left; this is a "
                        "bug of Sheaf",
                        (long long)n, bytes, lp->list_bytes - r->lists.bytes, lp->list_bytes);
    *out = r->base[ARENA_STEP] + lp->lists + r->lists.bytes;
    r->lists.bytes += bytes;
    return OK;
}

/* Makes the list of one round, which contains each block at most once. */
static Err open_round(Rank *r, const SquaresRounds *s, int round, SquaresPiece *some)
{
    const DeviceListShape *shape = &r->runtime->lists->squares_shape;
    int64_t blocks = 0;
    void *memory;
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->round[i] != round) continue;
        blocks += list_blocks(shape, s->piece[i].n);
        some[n++] = s->piece[i];
    }
    TRY(take_memory(r, shape, n, blocks, &memory));
    TRY(r->runtime->lists->squares_open(r->context, some, n, memory, &r->lists.squares[round]));
    r->lists.n_squares = round + 1;
    return OK;
}

static Err open_squares(Rank *r)
{
    SquaresRounds s = {0};
    Err err = OK;
    all_pieces(r, &s);
    s.piece = calloc(2 * (size_t)s.n + 1, sizeof *s.piece);
    s.round = calloc((size_t)s.n + 1, sizeof *s.round);
    r->lists.squares = calloc((size_t)s.rounds + 1, sizeof *r->lists.squares);
    if (!s.piece || !s.round || !r->lists.squares)
        err = err_fail(ERR_NOMEM, "no memory for a list of %d blocks of gradients", s.n);
    const int n = s.n;
    if (err == OK) all_pieces(r, &s);
    for (int k = 0; err == OK && k < s.rounds; k++) err = open_round(r, &s, k, s.piece + n);
    free(s.piece);
    free(s.round);
    return err;
}

static UpdatePiece update_piece(const Rank *r, const RankPiece *p)
{
    const OptimSettings *o = &r->settings.optim;
    const Model *m = r->settings.program->model;
    const Tensor grad = rank_piece_data(r, p, PART_GRAD);
    const ParamRule rule = m->pack[p->pack].rule;
    const bool by_sign = rule == PARAM_BY_SIGN, marks = rule == PARAM_BY_MARKS;
    const bool adamw = o->kind == OPTIM_ADAMW && !by_sign && !marks,
               narrow =
                   m->pack[p->pack].type.use != grad.dtype && !pack_is_coded(&m->pack[p->pack]);
    return (UpdatePiece){.grad = grad.data,
                         .master = rank_piece_data(r, p, PART_MASTER).data,
                         .m = adamw ? rank_piece_data(r, p, PART_MOMENT1).data : NULL,
                         .v = adamw ? rank_piece_data(r, p, PART_MOMENT2).data : NULL,
                         .weight = narrow ? rank_piece_data(r, p, PART_WEIGHT).data : NULL,
                         .n = grad.n[0],
                         .decay = m->param[p->param].info.decay ? o->weight_decay : 0.0,
                         .grad_type = grad.dtype,
                         .marks = marks,
                         .sign_rate = by_sign ? o->bias_rate : 0};
}

static Err open_update(Rank *r, int pack)
{
    const int n = rank_pieces(r, pack);
    if (n == 0 || optimize_is_constant(r, pack)) return OK;
    UpdatePiece *piece = calloc((size_t)n, sizeof *piece);
    if (!piece) return err_fail(ERR_NOMEM, "no memory for a list of %d parameters", n);
    const DeviceListShape *shape = &r->runtime->lists->update_shape;
    int64_t blocks = 0;
    void *memory;
    for (int i = 0; i < n; i++) {
        const RankPiece p = rank_piece(r, pack, i);
        piece[i] = update_piece(r, &p);
        blocks += list_blocks(shape, piece[i].n);
    }
    Err err = take_memory(r, shape, n, blocks, &memory);
    if (err == OK)
        err = r->runtime->lists->update_open(r->context, piece, n, memory, &r->lists.update[pack]);
    free(piece);
    return err;
}

Err lists_open(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    const int packs = lp->model->n_packs;
    if (!lists_available(r)) return OK;
    if (lp->model->dtype == F64)
        return err_fail(ERR_CONFIG,
                        "precision.compute=f64: device %s computes f32 and bf16; "
                        "run.device=ref computes f64",
                        r->settings.device->name);
    r->lists.update = calloc((size_t)packs + 1, sizeof *r->lists.update);
    if (!r->lists.update) return err_fail(ERR_NOMEM, "no memory for lists of %d packs", packs);
    for (int i = 0; i < lp->n; i++) {
        const Action *a = &lp->list[i].action;
        if (a->kind == A_NORM && !r->lists.squares) TRY(open_squares(r));
        if (a->kind == A_UPDATE && !r->lists.update[a->unit]) TRY(open_update(r, a->unit));
    }
    return OK;
}

void lists_close(Rank *r)
{
    for (int i = 0; i < r->lists.n_squares; i++) r->runtime->lists->list_close(r->lists.squares[i]);
    for (int p = 0; r->lists.update && p < r->settings.program->model->n_packs; p++)
        if (r->lists.update[p]) r->runtime->lists->list_close(r->lists.update[p]);
    free(r->lists.squares);
    free(r->lists.update);
}

/* Cells of the blocks of all views, with the padding between. */
static int64_t block_cells(const LinkedProgram *lp)
{
    const ScalarCells *last = &lp->scalar[SQUARES - 1];
    const size_t before = last->cells ? last->at - lp->scalar[BLOCKS].at : 0;
    return last->cells ? (int64_t)(before / sizeof(double)) + last->cells
                       : lp->scalar[BLOCKS].cells;
}

Err lists_squares(Rank *r)
{
    const size_t bytes = (size_t)block_cells(r->settings.program) * sizeof(double);
    TRY(r->runtime->set(r->queue, optimize_blocks(r), 0, bytes));
    for (int i = 0; i < r->lists.n_squares; i++)
        TRY(r->runtime->lists->squares_run(r->queue, r->lists.squares[i]));
    return OK;
}

Err lists_clip(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    const DeviceClip clip = {.sums = optimize_blocks(r),
                             .n = block_cells(lp),
                             .mean = &device_scalars(r)->mean,
                             .max_norm = r->settings.optim.clip,
                             .skip = r->settings.optim.skip,
                             .loss = (float *)(void *)(r->base[ARENA_STEP] + lp->loss),
                             .n_losses = lp->has_loss ? lp->micros : 0,
                             .loss_stride = (int64_t)(ARENA_ALIGN / sizeof(float)),
                             .out = &device_scalars(r)->factor};
    return r->runtime->lists->clip(r->queue, &clip);
}

Err lists_update(Rank *r, int pack)
{
    const OptimSettings *o = &r->settings.optim;
    const UpdateNumbers numbers = {.beta1 = o->beta1,
                                   .beta2 = o->beta2,
                                   .eps = o->eps,
                                   .rates = &device_scalars(r)->rates,
                                   .factor = &device_scalars(r)->factor};
    if (!r->lists.update[pack]) return OK;
    return r->runtime->lists->update_run(r->queue, r->lists.update[pack], &numbers);
}
