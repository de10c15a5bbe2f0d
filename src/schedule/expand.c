/* expand.c -- units, sends and receives, the end of the step.
 *
 * The schedule is played once, F, I and W costing 1 and B costing 2. Then what happened is written
 * down by the clock, each event into the lists that it concerns:
 *
 *     a RUN starts     its units, into the list of its stage
 *     a RUN ends       when another stage reads the value: SEND into its own list and RECV into the
 *                      reader's, in one go
 *
 * So all lists are views of one order in which each SEND stands beside its RECV: no choice of
 * blocking or buffering can make them wait in a circle, and two stages agree on the order of what is
 * between them. And a RECV stands where its value is about due, so waiting in it costs little. */
#include "schedule/expand.h"

#include <stdlib.h>
#include "schedule/check/check.h"
#include "schedule/play.h"

typedef struct {
    double time;
    int stage, at; /* the RUN */
    bool ends;
    int turn; /* among events of one time */
} Event;

/* By the clock; ends before starts, since a reader may start when its value ends. Starts go to one
 * list each, and stay in its order: an EVICT or a FETCH takes no time. */
static int compare_events(const void *pa, const void *pb)
{
    const Event *a = pa, *b = pb;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    if (a->ends != b->ends) return a->ends ? -1 : 1;
    if (a->ends && a->turn != b->turn) return a->turn < b->turn ? -1 : 1;
    if (a->stage != b->stage) return a->stage < b->stage ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* When many end at once, a stage should send what it has before it waits for what comes: forward
 * values from the last chunk on, backward values from the first. */
static int turn_of(const Action *a) { return a->phase == PHASE_F ? -1 - a->unit : a->unit; }

static Err sorted_events(const Schedule *s, Arena *arena, Event **out)
{
    Event *event;
    Play play;
    int64_t n = 0;
    TRY(schedule_play(s, &(PlayCosts){0}, arena, &play));
    TRY(ARENA_NEW(arena, 2 * schedule_length(s), &event));
    for (int stage = 0; stage < s->stages; stage++)
        for (int at = 0; at < s->n[stage]; at++) {
            const int turn = turn_of(&s->list[stage][at]);
            event[n++] = (Event){play.start[stage][at], stage, at, false, turn};
            event[n++] = (Event){play.end[stage][at], stage, at, true, turn};
        }
    qsort(event, (size_t)n, sizeof *event, compare_events);
    *out = event;
    return OK;
}

static void push(Schedule *out, int stage, Action a) { out->list[stage][out->n[stage]++] = a; }

/* A RUN, or an EVICT or a FETCH, whose phase is F. */
static void expand_run(Schedule *out, int stage, const Action *a)
{
    const int low = out->first_unit[a->unit], high = out->first_unit[a->unit + 1] - 1;
    for (int i = 0; i <= high - low; i++) {
        Action of_unit = *a;
        of_unit.unit = (int16_t)(a->phase == PHASE_F ? low + i : high - i);
        push(out, stage, of_unit);
    }
}

/* Who reads what the chunk's RUN makes: its stage, or -1 when nobody does or it need not be sent. */
static int reader_stage(const Schedule *s, const Action *a)
{
    const int chunk = a->phase == PHASE_F ? a->unit + 1 : a->unit - 1;
    if (a->kind != A_RUN || a->phase == PHASE_W || chunk < 0 || chunk >= s->chunks) return -1;
    return s->stage_of[chunk] == s->stage_of[a->unit] ? -1 : s->stage_of[chunk];
}

static void expand_move(Schedule *out, int stage, const Action *a)
{
    const int reader = reader_stage(out, a);
    if (reader < 0) return;
    const int unit =
        a->phase == PHASE_F ? out->first_unit[a->unit + 1] - 1 : out->first_unit[a->unit];
    push(out, stage, action_move(A_SEND, a->phase, unit, a->micro, a->slice, reader));
    push(out, reader, action_move(A_RECV, a->phase, unit, a->micro, a->slice, stage));
}

static void expand_end(Schedule *out)
{
    for (int stage = 0; stage < out->stages; stage++) push(out, stage, action_of(A_NORM, 0));
    for (int chunk = 0; chunk < out->chunks; chunk++)
        for (int unit = out->first_unit[chunk]; unit < out->first_unit[chunk + 1]; unit++)
            push(out, out->stage_of[chunk], action_of(A_UPDATE, unit));
}

/* The length of each expanded list. */
static Err count_room(const Schedule *s, ExpandEnd end, Arena *arena, int **out)
{
    int *room;
    TRY(ARENA_NEW(arena, s->stages, &room));
    for (int stage = 0; stage < s->stages; stage++)
        for (int at = 0; at < s->n[stage]; at++) {
            const Action *a = &s->list[stage][at];
            const int reader = reader_stage(s, a);
            room[stage] += s->first_unit[a->unit + 1] - s->first_unit[a->unit] + (reader >= 0);
            if (reader >= 0) room[reader]++;
        }
    for (int stage = 0; stage < s->stages; stage++) room[stage] += end == EXPAND_STEP;
    for (int chunk = 0; chunk < s->chunks; chunk++)
        if (end == EXPAND_STEP)
            room[s->stage_of[chunk]] += s->first_unit[chunk + 1] - s->first_unit[chunk];
    *out = room;
    return OK;
}

static Err check_input(const Schedule *s, Arena *arena)
{
    if (s->grain != OVER_CHUNKS)
        return err_fail(ERR_CHECK, "schedule: to expand is what runs over chunks; this one runs "
                                   "over units already");
    TRY(schedule_check(s, arena));
    for (int stage = 0; stage < s->stages; stage++)
        for (int at = 0; at < s->n[stage]; at++) switch (s->list[stage][at].kind) {
            case A_RUN:
            case A_EVICT:
            case A_FETCH:
                break;
            default:
                return err_fail(ERR_CHECK,
                                "schedule: stage %d, position %d: a %s over chunks; to expand are "
                                "RUNs, and frames evicted and fetched",
                                stage, at, action_kind_name(s->list[stage][at].kind));
            }
    return OK;
}

Err schedule_expand(const Schedule *chunks, ExpandEnd end, Arena *arena, Schedule *out)
{
    Schedule shape = *chunks, s;
    Event *event;
    int *room;
    TRY(check_input(chunks, arena));
    shape.grain = OVER_UNITS;
    TRY(count_room(chunks, end, arena, &room));
    TRY(schedule_init(&shape, room, arena, &s));
    const size_t mark = arena_mark(arena);
    TRY(sorted_events(chunks, arena, &event));
    for (int64_t i = 0; i < 2 * schedule_length(chunks); i++) {
        const Action *a = &chunks->list[event[i].stage][event[i].at];
        if (event[i].ends)
            expand_move(&s, event[i].stage, a);
        else
            expand_run(&s, event[i].stage, a);
    }
    if (end == EXPAND_STEP) expand_end(&s);
    for (int stage = 0; stage < s.stages; stage++)
        MUST(s.n[stage] == room[stage], "stage %d: %d of %d", stage, s.n[stage], room[stage]);
    arena_rewind(arena, mark);
    *out = s;
    return OK;
}
