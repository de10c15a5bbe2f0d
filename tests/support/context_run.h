/* context_run.h -- runs an attention plan by the kernels of a device in f64: all ranks in one
 * thread, forward and backward.
 *
 * A rank has values of its own tokens alone; all others are NaN until a move brings them. Sends
 * have no buffers: a message meets its receive, and then takes a random time. Steps wait as the
 * written program does (compile/context/write.c), and partial results are added in its order. */
#ifndef TESTS_SUPPORT_CONTEXT_RUN_H
#define TESTS_SUPPORT_CONTEXT_RUN_H

#include "compile/context/plan.h"
#include "device/device.h"

enum { MOST_CASE_TOKENS = 64 };

/* Attention of one sequence. Arrays are [token][head][size]. */
typedef struct {
    int tokens, heads, key_heads, size;
    double *q, *k, *v, *dout;
    int32_t *ranges; /* [token][4]: the keys that it sees, as device/kernels.def has them */
    int16_t *rank;   /* [token]: its place */
    uint8_t *half;   /* [token]: 0 or 1 */
} AttentionCase;

typedef struct {
    double *o, *lse, *dq, *dk, *dv;
} AttentionResult;

/* Ticks that a message and a rank may lose; 0: none. */
typedef struct {
    uint64_t seed;
    int most;
} RandomDelays;

static inline int64_t query_values(const AttentionCase *c)
{
    return (int64_t)c->tokens * c->heads * c->size;
}
static inline int64_t key_values(const AttentionCase *c)
{
    return (int64_t)c->tokens * c->key_heads * c->size;
}

/* Local. Arrays of a case or a result, of zeros. */
Err attention_case_new(Arena *arena, AttentionCase *c);
Err attention_result_new(Arena *arena, const AttentionCase *c, AttentionResult *r);
/* Local. Does the query see the key? */
static inline bool attention_sees(const AttentionCase *c, int query, int key)
{
    const int32_t *r = &c->ranges[4 * query];
    return (key >= r[0] && key < r[1]) || (key >= r[2] && key < r[3]);
}
/* Local. All pairs at once: two passes over each row, without blocks and without merges. */
void attention_dense(const AttentionCase *c, AttentionResult *r);
/* Local. Runs the forward plan, then the backward one, and writes r, which is of zeros. ERR_CHECK
 * if no rank can go on. */
Err context_run(const Device *device, const ContextPlan plan[2], const AttentionCase *c,
                RandomDelays delays, Arena *temp, AttentionResult *r);

#endif
