/* lr.h -- the learning rate of a step.
 *
 *     lr      _______                     warmup rises from 0, then
 *            /       \                      cosine    half a cosine down to min_lr
 *           /         \                     linear    a straight line down to min_lr
 *     min  /           \___                 constant  stays
 *         0  warmup      steps              wsd       stays, then falls over the last fifth
 *
 * It is a pure function of the step, so a resumed run has the rates of an unbroken one. */
#ifndef TRAIN_LR_H
#define TRAIN_LR_H

#include <stdint.h>

typedef enum { DECAY_COSINE, DECAY_LINEAR, DECAY_CONSTANT, DECAY_WSD } Decay;

typedef struct {
    Decay decay;
    double lr, min_lr;
    int64_t warmup, steps;
} LrSettings;

/* Local. The rate of step 1 .. steps. */
double lr_at(const LrSettings *s, int64_t step);

#endif
