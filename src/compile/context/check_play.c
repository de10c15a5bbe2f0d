/* check_play.c -- plays the lists of all ranks, with transfers that take their time.
 *
 * A rank goes on until a step needs a payload whose receive is posted and has not met its send. A
 * move also waits for the sends before the last visit, so that their memory is free. After a visit,
 * and before a partial result leaves, the rank adds those that it is to receive, so it waits for
 * all of them. A step that needs a payload for which no receive is posted is a fault. So is a round
 * in which no rank can go on: a circular wait. */
#include <string.h>

#include "compile/context/check_parts.h"

static Err bad(const ContextPlayer *w, int rank, const char *reason, int block)
{
    return err_fail(ERR_CHECK, "attention plan %s, rank %d, step %d: %s (block %d)",
                    w->p->row->name, rank, w->at[rank], reason, block);
}

static int partial_of(ContextPayload payload)
{
    if (payload == PAYLOAD_DV) return PARTIAL_VALUES;
    return payload_is_keys(payload) ? PARTIAL_KEYS : PARTIAL_QUERIES;
}

static int kind_of(ContextPayload payload)
{
    return payload == PAYLOAD_V ? HAS_VALUES : payload_is_keys(payload) ? HAS_KEYS : HAS_QUERIES;
}

/* The contributions of a partial result at a rank, [other block][q half][k half]. */
static Err parts_at(ContextPlayer *w, int partial, int rank, int block, uint8_t **out)
{
    uint8_t **parts = &w->parts[partial][pair_at(w, rank, block)];
    if (!*parts) TRY(ARENA_NEW(w->temp, 4 * w->ranks, parts));
    *out = *parts;
    return OK;
}

/* Is this payload here? Else *waits tells whether it is on its way. */
static bool is_here(const ContextPlayer *w, int rank, ContextPayload payload, ContextBlock b,
                    bool *waits)
{
    const int64_t at = pair_at(w, rank, b.rank);
    *waits = w->due[payload][at] > 0;
    if (payload_is_partial(payload)) return w->made[partial_of(payload)][at] && !*waits;
    const uint8_t has = w->has[kind_of(payload)][at];
    return (has & b.halves) == b.halves;
}

static Err meet(ContextPlayer *w, int from, int to)
{
    ContextChannel *c = &w->channel[pair_at(w, from, to)];
    for (; c->n_met < c->n_sent && c->n_met < c->n_posted; c->n_met++) {
        const ContextMessage *s = &c->sent[c->n_met], *r = &c->posted[c->n_met];
        const int64_t at = pair_at(w, to, r->block.rank);
        if (s->payload != r->payload || s->block.rank != r->block.rank ||
            s->block.halves != r->block.halves)
            return err_fail(ERR_CHECK,
                            "attention plan %s: send %d from rank %d to rank %d is %s of block %d, "
                            "and its receive expects %s of block %d",
                            w->p->row->name, c->n_met, from, to, context_payload_name(s->payload),
                            s->block.rank, context_payload_name(r->payload), r->block.rank);
        w->due[r->payload][at]--;
        if (!payload_is_partial(r->payload)) {
            w->has[kind_of(r->payload)][at] |= r->block.halves;
            continue;
        }
        uint8_t *parts;
        TRY(parts_at(w, partial_of(r->payload), to, r->block.rank, &parts));
        for (int i = 0; i < 4 * w->ranks; i++) parts[i] = (uint8_t)(parts[i] + s->parts[i]);
        w->made[partial_of(r->payload)][at] = 1;
    }
    return OK;
}

static Err post(ContextPlayer *w, ContextMessage **list, int *n, int cap, ContextMessage m)
{
    if (!*list) TRY(ARENA_NEW(w->temp, cap, list));
    MUST(*n < cap, "more messages than steps");
    (*list)[(*n)++] = m;
    return OK;
}

