/* moving_shapes.h -- synthetic clips: a soft disc that moves straight on, at one speed, within the
 * frame.
 *
 *     frame 0   . o . . .     frame 1   . . o . .     2 exp(-r^2 / 2) at distance r of its center;
 *                                                     up, down, left or right
 *
 * Clip i of a seed is a function of (seed, i). */
#ifndef DATA_MOVING_SHAPES_H
#define DATA_MOVING_SHAPES_H

#include <stdint.h>
#include "base/err.h"

typedef struct {
    int64_t frames, height, width, channels;
    uint64_t seed;
} MovingShapes;

/* Local. ERR_CONFIG unless a disc has room to move. */
Err moving_shapes_check(const MovingShapes *s);
/* Local. Latents a frame. 1, or less if the frames are too small for that. */
double moving_shapes_speed(const MovingShapes *s);
/* Local. Writes clip i: [frames, height, width, channels]. */
void moving_shapes_clip(const MovingShapes *s, int64_t i, float *out);

#endif
