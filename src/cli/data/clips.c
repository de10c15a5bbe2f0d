/* clips.c -- builds and shows files of clips.
 *
 *     $ sheaf data build --moving-shapes 512 --frames 6 --size 8 -o shapes.npy
 *     $ sheaf data show shapes.npy
 *     shapes.npy: latents, F32
 *       clips      512 of 6 frames of 8 x 8 latents of 1 channels
 *       values     0 to 2, mean 0.19, standard deviation 0.413 */
#include "cli/data/clips.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cli/new_file.h"
#include "data/map.h"
#include "data/moving_shapes.h"
#include "state/clip_open.h"
#include "state/npy.h"

enum { PIECE = 1 << 14, FRAMES = 16, SIDE = 16, MAX_SIDE = 4096, MAX_CLIPS = 1 << 24 };

bool clip_build_is(const ClipBuild *b)
{
    bool is = b->moving || (b->out && clip_path_is(b->out));
    for (int i = 0; i < b->n; i++) is = is || clip_path_is(b->in[i]);
    return is;
}

static Err read_number(const char *flag, const char *text, int64_t low, int64_t high, int64_t *out)
{
    char *end;
    if (!text) return OK;
    const long long x = strtoll(text, &end, 10);
    if (end == text || *end || x < low || x > high)
        return err_fail(ERR_CONFIG, "data build: %s %.40s: must be %lld to %lld", flag, text,
                        (long long)low, (long long)high);
    *out = x;
    return OK;
}

static Err build_moving(const ClipBuild *b, Arena *a)
{
    int64_t clips = 0, frames = FRAMES, side = SIDE, seed = 1;
    NpyWriter w;
    float *clip;
    if (b->n > 0)
        return err_fail(ERR_CONFIG,
                        "data build: --moving-shapes makes clips of its own; leave out "
                        "%.200s",
                        b->in[0]);
    TRY(read_number("--moving-shapes", b->moving, 1, MAX_CLIPS, &clips));
    TRY(read_number("--frames", b->frames, 1, MAX_SIDE, &frames));
    TRY(read_number("--size", b->size, 1, MAX_SIDE, &side));
    TRY(read_number("--seed", b->seed, 0, INT64_MAX, &seed));
    const MovingShapes s = {frames, side, side, 1, (uint64_t)seed};
    TRY(moving_shapes_check(&s));
    TRY(ARENA_NEW(a, frames * side * side, &clip));
    TRY(npy_create(&w, b->out, 5, (const int64_t[]){clips, frames, side, side, 1}));
    Err err = OK;
    for (int64_t i = 0; i < clips && err == OK; i++) {
        moving_shapes_clip(&s, i, clip);
        err = npy_write(&w, clip, frames * side * side);
    }
    const Err closed = npy_close(&w);
    if (err != OK || closed != OK) remove(b->out); /* a new file, which is incomplete */
    TRY(err);
    TRY(closed);
    char c[COUNTED_BYTES], f[COUNTED_BYTES];
    printf("%s: %s of %s of %lld x %lld latents, a disc that moves %g latents a frame\n", b->out,
           text_counted(clips, "clip", c), text_counted(frames, "frame", f), (long long)side,
           (long long)side, moving_shapes_speed(&s));
    return OK;
}

Err clip_check_finite(const char *path, int64_t at, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return err_fail(ERR_CHECK, "%s: element %lld is %g; models learn from finite numbers",
                            path, (long long)(at + i), (double)x[i]);
    return OK;
}

/* Elements [from, from + n) of an array of a file, in pieces. */
static Err copy_elements(const char *path, const Array *a, int64_t from, int64_t n, NpyWriter *w)
{
    float x[PIECE];
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t some = n - at < PIECE ? n - at : PIECE;
        a->read(a, from + at, some, x);
        TRY(map_check());
        TRY(clip_check_finite(path, from + at, x, some));
        TRY(npy_write(w, x, some));
    }
    return OK;
}

/* The files of a build: their common shape, and the clips that they have of `frames` frames. */
typedef struct {
    OpenClips *file;
    int n;
    int64_t frames, clips, height, width, channels, states, text_width;
    bool texts;
} ClipInputs;

static int64_t from_end(const Array *a, int i) { return a->n[a->ndim - 1 - i]; }

