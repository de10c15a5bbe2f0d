/* moves.c -- checks sends and receives.
 *
 *     stage 0: F0.0 send.F0.0>1             the value of F0.0 crosses to the stage of item 1,
 *     stage 1: recv.F0.0<0 F1.0             after it was made and before it is used;
 *     stage 1: B1.0 send.B1.0>0             the value of B (or I) crosses to the item before
 *
 * Between two stages, values must arrive in the order in which they were sent: some transports have
 * one queue for a pair and would deliver the wrong value. */
#include "schedule/check/check_parts.h"

/* The item that reads the value, or -1. */
static int reader_of(const Schedule *s, const Action *value)
{
    const int item = value->phase == PHASE_F ? value->unit + 1 : value->unit - 1;
    return item < schedule_items(s) ? item : -1;
}

/* The position of the reader's RUN in its stage's list. */
static int read_at(const Check *c, const Action *value)
{
    Action reader = *value;
    reader.unit = (int16_t)reader_of(c->s, value);
    const int *run = check_cell(c, &reader)->run;
    if (value->phase == PHASE_F) return run[PHASE_F];
    return run[PHASE_B] >= 0 ? run[PHASE_B] : run[PHASE_I];
}

/* Checks what holds for both ends: the value is made in that phase and read on another stage. */
static Err check_value(const Check *c, int stage, int at)
{
    const Action *a = &c->s->list[stage][at];
    const int reader = reader_of(c->s, a), maker = c->stage_of[a->unit];
    if (check_cell(c, a)->run[a->phase] < 0)
        return schedule_fail(c->s, stage, at, "stage %d runs no such phase", maker);
    if (reader < 0) return schedule_fail(c->s, stage, at, "no item reads this value");
    if (c->stage_of[reader] == maker)
        return schedule_fail(c->s, stage, at, "the reader is on stage %d as well: nothing to send",
                             maker);
    return OK;
}

static Err check_send(Check *c, int stage, int at)
{
    const Action *a = &c->s->list[stage][at];
    CheckCell *cell = check_cell(c, a);
    int *place = &cell->send[action_direction(a)];
    TRY(check_value(c, stage, at));
    const int to = c->stage_of[reader_of(c->s, a)];
    if (a->peer != to) return schedule_fail(c->s, stage, at, "the reader is on stage %d", to);
    if (*place >= 0)
        return schedule_fail(c->s, stage, at, "sent twice, first at position %d", *place);
    if (at < cell->run[a->phase])
        return schedule_fail(c->s, stage, at, "sent before it is made, at position %d",
                             cell->run[a->phase]);
    *place = at;
    return OK;
}

static Err check_recv(Check *c, int stage, int at)
{
    const Action *a = &c->s->list[stage][at];
    int *place = &check_cell(c, a)->recv[action_direction(a)];
    TRY(check_value(c, stage,
                    at)); /* schedule_check_ranges has checked that the peer holds the item */
    const int reader = c->stage_of[reader_of(c->s, a)];
    if (reader != stage) return schedule_fail(c->s, stage, at, "the reader is on stage %d", reader);
    if (*place >= 0)
        return schedule_fail(c->s, stage, at, "received twice, first at position %d", *place);
    if (at > read_at(c, a))
        return schedule_fail(c->s, stage, at, "received after it is read, at position %d",
                             read_at(c, a));
    *place = at;
    return OK;
}

/* Checks that a value that crosses stages has both ends. */
static Err check_ends(const Check *c, const Action *run)
{
    const int stage = c->stage_of[run->unit], reader = reader_of(c->s, run);
    if (run->phase == PHASE_W || reader < 0 || c->stage_of[reader] == stage) return OK;
    const CheckCell *cell = check_cell(c, run);
    Action end = *run;
    end.kind = A_SEND;
    end.peer = c->stage_of[reader];
    if (cell->send[action_direction(run)] < 0)
        return schedule_missing(c->s, stage, end, "stage %d reads the value", end.peer);
    end.kind = A_RECV;
    end.peer = (int16_t)stage;
    if (cell->recv[action_direction(run)] < 0)
        return schedule_missing(c->s, c->stage_of[reader], end,
                                "it is sent, at position %d of stage %d",
                                cell->send[action_direction(run)], stage);
    return OK;
}

/* Checks the order of values between two stages. O(actions): one entry per sending stage. */
static Err check_pairs(const Check *c)
{
    const Schedule *s = c->s;
    struct Latest {
        int by, sent; /* receiving stage + 1; position of its latest value's SEND */
    } * latest;
    TRY(ARENA_NEW(c->temp, s->stages, &latest));
    for (int stage = 0; stage < s->stages; stage++)
        for (int at = 0; at < s->n[stage]; at++) {
            const Action *a = &s->list[stage][at];
            if (a->kind != A_RECV) continue;
            struct Latest *from = &latest[a->peer];
            const int sent = check_cell(c, a)->send[action_direction(a)];
            if (from->by == stage + 1 && sent < from->sent)
                return schedule_fail(s, stage, at,
                                     "stage %d sends it, at position %d, before the value received "
                                     "just before (sent at position %d)",
                                     a->peer, sent, from->sent);
            *from = (struct Latest){stage + 1, sent};
        }
    return OK;
}

Err schedule_check_moves(Check *c)
{
    const Schedule *s = c->s;
    if (!schedule_has_moves(s) && (s->level == OVER_CHUNKS || s->stages == 1)) return OK;
    for (int stage = 0; stage < s->stages; stage++)
        for (int at = 0; at < s->n[stage]; at++) {
            if (s->list[stage][at].kind == A_SEND) TRY(check_send(c, stage, at));
            if (s->list[stage][at].kind == A_RECV) TRY(check_recv(c, stage, at));
        }
    for (int stage = 0; stage < s->stages; stage++)
        for (int at = 0; at < s->n[stage]; at++)
            if (s->list[stage][at].kind == A_RUN) TRY(check_ends(c, &s->list[stage][at]));
    return check_pairs(c);
}
