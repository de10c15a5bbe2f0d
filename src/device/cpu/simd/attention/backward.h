/* backward.h -- the backward pass: dq, dk and dv from dout, with p recomputed tile by tile.
 *
 *     delta = dout . o         s = scale q k'                    per query; per pair
 *     p = exp(s - lse)         ds = p (dout v' - delta)
 *     dq = scale ds k          dk = scale ds' q                  dv = p' dout
 *
 * The bf16 and AMX paths keep s and lse in units of log 2, so p is a power of 2.
 *
 *     one pass     a task has the queries and keys of whole sequences, and the sums of dq in its
 *                  workspace: 5 GEMMs per tile (backward_one_pass.c)
 *     two passes   tasks of one block of queries compute dq (backward.c), then tasks of one block
 *                  of keys dk and dv (backward_keys.c). Both compute p and ds: 7 GEMMs per tile,
 *                  but as many tasks as there are blocks
 *
 * Every element of dq is one chain of additions over keys in order; of dk and dv, over heads, then
 * queries. So both ways give the same bits, and the choice may depend on the number of threads. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_BACKWARD_H
#define DEVICE_CPU_SIMD_ATTENTION_BACKWARD_H

#include "device/cpu/simd/attention/attention.h"

typedef struct {
    const Tensor *q, *k, *v, *ranges, *dout, *lse, *o;
    float scale;
    double log2_factor; /* LOG2_E if s is in units of log 2, else 1 */
    int64_t key_at, keys, channels;
    AttentionPath path;
} BackwardInputs;

/* Statistics of a block of queries. A row whose lse is -inf attends to no key here, even if its
 * ranges are not empty: all its scores were -inf. */
typedef struct {
    Ranges ranges;
    float lse[BLOCK], delta[BLOCK];
    float factor; /* of scores: AttentionPath.factor */
} SoftmaxStats;

#define bf16_softmax_grad CPU_NAME(bf16_softmax_grad)
#define stats_load CPU_NAME(stats_load)
#define head_block_store CPU_NAME(head_block_store)
#define sequences_find CPU_NAME(sequences_find)
#define backward_dkv_pass CPU_NAME(backward_dkv_pass)
#define key_block_load CPU_NAME(key_block_load)
#define query_panels_load CPU_NAME(query_panels_load)
#define key_block_add_queries CPU_NAME(key_block_add_queries)
#define amx_grad_partial CPU_NAME(amx_grad_partial)
#define amx_grad_full CPU_NAME(amx_grad_full)
#define key_block_store CPU_NAME(key_block_store)
#define backward_one_pass CPU_NAME(backward_one_pass)

static inline BackwardInputs backward_inputs(const Call *call)
{
    const Tensor *in = call->in;
    const AttentionPath path = path_of(call, &in[4]);
    return (BackwardInputs){.q = &in[0],
                            .k = &in[1],
                            .v = &in[2],
                            .ranges = &in[3],
                            .dout = &in[4],
                            .lse = &in[5],
                            .o = &in[6],
                            .scale = (float)call->attr.attention.scale,
                            .key_at = call->attr.attention.key_at,
                            .keys = key_count(call),
                            .channels = in[0].n[2],
                            .log2_factor = path.bf16 ? LOG2_E : 1,
                            .path = path};
}

/* Local. Rows that attend to no key and rows past the end get lse = +inf, so their p is 0. */
void stats_load(const BackwardInputs *in, TokenBlock queries, int64_t head, SoftmaxStats *st);
/* Factors of a store of sums into an output x: x = keep * x + factor * sum. */
typedef struct {
    float keep, factor;
} StoreScale;

/* Local. Stores the sums of a block into its rows of x. */
void head_block_store(const Tensor *x, HeadBlock rows, StoreScale f);

/* p and ds of W pairs, from s and dp = dout v'. Callers clear masked pairs afterwards. */
static inline void softmax_grad(AttentionPath path, V lse, V delta, V *s, V *dp)
{
    const V p = path.bf16 ? v_exp2(path.factor * *s - lse) : v_exp(*s - lse);
    *s = p;
    *dp = p * (*dp - delta);
}

/* Queries [from, to) of a tile [query][key] for bf16_softmax_grad, in place: s becomes p, dp
 * becomes ds. Both are stored as other_pairs, ds as owner_pairs too. */
typedef struct {
    int from, to;
    Scores *s, *dp;
} GradRows;

void bf16_softmax_grad(const SoftmaxStats *st, TokenBlock keys, const Bounds *queries,
                       const GradRows *g);

/* State of a block of keys, the owner. Tiles are [query][key]. */
typedef struct {
    TransposedPanel k, v;
    PanelBuffer rows_buffer; /* of k_rows; at the end, of dk and dv as rows */
    PanelBuffer dk, dv;      /* sums */
    Panel k_rows;            /* operand of dq */
    Scores s;                /* scores, then p */
    Scores dp;               /* dout v', then ds */
} KeyBlock;

/* A block of queries of one head: the other block of a tile. */
typedef struct {
    TokenBlock block;
    int64_t head;
    const SoftmaxStats *stats;
    Panel q, dout;
    float *dq; /* sums, [BLOCK][padded channels]; NULL: not computed */
} QueryPanels;

/* Local. p and ds of a partial or a full tile by AMX: backward_amx.c. The latter also adds the tile
 * to dq, if there is one. */
void amx_grad_partial(const BackwardInputs *in, TokenBlock keys, const Bounds *b,
                      const QueryPanels *q, KeyBlock *t);
void amx_grad_full(const BackwardInputs *in, TokenBlock keys, const Bounds *b, const QueryPanels *q,
                   KeyBlock *t);

/* Local. Loads and transposes k and v, clears dk and dv. */
void key_block_load(const Call *call, const BackwardInputs *in, TokenBlock keys, int64_t head,
                    KeyBlock *t);
/* Local. Loads the panels of q and dout. */
void query_panels_load(const BackwardInputs *in, QueryPanels *q);
/* Local. Adds a tile to dk and dv, and to dq if there is one. */
void key_block_add_queries(const BackwardInputs *in, HeadBlock keys, QueryPanels *q, KeyBlock *t);
/* Local. Adds dk and dv to the outputs. */
void key_block_store(const Call *call, const BackwardInputs *in, TokenBlock keys, int64_t head,
                     KeyBlock *t);

/* Runs of whole blocks of queries and keys that attend only to each other: packed sequences. */
enum { MAX_SEQUENCES = 256, MAX_DQ_FLOATS = 1 << 17 }; /* 512 KiB of dq: half of L2 */

typedef struct {
    int n;
    int64_t query[MAX_SEQUENCES + 1], key[MAX_SEQUENCES + 1]; /* first blocks, and the end */
} Sequences;

/* Local. False if the dq of one sequence exceeds MAX_DQ_FLOATS. */
bool sequences_find(const Call *call, Sequences *out);

/* Local. The one pass over these sequences; and the pass for dk and dv, the second of two. */
Err backward_one_pass(const Call *call, const Sequences *sequences);
Err backward_dkv_pass(const Call *call);

#endif
