/* token_ring.c -- TokenRing: keys stay, queries travel, and results return directly.
 *
 *   rank 0 | q0>2,q1<1 0x0 q1>2,q2<1 1x0 o1>1,o0<2 2x0 o2>2,o0<1
 *   rank 1 | q1>0,q2<2 1x1 q2>0,q0<2 2x1 o2>2,o1<0 0x1 o0>0,o1<2
 *   rank 2 | q2>1,q0<0 2x2 q0>1,q1<0 0x2 o0>0,o2<1 1x2 o1>1,o2<0
 *
 * 2f BSH forward, 3f BSH backward, where (q, do, lse, delta) travel and dq returns; gradients of
 * keys never travel. Queries and results use both directions of the links. With fewer key heads
 * than query heads a ring sends less.
 *
 * Queries go down the ranks. With zigzag tokens and a causal mask, ranks below j need all queries
 * of j, and ranks above only the later half; so the first half stops at rank 0, and a quarter of
 * all transfers is saved. */
#include "compile/context/plan.h"

/* The queries of `q` that rank `rank` visits. */
static ContextBlock queries_at(const ContextShape *s, int q, int rank)
{
    const bool later = s->causal && s->tokens == TOKENS_ZIGZAG && rank > q;
    return (ContextBlock){(int16_t)q, later ? HALF_LATER : HALF_BOTH};
}

int context_token_ring(const ContextShape *s, int rank, ContextStep *out)
{
    const int P = s->ranks, next = ring_rank(rank - 1, P), before = ring_rank(rank + 1, P);
    int n = 0;
    for (int hop = 0; hop < P; hop++) {
        const int q = ring_rank(rank + hop, P), away = ring_rank(rank - hop, P);
        if (hop < P - 1)
            out[n++] = step_move(PAYLOAD_Q, queries_at(s, q, next), next,
                                 queries_at(s, ring_rank(q + 1, P), rank), before);
        out[n++] = step_visit(queries_at(s, q, rank), block_whole(rank));
        if (hop > 0)
            out[n++] =
                step_move(PAYLOAD_O, queries_at(s, q, rank), q, queries_at(s, rank, away), away);
    }
    return n;
}

void context_token_ring_sent(const ContextShape *s, bool backward, ContextSent *out)
{
    const int64_t hops = 2 * (int64_t)s->ranks * (s->ranks - 1); /* of half blocks */
    const int64_t sent = s->causal && s->tokens == TOKENS_ZIGZAG ? hops * 3 / 4 : hops;
    *out = (ContextSent){.halves = {[PAYLOAD_Q] = sent}};
    out->halves[backward ? PAYLOAD_DQ : PAYLOAD_O] = sent;
}
