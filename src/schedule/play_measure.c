/* play_measure.c -- makespan, bubble and peak frames from the times of a play. */
#include "schedule/play.h"

/* Adds the room that stages reserve for the frames that others evict to them. Each other stage
 * counts with the most that its list has evicted at once, so the sum holds for any timing. */
static Err reserve_room(const Schedule *s, Arena *temp, int *peak)
{
    int *away, *most;
    TRY(ARENA_NEW(temp, s->stages, &away));
    TRY(ARENA_NEW(temp, s->stages, &most));
    for (int stage = 0; stage < s->stages; stage++) {
        bool any = false;
        for (int i = 0; i < s->n[stage]; i++) {
            const Action *a = &s->list[stage][i];
            if ((a->kind != A_EVICT && a->kind != A_FETCH) || a->peer < 0) continue;
            away[a->peer] += a->kind == A_EVICT ? 1 : -1;
            if (most[a->peer] < away[a->peer]) most[a->peer] = away[a->peer];
            any = true;
        }
        for (int peer = 0; any && peer < s->stages; peer++) {
            peak[peer] += most[peer];
            away[peer] = most[peer] = 0;
        }
    }
    return OK;
}

static double later(double a, double b) { return a > b ? a : b; }

/* Returns the time from the start of the stage's first RUN to the end of its last. */
static double span_of(const Schedule *s, const Play *play, int stage)
{
    int first = 0, last = s->n[stage] - 1;
    while (first <= last && s->list[stage][first].kind != A_RUN) first++;
    while (first <= last && s->list[stage][last].kind != A_RUN) last--;
    return first <= last ? play->end[stage][last] - play->start[stage][first] : 0;
}

Err play_measure(const Schedule *s, Arena *temp, Play *play)
{
    double busiest = 0, busy = 0;
    for (int stage = 0; stage < s->stages; stage++) {
        const int n = s->n[stage];
        if (n > 0) play->makespan = later(play->makespan, play->end[stage][n - 1]);
        play->span = later(play->span, span_of(s, play, stage) - play->busy[stage]);
        busiest = later(busiest, play->busy[stage]);
        busy += play->busy[stage];
    }
    play->bubble = play->makespan - busiest;
    if (play->makespan > 0) play->idle = 1 - busy / (s->stages * play->makespan);
    return reserve_room(s, temp, play->peak);
}
