/* panels.c -- a product as blocks of panels.
 *
 *                    b, packed: panels of `columns` lines        1. the team packs b, then a, each
 *                   +--+--+--+--+                                   word once
 *                   |  |  |  |  |                                2. a thread takes a strip of c, tile
 *                   +--+--+--+--+                                   by tile, and of a tile one block
 *     a, packed     c:                                              of k after the other:
 *     +---------+   +--+--+--+--+
 *     |         |   |  |  |  |  |     for each panel of a: it stays in the first cache,
 *     +---------+   +--+--+--+--+         for each panel of b: the tile's are in the second cache,
 *     |         |   |  |  |  |  |             multiply
 *     +---------+   +--+--+--+--+
 *
 * Sums wait between blocks of k in a scratch of the thread, in the second cache too, and go to c from
 * there when they are whole. While a block is multiplied the next one is brought nearer.
 *
 * Cuts follow the shape and, where there is little work, the team: an element's sum is one chain in
 * one order however it is cut (unit.h), so that is a matter of speed alone. Operands too large for the
 * workspace are packed and multiplied in pieces. */
#include "device/cpu/simd/panels.h"

#include <stdatomic.h>
#include "device/cpu/workspace.h"

/* Of c, in a tile of one thread: sums, and words of b, take half a megabyte together. */
enum { TALL = 256, WIDE = 256 };
/* Words of an operand that are packed at a time (32 MiB); words along k that are packed in a row. */
enum { PIECE_WORDS = 8 << 20, RUN_WORDS = 64, PACK_PANELS = 8 };
/* Strips for each thread: the last to finish leaves others idle for about half of one. */
enum { STRIPS_EACH = 16 };

/* A side of the product: an operand, and the piece of it that is packed. */
typedef struct {
    Lines lines;
    PanelShape shape;
    int64_t first, panels; /* of the piece, in panels */
    int64_t per_tile;      /* panels of a tile */
    uint32_t *packed;      /* [block of k][panel][words / group][lines][group] */
} Side;

typedef struct {
    const Call *call;
    const Unit *unit;
    const Beside *beside;
    Side a, b;
    int64_t words, block, n_blocks; /* along k; all blocks but the last have `block` words */
    int64_t wide;                   /* tiles of a strip, at most */
    float *scratch;                 /* TALL x WIDE sums for each thread */
    atomic_bool *busy;              /* which of them are taken */
    int n_scratch;
} Product;

static int64_t block_words(const Product *p, int64_t k)
{
    return least(p->block, p->words - k * p->block);
}

static uint32_t *panel_at(const Product *p, const Side *s, int64_t k, int64_t panel)
{
    return s->packed + s->shape.lines * (k * p->block * s->panels + panel * block_words(p, k));
}

static int64_t tiles_of(const Side *s) { return blocks_of(s->panels, s->per_tile); }

/* PACK_PANELS panels. Where lines are neighbours in memory, a run of words of each before the next run:
 * rows are then read in long pieces. */
static void pack_some(const Product *p, const Side *s, int64_t group)
{
    const int64_t end = least((group + 1) * PACK_PANELS, s->panels);
    const int64_t run = s->lines.term == 1 ? p->block : RUN_WORDS;
    for (int64_t k = 0; k < p->n_blocks; k++)
        for (int64_t w = 0; w < block_words(p, k); w += run)
            for (int64_t i = group * PACK_PANELS; i < end; i++) {
                const PanelPart part = {(s->first + i) * s->shape.lines, k * p->block + w,
                                        least(block_words(p, k) - w, run)};
                panel_pack(&s->lines, s->shape, part, panel_at(p, s, k, i) + w * s->shape.lines);
            }
}

static void pack_a(void *work, int64_t group)
{
    const Product *p = work;
    pack_some(p, &p->a, group);
}

static void pack_b(void *work, int64_t group)
{
    const Product *p = work;
    pack_some(p, &p->b, group);
}

/* What one thread does at a time: panels of a against panels of b, in one block of k. */
typedef struct {
    int64_t k, i, n_i, j, n_j;
} Step;

/* Where a thread works. */
typedef struct {
    float *sums; /* of a tile */
    Stores stores;
} Seat;

/* Part `part` of `parts` of what a step will read: of a where that is another, then of b. */
static void look_ahead(const Product *p, const Step *s, int64_t part, int64_t parts, Micro *m)
{
    const int64_t bytes = 4 * block_words(p, s->k);
    const int64_t of_a = p->n_blocks > 1 ? s->n_i * p->unit->rows * bytes : 0;
    const int64_t of_b = s->n_j * p->unit->columns * bytes;
    const int64_t each = (of_a + of_b) / parts / 64 * 64 + 64, from = part * each;
    if (from < of_a) {
        m->ahead = (const char *)panel_at(p, &p->a, s->k, s->i) + from;
        m->ahead_bytes = least(each, of_a - from);
    } else if (from < of_a + of_b) {
        m->ahead = (const char *)panel_at(p, &p->b, s->k, s->j) + (from - of_a);
        m->ahead_bytes = least(each, of_a + of_b - from);
    }
}

