/* panels.c -- a product in pieces, and what of a piece is done by whom.
 *
 *                    b, packed: panels of `columns` lines        1. the team packs b of the piece, each
 *                   +--+--+--+--+--+--+                             word once
 *                   |  |  |  |  |  |  |                          2. a thread takes tile by tile of c, and
 *                   +--+--+--+--+--+--+                             packs what of a it needs, or finds
 *     a             c:                                              it packed: panels_tile.c
 *     +---------+   +--------+--------+
 *     | strip   |   |  tile  |        |     A piece of b stays in the last cache. Where k is deep, pieces
 *     +---------+   +--------+--------+     are cut along k too, and sums wait between them.
 *     |         |   |        |        |
 *     +---------+   +--------+--------+
 *
 * Cuts follow the shape and, where there is little work, the team: an element's sum is one chain in
 * one order however it is cut (unit.h), so that is a matter of speed alone. */
#include "device/cpu/simd/gemm/product.h"
#include "device/cpu/workspace.h"

/* A seat holds a strip of a where the unit's seat_words are at least half of its tall rows: packed once, it
 * serves all its tiles of WIDE columns. Of a deeper strip it holds block after block, packed again for each
 * tile of at most DEEP_WIDE columns; or the team packs a, where a unit packs_once, and tiles are
 * BROAD x WIDE. */
enum { WIDE = 256, DEEP_WIDE = 768, BROAD = 256, SUM_WORDS = BROAD * WIDE };
/* Words of b that are packed at a time, 8 MiB, so that they stay in the last cache even where others use
 * it too; of each operand, where the team packs a as well. Words along k: all, while that is not more than
 * WHOLE_DEPTH; of more, pieces of PIECE_DEPTH. */
enum { PIECE_WORDS = 2 << 20, PIECE_WORDS_BOTH = 4 << 20 };
enum { WHOLE_DEPTH = 4096, PIECE_DEPTH = 2048 };
/* Panels of a block that a thread packs, at most; how often each thread does that, at least. */
enum { PACK_PANELS = 8, PACKS_EACH = 4 };
/* Tiles for each thread: the last to finish leaves others idle for about half of one. */
enum { TILES_EACH = 8 };
/* What a column costs to a row: rows are packed again for each tile, of columns that are only read. */
enum { FLAT = 8 };

/* Lines of a strip and columns of a tile, in panels. */
typedef struct {
    int64_t strip, tile;
} Cut;

/* What a thread packs at a time: some panels of a block. */
static Split pack_groups(const Product *p, const Side *s)
{
    const int64_t threads = p->n_seats, panels = s->panels.n;
    const int64_t enough = threads == 1 ? 1 : blocks_of(PACKS_EACH * threads, p->blocks.n);
    return (Split){panels, least(panels, most(enough, blocks_of(panels, PACK_PANELS)))};
}

static void pack_group(const Product *p, const Side *s, int64_t job)
{
    const int64_t k = job % p->blocks.n;
    const Span panels = split_span(pack_groups(p, s), job / p->blocks.n);
    pack_panels(p, s, k, panels, panel_at(p, s, k, panels.first));
}

static void pack_a(void *work, int64_t job)
{
    const Product *p = work;
    pack_group(p, &p->a, job);
}

static void pack_b(void *work, int64_t job)
{
    const Product *p = work;
    pack_group(p, &p->b, job);
}

static Lines lines_of(const Tensor *t, bool lines_first)
{
    const int line = lines_first ? 0 : 1;
    return (Lines){t->data, t->dtype, t->n[line], t->n[!line], t->stride[line], t->stride[!line]};
}

static void cut_depth(Product *p)
{
    const int64_t per = p->kernel->type == BF16 ? 2 : 1;
    p->words = blocks_of(blocks_of(p->b.lines.terms, per), p->kernel->group) * p->kernel->group;
    p->n_blocks = most(1, blocks_of(p->words, p->kernel->kc));
    p->block = blocks_of(blocks_of(p->words, p->n_blocks), 16) * 16;
    p->n_blocks = most(1, blocks_of(p->words, p->block == 0 ? 1 : p->block));
    const int64_t pieces = p->words <= WHOLE_DEPTH ? 1 : blocks_of(p->words, PIECE_DEPTH);
    p->blocks = (Span){0, blocks_of(p->n_blocks, pieces)};
}

/* For a piece of p->blocks: whether a strip of a stays in its seat. */
static bool strip_fits(const Product *p, int64_t *panels)
{
    const int64_t words = most(1, p->blocks.n * p->block), mc = p->kernel->mc / p->kernel->rows;
    const int64_t fit = p->kernel->a_buffer_dwords / (words * p->kernel->rows);
    *panels = least(mc, fit);
    return 2 * fit >= mc;
}

