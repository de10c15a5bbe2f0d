/* forward.h -- forward state: blocks of queries that share panels of keys and values, and the (max,
 * sum, o) that each carries from one block of keys to the next. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_FORWARD_H
#define DEVICE_CPU_SIMD_ATTENTION_FORWARD_H

#include "device/cpu/simd/attention/attention.h"

/* Blocks of queries per task, which share the panels of k and v. The AMX path starts with the most,
 * because its GEMMs leave the least time for loading panels. The number is halved until there are
 * eight tasks per thread. */
enum { MIN_QUERY_BLOCKS = 2, USUAL_QUERY_BLOCKS = 4, MAX_QUERY_BLOCKS = 8 };

/* A block of queries of one head. */
typedef struct {
    TransposedPanel q; /* AMX: a Panel of rows, not transposed */
    PanelBuffer o;
    Ranges ranges;
    TokenBlock queries;
    float max[BLOCK], sum[BLOCK], rescale[BLOCK];
    float lane_sums[BLOCK][W]; /* AMX: sum, before the sum over lanes */
} QueryBlock;

typedef struct {
    AttentionPath path;
    PrefetchStack prefetch;
    PanelBuffer k_buffer, v_buffer;
    Panel k, v;
    TransposedPanel k_transposed; /* AMX only */
    Scores s;                     /* [key][query]; AMX: [query][key] */
    int n_blocks;
    int64_t from, to; /* keys that any of the blocks attends to */
    QueryBlock block[MAX_QUERY_BLOCKS];
} ForwardState;

#define amx_query_block_open CPU_NAME(amx_query_block_open)
#define amx_query_block_add CPU_NAME(amx_query_block_add)
#define amx_query_block_sum CPU_NAME(amx_query_block_sum)

/* Local. The AMX path: forward_amx.c. Loads the queries; adds a block of keys and returns true if
 * rows of v were cleared; sums lane_sums to sum. */
void amx_query_block_open(AttentionPath path, const Tensor *q, int64_t head, QueryBlock *block);
bool amx_query_block_add(TokenBlock keys, Coverage coverage, ForwardState *st, QueryBlock *block);
void amx_query_block_sum(QueryBlock *block);

#endif
