/* plan.h -- attention over ranks as data: who multiplies which queries with which keys, and what
 * travels.
 *
 * Block r is the tokens of rank r: its queries and its keys with values. Softmax over parts of the
 * keys can be merged in any order, so attention is exact if every live pair (query block, key
 * block) is visited once, by any rank. A plan lists, for each rank, visits and moves:
 *
 *     rank 1 | kv1>2,kv0<0 1x1 kv0>2,kv2<0 1x0 1x2        ring of 3 ranks, forward
 *              |           |
 *              |           queries of block 1 with keys of block 1
 *              sends the keys of block 1 to rank 2, receives those of block 0 from rank 0
 *
 * A move does not block. A visit or a move that needs a payload waits for it, so a move that is
 * listed before a visit overlaps it.
 *
 * Generators write forward plans, one rank at a time. The backward plan has the same visits and
 * other payloads, and is derived by one rule for all (backward.c). The checker proves both
 * (check.c).
 *
 * A plan in passes keeps the scores of its queries with all keys, so it needs keys and values at
 * different times: a visit of pass 1 has the scores, one of pass 2 the weighted sum of the values.
 *
 * Blocks have two halves in the order of their tokens, because a causal mask over zigzag tokens
 * leaves half of a block without a partner. In the head comments P is the number of ranks, f is
 * (P-1)/P, B S are the tokens of a micro-batch, H and K the widths of queries and of keys. */
#ifndef COMPILE_CONTEXT_PLAN_H
#define COMPILE_CONTEXT_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"
#include "layout/tokens.h"

enum { MAX_CONTEXT_RANKS = 256 };

typedef struct {
    int ranks;
    int inner; /* ranks of an inner ring; divides `ranks` */
    TokenMap tokens;
    bool causal;
} ContextShape;

enum { HALF_FIRST = 1, HALF_LATER = 2, HALF_BOTH = 3 };

typedef struct {
    int16_t rank;   /* owner; -1: none */
    uint8_t halves; /* of its tokens */
} ContextBlock;

typedef enum {
    PAYLOAD_KV,  /* keys and values: 2K */
    PAYLOAD_Q,   /* forward: queries, H. backward: queries and gradients of o, 2H; lse and delta */
    PAYLOAD_O,   /* partial output, H, and its lse */
    PAYLOAD_DKV, /* partial gradients of keys and values: 2K */
    PAYLOAD_DQ,  /* partial gradient of queries: H */
    PAYLOAD_K,   /* of plans in passes: keys, K, values, and their partial gradients */
    PAYLOAD_V,
    PAYLOAD_DK,
    PAYLOAD_DV,
    N_PAYLOADS
} ContextPayload;

typedef enum { CONTEXT_VISIT, CONTEXT_MOVE } ContextStepKind;
typedef enum { PASS_BOTH, PASS_SCORES, PASS_VALUES } VisitPass;

typedef struct {
    uint8_t kind, payload;
    bool bulk;         /* a move between inner rings */
    uint8_t pass;      /* VISIT: VisitPass */
    ContextBlock q, k; /* VISIT */
    ContextBlock out;  /* MOVE: the block whose payload goes to rank `to` */
    ContextBlock in;   /* and the one that comes from rank `from` */
    int16_t to, from;  /* -1: none */
} ContextStep;

/* Half blocks that all ranks send, by payload. */
typedef struct {
    int64_t halves[N_PAYLOADS];
} ContextSent;

/* Writes the forward steps of a rank to `out` and returns their number, at most
 * MAX_CONTEXT_STEPS(ranks). */
typedef int ContextGenerator(const ContextShape *s, int rank, ContextStep *out);
#define MAX_CONTEXT_STEPS(ranks) (6 * (ranks) + 4)
ContextGenerator context_gather, context_ring, context_double_ring, context_lightseq,
    context_token_ring, context_rsa;

/* What the published method sends, and the work of its busiest rank over the mean. */
typedef void ContextFormula(const ContextShape *s, bool backward, ContextSent *out);
typedef double ContextBound(const ContextShape *s);
ContextFormula context_keys_sent, context_lightseq_sent, context_token_ring_sent, context_rsa_sent;
ContextBound context_owner_bound, context_lightseq_bound;

