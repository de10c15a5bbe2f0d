/* clip_open.h -- opens files of latents: .npy, and .safetensors.
 *
 *     NAME.npy            the latents; their texts, if there are any, are in NAME.text.npy
 *     NAME.safetensors    tensors `latents` and, if there are any, `text` */
#ifndef STATE_CLIP_OPEN_H
#define STATE_CLIP_OPEN_H

#include "data/clips.h"
#include "data/tokens.h"

typedef struct {
    ClipFile clips;
    Bytes map[2];
} OpenClips;

/* Local. True for names that end in .npy or .safetensors. */
bool clip_path_is(const char *path);
/* Local. Maps the file. ERR_CONFIG unless its latents have 4 or 5 dims and floating-point
 * elements. `path` must outlive *out. */
Err clip_open(const char *path, Arena *a, OpenClips *out);
void clip_close(OpenClips *c);
/* Local. Maps an array of texts [clips, states, width] of a .npy file. The caller unmaps it. */
Err text_array_open(const char *path, Bytes *map, Array *out);

#endif
