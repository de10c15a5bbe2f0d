/* forward.h -- forward: blocks of queries beside blocks of keys and values, and what is carried from one
 * block of keys to the next. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_FORWARD_H
#define DEVICE_CPU_SIMD_ATTENTION_FORWARD_H

#include "device/cpu/simd/attention/attention.h"

/* Blocks of queries that share panels of keys and values; by squares, which leave less time to load them, the
 * most. */
enum { MIN_QUERY_BLOCKS = 2, USUAL_QUERY_BLOCKS = 4, MAX_QUERY_BLOCKS = 8 };

/* A block of queries. */
typedef struct {
    TransposedPanel q; /* by squares not turned, but rows of a panel */
    PanelBuffer o;
    Ranges ranges;
    TokenBlock queries;
    float max[BLOCK], sum[BLOCK], rescale[BLOCK];
    float lane_sums[BLOCK][W]; /* by squares: parts of the sums */
} QueryBlock;

typedef struct {
    AttentionPath path;
    PrefetchStack prefetch;
    PanelBuffer k_buffer, v_buffer;
    Panel k, v;
    TransposedPanel k_transposed; /* k, by squares */
    Scores s;                     /* [key][query]; by squares [query][key] */
    int n_blocks;
    int64_t from, to; /* keys that any of them sees */
    QueryBlock block[MAX_QUERY_BLOCKS];
} ForwardState;

#define amx_query_block_open CPU_NAME(amx_query_block_open)
#define amx_query_block_add CPU_NAME(amx_query_block_add)
#define amx_query_block_sum CPU_NAME(amx_query_block_sum)

/* By squares: attention_rows.c. The queries; a block of keys for them, and whether rows of v are gone; sums. */
void amx_query_block_open(AttentionPath path, const Tensor *q, int64_t head, QueryBlock *block);
bool amx_query_block_add(TokenBlock keys, Coverage coverage, ForwardState *st, QueryBlock *block);
void amx_query_block_sum(QueryBlock *block);

#endif
