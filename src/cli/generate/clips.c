/* clips.c -- `sheaf generate` for a model of clips: samples as a .npy file.
 *
 *     sheaf generate runs/shapes --clips 8 --steps 50 --seed 3 -o samples.npy */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/data/clips.h"
#include "cli/generate/generate.h"
#include "cli/new_file.h"
#include "data/map.h"
#include "state/clip_open.h"
#include "state/npy.h"

enum { CLIPS_AT_ONCE = 4, STEPS = 50, MAX_CLIPS = 1 << 20, MAX_STEPS = 1 << 16 };

static Err read_count(const char *flag, const char *text, int64_t low, int64_t high, int64_t *out)
{
    char *end;
    if (!text) return OK;
    const long long x = strtoll(text, &end, 10);
    if (end == text || *end || x < low || x > high)
        return err_fail(ERR_CONFIG, "%s %.40s: must be a whole number, %lld to %lld", flag, text,
                        (long long)low, (long long)high);
    *out = x;
    return OK;
}

/* Copies the texts of the samples, one each. */
static Err read_texts(GenerateRequest *g, const char *path)
{
    const ClipConfig *x = &g->infer.source.model.clip;
    const int64_t each = x->text_length * x->text_width;
    Bytes map;
    Array a;
    TRY(text_array_open(path, &map, &a));
    Err err = OK;
    if (a.n[0] != g->clip.n || a.n[1] != x->text_length || a.n[2] != x->text_width)
        err = err_fail(ERR_CONFIG,
                       "--texts %s: %lld texts of %lld states of %lld; it needs %lld (--clips) of "
                       "%lld of %lld",
                       path, (long long)a.n[0], (long long)a.n[1], (long long)a.n[2],
                       (long long)g->clip.n, (long long)x->text_length, (long long)x->text_width);
    if (err == OK) err = ARENA_NEW(&g->infer.arena, g->clip.n * each, &g->clip.text);
    if (err == OK) a.read(&a, 0, g->clip.n * each, g->clip.text);
    if (err == OK) err = map_check();
    if (err == OK) err = clip_check_finite(path, 0, g->clip.text, g->clip.n * each);
    unmap(&map);
    return err;
}

static Err check_texts(const GenerateRequest *g, const ClipFlags *f)
{
    const bool text = g->infer.source.model.clip.text_length > 0;
    if (text == (f->texts != NULL)) return OK;
    if (text)
        return err_fail(ERR_CONFIG,
                        "generate: the model of %s reads texts; give them with --texts "
                        "FILE.npy",
                        g->infer.source.dir);
    return err_fail(ERR_CONFIG, "--texts: the model of %s has no text; leave it out",
                    g->infer.source.dir);
}

Err generate_clips_prepare(GenerateRequest *g, const ClipFlags *f, const char *batch,
                           const char *seed)
{
    const ModelConfig *c = &g->infer.source.model;
    const size_t n = f->out ? strlen(f->out) : 0;
    int64_t at_once, number = 1;
    g->clip = (ClipRequest){.n = 1, .steps = STEPS, .out = f->out};
    TRY(read_count("--clips", f->clips, 1, MAX_CLIPS, &g->clip.n));
    TRY(read_count("--steps", f->steps, 1, MAX_STEPS, &g->clip.steps));
    TRY(read_count("--seed", seed, 0, INT32_MAX, &number));
    at_once = CLIPS_AT_ONCE;
    TRY(read_count("--batch", batch, 1, MAX_CLIPS, &at_once));
    if (at_once > g->clip.n) at_once = g->clip.n;
    g->clip.seed = (uint64_t)number;
    if (n < 5 || strcmp(f->out + n - 4, ".npy") != 0)
        return err_fail(ERR_CONFIG,
                        "generate: the samples of %s are an array; give a file with -o NAME.npy",
                        g->infer.source.dir);
    if (g->infer.launch.rank == 0) TRY(new_file_try("-o", f->out));
    TRY(check_texts(g, f));
    if (f->texts) TRY(read_texts(g, f->texts));
    const int64_t each = c->frames * c->clip.height * c->clip.width * c->clip.channels;
    TRY(ARENA_NEW(&g->infer.arena, g->clip.n * each, &g->clip.latents));
    const int64_t rows = at_once * c->max_positions;
    g->shape = (SessionShape){rows, rows, at_once, c->max_positions, false};
    return OK;
}

static Err write_clips(const GenerateRequest *g)
{
    const ModelConfig *c = &g->infer.source.model;
    const int64_t n[] = {g->clip.result.clips, c->frames, c->clip.height, c->clip.width,
                         c->clip.channels};
    NpyWriter w;
    TRY(npy_create(&w, g->clip.out, 5, n));
    const Err err = npy_write(&w, g->clip.latents, n[0] * n[1] * n[2] * n[3] * n[4]);
    const Err closed = npy_close(&w);
    if (err != OK || closed != OK) remove(g->clip.out); /* a new file, which is incomplete */
    return err != OK ? err : closed;
}

/* Ranks of one process share the array of rank 0; others write to one of their own. */
Err generate_clips(GenerateRequest *g, Session *session, WorldRank *w)
{
    const ModelConfig *c = &g->infer.source.model;
    const int64_t each = c->frames * c->clip.height * c->clip.width * c->clip.channels;
    float *latents = g->clip.latents;
    DenoiseResult result;
    if (w->place != 0)
        TRY(world_agree(w, ARENA_NEW(w->arena, g->clip.n * each, &latents)));
    else
        TRY(world_agree(w, OK));
    const DenoiseSettings set = {.session = session,
                                 .model = c,
                                 .clips = g->clip.n,
                                 .steps = g->clip.steps,
                                 .seed = g->clip.seed,
                                 .text = g->clip.text,
                                 .stop = g->infer.stop,
                                 .arena = w->arena};
    TRY(denoise_run(&set, latents, &result));
    if (w->place == 0) g->clip.result = result;
    return world_agree(w, w->rank == 0 ? write_clips(g) : OK);
}

void generate_clips_summary(const GenerateRequest *g)
{
    const DenoiseResult *r = &g->clip.result;
    fprintf(stderr, "%s: %lld clip%s of %lld steps in %.3g s, in %s\n",
            r->stopped ? "stopped" : "done", (long long)r->clips, r->clips == 1 ? "" : "s",
            (long long)g->clip.steps, r->seconds, g->clip.out);
}
