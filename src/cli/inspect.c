/* inspect.c -- `sheaf inspect FILE`: what a file of ours is, said in words.
 *
 *     token files      as `sheaf data show`
 *     run files        the model, the data, the steps; what is not as by default
 *     schedules        ranks, chunks, micro-batches, actions; whether it is a good one
 *     metrics.jsonl    steps, losses, tokens
 *     config.json      the model
 *     recorder.json    of a run that failed: where each rank was, its latest transfers, who waits for whom
 *     a run folder     what is in it
 *
 * What a file is, its content says, or where content cannot, its name. */
#define _POSIX_C_SOURCE 200809L
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "cli/args.h"
#include "cli/config.h"
#include "cli/data.h"
#include "cli/keys.h"
#include "cli/say.h"
#include "cli/verbs.h"
#include "data/map.h"
#include "schedule/check.h"
#include "schedule/textform.h"
#include "train/board.h"

enum { HEAD_BYTES = 4096, PATH_BYTES = 1024 };

static bool ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

static bool head_holds(Bytes data, const char *word)
{
    const size_t n = strlen(word), head = data.bytes < HEAD_BYTES ? data.bytes : HEAD_BYTES;
    for (size_t i = 0; i + n <= head; i++)
        if (memcmp(data.at + i, word, n) == 0) return true;
    return false;
}

/* ---- token files ---- */

static bool is_tokens(const char *path, Bytes data)
{
    TokenFormat format;
    if (ends_in(path, ".idx")) return true;
    return (tokens_recognise(path, data, false, &format) == OK && format == FORMAT_TOKENS) ||
           ends_in(path, ".bin");
}

static Err say_tokens(const char *path, Bytes data, Arena *a)
{
    Tokens t;
    (void)data;
    TRY(tokens_open(path, FORMAT_AUTO, a, &t));
    const Err err = data_describe(&t, a);
    tokens_close(&t);
    return err;
}

/* ---- schedules ---- */

static bool is_schedule(const char *path, Bytes data)
{
    (void)path;
    return head_holds(data, "sheaf schedule");
}

static Err say_schedule(const char *path, Bytes data, Arena *a)
{
    Schedule s;
    char count[COUNT_BYTES];
    TRY(schedule_parse(path, (const char *)data.at, data.bytes, a, &s));
    printf("%s: a schedule over %s\n", path, s.grain == OVER_UNITS ? "units" : "chunks");
    printf("  ranks      %d, with %s actions in all\n", s.ranks,
           say_count(schedule_length(&s), count));
    printf("  chunks     %d, of %d units\n", s.chunks, schedule_units(&s));
    printf("  micros     %d\n", s.micros);
    if (s.slices > 1) printf("  slices     %d\n", s.slices);
    const Err err = schedule_check(&s, a);
    printf("  check      %s\n",
           err == OK ? "nothing is missing, and it cannot deadlock" : err_text());
    return OK;
}

/* ---- run files ---- */

static bool is_run(const char *path, Bytes data)
{
    (void)data;
    return ends_in(path, ".yaml") || ends_in(path, ".yml");
}

/* As the table of keys has it, or the same number written otherwise. */
static bool is_default(const Pair *p)
{
    const int id = key_find(p->section, p->name);
    if (id < 0) return false;
    const char *fallback = key_at((KeyId)id)->fallback, *text = p->value.text;
    char *end, *fallback_end;
    const double x = strtod(text, &end), y = strtod(fallback, &fallback_end);
    const bool numbers = end != text && fallback_end != fallback && !*end && !*fallback_end;
    return strcmp(text, fallback) == 0 || (numbers && x == y);
}

static Err say_run(const char *path, Bytes data, Arena *a)
{
    Config c;
    ModelConfig m;
    Pairs pairs;
    const char *words;
    (void)data;
    TRY(config_load(path, NULL, 0, a, &c));
    TRY(config_model(&c, a, &m));
    TRY(pairs_read(path, a, &pairs));
    Text t = text_in(a);
    model_config_print(&m, &t);
    TRY(text_done(&t, &words));
    printf("%s: a run file\n%s", path, words);
    printf("  steps      %lld of %lld sequences of %lld tokens\n", (long long)c.run_steps,
           (long long)c.batch_global, (long long)c.data_seq_len);
    printf("  data       %s\n", c.data_train.n ? c.data_train.text : "none");
    fputs("  it sets   ", stdout);
    for (int i = 0; i < pairs.n; i++)
        if (!is_default(&pairs.at[i]))
            printf(" %s.%s=%s", pairs.at[i].section, pairs.at[i].name, pairs.at[i].value.text);
    puts("");
    return OK;
}

/* ---- metrics ---- */

static bool is_metrics(const char *path, Bytes data)
{
    return ends_in(path, "metrics.jsonl") ||
           (head_holds(data, "\"step\"") && head_holds(data, "\"loss\""));
}

typedef struct {
    int64_t lines, first_step, last_step, tokens;
    double first_loss, last_loss, least_loss;
    bool cut; /* the last line has no end, and is not counted */
} Curve;

