/* gather.c -- all-gather: every rank gets all keys, then visits them.
 *
 *   rank 0 | kv0>1,kv2<2 kv0>2,kv1<1 0x0 0x2 0x1
 *   rank 1 | kv1>2,kv0<0 kv1>0,kv2<2 1x1 1x0 1x2
 *   rank 2 | kv2>0,kv1<1 kv2>1,kv0<0 2x2 2x1 2x0
 *
 * As many elements as a ring, in one collective: an all-gather forward, an all-gather and a
 * reduce-scatter backward. A rank holds the keys of all tokens at once. Sheaf runs this plan as
 * layouts (place), not by these moves; they show its order and its count. */
#include "compile/context/plan.h"

int context_gather(const ContextShape *s, int rank, ContextStep *out)
{
    const int P = s->ranks;
    int n = 0;
    for (int t = 1; t < P; t++) {
        const int from = ring_rank(rank - t, P);
        out[n++] = step_move(PAYLOAD_KV, block_whole(rank), ring_rank(rank + t, P),
                             block_whole(from), from);
    }
    for (int t = 0; t < P; t++)
        out[n++] = step_visit(block_whole(rank), block_whole(ring_rank(rank - t, P)));
    return n;
}
