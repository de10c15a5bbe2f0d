/* attention.h -- the attention of a job as its device is called, before anything runs: a device can
 * say which of its kernels will run it, and why. */
#ifndef JOB_ATTENTION_H
#define JOB_ATTENTION_H

#include "job/job.h"

/* Local. The call of an instruction with full extents. Addresses are not those of a run, but
 * aligned as they are: regions to 64 bytes. */
Call instr_call(const Program *p, const Instr *in);
/* Local. The first attention of the rank's list, or the first gradient of one. False: the rank has
 * no layers. */
bool job_attention_call(const Job *job, bool backward, Call *out);

#endif
