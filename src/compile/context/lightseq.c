/* lightseq.c -- LightSeq, DistFlashAttention: early ranks help late ones with a causal mask.
 *
 * With contiguous tokens rank a has a+1 live pairs, so rank 0 would be idle for all steps but one.
 * Pairs at a distance of at most P/2 are visited by the owner of the queries, which fetches the
 * keys. The others are visited by the owner of the keys, which fetches the queries and returns
 * (o, lse). All transfers are direct. 5 ranks:
 *
 *   rank 0 | kv0>1 q4<4 0x0 kv0>2 q3<3 4x0 o4>4 3x0 o3>3
 *   rank 1 | kv1>2,kv0<0 1x1 kv1>3 q4<4 1x0 4x1 o4>4
 *   rank 2 | kv2>3,kv1<1 2x2 kv2>4,kv0<0 2x1 2x0
 *   rank 3 | kv3>4,kv2<2 3x3 kv1<1 q3>0 3x2 3x1 o3<0
 *   rank 4 | kv3<3 q4>0 4x4 kv2<2 q4>1 4x3 o4<0 4x2 o4<1
 *
 * P/2 + 1 steps instead of P. All ranks have the same work if P is odd. If P is even nobody helps
 * in the last step, and the late half of the ranks has one visit more: (P+1)/P of the mean. */
#include "compile/context/plan.h"

static int helped_by(int P, int rank, int t) { return rank < t && 2 * t < P ? P + rank - t : -1; }
static int helper_of(int P, int rank, int t)
{
    return rank + t >= P && 2 * t < P ? rank + t - P : -1;
}

static ContextBlock block_or_none(int rank) { return rank < 0 ? block_none() : block_whole(rank); }

static int add_move(ContextStep *out, ContextPayload payload, int block, int to, int in, int from)
{
    if (to < 0 && from < 0) return 0;
    *out =
        step_move(payload, to < 0 ? block_none() : block_whole(block), to, block_or_none(in), from);
    return 1;
}

/* The keys or queries that step t needs. */
static int fetch(int P, int rank, int t, ContextStep *out)
{
    const int before = rank - t >= 0 ? rank - t : -1, helped = helped_by(P, rank, t);
    int n = add_move(out, PAYLOAD_KV, rank, rank + t < P ? rank + t : -1, before, before);
    n += add_move(out + n, PAYLOAD_Q, rank, helper_of(P, rank, t), helped, helped);
    return n;
}

int context_lightseq(const ContextShape *s, int rank, ContextStep *out)
{
    const int P = s->ranks, steps = P / 2;
    int n = steps > 0 ? fetch(P, rank, 1, out) : 0;
    out[n++] = step_visit(block_whole(rank), block_whole(rank));
    for (int t = 1; t <= steps; t++) {
        const int helped = helped_by(P, rank, t), helper = helper_of(P, rank, t);
        if (t < steps) n += fetch(P, rank, t + 1, out + n);
        if (rank >= t) out[n++] = step_visit(block_whole(rank), block_whole(rank - t));
        if (helped >= 0) out[n++] = step_visit(block_whole(helped), block_whole(rank));
        n += add_move(out + n, PAYLOAD_O, helped, helped, helper >= 0 ? rank : -1, helper);
    }
    return n;
}

void context_lightseq_sent(const ContextShape *s, bool backward, ContextSent *out)
{
    const int64_t P = s->ranks, D = P / 2;
    const int64_t keys = 2 * (P * D - D * (D + 1) / 2); /* pairs at distances 1 to D, in halves */
    const int64_t queries = (P - 1 - D) * (P - D);      /* the others */
    *out = (ContextSent){.halves = {[PAYLOAD_KV] = keys, [PAYLOAD_Q] = queries}};
    out->halves[backward ? PAYLOAD_DQ : PAYLOAD_O] = queries;
    if (backward) out->halves[PAYLOAD_DKV] = keys;
}

double context_lightseq_bound(const ContextShape *s)
{
    return s->ranks % 2 ? 1 : (s->ranks + 1.0) / s->ranks;
}
