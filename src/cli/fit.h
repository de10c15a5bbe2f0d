/* fit.h -- does a run fit, and what would make it fit; told before anything is allocated.
 *
 *     the run takes 163.2 GiB of the card's memory, 138.9 GiB of it are free; what fits, the cheapest
 *     first: parallel.recompute=selective (121.0 GiB); batch.micro=16 (98.4 GiB); ...
 *
 * The ways are tried, not guessed: each is compiled as a run of it would be. */
#ifndef CLI_FIT_H
#define CLI_FIT_H

#include "cli/config/config.h"
#include "job/job.h"

typedef struct {
    const Config *config;
    const ModelConfig *model;
    bool device;      /* of memory on a device: without what is on the host */
    int64_t takes;    /* all ranks here */
    int64_t has;      /* all cards here, or the machine */
    int ranks;        /* here */
    const char *what; /* "of the card's memory" */
    Arena *temp;
} Fit;

/* Local. Bytes of a rank's arenas, with what validation takes beside those that it shares. */
int64_t fit_bytes(const Job *job, const Job *valid, bool device);
/* Local. ERR_CONFIG unless it fits: names three ways that do. */
Err fit_check(const Fit *f);

#endif
