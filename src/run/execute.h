/* execute.h -- between rank.c, which walks the list, and the files that do its actions. */
#ifndef RUN_EXECUTE_H
#define RUN_EXECUTE_H

#include "run/rank.h"

/* Collective where the program has transfers. Runs the instructions of a RUN. */
Err execute_run(Rank *r, const Linked *l);
/* Collective over all ranks, each of them once a step: live tokens and loss. The first call of a
 * step adds them up, and sets the factor on gradients. */
Err execute_tally(Rank *r);
/* Collective over all ranks. The norm of all gradients, and with it the factor on gradients, and whether
 * the step updates anything. */
Err execute_norm(Rank *r);
/* Local. The optimizer on what the rank has at home of the unit's pack; nothing in a step that is
 * skipped. */
Err execute_update(Rank *r, int unit);
/* Local. The home's weights as programs use them, from its master; nothing to do where they are
 * one. */
Err execute_publish(Rank *r, int unit);
/* Local. ERR_CONFIG unless every call and every BIND names a slot that there is. */
Err execute_check_calls(const LinkedProgram *lp);

/* steps.c. Collective over the groups of its steps: begins what stands at a position;
 * ends it. */
Err steps_begin(Rank *r, int at);
Err steps_end(Rank *r, int at);
/* Local. Moves what is in flight on, if anything is. */
Err steps_poll(Rank *r);
/* Collective over the scalar's group. */
Err steps_scalar(Rank *r, int which);
/* Local. ERR_CHECK when the program needs a comm and it is not there, or another rank's. */
Err steps_check(const Rank *r);

/* Local. watch.c: tell who looks on. Around an action (instr -1) and around each instruction of its
 * program; watch_end gets what watch_begin returned. Step 0: none. */
void watch_step(Rank *r, int64_t step);
double watch_begin(Rank *r, const Linked *l, int instr);
void watch_end(Rank *r, const Linked *l, int instr, double begin_s);

/* Local. nap.c: sleeps here, if it is to. */
void nap(Rank *r);

#endif
