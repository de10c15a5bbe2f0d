/* lr.c -- warmup and decay of the learning rate. */
#include "train/lr.h"

#include <math.h>

static double down_from(double from, double to, double share_left)
{
    return to + (from - to) * share_left;
}

/* Share of the decay that is left: 1 at its first step, 0 at the last step of the run. */
static double left(int64_t step, int64_t first, int64_t last)
{
    return last <= first ? 1.0 : (double)(last - step) / (double)(last - first);
}

double lr_at(const LrSettings *s, int64_t step)
{
    const double pi = 3.14159265358979323846;
    if (step < s->warmup) return s->lr * (double)step / (double)s->warmup;
    const int64_t first = s->warmup > 0 ? s->warmup : 1;
    const double share = left(step, first, s->steps);
    switch (s->decay) {
    case DECAY_COSINE:
        return down_from(s->lr, s->min_lr, 0.5 - 0.5 * cos(pi * share));
    case DECAY_LINEAR:
        return down_from(s->lr, s->min_lr, share);
    case DECAY_WSD: {
        const int64_t fall = s->steps - s->steps / 5;
        if (step <= fall || fall < first) return s->lr;
        return down_from(s->lr, s->min_lr, 1.0 - sqrt(1.0 - left(step, fall, s->steps)));
    }
    case DECAY_CONSTANT:
        break;
    }
    return s->lr;
}
