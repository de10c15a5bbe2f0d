/* check_parts.h -- shared by the files of the checker: the positions of each RUN and each move. */
#ifndef SCHEDULE_CHECK_CHECK_PARTS_H
#define SCHEDULE_CHECK_CHECK_PARTS_H

#include "schedule/check/check.h"

/* Positions in the stage's list of all actions of one (item, micro, slice); -1: absent. */
typedef struct {
    int run[N_PHASES];
    int send[2], recv[2]; /* by direction: of the value that F makes; that I or B makes */
} CheckCell;

typedef struct {
    const Schedule *s;
    Arena *temp;
    int16_t *stage_of; /* [items] */
    CheckCell *cell;   /* [items][micros][slices] */
} Check;

static inline CheckCell *check_cell(const Check *c, const Action *a)
{
    return &c->cell[schedule_cell(c->s, a->unit, a->micro, a->slice)];
}

/* Local. ERR_CHECK about the action at `position` of `stage`. */
Err schedule_fail(const Schedule *s, int stage, int position, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Local. ERR_CHECK about an action that is missing in the stage's list. */
Err schedule_missing(const Schedule *s, int stage, Action a, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

Err schedule_check_moves(Check *c); /* moves.c */
Err schedule_check_state(Check *c); /* state.c */

#endif
