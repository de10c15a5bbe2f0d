/* codes.c -- QUANTIZE: makes the codes and scales of all coded weights of the stage, from the
 * master weights at home.
 *
 *     master   | piece of q | k | piece of o |       the rank's home
 *     amax     each cell's largest magnitude here, then of all ranks that have parts of it
 *     scale    of each cell                          as quantize, or quantize_blocks, computes it
 *     codes    | piece of q | k | piece of o |       in the home, where GATHERs find them
 *
 * Every list begins with it: an update, a loaded checkpoint or new initial weights need not. */
#include "run/rank_parts.h"

static Tensor cells_at(const Rank *r, size_t at, int64_t n)
{
    return (Tensor){r->base[ARENA_STEP] + at, F32, 1, {n}, {1}};
}

/* The call on a piece of a home: its elements, as those of the weight that programs read. */
static Call piece_call(const Rank *r, int pack, const HomePiece *piece, const CodedWeight *w)
{
    const LinkedProgram *lp = r->settings.program;
    const int32_t *param = lp->model->pack[pack].param;
    const int64_t before = lp->param_at[param[piece->param]] - lp->param_at[param[w->param]];
    Call c = {.n_in = 1, .n_out = 1, .team = r->settings.team, .queue = r->queue};
    c.in[0] = rank_home(r, pack, PART_MASTER);
    c.in[0].data = (char *)c.in[0].data + (size_t)piece->at * dtype_bytes(c.in[0].dtype);
    c.in[0].n[0] = piece->hi - piece->lo;
    c.attr.codes.type = lp->model->pack[pack].type.use;
    c.attr.codes.from = lp->model->dtype;
    c.attr.codes.block = w->block;
    c.attr.codes.at = before + piece->lo;
    c.attr.codes.rows = w->rows;
    c.attr.codes.columns = w->columns;
    return c;
}

static const CodedWeight *weight_of(const PackMemory *m, const HomePiece *piece)
{
    int i = 0;
    while (piece->param >= m->coded[i].param + m->coded[i].span) i++;
    return &m->coded[i];
}

typedef Err PieceKernel(Rank *r, Call c, Tensor cells, const Tensor *home, const HomePiece *piece);

static Err find_amax(Rank *r, Call c, Tensor cells, const Tensor *home, const HomePiece *piece)
{
    (void)home, (void)piece;
    c.out[0] = cells;
    return r->settings.device->kernel[KERNEL_weight_amax](&c);
}

static Err write_codes(Rank *r, Call c, Tensor cells, const Tensor *home, const HomePiece *piece)
{
    c.n_in = 2;
    c.in[1] = cells;
    c.out[0] = *home;
    c.out[0].data = (char *)home->data + (size_t)piece->at * dtype_bytes(home->dtype);
    c.out[0].n[0] = piece->hi - piece->lo;
    return r->settings.device->kernel[KERNEL_weight_codes](&c);
}

static Err each_piece(Rank *r, PieceKernel *run)
{
    const LinkedProgram *lp = r->settings.program;
    for (int p = 0; p < lp->model->n_packs; p++) {
        const PackMemory *m = &lp->pack[p];
        const Tensor home = rank_home(r, p, PART_WEIGHT);
        for (int i = 0; i < m->mine.n_pieces && m->n_coded; i++) {
            const HomePiece *piece = &m->mine.piece[i];
            const CodedWeight *w = weight_of(m, piece);
            const size_t at = lp->amax_at + (size_t)w->at * sizeof(float);
            TRY(run(r, piece_call(r, p, piece, w), cells_at(r, at, coded_cells(w)), &home, piece));
        }
    }
    return OK;
}

static Err write_scales(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    Call c = {.n_in = 1, .n_out = 1, .team = r->settings.team, .queue = r->queue};
    c.in[0] = cells_at(r, lp->amax_at, lp->scale_cells);
    c.out[0] = cells_at(r, lp->scales_at, lp->scale_cells);
    c.attr.codes.type = E4M3;
    return r->settings.device->kernel[KERNEL_weight_scales](&c);
}

static Err begin_codes(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    const size_t bytes = (size_t)lp->scale_cells * sizeof(float);
    TRY(rank_fill(r, r->base[ARENA_STEP] + lp->amax_at, 0, bytes));
    return each_piece(r, find_amax);
}

static Err end_codes(Rank *r)
{
    TRY(write_scales(r));
    return each_piece(r, write_codes);
}

Err codes_make(Rank *r, int at)
{
    TRY(begin_codes(r));
    TRY(steps_begin(r, at));
    return end_codes(r);
}

Err codes_rehearse(Rank *r)
{
    TRY(begin_codes(r));
    return end_codes(r);
}
