/* layout.h -- the sharding of a tensor over the ranks.
 *
 * A layout is an ordered list of cuts, outer first, and a set of partial axes. An axis in neither
 * is replicate: every rank along it holds the same.
 *
 *     weight [12, 8], "shard(0) on tp, shard(flat by 16) on dp", on dp=2 tp=2:
 *
 *         rows 0..5   tp 0    48 elements, 3 grains of 16:  dp 0 has 0..31, dp 1 has 32..47
 *         rows 6..11  tp 1    the same
 *
 * A cut shards one dim, or FLAT: the row-major elements that the cuts before it left. It shards
 * over some axes, by the even rule or by a span map (spans.h). The layout of a parameter alone
 * decides its local shape, its boxes, the group that its gradient is reduced over, and the rank
 * that counts and writes it (holding.h). A flag that decides one of these is a latent bug. */
#ifndef LAYOUT_LAYOUT_H
#define LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>
#include "device/device.h"
#include "layout/mesh.h"
#include "layout/spans.h"

enum { MAX_CUTS = 5, DIM_FLAT = -1 };

typedef struct {
    int ndim;
    int64_t n[MAX_DIMS];
} Shape;

/* The elements lo, lo + skip + 1, ... below hi of each dim: striped tokens are one box. Boxes of
 * parameters are dense; hi is past the last element. */
typedef struct {
    int ndim;
    int64_t lo[MAX_DIMS], hi[MAX_DIMS];
    int64_t skip[MAX_DIMS]; /* coordinates between two elements; 0: dense */
} Box;

typedef struct {
    int8_t dim;         /* a dim, or DIM_FLAT */
    uint8_t axes;       /* bits of the view's axes, row-major: part = rank's coordinate over them */
    int64_t grain;      /* map == NULL: the even rule, in whole grains */
    int64_t group;      /* > 0: key heads, each read by so many heads: a part has those that its
                         * even share of the heads reads, and two parts may have one */
    const SpanMap *map; /* borrowed */
} Cut;

typedef struct {
    uint8_t view;    /* the view of the axis bits */
    uint8_t partial; /* axes over which the value is the sum of the ranks' parts */
    uint8_t n_cuts;
    Cut cut[MAX_CUTS]; /* outer first: each cuts the remainder of the one before it */
} Layout;

static inline int64_t shape_count(const Shape *s)
{
    int64_t count = 1;
    for (int i = 0; i < s->ndim; i++) count *= s->n[i];
    return count;
}

/* Local. A dim of a box as a span, and back; box_extent counts its elements. */
static inline Span box_span(const Box *b, int dim)
{
    return (Span){b->lo[dim], b->hi[dim], b->skip[dim] + 1};
}
static inline void box_set(Box *b, int dim, Span s)
{
    b->lo[dim] = s.lo;
    b->hi[dim] = s.hi;
    b->skip[dim] = s.step - 1;
}
static inline int64_t box_extent(const Box *b, int dim) { return span_count(box_span(b, dim)); }

/* Local. Layouts are built from replicate, one word at a time:
 *     layout_cut(layout_replicate(VIEW_DENSE), 0, tp, 1)              shard(0) on tp */
Layout layout_replicate(int view);
Layout layout_cut(Layout l, int dim, unsigned axes, int64_t grain);
Layout layout_cut_map(Layout l, int dim, unsigned axes, const SpanMap *map);
Layout layout_cut_read(Layout l, int dim, unsigned axes, int64_t group);
Layout layout_partial(Layout l, unsigned axes);

/* Local. ERR_CHECK unless the layout fits the mesh and the shape:
 * - dims and axes exist; no axis is used twice, nor both cut and partial; FLAT cuts come last;
 * - a map has the extent of its dim and as many parts as its axes have. It is the first cut of its
 *   dim, since it is in global coordinates (two maps of one dim are one map over both axes);
 * - a map on FLAT has no copies. Its remainder may differ along the axes cut before it (8 heads on
 *   tp=3); it may then use these axes again, to give each remainder its own spans.
 * `name` is the tensor's, for the message; `temp` is rewound. */
Err layout_check(const Layout *l, const Mesh *m, const Shape *s, const char *name, Arena *temp);

/* Local. Drops axes of size 1: on a mesh of ones every layout simplifies to replicate. */
Layout layout_simplify(const Layout *l, const Mesh *m);
/* Local. Compares word for word; maps are compared by content. Simplify both first to compare their
 * meaning. */
bool layout_equal(const Layout *a, const Layout *b);
/* Local. True if there is no cut and nothing is partial. */
bool layout_is_replicate(const Layout *l);
/* Local. Axes over which ranks of one stage hold the same: neither cut nor partial, without pp. A
 * parameter's gradient is summed over them, and over the holders of copies. */
unsigned layout_replicate_axes(const Layout *l, const Mesh *m);
/* Local. True if some element is, or for a cut by readers may be, in two parts of one cut. */
bool cut_has_copies(const Cut *c);
bool layout_has_copies(const Layout *l);

/* Local. "replicate", "shard(0) on tp, partial on dp", "shard(0 by 64) on tp", "shard(flat by 16)
 * on dp_replicate x dp_shard", "shard(0 by 6 spans) on cp", "shard(0 by 3 spans with copies) on
 * tp". */
void layout_text(Text *t, const Layout *l, const Mesh *m);

#endif
