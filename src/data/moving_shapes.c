/* moving_shapes.c -- the path of a disc, and its latents. */
#include "data/moving_shapes.h"

#include <math.h>
#include "base/philox.h"
#include "base/text.h"

enum { MARGIN = 1, LEAST_SIDE = 4 }; /* latents between the center and the frame's border */

static double room(int64_t side) { return (double)(side - 1 - 2 * MARGIN); }

Err moving_shapes_check(const MovingShapes *s)
{
    if (s->frames >= 1 && s->height >= LEAST_SIDE && s->width >= LEAST_SIDE && s->channels >= 1)
        return OK;
    char frames[COUNTED_BYTES], channels[COUNTED_BYTES];
    return err_fail(
        ERR_CONFIG, "moving shapes: %s of %lld x %lld latents of %s; a frame needs %d x %d or more",
        text_counted(s->frames, "frame", frames), (long long)s->height, (long long)s->width,
        text_counted(s->channels, "channel", channels), LEAST_SIDE, LEAST_SIDE);
}

double moving_shapes_speed(const MovingShapes *s)
{
    const double least = fmin(room(s->height), room(s->width));
    return s->frames > 1 ? fmin(1, least / (double)(s->frames - 1)) : 1;
}

/* Where a path of `length` along a side may begin, u in [0, 1). */
static double start(int64_t side, double length, double u)
{
    const double free = room(side) - fabs(length);
    return MARGIN + (length < 0 ? -length : 0) + u * free;
}

void moving_shapes_clip(const MovingShapes *s, int64_t i, float *out)
{
    const Random random = random_named(s->seed, "moving shapes");
    const uint64_t at = (uint64_t)i * 3;
    const int direction = (int)(random_bits(&random, at) >> 62);
    const double speed = moving_shapes_speed(s) * (direction % 2 ? -1 : 1);
    const double dy = direction < 2 ? 0 : speed, dx = direction < 2 ? speed : 0;
    const double steps = (double)(s->frames - 1);
    const double y0 = start(s->height, dy * steps, random_uniform(&random, at + 1));
    const double x0 = start(s->width, dx * steps, random_uniform(&random, at + 2));
    for (int64_t f = 0; f < s->frames; f++)
        for (int64_t y = 0; y < s->height; y++)
            for (int64_t x = 0; x < s->width; x++) {
                const double a = (double)y - y0 - dy * (double)f;
                const double b = (double)x - x0 - dx * (double)f;
                const float value = (float)(2 * exp(-(a * a + b * b) / 2));
                for (int64_t c = 0; c < s->channels; c++) *out++ = value;
            }
}