/* Takes a partial result out of the rank: its contributions travel. */
static Err take_parts(ContextPlayer *w, int rank, const ContextStep *s, const uint8_t **out)
{
    const int partial = partial_of(s->payload);
    const int64_t at = pair_at(w, rank, s->out.rank);
    uint8_t *parts;
    if (s->out.rank == rank)
        return bad(w, rank, "sends a partial result away from its owner", rank);
    TRY(parts_at(w, partial, rank, s->out.rank, &parts));
    *out = parts;
    w->parts[partial][at] = NULL;
    w->made[partial][at] = 0;
    return OK;
}

static bool is_block(const ContextPlayer *w, ContextBlock b)
{
    return b.rank >= 0 && b.rank < w->ranks && b.halves >= HALF_FIRST && b.halves <= HALF_BOTH;
}

static Err check_move(const ContextPlayer *w, int rank, const ContextStep *s)
{
    const bool only_forward = s->payload == PAYLOAD_O;
    const bool only_backward =
        s->payload != PAYLOAD_O && payload_is_partial((ContextPayload)s->payload);
    const bool both = s->payload == PAYLOAD_KV || s->payload == PAYLOAD_DKV;
    if (s->payload >= N_PAYLOADS) return bad(w, rank, "moves an unknown payload", -1);
    if (w->p->row->passes ? both : s->payload >= PAYLOAD_K)
        return bad(w, rank, "moves keys and values as the other passes have them", s->out.rank);
    if (w->p->backward ? only_forward : only_backward)
        return bad(w, rank, "moves a payload of the other direction", s->out.rank);
    if (s->to == rank || s->from == rank) return bad(w, rank, "moves to itself", s->out.rank);
    if (s->to >= w->ranks || s->from >= w->ranks)
        return bad(w, rank, "moves to or from a rank that does not exist", s->out.rank);
    if (s->to >= 0 && !is_block(w, s->out)) return bad(w, rank, "sends no block", s->out.rank);
    if (s->from >= 0 && !is_block(w, s->in)) return bad(w, rank, "receives no block", s->in.rank);
    if (s->to < 0 && s->from < 0) return bad(w, rank, "moves nothing", -1);
    return OK;
}

/* True if a send before the rank's last visit has not met its receive. */
static bool waits_for_sends(const ContextPlayer *w, int rank)
{
    bool waits = false;
    for (int to = 0; to < w->ranks; to++) {
        const ContextChannel *c = &w->channel[pair_at(w, rank, to)];
        waits = waits || c->n_met < c->n_hidden;
    }
    return waits;
}

/* True if a partial result that the rank is to receive has not arrived. */
static bool waits_for_arrivals(const ContextPlayer *w, int rank)
{
    bool waits = false;
    for (int payload = 0; payload < N_PAYLOADS; payload++)
        for (int block = 0; block < w->ranks && payload_is_partial(payload); block++)
            waits = waits || w->due[payload][pair_at(w, rank, block)] > 0;
    return waits;
}

/* Posts the receive and the send together: after the sends before the last visit have met, the
 * payload that is sent has arrived and, if it is a partial result, all arrivals are added. */
static Err play_move(ContextPlayer *w, int rank, const ContextStep *s, bool *waits)
{
    TRY(check_move(w, rank, s));
    *waits = waits_for_sends(w, rank) ||
             (s->to >= 0 && payload_is_partial(s->payload) && waits_for_arrivals(w, rank));
    if (*waits) return OK;
    if (s->to >= 0 && !is_here(w, rank, s->payload, s->out, waits))
        return *waits ? OK : bad(w, rank, "sends a payload that it does not have", s->out.rank);
    if (s->from >= 0) {
        ContextChannel *c = &w->channel[pair_at(w, s->from, rank)];
        TRY(post(w, &c->posted, &c->n_posted, c->cap, (ContextMessage){s->payload, s->in, NULL}));
        w->due[s->payload][pair_at(w, rank, s->in.rank)]++;
    }
    if (s->to >= 0) {
        ContextMessage m = {s->payload, s->out, NULL};
        ContextChannel *c = &w->channel[pair_at(w, rank, s->to)];
        if (payload_is_partial(s->payload)) TRY(take_parts(w, rank, s, &m.parts));
        TRY(post(w, &c->sent, &c->n_sent, c->cap, m));
        w->sent.halves[s->payload] += s->out.halves == HALF_BOTH ? 2 : 1;
        TRY(meet(w, rank, s->to));
    }
    return s->from >= 0 ? meet(w, s->from, rank) : OK;
}

