/* job_parts.h -- between job.c, which compiles, and job_schedule.c, which makes its lists. */
#ifndef JOB_JOB_PARTS_H
#define JOB_JOB_PARTS_H

#include "job/job.h"

/* Local. The lists over chunks: by name or from a file, with frames evicted where that is asked for. */
Err job_generate(Job *job, Arena *arena);
/* Local. From these, when programs are there: chunks of units, the lists over units with gathers and
 * reductions, checked. */
Err job_make_schedule(Job *job, Arena *arena);

#endif