static Err check_alike(const ClipInputs *in, int i)
{
    const ClipFile *f = &in->file[i].clips;
    const Array *a = &f->latents;
    char channels[COUNTED_BYTES];
    const bool same = from_end(a, 2) == in->height && from_end(a, 1) == in->width &&
                      from_end(a, 0) == in->channels;
    if (!same)
        return err_fail(ERR_CONFIG,
                        "%s: frames of %lld x %lld latents of %s, and those of %s are %lld x %lld "
                        "of %lld; build them apart",
                        f->path, (long long)from_end(a, 2), (long long)from_end(a, 1),
                        text_counted(from_end(a, 0), "channel", channels), in->file[0].clips.path,
                        (long long)in->height, (long long)in->width, (long long)in->channels);
    if (clip_file_frames(f) < in->frames)
        return err_fail(ERR_CONFIG, "%s: clips of %lld frames; give --frames %lld or less", f->path,
                        (long long)clip_file_frames(f), (long long)clip_file_frames(f));
    if (in->texts &&
        (from_end(&f->text, 1) != in->states || from_end(&f->text, 0) != in->text_width ||
         (f->text.ndim == 3 ? f->text.n[0] : 1) != clip_file_clips(f)))
        return err_fail(ERR_CONFIG,
                        "%s: its texts are not one of %lld states of %lld for each clip, as those "
                        "of %s are",
                        f->path, (long long)in->states, (long long)in->text_width,
                        in->file[0].clips.path);
    return OK;
}

static Err measure(const ClipBuild *b, ClipInputs *in)
{
    const ClipFile *first = &in->file[0].clips;
    in->height = from_end(&first->latents, 2);
    in->width = from_end(&first->latents, 1);
    in->channels = from_end(&first->latents, 0);
    in->frames = clip_file_frames(first);
    in->texts = true;
    for (int i = 0; i < in->n; i++) {
        const ClipFile *f = &in->file[i].clips;
        if (clip_file_frames(f) < in->frames) in->frames = clip_file_frames(f);
        in->texts = in->texts && f->text.ndim > 0;
    }
    TRY(read_number("--frames", b->frames, 1, INT32_MAX, &in->frames));
    if (in->texts) {
        in->states = from_end(&first->text, 1);
        in->text_width = from_end(&first->text, 0);
    }
    for (int i = 0; i < in->n; i++) {
        TRY(check_alike(in, i));
        const ClipFile *f = &in->file[i].clips;
        in->clips += clip_file_clips(f) * (clip_file_frames(f) / in->frames);
    }
    return OK;
}

static Err write_latents(const ClipInputs *in, NpyWriter *w)
{
    const int64_t frame = in->height * in->width * in->channels;
    for (int i = 0; i < in->n; i++) {
        const ClipFile *f = &in->file[i].clips;
        const int64_t all = clip_file_frames(f), each = all / in->frames;
        for (int64_t c = 0; c < clip_file_clips(f); c++)
            TRY(copy_elements(f->path, &f->latents, c * all * frame, each * in->frames * frame, w));
    }
    return OK;
}

static Err write_texts(const ClipInputs *in, NpyWriter *w)
{
    const int64_t text = in->states * in->text_width;
    for (int i = 0; i < in->n; i++) {
        const ClipFile *f = &in->file[i].clips;
        const int64_t each = clip_file_frames(f) / in->frames;
        for (int64_t c = 0; c < clip_file_clips(f) * each; c++)
            TRY(copy_elements(f->path, &f->text, c / each * text, text, w));
    }
    return OK;
}

static Err write_array(const char *path, int ndim, const int64_t *n, const ClipInputs *in,
                       Err (*elements)(const ClipInputs *in, NpyWriter *w))
{
    NpyWriter w;
    TRY(npy_create(&w, path, ndim, n));
    const Err err = elements(in, &w), closed = npy_close(&w);
    if (err != OK || closed != OK) remove(path); /* a new file, which is incomplete */
    return err != OK ? err : closed;
}

static Err write_files(const ClipBuild *b, const ClipInputs *in, Arena *a)
{
    const char *texts;
    Text name = text_in(a);
    const int64_t shape[] = {in->clips, in->frames, in->height, in->width, in->channels};
    TRY(write_array(b->out, 5, shape, in, write_latents));
    char clips[COUNTED_BYTES], frames[COUNTED_BYTES], channels[COUNTED_BYTES];
    printf("%s: %s of %s of %lld x %lld latents of %s\n", b->out,
           text_counted(in->clips, "clip", clips), text_counted(in->frames, "frame", frames),
           (long long)in->height, (long long)in->width,
           text_counted(in->channels, "channel", channels));
    if (!in->texts) return OK;
    text_add(&name, "%.*s.text.npy", (int)strlen(b->out) - 4, b->out);
    TRY(text_done(&name, &texts));
    TRY(new_file_try("-o", texts));
    const int64_t states[] = {in->clips, in->states, in->text_width};
    TRY(write_array(texts, 3, states, in, write_texts));
    printf("%s: a text of %lld states of %lld for each clip\n", texts, (long long)in->states,
           (long long)in->text_width);
    return OK;
}

