/* clip_file.c -- the clips of a file: their number, their fit to a model, and their patches. */
#include "data/clips.h"

static int64_t dim_from_end(const Array *a, int i) { return a->n[a->ndim - 1 - i]; }

int64_t clip_file_clips(const ClipFile *f) { return f->latents.ndim == 5 ? f->latents.n[0] : 1; }
int64_t clip_file_frames(const ClipFile *f) { return dim_from_end(&f->latents, 3); }

static Err check_latents(const ClipFile *f, const ModelConfig *m)
{
    const Array *a = &f->latents;
    const ClipConfig *x = &m->clip;
    char text[COUNTED_BYTES];
    const int64_t height = dim_from_end(a, 2), width = dim_from_end(a, 1),
                  channels = dim_from_end(a, 0), frames = dim_from_end(a, 3);
    if (height != x->height || width != x->width || channels != x->channels)
        return err_fail(ERR_CONFIG,
                        "%s: frames of %lld x %lld latents of %s, and those of %s are "
                        "%lld x %lld of %lld; set model.latent_height=%lld "
                        "model.latent_width=%lld model.latent_channels=%lld",
                        f->path, (long long)height, (long long)width,
                        text_counted(channels, "channel", text), m->name, (long long)x->height,
                        (long long)x->width, (long long)x->channels, (long long)height,
                        (long long)width, (long long)channels);
    if (frames >= m->frames) return OK;
    return err_fail(ERR_CONFIG,
                    "%s: clips of %lld frames, and those of %s have %lld; set "
                    "model.num_frames=%lld or less",
                    f->path, (long long)frames, m->name, (long long)m->frames, (long long)frames);
}

Err clip_file_check(const ClipFile *f, const ModelConfig *m)
{
    const ClipConfig *x = &m->clip;
    const Array *t = &f->text;
    TRY(check_latents(f, m));
    if (x->text_length == 0) return OK; /* clips may have texts that the model does not use */
    if (t->ndim == 0)
        return err_fail(ERR_CONFIG,
                        "%s: has no text, and %s has model.text_length=%lld; give an array `text` "
                        "in a safetensors file, or NAME.text.npy next to NAME.npy, or set "
                        "model.text_length=0 and model.text_width=0",
                        f->path, m->name, (long long)x->text_length);
    const int64_t texts = t->ndim == 3 ? t->n[0] : 1;
    if (texts != clip_file_clips(f) || dim_from_end(t, 1) != x->text_length ||
        dim_from_end(t, 0) != x->text_width)
        return err_fail(ERR_CONFIG,
                        "%s: %lld texts of %lld states of %lld for %lld clips, and %s has texts of "
                        "%lld states of %lld; set model.text_length and model.text_width to those "
                        "of the file, which needs a text for each clip",
                        f->path, (long long)texts, (long long)dim_from_end(t, 1),
                        (long long)dim_from_end(t, 0), (long long)clip_file_clips(f), m->name,
                        (long long)x->text_length, (long long)x->text_width);
    return OK;
}

int64_t clip_file_samples(const ClipFile *f, const ModelConfig *m)
{
    return clip_file_clips(f) * (clip_file_frames(f) / m->frames);
}

ClipSample clip_sample(const ClipFile *f, const ModelConfig *m, int64_t i)
{
    const int64_t each = clip_file_frames(f) / m->frames;
    return (ClipSample){f, m, i / each, i % each * m->frames};
}

void clip_sample_patch(const void *sample, int64_t token, float *out)
{
    const ClipSample *s = sample;
    const ClipConfig *x = &s->model->clip;
    const int64_t columns = x->width / x->patch, place = token % s->model->places;
    const int64_t row = place / columns * x->patch, column = place % columns * x->patch;
    const int64_t frame = s->clip * clip_file_frames(s->file) + s->first + token / s->model->places;
    const int64_t n = x->patch * x->channels;
    for (int64_t y = 0; y < x->patch; y++)
        s->file->latents.read(&s->file->latents,
                              ((frame * x->height + row + y) * x->width + column) * x->channels, n,
                              out + y * n);
}

void clip_sample_text(const void *sample, int64_t state, float *out)
{
    const ClipSample *s = sample;
    const ClipConfig *x = &s->model->clip;
    s->file->text.read(&s->file->text, (s->clip * x->text_length + state) * x->text_width,
                       x->text_width, out);
}
