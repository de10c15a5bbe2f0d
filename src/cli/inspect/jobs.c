/* jobs.c -- the inputs of a run: token files, schedules, run files, a model's
 * config.json. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cli/config/config.h"
#include "cli/data/data.h"
#include "cli/data/clips.h"
#include "cli/inspect/inspect.h"
#include "cli/config/renamed.h"
#include "cli/progress.h"
#include "schedule/check/check.h"
#include "schedule/text_form.h"

/* ---- token files ---- */

/* Raw uint16 files and Megatron pairs have no magic number, so their names decide. */
static bool is_tokens(const char *path, Bytes data)
{
    TokenFormat format;
    if (inspect_ends_in(path, ".idx")) return true;
    return (tokens_recognise(path, data, false, &format) == OK && format == FORMAT_TOKENS) ||
           inspect_ends_in(path, ".bin");
}

static Err describe_tokens(const char *path, Bytes data, Arena *a)
{
    Tokens t;
    (void)data;
    TRY(tokens_open(path, FORMAT_AUTO, a, &t));
    const Err err = data_describe(&t, NULL, a);
    tokens_close(&t);
    return err;
}

/* ---- schedules ---- */

static bool is_schedule(const char *path, Bytes data)
{
    (void)path;
    return inspect_head_holds(data, "sheaf schedule");
}

static Err describe_schedule(const char *path, Bytes data, Arena *a)
{
    Schedule s;
    char count[COUNT_BYTES];
    TRY(schedule_parse(path, (const char *)data.at, data.bytes, a, &s));
    printf("%s: a schedule over %s\n", path, s.level == OVER_UNITS ? "units" : "chunks");
    printf("  stages     %d, with %s actions in total\n", s.stages,
           grouped_digits(schedule_length(&s), count));
    printf("  chunks     %d, of %d units\n", s.chunks, schedule_units(&s));
    printf("  micros     %d\n", s.micros);
    if (s.slices > 1) printf("  slices     %d\n", s.slices);
    const Err err = schedule_check(&s, a);
    printf("  check      %s\n", err == OK ? "complete, and free of deadlocks" : err_text());
    return OK;
}

/* ---- run files ---- */

static bool is_run(const char *path, Bytes data)
{
    (void)data;
    return inspect_ends_in(path, ".yaml") || inspect_ends_in(path, ".yml");
}

/* True if the value equals the default, as text or as a number (1e-3 is 0.001). */
static bool is_default(const KeyValue *p)
{
    const int id = key_find(p->section, p->name);
    if (id < 0) return false;
    const char *fallback = key_at((KeyId)id)->fallback, *text = p->value.text;
    char *end, *fallback_end;
    const double x = strtod(text, &end), y = strtod(fallback, &fallback_end);
    const bool numbers = end != text && fallback_end != fallback && !*end && !*fallback_end;
    return strcmp(text, fallback) == 0 || (numbers && x == y);
}

/* Loads the file as a run would, so errors in it are reported with their line. */
static Err describe_run(const char *path, Bytes data, Arena *a)
{
    Config c;
    ModelConfig m;
    KeyValues pairs;
    const char *words;
    (void)data;
    TRY(config_load(path, NULL, 0, a, &c));
    TRY(config_model(&c, a, &m));
    TRY(pairs_read(path, a, &pairs));
    if (config_is_saved(path)) TRY(pairs_rename(&pairs, a));
    Text t = text_in(a);
    model_config_print(&m, &t);
    TRY(text_done(&t, &words));
    printf("%s: a run file\n%s", path, words);
    char sequences[COUNTED_BYTES];
    printf("  steps      %lld of %s of %lld tokens\n", (long long)c.run_steps,
           text_counted(c.batch_global, "sequence", sequences), (long long)c.data_seq_len);
    printf("  data       %s\n", c.data_train.n ? c.data_train.text : "none");
    fputs("  it sets   ", stdout);
    for (int i = 0; i < pairs.n; i++)
        if (!is_default(&pairs.at[i]))
            printf(" %s.%s=%s", pairs.at[i].section, pairs.at[i].name, pairs.at[i].value.text);
    puts("");
    return OK;
}

/* ---- models ---- */

static bool is_model(const char *path, Bytes data)
{
    return inspect_ends_in(path, "config.json") ||
           (inspect_ends_in(path, ".json") && inspect_head_holds(data, "\"model_type\""));
}

static Err describe_model(const char *path, Bytes data, Arena *a)
{
    ModelConfig m;
    const char *words;
    (void)data;
    TRY(model_config_load(path, NULL, 0, a, &m));
    Text t = text_in(a);
    model_config_print(&m, &t);
    TRY(text_done(&t, &words));
    printf("%s: the config.json of a model\n%s", path, words);
    return OK;
}

/* ---- clips of latents ---- */

static bool is_clips(const char *path, Bytes data)
{
    (void)data;
    return inspect_ends_in(path, ".npy");
}

static Err describe_clips(const char *path, Bytes data, Arena *a)
{
    (void)data;
    return clip_show(path, a);
}

const InspectKind inspect_jobs[] = {{is_clips, describe_clips},   {is_schedule, describe_schedule},
                                    {is_run, describe_run},       {is_model, describe_model},
                                    {is_tokens, describe_tokens}, {NULL, NULL}};
