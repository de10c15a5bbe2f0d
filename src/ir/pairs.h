/* pairs.h -- the number of (query, key) pairs that an attention computes.
 *
 * A query sees the keys of its own sequence up to itself, at most `span` of them; with a full mask
 * all keys of its sequence. A rank that holds some rows of the sequences has the pairs of these
 * rows, so the work of ranks differs:
 *
 *     8 tokens on 2 ranks     contiguous  10 and 26 pairs     zigzag  18 and 18     striped 16, 20
 *
 * Documents that are packed into one sequence see fewer keys; they are counted as one document,
 * which is the worst case. */
#ifndef IR_PAIRS_H
#define IR_PAIRS_H

#include "ir/ops.h"

/* Local. The pairs of an attention with this attribute, at full extents. queries and keys: the rows
 * that the op reads; a keys extent without a slot holds the rows from key_at on. moved_by: rows by
 * which the queries are moved, as a slice is that starts there. Without a sequence length every
 * query counts `span` keys. */
double attention_pairs(const Attr *attr, const Dim *queries, const Dim *keys, int64_t moved_by);

static inline bool op_attends(OpId op)
{
    return op == OP_attention || op == OP_attention_dx || op == OP_attention_part_dx ||
           op == OP_attention_part_dx_onto;
}

/* True for attention along one token dim of several, which has all pairs of its extents. */
static inline bool op_attends_along(OpId op)
{
    return op == OP_attention_along || op == OP_attention_along_dx ||
           op == OP_attention_along_part_dx;
}

/* Local. True for an op that multiplies queries with keys, or weights with values, of a visit of an
 * attention plan. */
static inline bool op_visits(OpId op)
{
    return op_attends(op) || (op >= OP_attention_scores && op <= OP_attention_scores_dx);
}

#endif