/* Has this rank made the first pass of all pairs of these queries? Only whole rows of scores have
 * weights. */
static bool has_first_pass(const ContextPlayer *w, int rank, int q, int q_half)
{
    for (int k = 0; k < w->ranks; k++)
        for (int half = 0; half < 2; half++)
            if (context_work(&w->p->shape, q, q_half, k, half) > 0 &&
                w->first[4 * pair_at(w, q, k) + 2 * q_half + half] != rank)
                return false;
    return true;
}

/* The partial results to which a visit contributes. */
static bool contributes(const ContextPlayer *w, VisitPass pass, int partial)
{
    if (partial == PARTIAL_VALUES) return w->p->backward && pass == PASS_VALUES;
    if (partial == PARTIAL_KEYS && !w->p->backward) return false;
    return pass == PASS_BOTH || (pass == PASS_VALUES) == !w->p->backward;
}

static Err visit_halves(ContextPlayer *w, int rank, const ContextStep *s, int q_half, int k_half)
{
    const VisitPass first = w->p->backward ? PASS_VALUES : PASS_SCORES;
    const int q = s->q.rank, k = s->k.rank, half = 2 * q_half + k_half;
    const int work = context_work(&w->p->shape, q, q_half, k, k_half);
    const uint8_t bits = (uint8_t)(s->pass == PASS_BOTH ? 3 : s->pass);
    uint8_t *parts, *visited = &w->visited[4 * pair_at(w, q, k) + half];
    if (work == 0) return OK; /* the mask leaves nothing */
    if (*visited & bits) return bad(w, rank, "visits a pair again", k);
    if (s->pass != PASS_BOTH && s->pass != first && !has_first_pass(w, rank, q, q_half))
        return bad(w, rank, "makes the second pass before it has whole rows of the first", q);
    *visited |= bits;
    if (s->pass == first) w->first[4 * pair_at(w, q, k) + half] = (int16_t)rank;
    if (s->pass != PASS_VALUES) w->work[rank] += work; /* the other pass is on the same rank */
    for (int i = 0; i < N_PARTIALS; i++) {
        if (!contributes(w, (VisitPass)s->pass, i)) continue;
        TRY(parts_at(w, i, rank, i == PARTIAL_QUERIES ? q : k, &parts));
        parts[4 * (i == PARTIAL_QUERIES ? k : q) + half]++;
    }
    return OK;
}

/* A visit, once the payloads are here. */
static Err visit_blocks(ContextPlayer *w, int rank, const ContextStep *s, bool *waits)
{
    const ContextPayload keys = s->pass == PASS_VALUES   ? PAYLOAD_V
                                : s->pass == PASS_SCORES ? PAYLOAD_K
                                                         : PAYLOAD_KV;
    *waits = false;
    if (!is_block(w, s->q) || !is_block(w, s->k)) return bad(w, rank, "visits no block", s->q.rank);
    if (s->pass > PASS_VALUES || (s->pass != PASS_BOTH) != w->p->row->passes)
        return bad(w, rank, "visits in a pass that the plan does not have", s->q.rank);
    if (!is_here(w, rank, PAYLOAD_Q, s->q, waits))
        return *waits ? OK : bad(w, rank, "visits queries that it does not have", s->q.rank);
    if (!is_here(w, rank, keys, s->k, waits))
        return *waits ? OK : bad(w, rank, "visits keys that it does not have", s->k.rank);
    *waits = false;
    for (int half = 0; half < 4; half++)
        if ((s->q.halves >> (half / 2) & 1) && (s->k.halves >> (half % 2) & 1))
            TRY(visit_halves(w, rank, s, half / 2, half % 2));
    for (int to = 0; to < w->ranks; to++) {
        ContextChannel *c = &w->channel[pair_at(w, rank, to)];
        c->n_hidden = c->n_sent;
    }
    for (int i = 0; i < N_PARTIALS; i++)
        if (contributes(w, (VisitPass)s->pass, i))
            w->made[i][pair_at(w, rank, i == PARTIAL_QUERIES ? s->q.rank : s->k.rank)] = 1;
    w->visits[rank] = true;
    return OK;
}

