/* hf.c -- `sheaf reshape SRC DST --hf`, and the files that a run keeps of a Hugging Face
 * folder.
 *
 *     weights of SRC, read and checked           -->  DST/config.json, model.safetensors or shards
 *     tokenizer files of a Hugging Face SRC,     -->  DST
 *     in RUN/hf or next to data.tokenizer */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "cli/config/print.h"
#include "base/clock.h"
#include "cli/reshape/reshape.h"
#include "state/disk.h"

static Err parse_type(const char *text, int *out)
{
    static const struct {
        const char *name;
        int type;
    } types[] = {{"f32", ST_F32}, {"bf16", ST_BF16}, {"f16", ST_F16}};
    *out = HF_AS_STORED;
    if (!text) return OK;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(text, types[i].name) == 0) {
            *out = types[i].type;
            return OK;
        }
    return err_fail(ERR_CONFIG, "reshape: --dtype %.40s: must be f32, bf16 or f16", text);
}

/* Parses "500MB" or "5GB"; decimal units, as in the transformers library. */
static Err parse_size(const char *text, int64_t *out)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};
    char *end;
    *out = HF_SHARD_BYTES;
    if (!text) return OK;
    const double n = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].name) == 0 && n * units[i].bytes >= 1 &&
            n * units[i].bytes < 1e15) {
            *out = (int64_t)(n * units[i].bytes);
            return OK;
        }
    return err_fail(ERR_CONFIG,
                    "reshape: --shard-size %.40s: must be a number and KB, MB or GB, as 5GB", text);
}

static Err parse_threads(const char *text, int *out)
{
    int end = 0;
    *out = cores_usable();
    if (!text || (sscanf(text, "%d%n", out, &end) == 1 && !text[end] && *out > 0 && *out <= 1024))
        return OK;
    return err_fail(ERR_CONFIG, "reshape: --threads %.40s: must be 1 to 1024", text);
}

/* Finds the tokenizer of the run's configuration. The whole folder of a tokenizer.json is used. A
 * file of another name is used alone, because other files in its folder need not belong to it. If
 * the file is gone, the copies in RUN/hf are used. */
static Err find_tokenizer(Reshape *r, HfWriteSettings *w)
{
    struct stat s;
    const char *path;
    char *folder;
    TRY(config_yaml_text(r->from.manifest.scalars.config, "data", "tokenizer", &r->arena, &path));
    if (!path || stat(path, &s) != 0 || !S_ISREG(s.st_mode)) return OK;
    const char *slash = strrchr(path, '/');
    if (strcmp(slash ? slash + 1 : path, "tokenizer.json") != 0) {
        w->tokenizer = path;
        return OK;
    }
    TRY(ARENA_NEW(&r->arena, strlen(path) + 2, &folder));
    strcpy(folder, slash ? path : ".");
    if (slash) folder[slash == path ? 1 : slash - path] = '\0';
    w->extra_dir = folder;
    return OK;
}

static void print_summary(const Reshape *r, const HfWriteResult *w, double seconds)
{
    char bytes[24], tokenizer[64] = "no tokenizer is known, none was copied";
    if (w->tokenizer_files)
        snprintf(tokenizer, sizeof tokenizer, "%d of tokenizer and generation", w->tokenizer_files);
    printf("%s: %d file%s of weights, %s; %s; in %.1f s\n", r->target, w->files,
           w->files == 1 ? "" : "s", text_bytes(w->bytes, bytes), tokenizer, seconds);
    if (w->overflow)
        fprintf(
            stderr,
            "sheaf: WARNING: %lld weights exceed the range of %s and became infinite; use --dtype "
            "%s\n",
            (long long)w->overflow, r->dtype ? r->dtype : "its type",
            r->dtype && strcmp(r->dtype, "f16") == 0 ? "bf16 or f32" : "f32");
}

static Err write_hf(Reshape *r, HfWriteSettings *w, int threads)
{
    char bytes[24], memory[24];
    const double begin_s = now_s();
    const StateTensors *t = &r->from.manifest.tensors;
    HfWriteResult result;
    int64_t weights = 0;
    if (r->from.model.frames)
        return err_fail(ERR_CONFIG,
                        "--hf: %s is a %s, which has no Hugging Face form; leave out --hf to write "
                        "a checkpoint",
                        r->from.dir, family_name(r->from.model.family));
    for (int i = 0; i < t->n; i++)
        if (t->tensor[i].role == STATE_WEIGHT)
            weights += shape_count(&t->tensor[i].shape) * (int64_t)dtype_bytes(t->tensor[i].dtype);
    printf("%s: %s, step %lld, %s of weights, to %s: Hugging Face%s%s; %d thread%s, buffers %s\n",
           r->from.dir, family_name(r->from.model.family), (long long)r->from.manifest.scalars.step,
           text_bytes(weights, bytes), r->target, r->dtype ? ", " : "", r->dtype ? r->dtype : "",
           threads, threads == 1 ? "" : "s",
           text_bytes((int64_t)threads * HF_THREAD_BYTES, memory));
    fflush(stdout);
    r->progress = progress_begin("reshape", r->target, weights);
    const Err err = hf_write(w, &result);
    progress_end(&r->progress);
    TRY(err);
    print_summary(r, &result, now_s() - begin_s);
    return OK;
}

Err reshape_to_hf(Reshape *r)
{
    HfWriteSettings w = {.from = &r->from,
                         .dir = r->target,
                         .extra_dir = r->from.extra_dir,
                         .progress = reshape_at,
                         .context = r,
                         .temp = &r->temp};
    int threads;
    Team *team;
    for (int i = 0; i < r->n_set; i++)
        if (!reshape_is_ignore(r, i))
            return err_fail(
                ERR_CONFIG,
                "reshape: %.80s: has no effect with --hf, which writes whole tensors; remove it",
                r->set[i]);
    TRY(parse_type(r->dtype, &w.type));
    TRY(parse_size(r->shard, &w.shard_bytes));
    TRY(parse_threads(r->threads, &threads));
    if (r->from.kind != SOURCE_HF) TRY(find_tokenizer(r, &w));
    TRY(team_open(&team, threads, NULL));
    w.team = team;
    const Err err = write_hf(r, &w, threads);
    team_close(team);
    return err;
}

/* ---- a run that starts from a Hugging Face folder ---- */

Err reshape_extra_files(Reshape *r)
{
    char dir[MAX_RUN_DIR + 16];
    ModelConfig trains;
    const ModelSource from = {.name = r->from.dir,
                              .ignore = {r->config.model_ignore.at, r->config.model_ignore.n}};
    if (!r->from.extra_dir) return OK;
    snprintf(dir, sizeof dir, "%s/" HF_EXTRA_DIR, r->dir);
    TRY(hf_keep_files(&r->from, dir, true, &r->arena));
    if (r->from.kind == SOURCE_HF && model_config_open(&from, &r->arena, &trains) != OK)
        printf("%s: its config.json has dropout, which this version does not support: the run "
               "trains without it\n",
               r->from.dir);
    return OK;
}
