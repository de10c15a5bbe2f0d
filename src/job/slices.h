/* slices.h -- where the sequences of a job are cut into slices.
 *
 *     flops of a token, of a (query, key) pair     counted in the model's graphs, there and back
 *     seq1f1b, gpipe                               slices of equal flops
 *     terapipe                                     the cuts that end first: schedule/slices.h */
#ifndef JOB_SLICES_H
#define JOB_SLICES_H

#include "ir/unit.h"
#include "schedule/slices.h"
#include "job/job.h"

/* Local. What a token and a pair cost in all units. Where a window bounds what a query sees, pairs
 * cost as much anywhere in the sequence, and count with the tokens. */
Err model_slice_cost(const Model *m, const ModelConfig *c, Arena *temp, SliceCost *out);

/* Local. The cuts of a job whose schedule is generated; one slice: none. ERR_CONFIG when slices are
 * asked for and micro-batches are not one sequence, or it has too few tokens. */
Err job_slices(const Job *job, Arena *arena, SlicePlan *out);

/* Local. The most rows that a slice has. */
int64_t slices_longest(const SlicePlan *plan);

#endif