static Err play_visit(ContextPlayer *w, int rank, const ContextStep *s, bool *waits)
{
    if (!w->visits[rank]) TRY(visit_blocks(w, rank, s, waits));
    if (!w->visits[rank]) return OK;
    *waits = waits_for_arrivals(w, rank);
    w->visits[rank] = *waits;
    return OK;
}

/* Runs steps of a rank until one waits. */
static Err play_rank(ContextPlayer *w, int rank, bool *moved)
{
    while (w->at[rank] < w->p->n[rank]) {
        const ContextStep *s = &w->p->list[rank][w->at[rank]];
        bool waits;
        TRY(s->kind == CONTEXT_VISIT ? play_visit(w, rank, s, &waits)
                                     : play_move(w, rank, s, &waits));
        if (waits) return OK;
        w->at[rank]++;
        *moved = true;
    }
    return OK;
}

/* Room for the messages between each two ranks: moves to or from ranks that do not exist are faults
 * that are found when they are played. */
static void count_messages(ContextPlayer *w)
{
    for (int rank = 0; rank < w->ranks; rank++)
        for (int i = 0; i < w->p->n[rank]; i++) {
            const ContextStep *s = &w->p->list[rank][i];
            if (s->kind != CONTEXT_MOVE) continue;
            if (s->to >= 0 && s->to < w->ranks) w->channel[pair_at(w, rank, s->to)].cap++;
            if (s->from >= 0 && s->from < w->ranks) w->channel[pair_at(w, s->from, rank)].cap++;
        }
}

static Err player_init(ContextPlayer *w)
{
    const int64_t pairs = (int64_t)w->ranks * w->ranks;
    TRY(ARENA_NEW(w->temp, w->ranks, &w->at));
    TRY(ARENA_NEW(w->temp, w->ranks, &w->work));
    TRY(ARENA_NEW(w->temp, w->ranks, &w->visits));
    TRY(ARENA_NEW(w->temp, 4 * pairs, &w->visited));
    TRY(ARENA_NEW(w->temp, pairs, &w->channel));
    count_messages(w);
    TRY(ARENA_NEW(w->temp, 4 * pairs, &w->first));
    for (int64_t i = 0; i < 4 * pairs; i++) w->first[i] = -1;
    for (int i = 0; i < N_HAS; i++) TRY(ARENA_NEW(w->temp, pairs, &w->has[i]));
    for (int i = 0; i < N_PAYLOADS; i++) TRY(ARENA_NEW(w->temp, pairs, &w->due[i]));
    for (int i = 0; i < N_PARTIALS; i++) {
        TRY(ARENA_NEW(w->temp, pairs, &w->made[i]));
        TRY(ARENA_NEW(w->temp, pairs, &w->parts[i]));
    }
    for (int rank = 0; rank < w->ranks; rank++)
        for (int i = 0; i < N_HAS; i++) w->has[i][pair_at(w, rank, rank)] = HALF_BOTH;
    return OK;
}

Err context_play(const ContextPlan *p, Arena *temp, ContextPlayer *out)
{
    *out = (ContextPlayer){.p = p, .temp = temp, .ranks = p->shape.ranks};
    TRY(player_init(out));
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < out->ranks; rank++) TRY(play_rank(out, rank, &moved));
    }
    for (int rank = 0; rank < out->ranks; rank++)
        if (out->at[rank] < p->n[rank])
            return bad(out, rank, "waits forever: no rank can go on", -1);
    return OK;
}
