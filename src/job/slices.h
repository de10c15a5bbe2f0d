/* slices.h -- positions at which the sequences of a job are cut into slices.
 *
 *     flops of a token, of a (query, key) pair     counted in graphs, forward and backward
 *     seq1f1b, gpipe                               slices of equal flops
 *     terapipe                                     the cuts of the shortest pipeline */
#ifndef JOB_SLICES_H
#define JOB_SLICES_H

#include "ir/unit.h"
#include "schedule/slices.h"
#include "job/job.h"

/* Local. Flops of a token and of a pair, summed over all units. With a sliding window every token
 * has the same number of pairs, so their flops are added to the token's. */
Err model_slice_cost(const Model *m, const ModelConfig *c, Arena *temp, SliceCost *out);

/* Local. The cuts of a job whose lists over chunks exist; a schedule without slices has one.
 * ERR_CONFIG if a micro-batch has several sequences, if a sequence has fewer tokens than slices, or
 * if queries see later keys. */
Err job_slices(const Job *job, Arena *arena, SlicePlan *out);

#endif
