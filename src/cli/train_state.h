/* train_state.h -- what `sheaf train` says of its checkpoints: what goes into them besides tensors,
 * and what a run that goes on says first. */
#ifndef CLI_TRAIN_STATE_H
#define CLI_TRAIN_STATE_H

#include "cli/train.h"

/* Local. All of StateScalars that is the same in every checkpoint of the run; texts live in the
 * session's arena. */
Err train_scalars(TrainSession *s, StateScalars *out);
/* Local. The weights that model.init names, of a model like the run's; nothing is opened where the run
 * folder has checkpoints to go on from. */
Err train_init(TrainSession *s);
/* Local. What is saved, where and when. */
SaveSettings train_save_settings(TrainSession *s);
/* Local, on rank 0. Prints the state that the run starts from. */
void report_start(const TrainSession *s, const TrainStart *start);

/* Local. SHEAF_KILL_AT=POINT[:RANK[:STEP]] of the environment: the process kills itself when that
 * rank comes to that point of a save (state/folder.h), for tests. ERR_CONFIG names the points. */
Err kill_at_read(KillAt *out);

#endif
