/* resume_job.c -- checks that a checkpoint is of the same job as the run that resumes from it. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "train/resume.h"

enum { VALUE_BYTES = 80 };

static Err different_job(const char *what, const char *key, const char *saved, const char *now)
{
    return err_fail(ERR_CONFIG,
                    "%s was saved by a run with %s=%s, and now it is %s: that is another job; set "
                    "%s=%s, or run.fresh=true to restart (the old folder is renamed), or choose "
                    "another run.dir",
                    what, key, saved, now, key, saved);
}

static Err same_number(const char *what, const char *key, int64_t saved, int64_t now)
{
    char a[VALUE_BYTES], b[VALUE_BYTES];
    if (saved == now) return OK;
    snprintf(a, sizeof a, "%lld", (long long)saved);
    snprintf(b, sizeof b, "%lld", (long long)now);
    return different_job(what, key, a, b);
}

static Err same_text(const char *what, const char *key, const char *saved, const char *now)
{
    return strcmp(saved, now) == 0 ? OK : different_job(what, key, saved, now);
}

/* f32 and bf16 keep the same master weights and moments; f64 keeps wider ones. */
static const char *family(const char *dtype)
{
    return strcmp(dtype, "f64") == 0 ? "f64" : "f32 or bf16";
}

static void value_text(const json_t *x, char out[VALUE_BYTES])
{
    char *text = x ? json_dumps(x, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    snprintf(out, VALUE_BYTES, "%s", text ? text : "(not set)");
    free(text);
}

static Err same_field(const char *what, const char *key, const json_t *saved, const json_t *now)
{
    char name[160], a[VALUE_BYTES], b[VALUE_BYTES];
    if (saved && now && json_equal(saved, now)) return OK;
    snprintf(name, sizeof name, "model.%s", key);
    value_text(saved, a);
    value_text(now, b);
    return different_job(what, name, a, b);
}

static Err same_model(const char *what, const char *saved, const char *now)
{
    json_t *a = json_loads(saved, 0, NULL), *b = json_loads(now, 0, NULL), *value;
    const char *key;
    Err err = OK;
    if (!json_is_object(a) || !json_is_object(b))
        err = err_fail(ERR_CHECK, "%s: its model is not a JSON object", what);
    json_object_foreach(a, key, value)
    {
        if (err == OK) err = same_field(what, key, value, json_object_get(b, key));
    }
    json_object_foreach(b, key, value)
    {
        if (err == OK) err = same_field(what, key, json_object_get(a, key), value);
    }
    json_decref(a);
    json_decref(b);
    return err;
}

Err resume_same_job(const char *what, const StateScalars *saved, const StateScalars *now)
{
    TRY(same_model(what, saved->model, now->model));
    if (strcmp(saved->optim, "none") == 0)
        return OK; /* weights only: no run has trained them yet */
    TRY(same_number(what, "data.seq_len", saved->seq_len, now->seq_len));
    TRY(same_text(what, "data.pack", saved->pack ? "true" : "false", now->pack ? "true" : "false"));
    TRY(same_number(what, "run.seed", (int64_t)saved->seed, (int64_t)now->seed));
    TRY(same_text(what, "optim.kind", saved->optim, now->optim));
    TRY(same_text(what, "precision.compute", family(saved->dtype), family(now->dtype)));
    if (saved->data == now->data) return OK;
    return err_fail(ERR_CONFIG,
                    "%s was saved by a run on other tokens than those of data.train (fingerprint "
                    "%016llx, and now %016llx), so the remaining samples are unknown; use "
                    "the same files, or set run.fresh=true to restart (the old folder is renamed), "
                    "or choose another run.dir",
                    what, (unsigned long long)saved->data, (unsigned long long)now->data);
}
