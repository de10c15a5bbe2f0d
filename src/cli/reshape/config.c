/* config.c -- the configuration of the target: the source's, with the arguments applied. */
#include "cli/reshape/reshape.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "cli/config/job.h"
#include "cli/config/plan_file.h"
#include "cli/config/print.h"

bool reshape_is_ignore(const Reshape *r, int i)
{
    return r->from.kind == SOURCE_HF && strncmp(r->set[i], "model.ignore=", 13) == 0;
}

/* Only the distribution over ranks may change. A Hugging Face source has no training state yet, so
 * data and optimizer may be set too, but not the model. */
Err reshape_check_keys(const Reshape *r)
{
    static const char *const may[] = {"mesh.",     "parallel.", "precision.",
                                      "numerics.", "run.",      "batch.micro="};
    for (int i = 0; i < r->n_set; i++) {
        bool fine = false;
        for (size_t k = 0; k < sizeof may / sizeof *may; k++)
            fine = fine || strncmp(r->set[i], may[k], strlen(may[k])) == 0;
        if (strncmp(r->set[i], "run.dir=", 8) == 0)
            return err_fail(ERR_CONFIG, "reshape: %s: the run folder is DST, %s", r->set[i],
                            r->target);
        if (r->from.kind == SOURCE_HF)
            fine = strncmp(r->set[i], "model.", 6) != 0 || reshape_is_ignore(r, i);
        if (!fine)
            return err_fail(ERR_CONFIG,
                            "reshape: %.80s: changes what is trained, not how it is distributed; "
                            "give it to `sheaf train` instead",
                            r->set[i]);
    }
    return OK;
}

/* True if an argument starts with `begin`. */
static bool is_given(const Reshape *r, const char *begin)
{
    for (int i = 0; i < r->n_set; i++)
        if (strncmp(r->set[i], begin, strlen(begin)) == 0) return true;
    return false;
}

/* True for a line of the saved configuration whose key must be settled again, always ("") or
 * because an argument changes a key that it depends on. */
static bool is_settled_again(const Reshape *r, const char *section, const char *line)
{
    static const struct {
        const char *section, *key, *by[2];
    } row[] = {{"run", "ranks:", {"", ""}},
               {"run", "threads:", {"", ""}},
               {"run", "dir:", {"", ""}},
               {"mesh", "dp:", {"mesh.dp", "run.ranks="}},
               {"mesh", "dp_replicate:", {"mesh.dp", "run.ranks="}},
               {"mesh", "dp_shard:", {"mesh.dp", "run.ranks="}},
               {"parallel", "reduce:", {"parallel.zero=", "parallel.zero_weights="}}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (strcmp(section, row[i].section) == 0 &&
            strncmp(line, row[i].key, strlen(row[i].key)) == 0)
            return r->plan || is_given(r, row[i].by[0]) || is_given(r, row[i].by[1]) ||
                   !row[i].by[0][0];
    return false;
}

/* Writes the saved configuration as a run file. Keys that are settled again become empty lines, so
 * that messages have the line numbers of the saved text. */
static Err write_base(const Reshape *r, const char *path)
{
    char section[64] = "";
    FILE *f = fopen(path, "w");
    if (!f) return err_fail(ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    for (const char *at = r->from.manifest.scalars.config, *end; *at; at = end) {
        end = strchr(at, '\n');
        end = end ? end + 1 : at + strlen(at);
        if (*at != ' ') snprintf(section, sizeof section, "%.*s", (int)strcspn(at, ":"), at);
        const bool again = is_settled_again(r, section, at + strspn(at, " "));
        if (again)
            fputc('\n', f);
        else
            fwrite(at, 1, (size_t)(end - at), f);
    }
    const bool bad = ferror(f) != 0;
    return fclose(f) != 0 || bad ? err_fail(ERR_IO, "%s: cannot be written", path) : OK;
}

static Err add_set(Reshape *r, int *n, const char *key, const char *value)
{
    Text t = text_in(&r->arena);
    text_add(&t, "%s=%s", key, value);
    return text_done(&t, &r->set[(*n)++]);
}

/* Sets run.dir to DST, and model.name to its hf/ folder if the source has a config.json. */
static Err add_places(Reshape *r, int *n)
{
    char name[MAX_RUN_DIR + 8];
    snprintf(name, sizeof name, "%s/" HF_EXTRA_DIR, r->target);
    TRY(add_set(r, n, "run.dir", r->target));
    return r->from.extra_dir ? add_set(r, n, "model.name", name) : OK;
}

static Err load(Reshape *r, const char *path, int n)
{
    const char *name;
    Text t = text_in(&r->arena);
    text_add(&t, "configuration saved in %s", r->from.manifest.dir);
    TRY(text_done(&t, &name));
    const ConfigSource from = {
        .file = path, .file_name = name, .plan = r->plan, .set = r->set, .n_set = n};
    return config_open(&from, &r->arena, &r->config);
}

/* The configuration of a run that starts from a Hugging Face folder: defaults and arguments.
 * data.seq_len is lowered to the positions of the model unless it is given. */
static Err fresh_config(Reshape *r)
{
    char longest[24];
    int n = r->n_set;
    TRY(add_places(r, &n));
    TRY(load(r, NULL, n));
    if (r->config.data_seq_len <= r->model.max_positions || is_given(r, "data.seq_len=")) return OK;
    snprintf(longest, sizeof longest, "%lld", (long long)r->model.max_positions);
    TRY(add_set(r, &n, "data.seq_len", longest));
    return load(r, NULL, n);
}

/* The configuration of a checkpoint with the arguments applied. It is loaded from DST.tmp, a run
 * folder with checkpoints/, so key names of earlier versions are accepted. */
static Err saved_config(Reshape *r)
{
    char path[MAX_RUN_DIR + 64];
    int n = r->n_set;
    snprintf(path, sizeof path, "%s/config.yaml", r->dir);
    TRY(write_base(r, path));
    TRY(add_places(r, &n));
    return load(r, path, n);
}

/* Refuses to add or remove the marks of delayed scaling: the new run could not resume. */
static Err check_marks(const Reshape *r)
{
    const Config *c = &r->config;
    const bool delayed =
        c->precision_compute == COMPUTE_FP8 && c->precision_scaling == SCALES_DELAYED;
    if (delayed == r->from.model.fp8_marks) return OK;
    return err_fail(ERR_CONFIG,
                    "reshape: precision.scaling: %s has %s marks of delayed scaling; leave out "
                    "precision.compute and precision.scaling, or train with these from its "
                    "weights, by model.init=%s",
                    r->from.dir, delayed ? "no" : "the", r->source);
}

Err reshape_config(Reshape *r)
{
    JobSettings set;
    const bool hf = r->from.kind == SOURCE_HF;
    r->model = r->from.model;
    TRY(hf ? fresh_config(r) : saved_config(r));
    TRY(check_marks(r));
    if (r->plan) TRY(plan_file_check(&r->config, &r->model, &r->arena));
    TRY(config_write(&r->config, r->dir));
    Config c = r->config;
    c.parallel_prepack = false; /* nothing is computed here, and the device may not support it */
    TRY(config_job(&c, &r->model, &set));
    if (manifest_is_weights(&r->from.manifest)) set.optim.kind = OPTIM_SGD; /* without moments */
    if (hf && dtype_wide(set.dtype) != F32)
        TRY(hf_open(r->from.dir, &r->model, dtype_wide(set.dtype), &r->arena, &r->from.manifest));
    return job_compile(&set, &r->arena, &r->job);
}
