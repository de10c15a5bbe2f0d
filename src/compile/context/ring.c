/* ring.c -- ring attention: queries stay, keys travel from neighbour to neighbour.
 *
 *   rank 0 | kv0>1,kv2<2 0x0 kv2>1,kv1<2 0x2 0x1
 *   rank 1 | kv1>2,kv0<0 1x1 kv0>2,kv2<0 1x0 1x2
 *   rank 2 | kv2>0,kv1<1 2x2 kv1>0,kv0<1 2x1 2x0
 *
 * Keys make P-1 hops, and so do their gradients: 2f BSK forward, 4f BSK backward. A rank holds two
 * blocks of keys, the one that it reads and the one that arrives.
 *
 * Work under a causal mask follows the tokens: contiguous ones give the last rank (2P-1)/P of the
 * mean; zigzag gives all ranks the same, since each has an early and a late chunk. */
#include "compile/context/plan.h"

int context_ring(const ContextShape *s, int rank, ContextStep *out)
{
    const int P = s->ranks, next = ring_rank(rank + 1, P), before = ring_rank(rank - 1, P);
    int n = 0;
    for (int hop = 0; hop < P; hop++) {
        const int k = ring_rank(rank - hop, P);
        if (hop < P - 1)
            out[n++] = step_move(PAYLOAD_KV, block_whole(k), next, block_whole(ring_rank(k - 1, P)),
                                 before);
        out[n++] = step_visit(block_whole(rank), block_whole(k));
    }
    return n;
}

void context_keys_sent(const ContextShape *s, bool backward, ContextSent *out)
{
    const int64_t hops = 2 * (int64_t)s->ranks * (s->ranks - 1); /* of half blocks */
    *out = (ContextSent){.halves = {[PAYLOAD_KV] = hops, [PAYLOAD_DKV] = backward ? hops : 0}};
}

double context_owner_bound(const ContextShape *s)
{
    const double P = s->ranks;
    return s->causal && s->tokens == TOKENS_CONTIGUOUS ? (2 * P - 1) / P : 1;
}
