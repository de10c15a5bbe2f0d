/* passes.c -- the backward plan of a plan in passes.
 *
 * A pass by itself is a plan: its visits, and the keys, or the values, that travel for them. The
 * backward plan of each is derived by the rule for all (backward.c), and they follow each other in
 * reverse order: the gradient of the weights is needed for that of the scores.
 *
 *     forward    k ring, scores        v ring, values
 *     backward   v ring, dv follows    k ring, dk follows */
#include "compile/context/passes.h"

/* The payload of a pass in place of that of both. */
static ContextPayload payload_of(VisitPass pass, ContextPayload both)
{
    const bool keys = pass == PASS_SCORES;
    if (both == PAYLOAD_KV) return keys ? PAYLOAD_K : PAYLOAD_V;
    if (both == PAYLOAD_DKV) return keys ? PAYLOAD_DK : PAYLOAD_DV;
    return both;
}

/* The steps of one pass, as a plan whose keys and values travel together. */
static Err take_pass(const ContextPlan *f, VisitPass pass, Arena *arena, ContextPlan *out)
{
    *out = (ContextPlan){.row = f->row, .shape = f->shape};
    TRY(ARENA_NEW(arena, f->shape.ranks, &out->n));
    TRY(ARENA_NEW(arena, f->shape.ranks, &out->list));
    for (int rank = 0; rank < f->shape.ranks; rank++) {
        TRY(ARENA_NEW(arena, f->n[rank] + 1, &out->list[rank]));
        for (int i = 0; i < f->n[rank]; i++) {
            ContextStep s = f->list[rank][i];
            const bool visit = s.kind == CONTEXT_VISIT;
            if (visit ? s.pass != pass : s.payload != payload_of(pass, PAYLOAD_KV)) continue;
            if (!visit) s.payload = PAYLOAD_KV;
            out->list[rank][out->n[rank]++] = s;
        }
    }
    return OK;
}

static void append_pass(ContextPlan *to, const ContextPlan *from, VisitPass pass)
{
    for (int rank = 0; rank < to->shape.ranks; rank++)
        for (int i = 0; i < from->n[rank]; i++) {
            ContextStep s = from->list[rank][i];
            if (s.kind == CONTEXT_MOVE) s.payload = (uint8_t)payload_of(pass, s.payload);
            to->list[rank][to->n[rank]++] = s;
        }
}

Err context_backward(const ContextPlan *forward, Arena *arena, ContextPlan *out)
{
    static const VisitPass order[] = {PASS_VALUES, PASS_SCORES};
    const int P = forward->shape.ranks;
    ContextPlan part, back[2], all = *forward;
    if (!forward->row->passes) return context_backward_pass(forward, arena, out);
    for (int i = 0; i < 2; i++) {
        TRY(take_pass(forward, order[i], arena, &part));
        TRY(context_backward_pass(&part, arena, &back[i]));
    }
    all.backward = true;
    TRY(ARENA_NEW(arena, P, &all.n));
    TRY(ARENA_NEW(arena, P, &all.list));
    for (int rank = 0; rank < P; rank++)
        TRY(ARENA_NEW(arena, back[0].n[rank] + back[1].n[rank] + 1, &all.list[rank]));
    for (int i = 0; i < 2; i++) append_pass(&all, &back[i], order[i]);
    *out = all;
    return OK;
}
