/* rsa.c -- ring self-attention: all scores are kept, so keys and values travel one after the other.
 *
 *   rank 0 | k0>1,k2<2 0x0s k2>1,k1<2 0x2s 0x1s v0>1,v2<2 0x0v v2>1,v1<2 0x2v 0x1v
 *   rank 1 | k1>2,k0<0 1x1s k0>2,k2<0 1x0s 1x2s v1>2,v0<0 1x1v v0>2,v2<0 1x0v 1x2v
 *   rank 2 | k2>0,k1<1 2x2s k1>0,k0<1 2x1s 2x0s v2>0,v1<1 2x2v v1>0,v0<1 2x1v 2x0v
 *
 * A visit with s has the scores of queries with keys; when a row is whole it becomes weights; a
 * visit with v adds the weighted values. Backward the passes come in reverse order, and gradients
 * follow: those of values behind the values, then those of keys behind the keys. Each of the six
 * rings sends f BSH. The publication ends in an all-reduce of dk and dv over all tokens, 8f BSH.
 *
 * It was published before attention in tiles, and is here to compare: a rank keeps B h S S/P
 * scores, so memory grows with the sequence. F keeps them as any value that backward reads. Key
 * heads cannot be shared, and a causal mask would leave half of the scores unused. */
#include "compile/context/plan.h"

static int add_ring(const ContextShape *s, int rank, ContextPayload payload, VisitPass pass,
                    ContextStep *out)
{
    const int P = s->ranks, next = ring_rank(rank + 1, P), before = ring_rank(rank - 1, P);
    int n = 0;
    for (int hop = 0; hop < P; hop++) {
        const int k = ring_rank(rank - hop, P);
        if (hop < P - 1)
            out[n++] =
                step_move(payload, block_whole(k), next, block_whole(ring_rank(k - 1, P)), before);
        out[n++] = step_pass(block_whole(rank), block_whole(k), pass);
    }
    return n;
}

int context_rsa(const ContextShape *s, int rank, ContextStep *out)
{
    const int n = add_ring(s, rank, PAYLOAD_K, PASS_SCORES, out);
    return n + add_ring(s, rank, PAYLOAD_V, PASS_VALUES, out + n);
}

void context_rsa_sent(const ContextShape *s, bool backward, ContextSent *out)
{
    const int64_t hops = 2 * (int64_t)s->ranks * (s->ranks - 1); /* of half blocks */
    *out = (ContextSent){.halves = {[PAYLOAD_K] = hops, [PAYLOAD_V] = hops}};
    if (backward) out->halves[PAYLOAD_DK] = out->halves[PAYLOAD_DV] = hops;
}
