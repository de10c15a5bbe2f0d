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
    double unit; /* scores are multiplied by it */
    int64_t key_at, keys, channels;
    Way way;
} Inputs;

/* Of a block of queries. Rows that saw no key at all see none here: their scores may all be -inf. */
typedef struct {
    Ranges ranges;
    float lse[SPAN], delta[SPAN];
    float factor; /* of scores: Way */
} Stats;

#define words_grade CPU_NAME(words_grade)
#define stats_load CPU_NAME(stats_load)
#define keep_rows CPU_NAME(keep_rows)
#define sequences_find CPU_NAME(sequences_find)
#define sweep_keys CPU_NAME(sweep_keys)
#define keys_load CPU_NAME(keys_load)
#define queries_load CPU_NAME(queries_load)
#define add_queries CPU_NAME(add_queries)
#define strips_grade CPU_NAME(strips_grade)
#define strips_grade_whole CPU_NAME(strips_grade_whole)
#define keys_store CPU_NAME(keys_store)
#define sweep_once CPU_NAME(sweep_once)

static inline Inputs inputs_of(const Call *call)
{
    const Tensor *in = call->in;
    const Way way = way_of(call, &in[4]);
    return (Inputs){.q = &in[0],
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
                    .unit = way.words ? LOG2_E : 1,
                    .way = way};
}

/* lse is +inf for a row that saw no key, and for rows past the end: exp(s - lse) is 0. */
void stats_load(const Inputs *in, Block queries, int64_t head, Stats *st);
/* Rows of a head of x: keep * x + factor * sum. */
typedef struct {
    float keep, factor;
} Finish;

void keep_rows(const Tensor *x, Rows rows, Finish f);

/* p and ds of W pairs, from their s and dp; unseen pairs have them as well. */
static inline void grade(Way way, V lse, V delta, V *s, V *dp)
{
    const V p = way.words ? v_exp2(way.factor * *s - lse) : v_exp(*s - lse);
    *s = p;
    *dp = p * (*dp - delta);
}

/* The same of some queries of a tile [query][key], in place; by words as pairs, and ds as halves too. */
typedef struct {
    int from, to;
    Scores *s, *dp;
} Graded;

void words_grade(const Stats *st, Block keys, const Bounds *queries, const Graded *g);

/* The owner is a block of keys. s: scores, then p; dp: dout v', then ds. [query][key] */
typedef struct {
    Turned k, v;
    Place rows, dk, dv;
    Panel k_rows;
    Scores s, dp;
} KeyState;

/* A block of queries of a head, as blocks of keys read it. */
typedef struct {
    Block block;
    int64_t head;
    const Stats *stats;
    Panel q, dout;
    float *dq; /* sums, as Rows has them; NULL: not wanted */
} Queries;

/* p and ds of a tile by squares: attention_strips.c. Of one that all see, what the keys add to dq as well. */
void strips_grade(const Inputs *in, Block keys, const Bounds *b, const Queries *q, KeyState *t);
void strips_grade_whole(const Inputs *in, Block keys, const Bounds *b, const Queries *q,
                        KeyState *t);

void keys_load(const Call *call, const Inputs *in, Block keys, int64_t head, KeyState *t);
/* The panels. */
void queries_load(const Inputs *in, Queries *q);
/* What the queries add to the keys, and where there is a dq what the keys add to it. */
void add_queries(const Inputs *in, Rows keys, Queries *q, KeyState *t);
void keys_store(const Call *call, const Inputs *in, Block keys, int64_t head, KeyState *t);

/* Runs of whole blocks, of queries and of keys, which see each other alone. */
enum { MAX_SEQUENCES = 256, MAX_SUMS = 1 << 17 }; /* 512 KiB of dq: half of a second cache */

typedef struct {
    int n;
    int64_t query[MAX_SEQUENCES + 1], key[MAX_SEQUENCES + 1]; /* blocks where each begins */
} Sequences;

/* False: there is one whose dq has no room. */
bool sequences_find(const Call *call, Sequences *out);

/* One sweep, of these sequences; of two, the one that has dk and dv. */
Err sweep_once(const Call *call, const Sequences *sequences);
Err sweep_keys(const Call *call);

#endif
