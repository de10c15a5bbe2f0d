/* play.h -- simulates the lists over time: waits, bubbles, and frames held.
 *
 * A stage executes its actions in order. Each starts when the stage is free and its inputs are
 * available:
 *
 *     F(x)        F(x-1), and F of the slice before
 *     I(x), B(x)  F(x), I or B of x+1, and that of the slice after
 *     W(x)        I(x)
 *
 * x counts chunks or units. In lists without sends, a value from another stage is available
 * `latency` after it was made; in lists with sends, `latency` after both ends have reached their
 * action. NORM is a barrier. Actions other than RUN take no time of their own.
 *
 * The player stays beside the clock (plan/clock/clock.h), which plays linked programs in seconds:
 * passes need times before programs exist (moves.c orders sends by them), the check proves with it
 * that no stage waits in a circle, and formulas of schedules are stated in units of F. */
#ifndef SCHEDULE_PLAY_H
#define SCHEDULE_PLAY_H

#include "schedule/action.h"

/* The action in which a stage waits for a transfer. Each mode is stricter than the one before: a
 * schedule that plays to its end under PLAY_WAIT_BOTH cannot deadlock on any transport. */
typedef enum {
    PLAY_WAIT_AT_USE,  /* receives are posted; the RUN that reads the value waits */
    PLAY_WAIT_AT_RECV, /* the receive itself waits */
    PLAY_WAIT_BOTH     /* the send waits too, until its receive is reached */
} PlayWait;

typedef struct {
    const double *cost;  /* [items][N_PHASES], any unit of time; NULL: F, I and W are 1, B is 2 */
    const double *slice; /* [slices]: factor on the cost of each slice; NULL: 1 */
    double latency;
    PlayWait wait;
} PlayCosts;

typedef struct {
    double makespan, bubble; /* bubble: idle time of the busiest stage */
    double idle;             /* idle part of the time of all stages: 0 to 1 */
    double span;             /* longest idle time of a stage between its first RUN and its last */
    double *busy;            /* [stages] */
    int *peak;               /* [stages]: most frames held (from F to the end of W or B), plus room
                                reserved for frames of other stages */
    double **start, **end;   /* [stages][n[stage]] */
} Play;

/* Local. ERR_CHECK on deadlock: names each blocked stage, its action and what it waits for. */
Err schedule_play(const Schedule *s, const PlayCosts *costs, Arena *arena, Play *out);
/* Local. Returns the period of steps, for RUNs over chunks, if a stage starts the next step as soon
 * as it is done and waits for values only. The makespan minus the period is the cost of the step's
 * barrier. ERR_CONFIG for more than MAX_SCHEDULE / 4 micro-batches. */
Err play_period(const Schedule *s, const PlayCosts *costs, Arena *temp, double *out);
/* Local. The player's last step: computes makespan, bubble, idle and span from busy, start and end,
 * and adds the room for other stages' frames to peak. */
Err play_measure(const Schedule *s, Arena *temp, Play *play);

#endif