/* So many panels of a against so many of b, from there on, as part of c. */
static Box box_of(const Product *p, int64_t i, int64_t n_i, int64_t j, int64_t n_j)
{
    const Tensor *c = &p->call->out[0];
    const int64_t row = (p->a.first + i) * p->unit->rows;
    const int64_t column = (p->b.first + j) * p->unit->columns;
    return (Box){row, least(c->n[0] - row, n_i * p->unit->rows), column,
                 least(c->n[1] - column, n_j * p->unit->columns)};
}

static void multiply_step(const Product *p, const Step *s, const Step *next, Seat *seat)
{
    const Unit *u = p->unit;
    const bool last = s->k == p->n_blocks - 1 && p->beside->part != GEMM_MULTIPLY;
    Micro m = {.words = block_words(p, s->k), .add = s->k > 0, .c = seat->sums};
    const Tensor *old = p->beside->onto ? p->beside->onto : &p->call->out[0];
    for (int64_t i = 0; i < s->n_i; i++)
        for (int64_t j = 0; j < s->n_j; j++, m.c += u->rows * u->columns) {
            m.a = panel_at(p, &p->a, s->k, s->i + i);
            m.b = panel_at(p, &p->b, s->k, s->j + j);
            m.ahead_bytes = 0;
            if (next) look_ahead(p, next, i * s->n_j + j, s->n_i * s->n_j, &m);
            if (last) {
                Finish *const f = stores_next(&seat->stores);
                f->call = p->call;
                f->old = old;
                f->box = box_of(p, s->i + i, 1, s->j + j, 1);
                f->step = u->columns;
                panels_bias(f, f->box);
            }
            stores_multiply(&seat->stores, &m, last);
        }
    if (last && p->beside->then) {
        stores_end(&seat->stores);
        p->beside->then(p->beside->call, box_of(p, s->i, s->n_i, s->j, s->n_j), NULL);
    }
}

static float *take_scratch(Product *p, int *taken)
{
    for (int i = 0;; i = (i + 1) % p->n_scratch)
        if (!atomic_exchange_explicit(&p->busy[i], true, memory_order_acquire)) {
            *taken = i;
            return p->scratch + (int64_t)i * TALL * WIDE;
        }
}

/* Step number `index` of a strip: blocks of k inside, tiles outside. */
static Step step_of(const Product *p, int64_t row, int64_t column, int64_t index)
{
    const int64_t i = row * p->a.per_tile;
    const int64_t j = (column + index / p->n_blocks) * p->b.per_tile;
    return (Step){index % p->n_blocks, i, least(p->a.per_tile, p->a.panels - i), j,
                  least(p->b.per_tile, p->b.panels - j)};
}

static void multiply_strip(void *work, int64_t strip)
{
    Product *p = work;
    const int64_t across = blocks_of(tiles_of(&p->b), p->wide);
    const int64_t row = strip / across, column = strip % across * p->wide;
    const int64_t steps = p->n_blocks * least(p->wide, tiles_of(&p->b) - column);
    int taken;
    Seat seat = {take_scratch(p, &taken), {.unit = p->unit}};
    p->unit->begin();
    Step s = step_of(p, row, column, 0);
    for (int64_t i = 0; i < steps; i++) {
        const Step next = step_of(p, row, column, i + 1 < steps ? i + 1 : i);
        multiply_step(p, &s, i + 1 < steps ? &next : NULL, &seat);
        s = next;
    }
    stores_end(&seat.stores);
    p->unit->end();
    atomic_store_explicit(&p->busy[taken], false, memory_order_release);
}

static Lines lines_of(const Tensor *t, bool lines_first)
{
    const int line = lines_first ? 0 : 1;
    return (Lines){t->data, t->dtype, t->n[line], t->n[!line], t->stride[line], t->stride[!line]};
}

static void cut_depth(Product *p)
{
    const int64_t terms = p->a.lines.terms, per = p->unit->type == BF16 ? 2 : 1;
    p->words = blocks_of(blocks_of(terms, per), p->unit->group) * p->unit->group;
    p->n_blocks = most(1, blocks_of(p->words, p->unit->depth));
    p->block = blocks_of(blocks_of(p->words, p->n_blocks), 16) * 16;
    p->n_blocks = most(1, blocks_of(p->words, p->block == 0 ? 1 : p->block));
}

