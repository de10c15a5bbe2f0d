/* spans.h -- the elements of one dim that each part of a cut holds, in global coordinates.
 *
 * A span is lo, lo + step, ... below hi. A span map gives each part of a cut a list of spans. The
 * order of that list is the order in which the part stores them:
 *
 *     zigzag of 16 over 2     part 0: [0, 4) [12, 16)      part 1: [4, 12)
 *     striped 7 over 3        part 0: 0 3 6    part 1: 1 4    part 2: 2 5
 *     q k v of 4 fused, on 2  part 0: [0, 2) [4, 6) [8, 10)   part 1: [2, 4) [6, 8) [10, 12)
 *     2 key heads on 3        part 0: head 0   part 1: heads 0 and 1   part 2: head 1: copies
 *
 * The even rule needs no map: whole grains, the first parts get one more, the last grain may be
 * short. Parts may be empty, with and without a map. */
#ifndef LAYOUT_SPANS_H
#define LAYOUT_SPANS_H

#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/err.h"

typedef struct {
    int64_t lo, hi, step; /* step > 1 is striped; hi is past the last */
} Span;

/* Made by the functions below and never changed after. */
typedef struct {
    int64_t extent;       /* of the dim, unpadded; padding belongs to storage */
    int n_parts;          /* product of the sizes of the cut's axes */
    const int32_t *first; /* [n_parts + 1]: part p is span[first[p]] .. span[first[p + 1] - 1] */
    const Span *span;     /* disjoint within a part; elements in several parts have copies */
    bool copies; /* some element is in two parts: its gradients are summed over its holders */
} SpanMap;

/* The elements of a dim that one part holds: a window of the sequence of its spans' elements. An
 * even cut of a window is a window, so cuts of cuts allocate nothing. Borrows the spans. */
typedef struct {
    const Span *span; /* NULL: the sequence is 0, 1, 2, ... */
    int n_spans;
    int64_t from, count; /* elements [from, from + count) of the sequence */
} HeldSpans;

static inline int64_t span_count(Span s)
{
    return s.hi <= s.lo ? 0 : (s.hi - s.lo + s.step - 1) / s.step;
}

/* Local. The elements from the first to the first + n - 1: hi is past the last, and one element has
 * step 1, so that equal elements are equal spans. */
static inline Span span_first(Span s, int64_t n)
{
    return (Span){s.lo, s.lo + (n - 1) * s.step + (n > 0), n > 1 ? s.step : 1};
}
/* Local. True if they share an element; *out is then their intersection. */
bool span_intersect(Span a, Span b, Span *out);

/* Local. Part `part` of n elements by the even rule, step 1. */
Span even_part(int64_t n, int64_t grain, int parts, int part);

/* Local. All of a dim; a part of a map; a part of a window by the even rule. */
HeldSpans held_all(int64_t extent);
HeldSpans held_map(const SpanMap *map, int part);
HeldSpans held_even(HeldSpans h, int64_t grain, int parts, int part);
/* Local. The elements that part `part` of their readers reads, by the even rule over all readers;
 * each element has `group` consecutive ones. */
HeldSpans held_read(HeldSpans h, int64_t group, int parts, int part);
/* Local. The coordinate of the i-th element held; the index of a coordinate, or -1 if it is not
 * held. */
int64_t held_at(const HeldSpans *h, int64_t i);
int64_t held_find(const HeldSpans *h, int64_t coordinate);
/* Local. The longest span that the window holds from its i-th element on. */
Span held_span(const HeldSpans *h, int64_t i);
/* The span at which a walk is, and the elements of the sequence before it. */
typedef struct {
    int span;
    int64_t before;
} HeldCursor;
/* Local. As held_span, for a walk in ascending order that begins with a zero cursor: it passes each
 * span once. */
Span held_span_next(const HeldSpans *h, int64_t i, HeldCursor *at);
/* Local. The number of elements held whose coordinate is below `bound`. */
int64_t held_below(const HeldSpans *h, int64_t bound);
/* Local. From the least coordinate held to past the greatest; empty if nothing is held. */
Span held_bounds(const HeldSpans *h);

/* Local. Copies the lists into the arena. ERR_CHECK unless each part's spans are inside [0, extent)
 * and disjoint, and the parts together hold every element. */
Err spans_map(Arena *a, int64_t extent, int n_parts, const int32_t *first, const Span *span,
              const SpanMap **out);
/* Local. Fields stored one after another (q, k, v), each cut evenly by its own grain. */
Err spans_fused(Arena *a, const int64_t *width, const int64_t *grain, int n_fields, int parts,
                const SpanMap **out);
/* Local. Part p holds the key heads that its even share of q_heads reads. q_heads is a multiple of
 * kv_heads; each kv head is head_size elements. */
Err spans_key_heads(Arena *a, int64_t q_heads, int64_t kv_heads, int64_t head_size, int parts,
                    const SpanMap **out);

/* Local. Checks that these parts of the map tile [0, extent). ERR_CHECK if an element is missing or
 * twice in one part; *copies: an element is in two of them. `temp` is rewound. */
Err spans_tile(const SpanMap *map, const int *part, int n, int64_t extent, Arena *temp,
               bool *copies);
/* Same lists, by content: copies of a map in two arenas are equal. */
bool spans_equal(const SpanMap *a, const SpanMap *b);

#endif
