/* clip_open.c -- files of latents as arrays that data/ reads by pieces. */
#include "state/clip_open.h"

#include <string.h>
#include "base/text.h"
#include "data/map.h"
#include "state/convert.h"
#include "state/npy.h"

static bool ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), e = strlen(end);
    return n > e && strcmp(path + n - e, end) == 0;
}

bool clip_path_is(const char *path)
{
    return ends_in(path, ".npy") || ends_in(path, ".safetensors");
}

static void read_elements(const Array *a, int64_t from, int64_t n, float *out)
{
    const StType type = (StType)a->type_id;
    const unsigned char *at = a->at + (size_t)from * (size_t)st_type_bytes(type);
    if (type == ST_F32)
        memcpy(out, at, (size_t)n * sizeof *out);
    else
        (void)convert(type, at, ST_F32, out, n);
}

/* The tensor as an array: `least` to `least` + 1 dims, and none of them is 0. */
static Err array_of(const char *path, const StTensor *t, const unsigned char *data, int least,
                    const char *dims, Array *out)
{
    bool empty = false;
    if (!convert_supports(t->type))
        return err_fail(ERR_CONFIG,
                        "%s: %s has elements of type %s; F16, BF16, F32 and F64 are "
                        "read",
                        path, t->name, st_type_name(t->type));
    for (int i = 0; i < t->ndim; i++) empty = empty || t->n[i] == 0;
    if (t->ndim < least || t->ndim > least + 1 || empty)
        return err_fail(ERR_CONFIG, "%s: %s%s with %d dims; it must be %s", path,
                        empty ? "an empty array" : "an array",
                        strcmp(t->name, path) == 0 ? "" : t->name, t->ndim, dims);
    *out = (Array){.ndim = t->ndim,
                   .type = st_type_name(t->type),
                   .type_id = (int)t->type,
                   .at = data + t->at,
                   .read = read_elements};
    memcpy(out->n, t->n, sizeof out->n);
    return OK;
}

static const char latent_dims[] = "[frames, height, width, channels], or [clips, frames, height, "
                                  "width, channels]";
static const char text_dims[] = "[states, width], or [clips, states, width]";

static Err open_npy(OpenClips *c, Arena *a)
{
    const char *path = c->clips.path, *beside;
    StTensor t;
    Text name = text_in(a);
    TRY(map_file(path, &c->map[0]));
    TRY(npy_parse(path, c->map[0], &t));
    TRY(array_of(path, &t, c->map[0].at, 4, latent_dims, &c->clips.latents));
    text_add(&name, "%.*s.text.npy", (int)(strlen(path) - 4), path);
    TRY(text_done(&name, &beside));
    if (!map_exists(beside)) return OK;
    TRY(map_file(beside, &c->map[1]));
    TRY(npy_parse(beside, c->map[1], &t));
    return array_of(beside, &t, c->map[1].at, 2, text_dims, &c->clips.text);
}

static Err open_safetensors(OpenClips *c, Arena *a)
{
    const char *path = c->clips.path;
    StFile file;
    TRY(st_read(path, a, &file));
    const StTensor *latents = st_find(&file, "latents"), *text = st_find(&file, "text");
    if (!latents)
        return err_fail(ERR_CONFIG, "%s: has no tensor `latents`, %s; `text` may stand beside it",
                        path, latent_dims);
    TRY(map_file(path, &c->map[0]));
    if ((int64_t)c->map[0].bytes < file.data_at + file.data_bytes)
        return err_fail(ERR_IO, "%s: was cut short while it was opened", path);
    const unsigned char *data = c->map[0].at + file.data_at;
    TRY(array_of(path, latents, data, 4, latent_dims, &c->clips.latents));
    return text ? array_of(path, text, data, 2, text_dims, &c->clips.text) : OK;
}

Err clip_open(const char *path, Arena *a, OpenClips *out)
{
    OpenClips c = {.clips = {.path = path}};
    const Err err = ends_in(path, ".npy") ? open_npy(&c, a) : open_safetensors(&c, a);
    if (err != OK) {
        clip_close(&c);
        return err;
    }
    *out = c;
    return OK;
}

void clip_close(OpenClips *c)
{
    for (int i = 0; i < 2; i++)
        if (c->map[i].at) unmap(&c->map[i]);
}

Err text_array_open(const char *path, Bytes *map, Array *out)
{
    StTensor t;
    TRY(map_file(path, map));
    Err err = npy_parse(path, *map, &t);
    if (err == OK) err = array_of(path, &t, map->at, 3, "[clips, states, width]", out);
    if (err == OK && out->ndim != 3)
        err = err_fail(ERR_CONFIG, "%s: an array with 4 dims; it must be [clips, states, width]",
                       path);
    if (err != OK) unmap(map);
    return err;
}
