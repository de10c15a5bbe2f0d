/* resume.h -- the state that a run starts from: its newest complete checkpoint, or initial weights.
 *
 *     checkpoints/step-00000030   damaged: renamed to step-00000030.damaged, with a warning
 *     checkpoints/step-00000020   complete, and of the same job: all ranks load it
 *     none is complete            an error; a run never restarts at step 1 on its own
 *     none was ever committed     initial weights: random, or those of model.init
 *     step 0, weights only        initial weights (sheaf reshape writes such checkpoints)
 *
 * A resumed run may have another mesh, layout, schedule, batch size, learning rate and run section.
 * Model, data, seed, optimizer and precision must be the same. */
#ifndef TRAIN_RESUME_H
#define TRAIN_RESUME_H

#include "train/loop_parts.h"

/* Collective over all ranks. Finds and loads the checkpoint; sets l->at. out->from is NULL if there
 * is no checkpoint. */
Err resume_run(TrainLoop *l, TrainStart *out);
/* Collective over all ranks. Loads the weights of model.init if there is no checkpoint; moments are
 * 0. */
Err resume_init(TrainLoop *l, TrainStart *out);
/* Local. ERR_CONFIG unless both describe the same job; names the key, both values and the way out.
 * `what` is the checkpoint, for the message. */
Err resume_same_job(const char *what, const StateScalars *saved, const StateScalars *now);

#endif
