/* moves.c -- puts the actions of all stages into one order, and adds sends and receives.
 *
 * The schedule is played once, with cost 1 for F, I and W and cost 2 for B. The events of the play
 * are then written in order of time, each into the lists that it concerns:
 *
 *     a RUN starts     the RUN, into the list of its stage
 *     a RUN ends       if another stage reads the value: SEND into its own list and RECV into the
 *                      reader's list, at once
 *
 * All lists are therefore views of one global order in which each SEND stands next to its RECV. No
 * choice of blocking or buffering can deadlock, and two stages agree on the order of the values
 * between them. A RECV stands about where its value arrives, so waiting in it costs little. */
#include "schedule/moves.h"

#include <stdlib.h>
#include "schedule/check/check.h"
#include "schedule/play.h"

typedef struct {
    double time;
    int stage, at; /* the RUN */
    bool ends;
    int turn; /* order among events of the same time */
} Event;

/* By time. Ends come before starts, because a reader may start when its value ends. Starts of one
 * stage keep the order of its list: an EVICT or a FETCH takes no time. */
static int compare_events(const void *pa, const void *pb)
{
    const Event *a = pa, *b = pb;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    if (a->ends != b->ends) return a->ends ? -1 : 1;
    if (a->ends && a->turn != b->turn) return a->turn < b->turn ? -1 : 1;
    if (a->stage != b->stage) return a->stage < b->stage ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* The order of RUNs that end at the same time. A stage should send its values before it waits for
 * others: forward values from the last chunk on, backward values from the first. */
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

/* Returns the stage that reads the value of the chunk's RUN, or -1 if there is no reader or the
 * reader is on the same stage. */
static int reader_stage(const Schedule *s, const Action *a)
{
    const int chunk = a->phase == PHASE_F ? a->unit + 1 : a->unit - 1;
    if (a->kind != A_RUN || a->phase == PHASE_W || chunk < 0 || chunk >= s->chunks) return -1;
    return s->stage_of[chunk] == s->stage_of[a->unit] ? -1 : s->stage_of[chunk];
}

static void push(Schedule *out, int stage, Action a) { out->list[stage][out->n[stage]++] = a; }

static void push_move(Schedule *out, int stage, const Action *a)
{
    const int reader = reader_stage(out, a);
    if (reader < 0) return;
    push(out, stage, action_move(A_SEND, a->phase, a->unit, a->micro, a->slice, reader));
    push(out, reader, action_move(A_RECV, a->phase, a->unit, a->micro, a->slice, stage));
}

/* The length of each list with its sends and receives. */
static Err count_actions(const Schedule *s, Arena *arena, int **out)
{
    int *capacity;
    TRY(ARENA_NEW(arena, s->stages, &capacity));
    for (int stage = 0; stage < s->stages; stage++)
        for (int at = 0; at < s->n[stage]; at++) {
            const int reader = reader_stage(s, &s->list[stage][at]);
            capacity[stage] += 1 + (reader >= 0);
            if (reader >= 0) capacity[reader]++;
        }
    *out = capacity;
    return OK;
}

static Err check_input(const Schedule *s, Arena *arena)
{
    if (s->level != OVER_CHUNKS)
        return err_fail(ERR_CHECK,
                        "schedule: only a schedule over chunks can be expanded; this one "
                        "runs over units already");
    TRY(schedule_check(s, arena));
    for (int stage = 0; stage < s->stages; stage++)
        for (int at = 0; at < s->n[stage]; at++) switch (s->list[stage][at].kind) {
            case A_RUN:
            case A_EVICT:
            case A_FETCH:
                break;
            default:
                return err_fail(ERR_CHECK,
                                "schedule: stage %d, position %d: a %s over chunks; only RUNs, "
                                "EVICTs and FETCHes can be expanded",
                                stage, at, action_kind_name(s->list[stage][at].kind));
            }
    return OK;
}

Err schedule_moves(const Schedule *chunks, Arena *arena, Schedule *out)
{
    Schedule s;
    Event *event;
    int *capacity;
    TRY(check_input(chunks, arena));
    TRY(count_actions(chunks, arena, &capacity));
    TRY(schedule_init(chunks, capacity, arena, &s));
    const size_t mark = arena_mark(arena);
    TRY(sorted_events(chunks, arena, &event));
    const int64_t events = 2 * schedule_length(chunks);
    for (int64_t i = 0; i < events; i++) {
        const Action *a = &chunks->list[event[i].stage][event[i].at];
        if (event[i].ends)
            push_move(&s, event[i].stage, a);
        else
            push(&s, event[i].stage, *a);
    }
    for (int stage = 0; stage < s.stages; stage++)
        MUST(s.n[stage] == capacity[stage], "stage %d: %d of %d", stage, s.n[stage],
             capacity[stage]);
    arena_rewind(arena, mark);
    *out = s;
    return OK;
}
