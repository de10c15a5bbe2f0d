/* play.h -- the lists walked by a clock: who waits for whom, how long, and with how much in flight.
 *
 * A stage does its actions in order, each when the stage is free and what it needs is there:
 *
 *     F(x)        F(x-1), and F of the slice before
 *     I(x), B(x)  F(x), I or B of x+1, and that of the slice after
 *     W(x)        I(x)
 *
 * x counts chunks or units. In a list without sends a value from another stage is there `latency`
 * after it was made; in one with sends, `latency` after both ends have come to their action. NORM
 * is a barrier. Actions other than RUN take no time of their own. */
#ifndef SCHEDULE_PLAY_H
#define SCHEDULE_PLAY_H

#include "schedule/action.h"

/* Where a stage stands still for a transfer. Each is stricter than the one before: a schedule that
 * plays to its end under PLAY_WAIT_BOTH cannot hang on any transport. */
typedef enum {
    PLAY_WAIT_AT_USE,  /* receives are posted; the RUN that needs the value waits */
    PLAY_WAIT_AT_RECV, /* the receive itself waits */
    PLAY_WAIT_BOTH     /* so does the send, until its receive is reached */
} PlayWait;

typedef struct {
    const double *cost;  /* [items][N_PHASES], any unit of time; NULL: F, I and W are 1, B is 2 */
    const double *slice; /* [slices]: how many times that a slice takes; NULL: 1 */
    double latency;
    PlayWait wait;
} PlayCosts;

typedef struct {
    double makespan, bubble; /* bubble: what the busiest stage waits */
    double idle;             /* the part of all stages' time that is waited: 0 to 1 */
    double span;             /* the most that a stage waits between its first RUN and its last */
    double *busy;            /* [stages] */
    int *peak;               /* [stages]: most frames (items between F and the end of W or B) held,
                                and places kept for frames of other stages */
    double **start, **end;   /* [stages][n[stage]] */
} Play;

/* Local. ERR_CHECK when nobody can move: names each stuck stage, its action and what it waits for.
 */
Err schedule_play(const Schedule *s, const PlayCosts *costs, Arena *arena, Play *out);
/* Local. Of RUNs over chunks: the time from step to step when a stage begins the next as soon as it is
 * done, and waits for values only. The makespan, less this, is what the step's barrier costs. ERR_CONFIG
 * for more than MAX_SCHEDULE / 4 micro-batches. */
Err play_period(const Schedule *s, const PlayCosts *costs, Arena *temp, double *out);
/* Local. The player's last step: all but busy, start, end and a stage's own frames, from these. */
Err play_measure(const Schedule *s, Arena *temp, Play *play);

#endif
