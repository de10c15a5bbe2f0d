/* captures.h -- some steps of one rank, captured as graphs or not, and what they were, to the bit.
 *
 * Every step has a learning rate, tokens and a number of live tokens of its own; live rows are the same
 * but where the plan says otherwise. */
#ifndef SUPPORT_CAPTURES_H
#define SUPPORT_CAPTURES_H

#include "support/jobs.h"

enum { CAPTURE_STEPS = 8 };

typedef struct {
    JobSettings set;
    const Device *device;
    bool capture;
    int short_from; /* from this step on (of 1 ..) micro-batch 0 has two rows less; 0: never */
    bool in_turns;  /* it has so in every second step */
    int bad;        /* this step's loss is infinite; 0: none's */
    int reads; /* after this step all weights and moments are read, as for a checkpoint; 0: never */
    bool validates;           /* between steps, by a rank that shares the state */
    void (*before)(int step); /* each step; NULL: nothing */
} CapturePlan;

typedef struct {
    double loss[CAPTURE_STEPS], norm[CAPTURE_STEPS], valid[CAPTURE_STEPS];
    bool skipped[CAPTURE_STEPS];
    int64_t captured, launched;
    char refused[512]; /* what the device said; "": nothing */
    char *state[2];    /* weights and moments: when they were read, and at the end; or NULL */
    size_t bytes;
} CaptureResult;

/* Local. */
Err captures_run(const CapturePlan *p, CaptureResult *out);
void captures_close(CaptureResult *r);
/* Fails the test where two runs differ by a bit; counts and refusals may. */
void captures_same(const char *name, const CaptureResult *a, const CaptureResult *b);

#endif
