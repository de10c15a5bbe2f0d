/* jobs.h -- a compiled job of a small model, its rank open, its weights and batches filled in.
 *
 *     JobSettings set = test_job_settings("llama", JOB_STEP);       change some settings
 *     test_job_open(&t, &set, 1);
 *     rank_step(&t.rank, ...) */
#ifndef SUPPORT_JOBS_H
#define SUPPORT_JOBS_H

#include "support/models.h"
#include "support/tiny.h"
#include "job/job.h"

typedef struct {
    Arena arena;
    Job job;
    Team *team;
    Rank rank;
} TestJob;

/* Local. Settings for a model of models.h: f64, two micro-batches of one sequence of TEST_T tokens,
 * 1f1b, AdamW with decay and clip, logits in chunks of three rows. */
enum { TEST_T = 9 };
JobSettings test_job_settings(const char *model, JobKind kind);
/* Local. `t` must not move. Every arena is poisoned; weights are random with seed 5; micro-batch m
 * has the batch test_job_batch(set, m). threads == 1: no team. */
Err test_job_open(TestJob *t, const JobSettings *set, int threads);
void test_job_close(TestJob *t);
TestBatch test_job_batch(const JobSettings *set, int micro);

/* Local. True if this part of every parameter has equal bits; else *param is the first that
 * differs. */
bool ranks_equal(const Rank *a, const Rank *b, ParamPart part, int *param);
/* Local. The largest difference, relative to the largest entry of its tensor. A tensor that is zero
 * except for rounding (the gradient of GPT-2's bias of k) counts as at least 1e-4 of the largest
 * tensor. */
double ranks_differ(const Rank *a, const Rank *b, ParamPart part);

#endif
