/* product.h -- a product as panels.c cuts it and panels_tile.c multiplies it.
 *
 *     c = a b is done piece by piece: some rows, some columns, some blocks of k. Of a piece, the team
 *     packs b, which all share; then threads take tiles of c, and whoever takes one packs its part of a
 *     for itself, into a seat that stays in the second cache: a strip of all k, which its other tiles
 *     find there, or, where k is deep, block after block. Where a comes from is asked for a block
 *     before. For units that are too fast for that the team packs deep a's too. */
#ifndef DEVICE_CPU_SIMD_GEMM_PRODUCT_H
#define DEVICE_CPU_SIMD_GEMM_PRODUCT_H

#include <stdatomic.h>
#include "device/cpu/simd/gemm/panels.h"

/* Neighbours: panels of a side, or blocks of k. */
typedef struct {
    int64_t first, n;
} Span;

/* So many, in parts of nearly one size. */
typedef struct {
    int64_t n, parts;
} Split;

static inline int64_t split_at(Split s, int64_t part) { return s.n * part / s.parts; }

static inline Span split_span(Split s, int64_t part)
{
    return (Span){split_at(s, part), split_at(s, part + 1) - split_at(s, part)};
}

/* An operand, and what of it is in the piece at hand. */
typedef struct {
    Lines lines;
    PanelShape shape;
    Span panels;
    uint32_t *packed; /* [block][panel][words][lines]; NULL: each thread packs what it needs */
    int64_t all; /* panels of a side that was packed before, all of it; 0: of the piece alone */
} Side;

/* Where a thread works, one at a time. */
typedef struct {
    atomic_bool busy;
    atomic_llong strip; /* whose blocks of a are packed here, all of the piece; -1: of none */
    uint32_t *a;
    float *sums;
} Seat;

typedef struct {
    const Call *call;
    const Microkernel *kernel;
    const Beside *beside;
    Side a, b;
    int64_t words, block, n_blocks; /* along k; all blocks but the last have `block` words */

    Span blocks;         /* of k, of the piece at hand */
    Split strips, tiles; /* its rows, and the columns of a strip */
    bool strip_stays; /* all blocks of a strip are in the seat at once; else one after the other */
    float *kept;      /* sums that wait for the next blocks of k; NULL: there are none */

    Seat *seat;
    int n_seats; /* as many as threads */
} Product;

#define product_tile CPU_NAME(product_tile)

static inline int64_t block_words(const Product *p, int64_t k)
{
    return least(p->block, p->words - k * p->block);
}

/* A panel, by numbers in the piece. */
static inline uint32_t *panel_at(const Product *p, const Side *s, int64_t k, int64_t panel)
{
    const int64_t words = block_words(p, p->blocks.first + k);
    if (s->all == 0)
        return s->packed + s->shape.lines * (k * p->block * s->panels.n + panel * words);
    const int64_t before = (p->blocks.first + k) * p->block * s->all;
    return s->packed + s->shape.lines * (before + (s->panels.first + panel) * words);
}

/* So many panels of a block, from there on. */
static inline void pack_panels(const Product *p, const Side *s, int64_t k, Span panels,
                               uint32_t *to)
{
    const int64_t all = p->blocks.first + k;
    const PanelPart part = {(s->panels.first + panels.first) * s->shape.lines, all * p->block,
                            block_words(p, all)};
    panels_pack(&s->lines, s->shape, part, panels.n, to);
}

/* Where that many panels of a block come from: to be near when they are packed. */
static inline Prefetch prefetch_source(const Product *p, const Side *s, int64_t k, Span panels)
{
    const int64_t all = p->blocks.first + k, per = s->shape.type == BF16 ? 2 : 1;
    const Lines *x = &s->lines;
    const int64_t size = (int64_t)dtype_bytes(x->dtype);
    const int64_t line = (s->panels.first + panels.first) * s->shape.lines,
                  term = all * p->block * per;
    const int64_t lines = least(panels.n * s->shape.lines, x->lines - line);
    const int64_t terms = least(block_words(p, all) * per, x->terms - term);
    const char *const at = x->at + (line * x->line + term * x->term) * size;
    if (x->term == 1) return prefetch_rows(at, terms * size, lines, x->line * size);
    if (x->line == 1) return prefetch_rows(at, lines * size, terms, x->term * size);
    return (Prefetch){.row = NULL};
}

/* Whether the product, or the part of it that is timed, packs. */
static inline bool product_packs(const Product *p)
{
    return p->beside->part == GEMM_WHOLE || p->beside->part == GEMM_PACK;
}

/* Tile number `tile` of the piece: strips outside, their tiles inside. */
void product_tile(void *product, int64_t tile);

#endif
