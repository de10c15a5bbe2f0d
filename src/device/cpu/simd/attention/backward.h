/* backward.h -- what the two sides of the gradient of attention share.
 *
 *     delta = dout . o
 *     p = exp(s - lse)         ds = p (dout v' - delta)         s = scale q k'
 *     dq = scale ds k          dk = scale ds' q                 dv = p' dout
 *
 * Where products are by words, s and lse are in units of log 2 and p is a power of 2.
 *
 * Every element of the three is one chain of additions: over keys in order for dq, over heads, then
 * queries, for dk and dv. So it does not matter who adds a tile's part:
 *
 *     one sweep      a task has the queries and keys of whole sequences, and the sums of dq in its
 *                    room: 5 products a tile
 *     two sweeps     blocks of queries have dq, then blocks of keys have dk and dv, each with a p and
 *                    ds of its own: 7 products a tile, tasks as many as there are blocks
 *
 * Both give the same bits; which it is may depend on the number of threads. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_BACKWARD_H
#define DEVICE_CPU_SIMD_ATTENTION_BACKWARD_H

#include "device/cpu/simd/attention/attention.h"

typedef struct {
    const Tensor *q, *k, *v, *ranges, *dout, *lse, *o;
    float scale;
    double log2_factor; /* scores are multiplied by it */
    int64_t key_at, keys, channels;
    AttentionPath path;
} BackwardInputs;

/* Of a block of queries. Rows that saw no key at all see none here: their scores may all be -inf. */
typedef struct {
    Ranges ranges;
    float lse[BLOCK], delta[BLOCK];
    float factor; /* of scores: Way */
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

/* lse is +inf for a row that saw no key, and for rows past the end: exp(s - lse) is 0. */
void stats_load(const BackwardInputs *in, TokenBlock queries, int64_t head, SoftmaxStats *st);
/* Rows of a head of x: keep * x + factor * sum. */
typedef struct {
    float keep, factor;
} StoreScale;

void head_block_store(const Tensor *x, HeadBlock rows, StoreScale f);

/* p and ds of W pairs, from their s and dp; unseen pairs have them as well. */
static inline void softmax_grad(AttentionPath path, V lse, V delta, V *s, V *dp)
{
    const V p = path.bf16 ? v_exp2(path.factor * *s - lse) : v_exp(*s - lse);
    *s = p;
    *dp = p * (*dp - delta);
}

/* The same of some queries of a tile [query][key], in place; by words as pairs, and ds as halves too. */
typedef struct {
    int from, to;
    Scores *s, *dp;
} GradRows;

void bf16_softmax_grad(const SoftmaxStats *st, TokenBlock keys, const Bounds *queries,
                       const GradRows *g);

/* The owner is a block of keys. s: scores, then p; dp: dout v', then ds. [query][key] */
typedef struct {
    TransposedPanel k, v;
    PanelBuffer rows_buffer, dk, dv;
    Panel k_rows;
    Scores s, dp;
} KeyBlock;

/* A block of queries of a head, as blocks of keys read it. */
typedef struct {
    TokenBlock block;
    int64_t head;
    const SoftmaxStats *stats;
    Panel q, dout;
    float *dq; /* sums, as Rows has them; NULL: not wanted */
} QueryPanels;

/* p and ds of a tile by squares: attention_strips.c. Of one that all see, what the keys add to dq as well. */
void amx_grad_partial(const BackwardInputs *in, TokenBlock keys, const Bounds *b,
                      const QueryPanels *q, KeyBlock *t);
void amx_grad_full(const BackwardInputs *in, TokenBlock keys, const Bounds *b, const QueryPanels *q,
                   KeyBlock *t);

void key_block_load(const Call *call, const BackwardInputs *in, TokenBlock keys, int64_t head,
                    KeyBlock *t);
/* The panels. */
void query_panels_load(const BackwardInputs *in, QueryPanels *q);
/* What the queries add to the keys, and where there is a dq what the keys add to it. */
void key_block_add_queries(const BackwardInputs *in, HeadBlock keys, QueryPanels *q, KeyBlock *t);
void key_block_store(const Call *call, const BackwardInputs *in, TokenBlock keys, int64_t head,
                     KeyBlock *t);

/* Runs of whole blocks, of queries and of keys, which see each other alone. */
enum { MAX_SEQUENCES = 256, MAX_DQ_FLOATS = 1 << 17 }; /* 512 KiB of dq: half of a second cache */

typedef struct {
    int n;
    int64_t query[MAX_SEQUENCES + 1], key[MAX_SEQUENCES + 1]; /* blocks where each begins */
} Sequences;

/* False: there is one whose dq has no room. */
bool sequences_find(const Call *call, Sequences *out);

/* One sweep, of these sequences; of two, the one that has dk and dv. */
Err backward_one_pass(const Call *call, const Sequences *sequences);
Err backward_dkv_pass(const Call *call);

#endif
