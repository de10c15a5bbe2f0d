/* resume.h -- where a run goes on: the newest whole checkpoint of its folder.
 *
 *     checkpoints/step-00000030   rank 0 reads it: damaged?  -> step-00000030.damaged, said loudly
 *     checkpoints/step-00000020   whole; the same job?  -> all ranks load it
 *     none is whole               an error: nothing starts over by itself
 *     none was ever committed     the run starts from its initial weights: random, or another's
 *     step 0, weights alone       likewise: nobody has trained it (sheaf reshape makes these)
 *
 * Mesh, layouts, schedule, batch, learning rate and everything of the run may be others than when
 * it was saved; what is trained, and on what, may not. */
#ifndef TRAIN_RESUME_H
#define TRAIN_RESUME_H

#include "train/loop_parts.h"

/* Collective. Finds and loads; l->at is where the run goes on. out->from is NULL where there is
 * nothing to go on from. */
Err resume_run(TrainLoop *l, TrainStart *out);
/* Collective. What a run that has nothing to go on from starts with: the weights of `init`, where
 * there is one; moments are 0. */
Err resume_init(TrainLoop *l, TrainStart *out);
/* Local. ERR_CONFIG unless it is the same job; names the key, both values and the ways out. `what` is
 * the checkpoint, for the message. */
Err resume_same_job(const char *what, const StateScalars *saved, const StateScalars *now);

#endif