typedef struct {
    const char *name, *about;
    ContextGenerator *generate;
    ContextFormula *sent;
    ContextBound *bound;
    unsigned tokens; /* bit per TokenMap that the plan is defined for */
    bool causal;     /* defined for a causal mask only */
    bool inner;      /* has inner rings */
    bool passes;     /* keeps scores: for a full mask and one key head per query head only */
} ContextRow;

typedef struct {
    const ContextRow *row;
    ContextShape shape;
    bool backward;
    int *n;             /* [ranks] */
    ContextStep **list; /* [ranks][n[rank]] */
} ContextPlan;

/* The plan of a job. */
typedef struct {
    const ContextRow *row; /* NULL: keys are gathered, or heads are exchanged */
    TokenMap tokens;
    int inner;       /* as ContextShape.inner; 0: one ring */
    int64_t seq_len; /* of the sequences of a micro-batch, for plans that move halves of a block */
} ContextChoice;

const ContextRow *context_rows(int *n);
const char *context_payload_name(ContextPayload payload);

/* Local. ERR_CONFIG with the nearest name. */
Err context_row(const char *name, Arena *temp, const ContextRow **out);
/* Local. ERR_CONFIG for a shape that the row is not defined for, with those that work. */
Err context_row_check(const ContextRow *row, const ContextShape *s, Arena *temp);
/* Local. ERR_CONFIG if the row is not defined for key heads that query heads share. */
Err context_row_heads(const ContextRow *row, int64_t heads, int64_t key_heads);
/* Local. The forward plan. ERR_CONFIG for a shape that the row is not defined for; the message has
 * those that work. */
Err context_plan(const ContextRow *row, const ContextShape *s, Arena *arena, ContextPlan *out);
/* Local. The backward plan of a checked forward plan. */
Err context_backward(const ContextPlan *forward, Arena *arena, ContextPlan *out);
/* Local. One line per rank, each after `before`. */
Err context_draw(const ContextPlan *p, const char *before, Arena *arena, const char **out);

/* The position of a half block among all tokens. A causal query sees keys of lower positions, and
 * half of those of its own position. */
int context_position(const ContextShape *s, int rank, int half);
/* Work of two half blocks: 2 if each query sees each key, 1 on the diagonal, 0 if none is seen. */
int context_work(const ContextShape *s, int q, int q_half, int k, int k_half);

static inline int ring_rank(int rank, int ranks) { return (rank % ranks + ranks) % ranks; }
static inline ContextBlock block_whole(int rank)
{
    return (ContextBlock){(int16_t)rank, HALF_BOTH};
}
static inline ContextBlock block_none(void) { return (ContextBlock){-1, 0}; }

static inline ContextStep step_visit(ContextBlock q, ContextBlock k)
{
    return (ContextStep){
        .kind = CONTEXT_VISIT, .q = q, .k = k, .out = {-1, 0}, .in = {-1, 0}, .to = -1, .from = -1};
}

static inline ContextStep step_pass(ContextBlock q, ContextBlock k, VisitPass pass)
{
    ContextStep s = step_visit(q, k);
    s.pass = (uint8_t)pass;
    return s;
}

static inline bool payload_is_partial(ContextPayload p)
{
    return p != PAYLOAD_KV && p != PAYLOAD_Q && p != PAYLOAD_K && p != PAYLOAD_V;
}

/* A payload of key heads; the others are of query heads. */
static inline bool payload_is_keys(ContextPayload p)
{
    return p == PAYLOAD_KV || p == PAYLOAD_DKV || p >= PAYLOAD_K;
}

static inline ContextStep step_move(ContextPayload payload, ContextBlock out, int to,
                                    ContextBlock in, int from)
{
    return (ContextStep){.kind = CONTEXT_MOVE,
                         .payload = (uint8_t)payload,
                         .q = {-1, 0},
                         .k = {-1, 0},
                         .out = out,
                         .in = in,
                         .to = (int16_t)to,
                         .from = (int16_t)from};
}

#endif
