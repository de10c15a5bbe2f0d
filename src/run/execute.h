/* execute.h -- between rank.c, which walks the list, and execute.c, which runs a phase of a
 * program. */
#ifndef RUN_EXECUTE_H
#define RUN_EXECUTE_H

#include "run/rank.h"

/* Local. Runs the instructions of a RUN. */
Err execute_run(Rank *r, const Linked *l);
/* Local. The unit's gradients, as sums over all units that hold the parameters. */
Err execute_reduce(Rank *r, int unit);
/* Local. The norm of all gradient sums, and with it the factor on gradients. */
Err execute_norm(Rank *r);
/* Local. The optimizer on the parameters in the unit's pack. */
Err execute_update(Rank *r, int unit);
/* Local. watch.c: tell who looks on. Around an action (instr -1) and around each instruction of its
 * program; watch_end gets what watch_begin returned. Step 0: none. */
void watch_step(Rank *r, int64_t step);
double watch_begin(Rank *r, const Linked *l, int instr);
void watch_end(Rank *r, const Linked *l, int instr, double begin_s);
/* Local. ERR_CONFIG unless every call and every BIND names a slot that there is. */
Err execute_check_calls(const LinkedProgram *lp);

/* Local. The weight as programs use it, from its master; nothing to do where they are one. */
Err execute_publish(Rank *r, int param);

#endif
