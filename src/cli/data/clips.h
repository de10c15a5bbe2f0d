/* clips.h -- `sheaf data` for clips of latents: files of arrays, and synthetic clips. */
#ifndef CLI_DATA_CLIPS_H
#define CLI_DATA_CLIPS_H

#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"

typedef struct {
    const char *const *in; /* [n]: .npy and .safetensors; none if `moving` is given */
    int n;
    const char *out;                           /* .npy */
    const char *moving, *frames, *size, *seed; /* values of flags, or NULL */
    const char *of_text;                       /* a flag for text that is given, or NULL */
} ClipBuild;

/* Local. True if the request of `sheaf data build` is about clips. */
bool clip_build_is(const ClipBuild *b);
/* Local. Writes all clips of the inputs to one file of clips of equal length; their texts, if all
 * have some, to OUT.text.npy. Or writes synthetic clips. */
Err clip_build(const ClipBuild *b, Arena *a);
/* Local. ERR_CHECK, with its index, for an element that is not finite; x[0] is element `at`. */
Err clip_check_finite(const char *path, int64_t at, const float *x, int64_t n);
/* Local. Prints shapes, type, range and text of a file. ERR_CHECK for numbers that are not
 * finite. */
Err clip_show(const char *path, Arena *a);

#endif
