/* rope.c -- rotary frequencies: theta^(-2i/c), scaled for long contexts. */
#include "device/rope.h"

#include <math.h>

/* Llama 3: the frequencies of waves longer than the original context are divided by `factor`, those
 * of short waves are kept, and between them the two are interpolated. */
static double stretch_llama3(const Attr *attr, double frequency)
{
    const double low = attr->rope.low, high = attr->rope.high, factor = attr->rope.factor;
    const double context = (double)attr->rope.original;
    const double wave = 2 * acos(-1.0) / frequency;
    if (wave < context / high) return frequency;
    if (wave > context / low) return frequency / factor;
    const double smooth = (context / wave - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

double rope_frequency(const Attr *attr, int64_t i, int64_t channels)
{
    const double f = pow(attr->rope.theta, -2.0 * (double)i / (double)channels);
    switch (attr->rope.scaling) {
    case ROPE_LINEAR:
        return f / attr->rope.factor;
    case ROPE_LLAMA3:
        return stretch_llama3(attr, f);
    case ROPE_PLAIN:
        break;
    }
    return f;
}
