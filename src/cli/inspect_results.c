/* inspect_results.c -- what a run leaves: metrics.jsonl, and recorder.json when it failed. */
#define _POSIX_C_SOURCE 200809L
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "cli/inspect.h"
#include "cli/progress.h"
#include "world/flight_recorder.h"

/* ---- metrics ---- */

static bool is_metrics(const char *path, Bytes data)
{
    return inspect_ends_in(path, "metrics.jsonl") ||
           (inspect_head_holds(data, "\"step\"") && inspect_head_holds(data, "\"loss\""));
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

static Err describe_metrics(const char *path, Bytes data, Arena *a)
{
    Curve c = {0};
    char count[COUNT_BYTES];
    (void)a;
    TRY(read_curve(path, data, &c));
    printf("%s: metrics of a run, a line a step\n", path);
    printf("  lines      %s%s\n", grouped_digits(c.lines, count),
           c.cut ? ", and a last one that is cut: the run was killed while it wrote, or it still "
                   "writes"
                 : "");
    if (c.lines == 0) return OK;
    printf("  steps      %lld to %lld\n", (long long)c.first_step, (long long)c.last_step);
    printf("  loss       %.4f to %.4f, at least %.4f\n", c.first_loss, c.last_loss, c.least_loss);
    printf("  tokens     %s\n", grouped_digits(c.tokens, count));
    return OK;
}

/* ---- recorders ---- */

static bool is_recorder(const char *path, Bytes data)
{
    (void)path;
    return inspect_head_holds(data, "\"sheaf\": \"recorder\"");
}

static Err describe_recorder(const char *path, Bytes data, Arena *a)
{
    enum { LATEST = 5 };
    FlightRecorder board;
    const char *reason, *words;
    (void)data;
    TRY(flight_recorder_read(path, a, &board, &reason));
    printf("%s: what the ranks of a run that failed did last\n", path);
    printf("  reason     %s\n", reason);
    printf("  ranks      %d of %d\n", board.n_seats, board.ranks);
    Text t = text_in(a);
    flight_recorder_report(&board, LATEST, &t);
    TRY(text_done(&t, &words));
    fputs(words, stdout);
    return OK;
}

const InspectKind inspect_results[] = {
    {is_recorder, describe_recorder}, {is_metrics, describe_metrics}, {NULL, NULL}};