static Err build_arrays(const ClipBuild *b, Arena *a)
{
    ClipInputs in = {.n = 0};
    if (b->size || b->seed)
        return err_fail(ERR_CONFIG, "data build: %s is for --moving-shapes; leave it out",
                        b->size ? "--size" : "--seed");
    if (b->n == 0)
        return err_fail(ERR_CONFIG,
                        "data build: no input; give arrays of latents, or --moving-shapes N");
    TRY(ARENA_NEW(a, b->n, &in.file));
    Err err = OK;
    for (int i = 0; i < b->n && err == OK; i++) {
        if (!clip_path_is(b->in[i]))
            err = err_fail(ERR_CONFIG,
                           "data build: %s: an output that ends in .npy gets latents, which are "
                           "read from .npy and .safetensors; text becomes a token file, as "
                           "corpus.bin",
                           b->in[i]);
        else if ((err = clip_open(b->in[i], a, &in.file[i])) == OK)
            in.n++;
    }
    if (err == OK) err = measure(b, &in);
    if (err == OK) err = write_files(b, &in, a);
    for (int i = 0; i < in.n; i++) clip_close(&in.file[i]);
    return err;
}

Err clip_build(const ClipBuild *b, Arena *a)
{
    const size_t n = b->out ? strlen(b->out) : 0;
    if (b->of_text)
        return err_fail(ERR_CONFIG, "data build: %s is for text; leave it out to build clips",
                        b->of_text);
    if (n < 5 || strcmp(b->out + n - 4, ".npy") != 0)
        return err_fail(ERR_CONFIG,
                        "data build: -o %.200s: clips are written as a .npy file; give a name that "
                        "ends in .npy",
                        b->out ? b->out : "is missing");
    TRY(new_file_try("-o", b->out));
    return b->moving ? build_moving(b, a) : build_arrays(b, a);
}

/* ---- show ---- */

typedef struct {
    double low, high, sum, squares;
    int64_t n;
} ValueStats;

static Err scan(const char *path, const Array *a, ValueStats *s)
{
    int64_t count = 1;
    float x[PIECE];
    for (int i = 0; i < a->ndim; i++) count *= a->n[i];
    *s = (ValueStats){(double)INFINITY, -(double)INFINITY, 0, 0, count};
    for (int64_t at = 0; at < count; at += PIECE) {
        const int64_t n = count - at < PIECE ? count - at : PIECE;
        a->read(a, at, n, x);
        TRY(map_check());
        TRY(clip_check_finite(path, at, x, n));
        for (int64_t i = 0; i < n; i++) {
            const double v = (double)x[i];
            s->low = fmin(s->low, v);
            s->high = fmax(s->high, v);
            s->sum += v;
            s->squares += v * v;
        }
    }
    return OK;
}

static Err describe(const ClipFile *f)
{
    const Array *a = &f->latents;
    ValueStats s;
    TRY(scan(f->path, a, &s));
    const double mean = s.sum / (double)s.n;
    printf("%s: latents, %s\n", f->path, a->type);
    char frames[COUNTED_BYTES], channels[COUNTED_BYTES];
    printf("  clips      %lld of %s of %lld x %lld latents of %s\n", (long long)clip_file_clips(f),
           text_counted(clip_file_frames(f), "frame", frames), (long long)from_end(a, 2),
           (long long)from_end(a, 1), text_counted(from_end(a, 0), "channel", channels));
    printf("  values     %.4g to %.4g, mean %.3g, standard deviation %.3g; noise has 0 and 1\n",
           s.low, s.high, mean, sqrt(fmax(0, s.squares / (double)s.n - mean * mean)));
    if (f->text.ndim == 0) return OK;
    TRY(scan(f->path, &f->text, &s));
    printf("  text       %lld states of %lld for each clip, %s\n", (long long)from_end(&f->text, 1),
           (long long)from_end(&f->text, 0), f->text.type);
    return OK;
}

Err clip_show(const char *path, Arena *a)
{
    OpenClips c;
    TRY(clip_open(path, a, &c));
    const Err err = describe(&c.clips);
    clip_close(&c);
    return err;
}
