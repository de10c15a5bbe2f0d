/* forward.h -- forward: blocks of queries beside blocks of keys and values, and what is carried from one
 * block of keys to the next. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_FORWARD_H
#define DEVICE_CPU_SIMD_ATTENTION_FORWARD_H

#include "device/cpu/simd/attention/attention.h"

/* Blocks of queries that share panels of keys and values; by squares, which leave less time to load them, the
 * most. */
enum { FEW_SIDES = 2, MANY_SIDES = 4, MAX_SIDES = 8 };

/* A block of queries. */
typedef struct {
    Turned turned; /* by squares not turned, but rows of a panel */
    Place o;
    Ranges ranges;
    Block queries;
    float max[SPAN], sum[SPAN], shrink[SPAN];
    float part[SPAN][W]; /* by squares: parts of the sums */
} Side;

typedef struct {
    Way way;
    Ahead ahead;
    Place k_place, v_place;
    Panel k, v;
    Turned turned; /* k, by squares */
    Scores s;      /* [key][query]; by squares [query][key] */
    int sides;
    int64_t from, to; /* keys that any of them sees */
    Side side[MAX_SIDES];
} State;

#define rows_open CPU_NAME(rows_open)
#define rows_add CPU_NAME(rows_add)
#define rows_sum CPU_NAME(rows_sum)

/* By squares: attention_rows.c. The queries; a block of keys for them, and whether rows of v are gone; sums. */
void rows_open(Way way, const Tensor *q, int64_t head, Side *side);
bool rows_add(Block keys, Sight sight, State *st, Side *side);
void rows_sum(Side *side);

#endif