static Err add_line(const char *path, const char *line, size_t bytes, Curve *c)
{
    json_error_t why;
    json_t *o = json_loadb(line, bytes, 0, &why);
    if (!o)
        return err_fail(ERR_CHECK,
                        "%s:%lld: not JSON: %s; was a run killed while it wrote, and resumed?",
                        path, (long long)c->lines + 1, why.text);
    const int64_t step = json_integer_value(json_object_get(o, "step"));
    const double loss = json_number_value(json_object_get(o, "loss"));
    if (c->lines == 0) c->first_step = step, c->first_loss = c->least_loss = loss;
    c->last_step = step, c->last_loss = loss;
    if (loss < c->least_loss) c->least_loss = loss;
    c->tokens = json_integer_value(json_object_get(o, "tokens"));
    c->lines++;
    json_decref(o);
    return OK;
}

/* A run that is killed, or still writes, may leave the last line cut: the others stand. */
static Err read_curve(const char *path, Bytes data, Curve *c)
{
    const char *at = (const char *)data.at;
    for (size_t left = data.bytes; left > 0;) {
        const char *end = memchr(at, '\n', left);
        const size_t n = end ? (size_t)(end - at) : left;
        const Err err = add_line(path, at, n, c);
        c->cut = err != OK && !end;
        if (!c->cut) TRY(err);
        at += n + (end != NULL);
        left -= n + (end != NULL);
    }
    return OK;
}

static Err say_metrics(const char *path, Bytes data, Arena *a)
{
    Curve c = {0};
    char count[COUNT_BYTES];
    (void)a;
    TRY(read_curve(path, data, &c));
    printf("%s: metrics of a run, a line a step\n", path);
    printf("  lines      %s%s\n", say_count(c.lines, count),
           c.cut ? ", and a last one that is cut: the run was killed while it wrote, or it still "
                   "writes"
                 : "");
    if (c.lines == 0) return OK;
    printf("  steps      %lld to %lld\n", (long long)c.first_step, (long long)c.last_step);
    printf("  loss       %.4f to %.4f, at least %.4f\n", c.first_loss, c.last_loss, c.least_loss);
    printf("  tokens     %s\n", say_count(c.tokens, count));
    return OK;
}

/* ---- models ---- */

static bool is_model(const char *path, Bytes data)
{
    return ends_in(path, "config.json") ||
           (ends_in(path, ".json") && head_holds(data, "\"model_type\""));
}

static Err say_model(const char *path, Bytes data, Arena *a)
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

/* ---- recorders ---- */

static bool is_recorder(const char *path, Bytes data)
{
    (void)path;
    return head_holds(data, "\"sheaf\": \"recorder\"");
}

static Err say_recorder(const char *path, Bytes data, Arena *a)
{
    enum { LATEST = 5 };
    Board board;
    const char *reason, *words;
    (void)data;
    TRY(board_read(path, a, &board, &reason));
    printf("%s: what the ranks of a run that failed did last\n", path);
    printf("  reason     %s\n", reason);
    printf("  ranks      %d of %d\n", board.n_seats, board.ranks);
    Text t = text_in(a);
    board_tell(&board, LATEST, &t);
    TRY(text_done(&t, &words));
    fputs(words, stdout);
    return OK;
}

/* The first row that knows the file says what it is. */
static const struct {
    bool (*is)(const char *path, Bytes data);
    Err (*say)(const char *path, Bytes data, Arena *a);
} kind[] = {{is_schedule, say_schedule},
            {is_recorder, say_recorder},
            {is_run, say_run},
            {is_model, say_model},
            {is_metrics, say_metrics},
            {is_tokens, say_tokens},
            {NULL, NULL}};

static Err inspect_file(const char *path, Arena *a)
{
    Bytes data;
    TRY(map_file(path, &data));
    Err err = OK;
    int k = 0;
    while (kind[k].is && !kind[k].is(path, data)) k++;
    if (kind[k].is)
        err = kind[k].say(path, data, a);
    else
        err =
            err_fail(ERR_CHECK,
                     "%s: no file of ours that I know; token files, run files (.yaml), schedules, "
                     "metrics.jsonl, recorder.json, config.json and run folders are. `sheaf data "
                     "show` tells "
                     "what it would be as training data",
                     path);
    unmap(&data);
    return err;
}

/* A run folder, or a model's: the files in it that we know. */
static Err inspect_folder(const char *path, Arena *a)
{
    static const char *const names[] = {"config.yaml", "config.json", "metrics.jsonl",
                                        "recorder.json"};
    int known = 0;
    for (int i = 0; i < 4; i++) {
        char file[PATH_BYTES];
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        if (!map_exists(file)) continue;
        known++;
        TRY(inspect_file(file, a));
    }
    if (known) return OK;
    return err_fail(ERR_CHECK, "%s: a folder without config.yaml, config.json or metrics.jsonl",
                    path);
}

int verb_inspect(int argc, char **argv)
{
    Arena arena;
    Words files = {0};
    struct stat s;
    int status = 0;
    if (arena_open(&arena, "inspect", ARENA_PLENTY) != OK) return cli_fail(ERR_NOMEM);
    Err err = args_words(argc, argv, NULL, 0, &arena, &files);
    if (err == OK && files.n == 0) err = err_fail(ERR_CONFIG, "inspect: no file; name one");
    if (err != OK) status = cli_fail(err);
    for (int i = 0; i < files.n && err == OK; i++) {
        const bool folder = stat(files.at[i], &s) == 0 && S_ISDIR(s.st_mode);
        const Err of_file =
            folder ? inspect_folder(files.at[i], &arena) : inspect_file(files.at[i], &arena);
        if (of_file != OK) status = cli_fail(of_file);
    }
    arena_close(&arena);
    return status;
}
