/* double_ring.c -- two rings: one within a host, one between hosts.
 *
 * Rank (o, i) is o * inner + i. In round s the ranks of an inner ring hold the keys of the ring s
 * before theirs. They pass these around, while one bulk move per rank brings those of the next
 * round. 4 ranks, inner rings of 2, bulk moves in capitals:
 *
 *   rank 0 | KV0>2,KV2<2 kv0>1,kv1<1 0x0 0x1 kv2>1,kv3<1 0x2 0x3
 *   rank 1 | KV1>3,KV3<3 kv1>0,kv0<0 1x1 1x0 kv3>0,kv2<0 1x3 1x2
 *   rank 2 | KV2>0,KV0<0 kv2>3,kv3<3 2x2 2x3 kv0>3,kv1<3 2x0 2x1
 *   rank 3 | KV3>1,KV1<1 kv3>2,kv2<2 3x3 3x2 kv1>2,kv0<2 3x1 3x0
 *
 * P-1 hops as in a ring of P, of which P/inner - 1 are between hosts; all ranks of a host use their
 * links at once there, and each such hop has `inner` visits to hide behind. */
#include "compile/context/plan.h"

int context_double_ring(const ContextShape *s, int rank, ContextStep *out)
{
    const int I = s->inner, rings = s->ranks / I, o = rank / I, i = rank % I;
    const int next = o * I + ring_rank(i + 1, I), before = o * I + ring_rank(i - 1, I);
    const int next_ring = ring_rank(o + 1, rings) * I + i,
              ring_before = ring_rank(o - 1, rings) * I + i;
    int n = 0;
    for (int round = 0; round < rings; round++) {
        const int base = ring_rank(o - round, rings) * I;
        if (round < rings - 1) {
            out[n] = step_move(PAYLOAD_KV, block_whole(base + i), next_ring,
                               block_whole(ring_rank(o - round - 1, rings) * I + i), ring_before);
            out[n++].bulk = true;
        }
        for (int hop = 0; hop < I; hop++) {
            const int k = base + ring_rank(i - hop, I);
            if (hop < I - 1)
                out[n++] = step_move(PAYLOAD_KV, block_whole(k), next,
                                     block_whole(base + ring_rank(i - hop - 1, I)), before);
            out[n++] = step_visit(block_whole(rank), block_whole(k));
        }
    }
    return n;
}
