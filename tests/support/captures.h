/* captures.h -- runs some steps of one rank, captured as graphs or not, and compares them bitwise.
 *
 * Learning rate, tokens and the number of live tokens differ in every step; live rows are the same
 * unless the plan changes them. */
#ifndef SUPPORT_CAPTURES_H
#define SUPPORT_CAPTURES_H

#include "support/jobs.h"

enum { CAPTURE_STEPS = 8 };

typedef struct {
    JobSettings set;
    const Device *device;
    bool capture;
    int short_from;   /* first step, from 1, whose micro-batch 0 has two rows fewer; 0: none */
    bool alternating; /* micro-batch 0 has two rows fewer in every second step */
    int bad;          /* number of the step whose loss is infinite; 0: none */
    int reads; /* step after which weights and moments are read, as for a checkpoint; 0: none */
    bool validates;           /* after each step, by a rank that shares the state */
    void (*before)(int step); /* called before each step; NULL: nothing */
} CapturePlan;

typedef struct {
    double loss[CAPTURE_STEPS], norm[CAPTURE_STEPS], valid[CAPTURE_STEPS];
    bool skipped[CAPTURE_STEPS];
    int64_t captured, launched;
    char refused[512]; /* the device's reason; "": it refused nothing */
    char *state[2];    /* weights and moments after step `reads` and at the end; or NULL */
    size_t bytes;
} CaptureResult;

/* Local. */
Err captures_run(const CapturePlan *p, CaptureResult *out);
void captures_close(CaptureResult *r);
/* Fails the test if two runs differ by a bit; counts and refusals may differ. */
void captures_same(const char *name, const CaptureResult *a, const CaptureResult *b);

#endif
