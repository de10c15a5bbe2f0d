/* moves.h -- boxes of a tensor that move from one rank's storage to another's.
 *
 *     from: rows 0..5 of [12, 8]            to: columns 4..7
 *
 *     . . . . A A A A                       A A A A        box       [0, 6) x [4, 8)
 *     . . . . A A A A                       A A A A        from_at 4, from_stride {8, 1}
 *     ...                                   ...            to_at 0,   to_stride {4, 1}
 *
 * Strides are those between consecutive elements of the box. The moves between two ranks are the
 * intersections of their boxes, in the order of the boxes of `to`. They depend on the two holdings
 * alone, so both ranks compute the same list. */
#ifndef LAYOUT_MOVES_H
#define LAYOUT_MOVES_H

#include "layout/holding.h"

typedef struct {
    int32_t from, to;                       /* ranks; equal: a copy within the rank */
    bool add;                               /* adds to the result of earlier moves there */
    Box box;                                /* in global coordinates */
    int64_t from_at, from_stride[MAX_DIMS]; /* elements of the sender's storage */
    int64_t to_at, to_stride[MAX_DIMS];     /* elements of the receiver's */
} Move;

/* Grows in its arena. Outgrown tables stay there until the arena is rewound. */
typedef struct {
    Arena *arena;
    Move *move;
    int64_t n, cap;
} MoveList;

typedef struct {
    Arena *arena;
    Box *box;
    int64_t n, cap;
} BoxList;

/* The part that one rank holds, as boxes. */
typedef struct {
    int32_t rank;
    Holding holding;
    const HeldPiece *piece;
    int64_t n;
} StoredPieces;

/* Local. */
int64_t box_count(const Box *b);
/* Local. True if they share an element. *out, unless NULL, is then their intersection. */
bool box_intersect(const Box *a, const Box *b, Box *out);

Err boxes_push(BoxList *l, const Box *b);
/* Local. Removes the elements of `b` from the list. */
Err boxes_remove(BoxList *l, const Box *b);

/* Local. Reserves memory for `room` moves in an empty list. */
Err moves_reserve(MoveList *l, int64_t room);
Err moves_push(MoveList *l, const Move *m);
/* Local. Lists the elements that `from` and `to` both hold. */
Err moves_between(const StoredPieces *from, const StoredPieces *to, bool add, MoveList *out);
/* Local. The part of the move inside `box`, which it intersects. */
Move move_within(const Move *m, const Box *box);

/* Local. True if the moves, one after another, read (or write) storage from offset 0 on without a
 * gap. Then nothing needs packing. */
bool moves_read_in_order(const Move *move, int64_t n);
bool moves_write_in_order(const Move *move, int64_t n);

#endif
