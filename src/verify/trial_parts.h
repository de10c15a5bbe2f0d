/* trial_parts.h -- private to verify/: trial.c trains, trial_infer.c validates and generates,
 * trial_clips.c has the data of models of clips. */
#ifndef VERIFY_TRIAL_PARTS_H
#define VERIFY_TRIAL_PARTS_H

#include "verify/choices.h"
#include "verify/trial.h"
#include "world/world.h"

enum { TRIAL_IN_FLIGHT = 64, TRIAL_RECORDS = 64, TRIAL_TIMEOUT_S = 120 };

/* Local. Writes the rank's sequences of a step to its inputs. */
void trial_fill(Rank *r, const Job *job, const TrialSettings *s, int64_t step);
/* Local. The same for a model of clips: random latents and texts. */
void trial_fill_clips(Rank *r, const Job *job, const TrialSettings *s, int64_t step);
/* Collective over all ranks. The loss of the sequences that follow those of the last step, by a
 * program without backward phases that shares the weights of `trained`. `choices` may be NULL. */
Err trial_validate(WorldRank *w, const Job *job, const TrialSettings *s, const Rank *trained,
                   ExpertChoices *choices, double *loss);
/* Collective over the processes of the world, each of which has its own elements in `out`: gives
 * all elements to all. owners[i]: 1 if this rank owns element i, else 0. */
Err trial_merge(WorldRank *w, Trial *out, const double *owners);
/* Collective likewise: sums n numbers of each rank. */
Err trial_merge_numbers(WorldRank *w, double *number, int64_t n);
/* Local. True if all launched processes run a trial of so many ranks together. */
bool trial_by_all(const TrialSettings *s, int ranks);
/* Local: ranks are threads. Continues prompts with the weights of the result, on the layout's mesh
 * without its data parallel axes. */
Err trial_generate(const TrialSettings *s, Arena *arena, Trial *out);

#endif
