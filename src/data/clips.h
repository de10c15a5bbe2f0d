/* clips.h -- clips of latents as the inputs of a diffusion model: patches, noise, targets.
 *
 *     file    [clips, frames, height, width, channels]      a clip of F frames: a sample is every F
 *     clip    F frames x places                             frames in a row; the rest is left out
 *     token   (frame, row, column): patch x patch x channels latents, in that order
 *
 *     t       a number in [0, 1) for each sample of the run
 *     noised    (1 - t) x0 + t noise        velocity   noise - x0
 *
 * Noise and t are functions of (seed, number of the sample in the run, element), so neither the
 * layout nor the batch changes them. */
#ifndef DATA_CLIPS_H
#define DATA_CLIPS_H

#include "ir/inputs.h"
#include "layout/spans.h"
#include "model/config.h"
#include "run/rank.h"

enum { MAX_ARRAY_DIMS = 8 };

/* An array of a file, row-major; state/arrays.h opens it. */
typedef struct Array {
    int ndim;
    int64_t n[MAX_ARRAY_DIMS];
    const char *type; /* "f32", for messages */
    int type_id;      /* of the reader */
    const unsigned char *at;
    /* Elements [from, from + n) as floats. */
    void (*read)(const struct Array *a, int64_t from, int64_t n, float *out);
} Array;

/* The latents and texts of a file. One clip has no dim of clips. */
typedef struct {
    const char *path;
    Array latents; /* [clips?, frames, height, width, channels] */
    Array text;    /* [clips?, states, width]; ndim 0: none */
} ClipFile;

int64_t clip_file_clips(const ClipFile *f);
int64_t clip_file_frames(const ClipFile *f);

/* Local. ERR_CONFIG unless the clips of the file have the model's frames, sizes and text; the
 * message names the keys of the model that would fit. */
Err clip_file_check(const ClipFile *f, const ModelConfig *model);
/* Local. Samples of a file for the model. */
int64_t clip_file_samples(const ClipFile *f, const ModelConfig *model);

/* The input arrays of a micro-batch. */
typedef struct {
    void *at[N_INPUTS];    /* NULL: the model does not read it */
    DType wide;            /* of floating-point inputs */
    const HeldSpans *held; /* [N_INPUTS]: rows of the micro-batch in each array; NULL: all */
} ClipRows;
/* Local. Those of a rank. */
ClipRows clip_rows(Rank *r, int micro);

/* A clip before it is noised. */
typedef struct {
    /* The patch of a token; a state of the text. */
    void (*patch)(const void *context, int64_t token, float *out);
    void (*text)(const void *context, int64_t state, float *out);
    const void *context;
    uint64_t seed;
    int64_t number; /* of the sample in the run: decides noise and t */
} ClipSource;

/* Local. Writes the rows of a clip, the given one of its micro-batch. O(rows held). */
void clip_fill(const ModelConfig *model, const ClipSource *from, const ClipRows *in, int64_t clip);
/* Local. The same for a clip that a short batch lacks: zeros, which count nowhere. */
void clip_fill_padding(const ModelConfig *model, const ClipRows *in, int64_t clip);
/* Local. Writes the inputs that depend on the row alone: its clip, frame and place, and the rows of
 * its text. clip_fill does that too. */
void clip_fill_places(const ModelConfig *model, const ClipRows *in, int64_t clip);
/* Local. The noise of sample `number`: n elements from `from` on, in the order of tokens. */
void clip_noise(uint64_t seed, int64_t number, int64_t from, int64_t n, double *out);

/* Local. The latents [frames, height, width, channels] of a clip whose patches are given in the
 * order of tokens. */
void clip_join(const ModelConfig *model, const double *patches, float *latents);

/* Local. Sample i of a file, for ClipSource: the context of clip_sample_patch and
 * clip_sample_text. */
typedef struct {
    const ClipFile *file;
    const ModelConfig *model;
    int64_t clip, first; /* of the file; first frame */
} ClipSample;
ClipSample clip_sample(const ClipFile *f, const ModelConfig *model, int64_t i);
void clip_sample_patch(const void *sample, int64_t token, float *out);
void clip_sample_text(const void *sample, int64_t state, float *out);

#endif