/* Tiles of half the size, and strips of fewer tiles, until there are some for each thread. */
static void cut_tiles(Product *p, int64_t threads)
{
    const int64_t wanted = threads > 1 ? STRIPS_EACH * threads : 1;
    while (tiles_of(&p->a) * tiles_of(&p->b) < wanted && p->a.per_tile + p->b.per_tile > 4) {
        Side *const side =
            p->a.per_tile * p->unit->rows >= p->b.per_tile * p->unit->columns ? &p->a : &p->b;
        side->per_tile = blocks_of(side->per_tile, 2);
    }
    const int64_t wide = tiles_of(&p->a) * tiles_of(&p->b) / wanted;
    p->wide = most(1, least(wide, tiles_of(&p->b)));
}

/* Panels of a side that are packed at a time: whole tiles of them. */
static int64_t panels_at_once(const Product *p, const Side *s, int64_t all)
{
    const int64_t fit = PIECE_WORDS / (s->shape.lines * most(1, p->words));
    return least(all, most(1, fit / s->per_tile) * s->per_tile);
}

static void run_pieces(Product *p, int64_t all_a, int64_t all_b, int64_t at_once_a,
                       int64_t at_once_b)
{
    Team *const team = p->call->team;
    const GemmPart part = p->beside->part;
    const bool packs = part == GEMM_WHOLE || part == GEMM_PACK;
    for (p->b.first = 0; p->b.first < all_b; p->b.first += at_once_b) {
        p->b.panels = least(at_once_b, all_b - p->b.first);
        if (packs) team_run(team, blocks_of(p->b.panels, PACK_PANELS), pack_b, p);
        for (p->a.first = 0; p->a.first < all_a; p->a.first += at_once_a) {
            p->a.panels = least(at_once_a, all_a - p->a.first);
            if (packs && (p->b.first == 0 || at_once_a < all_a))
                team_run(team, blocks_of(p->a.panels, PACK_PANELS), pack_a, p);
            if (part == GEMM_PACK) continue;
            p->a.per_tile = TALL / p->unit->rows;
            p->b.per_tile = WIDE / p->unit->columns;
            cut_tiles(p, team_threads(team));
            team_run(team, tiles_of(&p->a) * blocks_of(tiles_of(&p->b), p->wide), multiply_strip,
                     p);
        }
    }
}

Err panels_gemm(const Call *call, const Unit *unit, const Beside *beside)
{
    const int threads = team_threads(call->team);
    Product p = {.call = call, .unit = unit, .beside = beside, .n_scratch = threads};
    Workspace *w;
    p.a = (Side){lines_of(&call->in[0], !call->attr.gemm.ta),
                 {unit->type, unit->rows, unit->group},
                 .per_tile = TALL / unit->rows};
    p.b = (Side){lines_of(&call->in[1], call->attr.gemm.tb),
                 {unit->type, unit->columns, 1},
                 .per_tile = WIDE / unit->columns};
    cut_depth(&p);
    const int64_t all_a = blocks_of(p.a.lines.lines, unit->rows);
    const int64_t all_b = blocks_of(p.b.lines.lines, unit->columns);
    const int64_t at_once_a = panels_at_once(&p, &p.a, all_a);
    const int64_t at_once_b = panels_at_once(&p, &p.b, all_b);
    const int64_t words_a = blocks_of(at_once_a * unit->rows * p.words, 16) * 16;
    const int64_t words_b = blocks_of(at_once_b * unit->columns * p.words, 16) * 16;
    const int64_t sums = (int64_t)threads * TALL * WIDE;
    TRY(workspace_take((size_t)(words_a + words_b + sums) * 4 + (size_t)threads * sizeof *p.busy,
                       "a product", &w));
    p.a.packed = w->at;
    p.b.packed = p.a.packed + words_a;
    p.scratch = (float *)(void *)(p.b.packed + words_b);
    p.busy = (atomic_bool *)(void *)(p.scratch + sums);
    for (int i = 0; i < threads; i++) atomic_init(&p.busy[i], false);
    run_pieces(&p, all_a, all_b, at_once_a, at_once_b);
    workspace_give(w);
    return OK;
}

static void no_product(const Micro *m) { (void)m; }

Err CPU_NAME(gemm_part)(const Call *call, GemmPart part)
{
    const bool narrow = call->in[0].dtype == BF16 && call->in[1].dtype == BF16;
    Unit unit = *unit_for(narrow ? BF16 : F32);
    if (part == GEMM_STORE) {
        unit.multiply = no_product;
        unit.meanwhile = false;
    }
    return panels_gemm(call, &unit, &(Beside){.part = part});
}
