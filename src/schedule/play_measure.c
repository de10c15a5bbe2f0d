/* play_measure.c -- what the times of a play come to. */
#include "schedule/play.h"

/* Places that ranks keep for what others evict to them: the most that each other has away at once,
 * by its own list, so that it holds for any timing. */
static Err keep_places(const Schedule *s, Arena *temp, int *peak)
{
    int *away, *most;
    TRY(ARENA_NEW(temp, s->ranks, &away));
    TRY(ARENA_NEW(temp, s->ranks, &most));
    for (int rank = 0; rank < s->ranks; rank++) {
        bool any = false;
        for (int i = 0; i < s->n[rank]; i++) {
            const Action *a = &s->list[rank][i];
            if ((a->kind != A_EVICT && a->kind != A_FETCH) || a->peer < 0) continue;
            away[a->peer] += a->kind == A_EVICT ? 1 : -1;
            if (most[a->peer] < away[a->peer]) most[a->peer] = away[a->peer];
            any = true;
        }
        for (int peer = 0; any && peer < s->ranks; peer++) {
            peak[peer] += most[peer];
            away[peer] = most[peer] = 0;
        }
    }
    return OK;
}

static double later(double a, double b) { return a > b ? a : b; }

/* From the start of the rank's first RUN to the end of its last. */
static double span_of(const Schedule *s, const Play *play, int rank)
{
    int first = 0, last = s->n[rank] - 1;
    while (first <= last && s->list[rank][first].kind != A_RUN) first++;
    while (first <= last && s->list[rank][last].kind != A_RUN) last--;
    return first <= last ? play->end[rank][last] - play->start[rank][first] : 0;
}

Err play_measure(const Schedule *s, Arena *temp, Play *play)
{
    double busiest = 0, busy = 0;
    for (int rank = 0; rank < s->ranks; rank++) {
        const int n = s->n[rank];
        if (n > 0) play->makespan = later(play->makespan, play->end[rank][n - 1]);
        play->span = later(play->span, span_of(s, play, rank) - play->busy[rank]);
        busiest = later(busiest, play->busy[rank]);
        busy += play->busy[rank];
    }
    play->bubble = play->makespan - busiest;
    if (play->makespan > 0) play->idle = 1 - busy / (s->ranks * play->makespan);
    return keep_places(s, temp, play->peak);
}