static Cut cut_of(const Product *p)
{
    const Microkernel *u = p->kernel;
    const int64_t columns = blocks_of(p->b.lines.lines, u->columns);
    const int64_t wide = least(columns, DEEP_WIDE / u->columns);
    int64_t panels;
    if (strip_fits(p, &panels)) return (Cut){panels, WIDE / u->columns};
    if (u->team_packs_a) return (Cut){BROAD / u->rows, WIDE / u->columns};
    return (Cut){least(u->mc, SUM_WORDS / (wide * u->columns)) / u->rows, wide};
}

/* Smaller ones, until there are some for each thread, and as many for one as for another. */
static void cut_piece(Product *p, Cut cut, int64_t threads)
{
    const Microkernel *u = p->kernel;
    const int64_t rows = p->a.panels.n, columns = p->b.panels.n;
    const int64_t flat = p->a.packed || p->strip_stays ? 1 : FLAT;
    for (;;) {
        const int64_t strips = blocks_of(blocks_of(rows, cut.strip), threads) * threads;
        p->strips = (Split){rows, least(rows, strips)};
        p->tiles = (Split){columns, blocks_of(columns, cut.tile)};
        const bool enough = p->strips.parts * p->tiles.parts >= TILES_EACH * threads;
        if (threads == 1 || enough || cut.strip + cut.tile <= 4) return;
        const bool flatter = cut.strip * u->rows * flat < cut.tile * u->columns;
        const bool lower = cut.tile == 1 || (cut.strip > 1 && !flatter);
        int64_t *const side = lower ? &cut.strip : &cut.tile;
        *side = blocks_of(*side, 2);
    }
}

/* How many panels, of `all`, make a piece of at most `words`: whole tiles or strips of `per`. */
static int64_t at_once(int64_t all, int64_t per, int64_t panel_words, int64_t words)
{
    return least(all, most(1, words / most(1, panel_words) / per) * per);
}

/* What is packed already stays: b while columns and blocks do, a while rows and blocks do. */
static void run_piece(Product *p, Cut cut, bool new_a, bool new_b)
{
    Team *const team = p->call->team;
    if (new_b && !p->b.all && product_packs(p))
        team_run(team, pack_groups(p, &p->b).parts * p->blocks.n, pack_b, p);
    if (new_a && p->a.packed && product_packs(p))
        team_run(team, pack_groups(p, &p->a).parts * p->blocks.n, pack_a, p);
    for (int i = 0; i < p->n_seats; i++) atomic_store(&p->seat[i].strip, -1);
    cut_piece(p, cut, team_threads(team));
    team_run(team, p->strips.parts * p->tiles.parts, product_tile, p);
}

/* All pieces; p has the sizes of the first. */
static void run_pieces(Product *p, Cut cut)
{
    const int64_t all_a = blocks_of(p->a.lines.lines, p->kernel->rows), some_a = p->a.panels.n;
    const int64_t all_b = blocks_of(p->b.lines.lines, p->kernel->columns), some_b = p->b.panels.n;
    const int64_t some_k = p->blocks.n;
    const bool cut_k = some_k < p->n_blocks;
    for (int64_t j = 0; j < all_b; j += some_b)
        for (int64_t i = 0; i < all_a; i += some_a)
            for (int64_t k = 0; k < p->n_blocks; k += some_k) {
                p->b.panels = (Span){j, least(some_b, all_b - j)};
                p->a.panels = (Span){i, least(some_a, all_a - i)};
                p->blocks = (Span){k, least(some_k, p->n_blocks - k)};
                run_piece(p, cut, j == 0 || cut_k || some_a < all_a, i == 0 || cut_k);
            }
}

/* Bytes of so many words, in whole cache lines. */
static size_t room_for(int64_t words) { return (size_t)blocks_of(words, 16) * 64; }

/* b, a, kept sums and seats, one behind the other; only counts their bytes where base is NULL. */
static size_t lay_out(Product *p, bool with_a, char *base)
{
    const int64_t kc = p->blocks.n * p->block;
    const int64_t rows = p->a.panels.n * p->kernel->rows,
                  columns = p->b.panels.n * p->kernel->columns;
    const bool kept = p->blocks.n < p->n_blocks;
    const size_t at_a = p->b.all ? 0 : room_for(columns * kc);
    const size_t at_kept = at_a + (with_a ? room_for(rows * kc) : 0);
    const size_t at_seats = at_kept + (kept ? room_for(rows * columns) : 0);
    const size_t each = room_for(p->kernel->a_buffer_dwords) + room_for(SUM_WORDS);
    const size_t at_list = at_seats + (size_t)p->n_seats * each;
    if (base) {
        if (!p->b.all) p->b.packed = (uint32_t *)(void *)base;
        p->a.packed = with_a ? (uint32_t *)(void *)(base + at_a) : NULL;
        p->kept = kept ? (float *)(void *)(base + at_kept) : NULL;
        p->seat = (Seat *)(void *)(base + at_list);
    }
    for (int i = 0; base && i < p->n_seats; i++) {
        char *const at = base + at_seats + (size_t)i * each;
        p->seat[i].a = (uint32_t *)(void *)at;
        p->seat[i].sums = (float *)(void *)(at + room_for(p->kernel->a_buffer_dwords));
        atomic_init(&p->seat[i].busy, false);
        atomic_init(&p->seat[i].strip, -1);
    }
    return at_list + (size_t)p->n_seats * sizeof *p->seat;
}

