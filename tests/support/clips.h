/* clips.h -- a test family whose tokens have a frame and one or two places.
 *
 *     two dims     layer 0, 2, ...  "spatial"    attention within a frame
 *                  layer 1, 3, ...  "temporal"   along the frames of a place
 *     three dims   "width", "height", "temporal" in turn; a row of places has PLACES_WIDTH
 *
 * Layers are those of Llama without a mask or positions, with its names. */
#ifndef SUPPORT_CLIPS_H
#define SUPPORT_CLIPS_H

#include "model/build.h"

enum { PLACES_WIDTH = 2 };

/* Local. The test model "llama" with these layers, of clips of frames x places tokens. */
ModelConfig clips_config(int layers, int dims, int64_t frames, int64_t places);

#endif
