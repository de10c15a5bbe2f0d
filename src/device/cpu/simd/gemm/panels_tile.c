/* panels_tile.c -- a tile of c, by one thread: block of k after block of k.
 *
 *                          b, packed, streams by         for each panel of b: it is read from the last
 *                         +--+--+--+--+--+--+            cache once,
 *                         |  |  |  |  |  |  |                for each panel of a: multiply
 *                         |  |  |  |  |  |  |            or the other way about, as the unit likes it
 *     a, packed here      +--+--+--+--+--+--+
 *     +---------+         c:
 *     +---------+         +--+--+--+--+--+--+            sums wait between blocks in the seat, in the
 *     +---------+         |  |  |  |  |  |  |            second cache, or with those of the whole piece
 *     +---------+         +--+--+--+--+--+--+            where k comes in pieces too
 *
 * Packing a right before it is read keeps it out of memory: written to the second cache it takes half
 * the time, and is read from there. */
#include "device/cpu/simd/gemm/product.h"

/* What one thread does at a time: panels of a against panels of b, in one block of k; by numbers in
 * the piece. */
typedef struct {
    int64_t tile, k;
    bool packed; /* a of all blocks, before */
    Span rows, columns;
    const uint32_t *a; /* packed */
    float *sums;       /* of the first panels */
    int64_t row_step;  /* from one panel of a to the next */
} Step;

/* Panels of the piece as part of c. */
static Box box_of(const Product *p, Span rows, Span columns)
{
    const Tensor *c = &p->call->out[0];
    const int64_t row = (p->a.panels.first + rows.first) * p->kernel->rows;
    const int64_t column = (p->b.panels.first + columns.first) * p->kernel->columns;
    return (Box){row, least(c->n[0] - row, rows.n * p->kernel->rows), column,
                 least(c->n[1] - column, columns.n * p->kernel->columns)};
}

/* Where what of a is packed next comes from, by this thread as far as one can tell: the next block, or the
 * first of the next strip. */
static Prefetch prefetch_next_a(const Product *p, const Step *s)
{
    const int64_t strip = s->tile / p->tiles.parts, next = (s->tile + 1) / p->tiles.parts;
    const Prefetch none = {.row = NULL};
    if (s->k + 1 < p->blocks.n)
        return s->packed ? none : prefetch_source(p, &p->a, s->k + 1, s->rows);
    if (next == p->strips.parts || (p->strip_stays && next == strip)) return none;
    return prefetch_source(p, &p->a, 0, split_span(p->strips, next));
}

/* What the step after this will read: of a, and, where all of b goes by each panel of a, of b; the next block
 * of k, or the first of the next tile. Of others a panel of b goes by slowly enough for the CPU to see it
 * coming. */
static PrefetchQueue prefetch_next_step(const Product *p, const Step *s, int64_t times)
{
    const Microkernel *u = p->kernel;
    const bool deeper = s->k + 1 < p->blocks.n;
    const int64_t k = deeper ? s->k + 1 : 0, j = s->columns.first + (deeper ? 0 : s->columns.n);
    const int64_t words = block_words(p, p->blocks.first + k);
    const int64_t panels = least(s->columns.n, p->b.panels.n - j);
    PrefetchQueue w = {.c.left = 0};
    if (!p->a.packed)
        w.a = prefetch_next_a(p, s);
    else if (p->blocks.n > 1)
        w.a = prefetch_dwords(panel_at(p, &p->a, k, s->rows.first), s->rows.n * u->rows * words);
    if (u->a_in_l1) w.b = prefetch_dwords(panel_at(p, &p->b, k, j), panels * u->columns * words);
    prefetch_spread(&w.a, times);
    prefetch_spread(&w.b, times);
    return w;
}

static void multiply_step(const Product *p, const Step *s, Stores *stores)
{
    const Microkernel *u = p->kernel;
    const int64_t all = p->blocks.first + s->k, n = s->rows.n * s->columns.n;
    const bool last = all == p->n_blocks - 1 && p->beside->part != GEMM_MULTIPLY;
    Finish f = {.call = p->call,
                .beside = p->beside,
                .old = p->beside->addend ? p->beside->addend : &p->call->out[0],
                .step = u->columns};
    const int64_t words = block_words(p, all);
    PrefetchQueue prefetch =
        prefetch_next_step(p, s, most(1, n * blocks_of(words, PREFETCH_DWORDS)));
    MicrokernelArgs m = {.words = words, .add = all > 0, .prefetch = &prefetch};
    for (int64_t t = 0, before = -1; t < n; t++) {
        const int64_t i = u->a_in_l1 ? t / s->columns.n : t % s->rows.n;
        const int64_t j = u->a_in_l1 ? t % s->columns.n : t / s->rows.n;
        const Span column = {s->columns.first + j, 1};
        m.a = s->a + i * u->rows * m.words;
        m.b = panel_at(p, &p->b, s->k, column.first);
        m.c = s->sums + i * s->row_step + j * u->rows * u->columns;
        if (last && j != before) panels_bias(&f, box_of(p, s->rows, column));
        before = j;
        f.box = box_of(p, (Span){s->rows.first + i, 1}, column);
        if (last) *stores_next(stores) = f;
        stores_multiply(stores, &m, last);
    }
    if (!last) return;
    stores_end(stores);
    if (p->beside->then) p->beside->then(p->beside->call, box_of(p, s->rows, s->columns), NULL);
}

/* One that holds the strip, or any. */
static Seat *take_seat(Product *p, int64_t strip)
{
    for (int i = 0;; i++) {
        Seat *const s = &p->seat[i % p->n_seats];
        if (i < p->n_seats && atomic_load_explicit(&s->strip, memory_order_relaxed) != strip)
            continue;
        if (!atomic_exchange_explicit(&s->busy, true, memory_order_acquire)) return s;
    }
}

void product_tile(void *product, int64_t tile)
{
    Product *p = product;
    const Microkernel *u = p->kernel;
    const int64_t strip = tile / p->tiles.parts, lines = u->rows * u->columns;
    Step s = {.tile = tile,
              .rows = split_span(p->strips, strip),
              .columns = split_span(p->tiles, tile % p->tiles.parts)};
    Seat *const seat = take_seat(p, strip);
    s.packed = p->a.packed || !product_packs(p) ||
               atomic_load_explicit(&seat->strip, memory_order_relaxed) == strip;
    Stores stores = {.kernel = u};
    s.row_step = (p->kept ? p->b.panels.n : s.columns.n) * lines;
    s.sums = p->kept ? p->kept + s.rows.first * s.row_step + s.columns.first * lines : seat->sums;
    u->begin();
    for (s.k = 0; s.k < p->blocks.n; s.k++) {
        uint32_t *const own = seat->a + (p->strip_stays ? s.k * p->block * s.rows.n * u->rows : 0);
        if (!s.packed) pack_panels(p, &p->a, s.k, s.rows, own);
        s.a = p->a.packed ? panel_at(p, &p->a, s.k, s.rows.first) : own;
        if (p->beside->part != GEMM_PACK) multiply_step(p, &s, &stores);
    }
    u->end();
    atomic_store_explicit(&seat->strip, p->strip_stays ? strip : -1, memory_order_relaxed);
    atomic_store_explicit(&seat->busy, false, memory_order_release);
}