static Side side_of_b(const Tensor *b, bool lines_first, const Microkernel *u)
{
    return (Side){.lines = lines_of(b, lines_first), .shape = {u->type, u->columns, 1}};
}

/* b as it was packed before, by whom it may have been: the layout follows from k, n and the unit. */
static void take_prepacked(Product *p)
{
    const Call *c = p->call;
    if (!c->prepacked || c->in[0].dtype != c->in[1].dtype) return;
    p->b.packed = (uint32_t *)c->prepacked; /* which is then only read */
    p->b.all = p->b.panels.n;
}

Err panels_gemm(const Call *call, const Microkernel *kernel, const Beside *beside)
{
    Product p = {.call = call, .kernel = kernel, .beside = beside};
    Workspace *w;
    int64_t panels;
    p.n_seats = team_threads(call->team);
    p.a = (Side){.lines = lines_of(&call->in[0], !call->attr.gemm.ta),
                 .shape = {kernel->type, kernel->rows, kernel->group}};
    p.b = side_of_b(&call->in[1], call->attr.gemm.tb, kernel);
    cut_depth(&p);
    p.strip_stays = strip_fits(&p, &panels);
    const Cut cut = cut_of(&p);
    const int64_t kc = p.blocks.n * p.block;
    const bool both = !p.strip_stays && kernel->team_packs_a; /* the team packs a too */
    const int64_t words = both ? PIECE_WORDS_BOTH : PIECE_WORDS;
    p.a.panels.n = blocks_of(p.a.lines.lines, kernel->rows);
    p.b.panels.n = blocks_of(p.b.lines.lines, kernel->columns);
    take_prepacked(&p);
    p.b.panels.n = at_once(p.b.panels.n, cut.tile, kernel->columns * kc, words);
    /* What is packed of a, and sums that wait, are not to grow with all rows. */
    if (both || p.blocks.n < p.n_blocks)
        p.a.panels.n = at_once(p.a.panels.n, cut.strip, kernel->rows * kc, words);
    TRY(workspace_take(lay_out(&p, both, NULL), "a product", &w));
    lay_out(&p, both, w->at);
    run_pieces(&p, cut);
    workspace_give(w);
    return OK;
}

/* All of b as one piece. */
static Product all_of_b(const Call *call)
{
    const Microkernel *u = microkernel_for(call->in[0].dtype);
    Product p = {.call = call, .kernel = u, .n_seats = team_threads(call->team)};
    p.b = side_of_b(&call->in[0], call->attr.gemm.tb, u);
    cut_depth(&p);
    p.blocks = (Span){0, p.n_blocks};
    p.b.panels.n = blocks_of(p.b.lines.lines, u->columns);
    return p;
}

size_t CPU_NAME(prepacked_bytes)(DType type, int64_t k, int64_t n)
{
    const Product p = all_of_b(&(Call){.in = {{.dtype = type, .ndim = 2, .n = {k, n}}}});
    return room_for(p.words * p.b.panels.n * p.kernel->columns);
}

Err CPU_NAME(prepack)(const Call *call)
{
    Product p = all_of_b(call);
    p.b.packed = call->out[0].data;
    if (p.b.panels.n > 0 && p.words > 0)
        team_run(call->team, pack_groups(&p, &p.b).parts * p.blocks.n, pack_b, &p);
    return OK;
}

/* A product of zeros, of which only the end takes time. */
static void no_product(const MicrokernelArgs *m)
{
    const V zero[1][2] = {{{0}}};
    if (!m->end) return;
    MicrokernelStore e = *m->end;
    for (int i = 0; i < e.rows; i++, e.c += e.c_step, e.old += e.old_step) store_tile(&e, zero, 1);
}

Err CPU_NAME(gemm_part)(const Call *call, GemmPart part)
{
    const bool narrow = call->in[0].dtype == BF16 && call->in[1].dtype == BF16;
    Microkernel kernel = *microkernel_for(narrow ? BF16 : F32);
    if (part == GEMM_STORE) {
        kernel.multiply = no_product;
        kernel.meanwhile = false;
    }
    return panels_gemm(call, &kernel, &(Beside){.part = part});
}
